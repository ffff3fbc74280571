//! Feeds broken input to parsers, on a compiler that has no fuzzer: for any bytes, a parser must return, in bounded
//! time.
//!
//! Tests of several crates include this file as a module. The input is a parser's corpus, changed at random, from a
//! seed that is printed; with the same FASTPATH_MUTATION_SEED the input is the same. A test takes
//! FASTPATH_MUTATION_SECONDS (10) or its own limit, which FASTPATH_MUTATION_UNCAPPED removes.

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
    // What is moved or cut off is mostly refused at once: the others keep their length, and are read to their end.
    let changes_length = random.below(4) == 0;
    for _ in 0..1 + random.below(8) {
        // Headers stand at the beginning, and decide most.
        let reach = if random.below(2) == 0 {
            bytes.len().min(1024)
        } else {
            bytes.len()
        };
        let at = random.below(reach);
        match random.below(4) {
            0 if changes_length => bytes.truncate(at),
            1 if changes_length => {
                let end = bytes.len().min(at + 1 + random.below(64));
                bytes.drain(at..end);
            }
            // A piece of it stands somewhere else, too.
            2 if changes_length && bytes.len() < 2 * seed.len() => {
                let piece = bytes[at..bytes.len().min(at + 1 + random.below(1024))].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            0 | 1 => bytes[at] ^= 1 << random.below(8),
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

/// The files of a parser's corpus.
#[allow(dead_code, reason = "some tests make their own")]
pub fn corpus(parser: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(parser);
    let files = std::fs::read_dir(directory).expect("a corpus");
    files
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"))
        .collect()
}

/// A number that a variable of the environment holds.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The most memory that this process has had, in KiB: proc_pid_status(5).
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = || status.split_once("VmHWM:")?.1.split_whitespace().next()?.parse().ok();
    peak().unwrap_or(0)
}

/// Feeds what is made of `seeds` to `judge`, each of which is to take less than `limit`, for so many seconds at most.
pub fn feed(seeds: &[Vec<u8>], limit: Duration, most_seconds: u64, mut judge: impl FnMut(&[u8])) {
    let most_seconds = match std::env::var_os("FASTPATH_MUTATION_UNCAPPED") {
        Some(_) => u64::MAX,
        None => most_seconds,
    };
    let seconds = variable("FASTPATH_MUTATION_SECONDS").unwrap_or(10).min(most_seconds);
    let began = Instant::now();
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = variable("FASTPATH_MUTATION_SEED").unwrap_or_else(now) | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut count = 0_u64;
    let mut slowest = (Duration::ZERO, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let from = random.below(seeds.len());
        let bytes = broken(&seeds[from], &mut random);
        let start = Instant::now();
        judge(&bytes);
        let took = start.elapsed();
        assert!(took < limit, "seed {seed}, number {count}: took {took:?}");
        slowest = slowest.max((took, count));
        count += 1;
    }
    println!(
        "{count} inputs in {seconds} s; the slowest, number {}, took {:.1} ms; at most {} MiB resident",
        slowest.1,
        slowest.0.as_secs_f64() * 1e3,
        peak_kib().div_ceil(1024)
    );
    assert!(count > 0);
}
