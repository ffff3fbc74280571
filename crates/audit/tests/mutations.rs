//! Whatever the bytes, the audit has an answer, in bounded time.

use std::time::Duration;

use fastpath_audit::{Limits, Options, judge, of_bytes};

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

#[test]
fn whatever_the_bytes_there_is_an_answer_in_time() {
    let mut seeds = mutations::corpus("any");
    seeds.extend(
        ["/bin/true", "/bin/ls"]
            .iter()
            .filter_map(|path| std::fs::read(path).ok()),
    );
    let options = Options {
        limits: Limits {
            bytes: 64 << 20,
            time: Duration::from_secs(5),
            ..Limits::default()
        },
        with_programs: true,
    };
    mutations::feed(&seeds, Duration::from_secs(20), u64::MAX, |bytes| {
        let _ = judge(bytes);
        let _ = of_bytes(bytes, &options);
    });
}
