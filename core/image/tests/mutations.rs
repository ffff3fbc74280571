//! Reading any bytes as a vDSO ends, in bounded time.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::time::Duration;

use fastpath_image::{Image, Vdso, own_vdso, page_abi};

#[test]
fn whatever_the_bytes_they_are_a_vdso_or_refused() {
    let mut seeds = vec![Image::host().bytes().to_vec()];
    seeds.extend(own_vdso().ok().flatten().map(|kernel| kernel.bytes));
    let (mut read, mut refused) = (0, 0);
    mutations::feed(&seeds, Duration::from_secs(5), 5, |bytes| {
        let _ = page_abi(bytes);
        match Vdso::parse(bytes) {
            Ok(vdso) => {
                read += 1;
                let _ = (vdso.soname(), vdso.build_id(), vdso.find("__vdso_clock_gettime"));
            }
            Err(why) => {
                refused += 1;
                assert!(!why.to_string().is_empty());
            }
        }
    });
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}
