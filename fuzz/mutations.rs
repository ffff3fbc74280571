//! The fuzz targets' promise, kept on a compiler that has no fuzzer: whatever the bytes, an answer, in bounded time.
//!
//! The tests of several crates include this. What a target's corpus holds is broken at random, from a seed that is printed.
//! FASTPATH_MUTATION_SECONDS says for how long (10).

use std::path::Path;
use std::time::{Duration, Instant};

/// xorshift64*, by Marsaglia and Vigna.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Values at which arithmetic goes wrong.
const EDGES: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

fn broken(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(8) {
        // Headers stand at the beginning, and decide most.
        let reach = if random.below(2) == 0 {
            bytes.len().min(1024)
        } else {
            bytes.len()
        };
        let at = random.below(reach);
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.below(8),
            _ => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let size = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + size].copy_from_slice(&edge[..size]);
            }
        }
        if bytes.is_empty() {
            return bytes;
        }
    }
    bytes
}

/// The files of a fuzz target's corpus.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(directory).expect("a corpus");
    files
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"))
        .collect()
}

/// Feeds what is made of `seeds` to `judge`, each of which is to take less than `limit`, for so many seconds at most.
pub fn feed(seeds: &[Vec<u8>], limit: Duration, most_seconds: u64, mut judge: impl FnMut(&[u8])) {
    let seconds = std::env::var("FASTPATH_MUTATION_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10)
        .min(most_seconds);
    let began = Instant::now();
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64) | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut count = 0_u64;
    while began.elapsed() < Duration::from_secs(seconds) {
        let from = random.below(seeds.len());
        let bytes = broken(&seeds[from], &mut random);
        let start = Instant::now();
        judge(&bytes);
        assert!(
            start.elapsed() < limit,
            "seed {seed}, number {count}: took {:?}",
            start.elapsed()
        );
        count += 1;
    }
    println!("{count} inputs in {seconds} s");
    assert!(count > 0);
}
