//! The audit returns in bounded time for any bytes.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::io::Read;
use std::time::Duration;

use fastpath_tools::audit::{AuditOptions, Limits, judge, of_bytes};

fn options() -> AuditOptions {
    AuditOptions {
        limits: Limits {
            bytes: 64 << 20,
            time: Duration::from_secs(5),
            ..Limits::default()
        },
        with_programs: true,
        with_sites: false,
    }
}

/// Longer than the time limit of the options, for a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn whatever_the_bytes_there_is_an_answer_in_time() {
    let mut seeds = mutations::corpus("any");
    seeds.extend(
        ["/bin/true", "/bin/ls"]
            .iter()
            .filter_map(|path| std::fs::read(path).ok()),
    );
    let options = options();
    mutations::feed(&seeds, LIMIT, u64::MAX, |bytes| {
        let _ = judge(bytes);
        let _ = of_bytes(bytes, &options);
    });
}

/// The archives of the corpus, decompressed: a mutation of a compressed one rarely gets past the decoder.
fn archives() -> Vec<Vec<u8>> {
    let unpacked = |bytes: Vec<u8>| {
        let mut out = Vec::new();
        match flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut out) {
            Ok(_) => out,
            Err(_) => bytes,
        }
    };
    let all: Vec<_> = mutations::corpus("any").into_iter().map(unpacked).collect();
    all.into_iter()
        .filter(|bytes| bytes.get(257..262) == Some(b"ustar"))
        .collect()
}

#[test]
fn a_broken_tar_archive_has_an_answer_in_time() {
    let options = options();
    let (mut whole, mut given_up) = (0, 0);
    mutations::feed(&archives(), LIMIT, 5, |bytes| {
        match of_bytes(bytes, &options).summary.unjudged == 0 {
            true => whole += 1,
            false => given_up += 1,
        }
    });
    assert!(whole > 0 && given_up > 0, "{whole} whole, {given_up} given up");
}

#[test]
fn a_broken_zstd_frame_has_an_answer_in_time() {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let seeds: Vec<_> = archives()
        .iter()
        .map(|bytes| ruzstd::encoding::compress_to_vec(&bytes[..], level))
        .collect();
    let options = options();
    mutations::feed(&seeds, LIMIT, 5, |bytes| {
        let _ = of_bytes(bytes, &options);
    });
}
