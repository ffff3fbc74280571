//! Analysing any bytes ends, in bounded time, and every window that is proven has a thunk.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::time::Duration;

use fastpath_code::rescue::thunk::to_entry;
use fastpath_code::rescue::{analyse, analyse_all};
use fastpath_image::{Image, Isa};

#[test]
fn whatever_the_bytes_they_have_sites_or_none() {
    // Small files with functions and system calls.
    let images = [Isa::X86_64, Isa::Aarch64].into_iter().filter_map(Image::for_hosts);
    let mut seeds: Vec<Vec<u8>> = images.map(|image| image.bytes().to_vec()).collect();
    seeds.extend(mutations::corpus("any"));
    let mut sites = 0;
    mutations::feed(&seeds, Duration::from_secs(5), 5, |bytes| {
        let _ = analyse(bytes);
        for site in analyse_all(bytes).sites {
            sites += 1;
            let Ok(window) = &site.window else { continue };
            assert!(
                to_entry(window, 0, window.address.wrapping_add(1 << 20), 0).is_some(),
                "{site:?}"
            );
        }
    });
    assert!(sites > 0);
}
