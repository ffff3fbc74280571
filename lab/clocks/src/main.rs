//! clocks SECONDS: reads libfastpath-clock, quanta and minstant in turn, in one thread more than there are CPUs. Prints how
//! often a time was before one of the same clock that another read had shown, and what a read costs, as JSON.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Reads of each clock between two looks at the time.
const ROUNDS: u32 = 1000;

/// A clock, and the observations of it.
struct Clock<'a> {
    name: &'static str,
    /// Returns nanoseconds since a moment of its own.
    read: &'a (dyn Fn() -> u64 + Sync),
    /// The latest time that was shown.
    latest: AtomicU64,
    reads: AtomicU64,
    backward: AtomicU64,
    worst_ns: AtomicU64,
}

impl<'a> Clock<'a> {
    fn new(name: &'static str, read: &'a (dyn Fn() -> u64 + Sync)) -> Clock<'a> {
        Clock {
            name,
            read,
            latest: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            backward: AtomicU64::new(0),
            worst_ns: AtomicU64::new(0),
        }
    }

    fn read(&self) {
        let shown = self.latest.load(Ordering::SeqCst);
        let time = (self.read)();
        if time < shown {
            self.backward.fetch_add(1, Ordering::Relaxed);
            self.worst_ns.fetch_max(shown - time, Ordering::Relaxed);
        }
        self.latest.fetch_max(time, Ordering::SeqCst);
    }

    fn report(&self) -> String {
        let [reads, backward, worst_ns] =
            [&self.reads, &self.backward, &self.worst_ns].map(|it| it.load(Ordering::Relaxed));
        let name = self.name;
        format!(r#""{name}": {{"reads": {reads}, "backward": {backward}, "worst_ns": {worst_ns}}}"#)
    }
}

/// Prints the cost in nanoseconds of some expressions, as fields of JSON: the median of rounds in turn.
macro_rules! costs {
    ($($name:literal: $read:expr,)*) => {{
        let mut rounds = [$(($name, Vec::new())),*];
        for _ in 0..1001 {
            let mut costs = rounds.iter_mut().map(|(_, costs)| costs);
            $({
                let begun = Instant::now();
                for _ in 0..1000 {
                    black_box($read);
                }
                costs.next().expect("one for each").push(begun.elapsed());
            })*
        }
        rounds.map(|(name, mut costs)| {
            costs.sort_unstable();
            format!(r#""{name}": {:.1}"#, costs[costs.len() / 2].as_secs_f64() * 1e6)
        }).join(", ")
    }};
}

fn main() {
    let Some(seconds) = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()) else {
        eprintln!("usage: clocks SECONDS");
        std::process::exit(2);
    };
    let source = libfastpath_clock::open(false);
    let quanta = quanta::Clock::new();
    let first = quanta.raw();
    let anchor = minstant::Anchor::new();
    let by_quanta = || quanta.delta_as_nanos(first, quanta.raw());
    let by_minstant = || minstant::Instant::now().as_unix_nanos(&anchor);
    let clocks = [
        Clock::new("fastpath", &libfastpath_clock::now),
        Clock::new("quanta", &by_quanta),
        Clock::new("minstant", &by_minstant),
    ];
    let costs = costs! {
        "fastpath": libfastpath_clock::Instant::now(),
        "fastpath unordered": libfastpath_clock::now_unordered(),
        "quanta": quanta::Instant::now(),
        "minstant": minstant::Instant::now(),
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..=cpus {
            scope.spawn(|| {
                while begun.elapsed() < Duration::from_secs(seconds) {
                    for _ in 0..ROUNDS {
                        clocks.iter().for_each(Clock::read);
                    }
                    for clock in &clocks {
                        clock.reads.fetch_add(ROUNDS.into(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let clocks = clocks.each_ref().map(Clock::report).join(", ");
    println!(r#"{{"source": "{source:?}", "ns": {{{costs}}}, {clocks}}}"#);
}
