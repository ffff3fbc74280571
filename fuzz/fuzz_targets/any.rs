//! Any bytes, read as a program and as an archive.
#![no_main]

use std::time::Duration;

use fastpath_tools::audit::{Limits, Options, judge, of_bytes, sarif};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let options = Options {
        limits: Limits {
            bytes: 16 << 20,
            time: Duration::from_secs(5),
            ..Limits::default()
        },
        with_programs: true,
    };
    let _ = judge(bytes);
    let _ = sarif(&of_bytes(bytes, &options), "0");
});
