//! Feeds broken input to parsers: for any bytes, a parser must return, in bounded time.
//!
//! Tests of several crates include this file as a module. The input is a parser's corpus, changed at random, from a
//! seed that is printed; with the same FASTPATH_MUTATION_SEED the input is the same. A test takes
//! FASTPATH_MUTATION_SECONDS (10) or its own limit, which FASTPATH_MUTATION_UNCAPPED removes.
//!
//! Where the compiler counts the edges of the control flow (tests/long/fuzz.py has the options), input that reaches a
//! new one is changed further. FASTPATH_MUTATION_EDGES names a file that gets each edge's address, and 1 if it was
//! reached.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
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

/// Start and end of the edges' counters, and of their addresses, which the compiler places.
static COUNTERS: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
static ADDRESSES: [AtomicPtr<[usize; 2]>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
/// The last numbers that a judge compared: their size in bytes, and both.
static COMPARED: [[AtomicU64; 3]; 1024] = [const { [const { AtomicU64::new(0) }; 3] }; 1024];
static COMPARISONS: AtomicUsize = AtomicUsize::new(0);
/// Whether a judge runs.
static JUDGES: AtomicBool = AtomicBool::new(false);

/// Functions that LLVM's SanitizerCoverage calls. It does not count the edges of functions with such names.
macro_rules! callbacks {
    ($($name:ident $type:ty: $ends:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(start: *mut $type, end: *mut $type) {
            $ends[0].store(start, Ordering::Relaxed);
            $ends[1].store(end, Ordering::Relaxed);
        }
    )*};
    ($($name:ident $type:ty;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(left: $type, right: $type) {
            if left != right && JUDGES.load(Ordering::Relaxed) {
                let of = &COMPARED[COMPARISONS.fetch_add(1, Ordering::Relaxed) % COMPARED.len()];
                of[0].store(size_of::<$type>() as u64, Ordering::Relaxed);
                of[1].store(left.into(), Ordering::Relaxed);
                of[2].store(right.into(), Ordering::Relaxed);
            }
        }
    )*};
}

callbacks! {
    __sanitizer_cov_8bit_counters_init u8: COUNTERS;
    __sanitizer_cov_pcs_init [usize; 2]: ADDRESSES;
}

callbacks! {
    __sanitizer_cov_trace_cmp1 u8;
    __sanitizer_cov_trace_cmp2 u16;
    __sanitizer_cov_trace_cmp4 u32;
    __sanitizer_cov_trace_cmp8 u64;
    __sanitizer_cov_trace_const_cmp1 u8;
    __sanitizer_cov_trace_const_cmp2 u16;
    __sanitizer_cov_trace_const_cmp4 u32;
    __sanitizer_cov_trace_const_cmp8 u64;
}

/// `cases`: their number, the size of `value` in bits, and the cases.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_trace_switch(value: u64, cases: *const u64) {
    // SAFETY: the compiler passes a constant of its own, with as many cases as it says.
    let (count, bits) = unsafe { (*cases as usize, *cases.add(1)) };
    if count != 0 && JUDGES.load(Ordering::Relaxed) {
        let number = COMPARISONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        let case = unsafe { *cases.add(2 + number % count) };
        let of = &COMPARED[number % COMPARED.len()];
        of[0].store(bits / 8, Ordering::Relaxed);
        of[1].store(value, Ordering::Relaxed);
        of[2].store(case, Ordering::Relaxed);
    }
}

/// Returns the start and the length of what the compiler has placed; null and 0 if that is nothing.
fn placed<T>(ends: &[AtomicPtr<T>; 2]) -> (*mut T, usize) {
    let [start, end] = [0, 1].map(|at| ends[at].load(Ordering::Relaxed));
    (start, (end.addr() - start.addr()) / size_of::<T>())
}

/// The edges that were reached, each with a bit for 1, 2, 3, 4, 8, 16, 32 and 128 times or more.
struct Reached {
    bits: Vec<u8>,
    counts: Vec<u8>,
}

impl Reached {
    fn new() -> Reached {
        let none = vec![0; placed(&COUNTERS).1];
        Reached {
            counts: none.clone(),
            bits: none,
        }
    }

    /// Sets all counters to 0.
    fn reset(&self) {
        let (start, length) = placed(&COUNTERS);
        if length > 0 {
            // SAFETY: bytes of this program, which only counting code reads.
            unsafe { start.write_bytes(0, length) };
        }
    }

    /// Adds what was counted. Returns true if an edge was reached for the first time, or a larger number of times.
    fn add(&mut self) -> bool {
        let (start, length) = placed(&COUNTERS);
        if length > 0 {
            // SAFETY: as above; the copy has this length.
            unsafe { start.copy_to_nonoverlapping(self.counts.as_mut_ptr(), length) };
        }
        let mut is_new = false;
        for (counts, bits) in self.counts.chunks(8).zip(self.bits.chunks_mut(8)) {
            // Most edges were not reached.
            if counts == [0; 8] {
                continue;
            }
            for (count, bits) in counts.iter().zip(bits) {
                let bit = match count {
                    0 => 0,
                    1..=3 => 1 << (count - 1),
                    4..=127 => 8 << (count.ilog2() - 2).min(3),
                    _ => 128,
                };
                is_new |= bit & !*bits != 0;
                *bits |= bit;
            }
        }
        is_new
    }

    /// Writes what was reached to the file that the environment names.
    fn write(&self) {
        let Some(path) = std::env::var_os("FASTPATH_MUTATION_EDGES") else {
            return;
        };
        unsafe extern "C" {
            /// Where this program is in memory, by the linker.
            static __executable_start: u8;
        }
        let base = (&raw const __executable_start).addr();
        let (start, length) = placed(&ADDRESSES);
        let line = |edge: usize| {
            // SAFETY: the addresses are as many as there are counters, and constant.
            let [address, _] = unsafe { *start.add(edge) };
            format!("{:x} {}\n", address.wrapping_sub(base), u8::from(self.bits[edge] != 0))
        };
        std::fs::write(path, (0..length).map(line).collect::<String>()).expect("the file for edges");
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

/// Writes one of two numbers that were compared over the other, which stands at `at` or behind it, if it does.
fn satisfy(bytes: &mut [u8], at: usize, random: &mut Random) {
    let [size, left, right] = COMPARED[random.below(COMPARED.len())]
        .each_ref()
        .map(|word| word.load(Ordering::Relaxed));
    let (found, wanted) = if random.below(2) == 0 {
        (left, right)
    } else {
        (right, left)
    };
    let size = size.clamp(1, 8) as usize;
    let (mut found, mut wanted) = (found.to_le_bytes(), wanted.to_le_bytes());
    if random.below(8) == 0 {
        found[..size].reverse();
        wanted[..size].reverse();
    }
    if let Some(place) = bytes[at..].windows(size).position(|window| window == &found[..size]) {
        bytes[at + place..][..size].copy_from_slice(&wanted[..size]);
    }
}

fn broken(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    // What is moved or cut off is mostly refused at once: the others keep their length, and are read to their end.
    let changes_length = random.below(4) == 0;
    for _ in 0..1 << random.below(4) {
        // Headers stand at the beginning, and decide most.
        let reach = if random.below(2) == 0 {
            bytes.len().min(1024)
        } else {
            bytes.len()
        };
        let at = random.below(reach);
        match random.below(6) {
            0 if changes_length => bytes.truncate(at),
            1 if changes_length => {
                let end = bytes.len().min(at + 1 + random.below(64));
                bytes.drain(at..end);
            }
            // A piece of it or of another stands somewhere else, too.
            2 | 3 if changes_length && bytes.len() < 2 * seed.len().max(64) => {
                let from = if random.below(2) == 0 { other } else { &bytes };
                let start = random.below(from.len());
                let most = 1 << random.below(11);
                let length = 1 + random.below(most);
                let piece = from[start..from.len().min(start + length)].to_vec();
                bytes.splice(at..at, piece);
            }
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 | 3 => satisfy(&mut bytes, if random.below(2) == 0 { at } else { 0 }, random),
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

/// Most bytes of input that is kept. Then the oldest is dropped.
const MOST_BYTES: usize = 64 << 20;

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

/// Input that is being judged: kept in a file if the judge panics.
struct Judged<'b>(&'b [u8]);

impl Drop for Judged<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("fastpath-mutation-{}", std::process::id()));
            println!("input: {} {:?}", path.display(), std::fs::write(&path, self.0));
        }
    }
}

/// Feeds `seeds` and what is made of them to `judge`, each of which is to take less than `limit`, for so many seconds at
/// most.
pub fn feed(seeds: &[Vec<u8>], limit: Duration, most_seconds: u64, mut judge: impl FnMut(&[u8])) {
    let most_seconds = match std::env::var_os("FASTPATH_MUTATION_UNCAPPED") {
        Some(_) => u64::MAX,
        None => most_seconds,
    };
    let seconds = variable("FASTPATH_MUTATION_SECONDS").unwrap_or(10).min(most_seconds);
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = variable("FASTPATH_MUTATION_SEED").unwrap_or_else(now) | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut reached = Reached::new();
    let mut kept = seeds.to_vec();
    let mut kept_bytes = 0;
    let longest = 2 * seeds.iter().map(Vec::len).max().unwrap_or(0);
    let mut count = 0;
    let mut slowest = (Duration::ZERO, 0);
    let began = Instant::now();
    while count < seeds.len() || began.elapsed() < Duration::from_secs(seconds) {
        let bytes = match seeds.get(count) {
            Some(whole) => whole.clone(),
            None => {
                // Half of them are made of the newest.
                let newest = if random.below(2) == 0 {
                    kept.len().min(16)
                } else {
                    kept.len()
                };
                let from = kept.len() - 1 - random.below(newest);
                broken(&kept[from], &kept[random.below(kept.len())], &mut random)
            }
        };
        let judged = Judged(&bytes);
        let start = Instant::now();
        reached.reset();
        JUDGES.store(true, Ordering::Relaxed);
        judge(&bytes);
        JUDGES.store(false, Ordering::Relaxed);
        let is_new = reached.add();
        let took = start.elapsed();
        assert!(took < limit, "seed {seed}, number {count}: took {took:?}");
        drop(judged);
        slowest = slowest.max((took, count));
        if is_new && count >= seeds.len() && (1..=longest).contains(&bytes.len()) {
            kept_bytes += bytes.len();
            kept.push(bytes);
            while kept_bytes > MOST_BYTES {
                kept_bytes -= kept.remove(seeds.len()).len();
            }
        }
        count += 1;
    }
    println!(
        "{count} inputs in {seconds} s, {} kept; the slowest, number {}, took {:.1} ms; at most {} MiB resident",
        kept.len() - seeds.len(),
        slowest.1,
        slowest.0.as_secs_f64() * 1e3,
        peak_kib().div_ceil(1024)
    );
    reached.write();
}
