//! Cost and detection time of the patrol that compares the CPUs' counters, on hosts with 2 to 512 CPUs: `cargo run
//! --release --package fastpath-publish --example patrol`.
//!
//! Measures what the parts of a comparison cost on this host, and computes the rest: a host with N CPUs takes one
//! rendezvous of both threads and N - 1 visits, of which all but the first begin with a move of the worker to another
//! CPU. The kernel's own part of a move (its migration thread) is not in a thread's CPU time.

use std::time::{Duration, Instant};

use fastpath_clock::Config;
use fastpath_evidence::{Patrol, cpus};
use fastpath_publish::Rhythm;

/// Length of each measurement.
const MEASURED: Duration = Duration::from_secs(10);
/// Visits that are measured.
const VISITS: usize = 400;
const HOSTS: [u32; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Costs in CPU time, of both threads.
struct Unit {
    /// Both threads wake up, meet once, and go to sleep.
    rendezvous: Duration,
    /// One more visit: the worker moves and wakes the asker. Their exchanges, 2 us of each thread, are not in it.
    visit: Duration,
}

impl Unit {
    /// Returns the medians on this host. `every`: the time from one comparison to the next, which decides how cold the
    /// caches are.
    fn measure(every: Duration) -> Unit {
        // The thread that makes the rounds remains bound to a CPU.
        let rendezvous = std::thread::spawn(move || rendezvous(every)).join();
        Unit {
            rendezvous: rendezvous.unwrap_or_default(),
            visit: visit(),
        }
    }

    fn of_round(&self, cpus: u32) -> Duration {
        self.rendezvous + self.visit * (cpus - 2)
    }
}

fn rendezvous(every: Duration) -> Duration {
    let mut patrol = Patrol::default();
    let rounds = MEASURED.div_duration_f64(every) as u32;
    let mut costs: Vec<Duration> = (0..rounds)
        .map(|_| {
            let next = Instant::now() + every;
            let (_, cost) = patrol.round(next);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            cost
        })
        .collect();
    median(&mut costs)
}

/// Returns the cost of a visit that does not begin a round: a thread that moves from CPU to CPU, and at each wakes up
/// another that sleeps.
fn visit() -> Duration {
    let cpus = cpus::allowed();
    let (arrivals, arrived) = std::sync::mpsc::channel::<()>();
    let asker = std::thread::spawn(move || {
        let mut costs = Vec::new();
        let mut until_now = cpu_time();
        while arrived.recv().is_ok() {
            let now = cpu_time();
            costs.push(now - until_now);
            until_now = now;
        }
        costs
    });
    let mut costs: Vec<Duration> = (0..VISITS)
        .map(|round| {
            let begun = cpu_time();
            let _ = cpus::run_on(cpus[round % cpus.len()]);
            let _ = arrivals.send(());
            cpu_time() - begun
        })
        .collect();
    let _ = cpus::run_on_any(&cpus);
    drop(arrivals);
    let mut of_asker = asker.join().unwrap_or_default();
    median(&mut costs) + median(&mut of_asker)
}

fn median(costs: &mut [Duration]) -> Duration {
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    for (name, config) in [
        ("by default", Config::default()),
        ("--trust-counter", Config::default().watched()),
    ] {
        let rhythm = Rhythm::from_config(&config);
        let unit = Unit::measure(rhythm.every);
        println!(
            "{name}: a rendezvous of two threads {:.0?}, each further visit {:.0?} of CPU time (medians)\n",
            unit.rendezvous, unit.visit
        );
        println!(
            "| CPUs | a comparison | made every | share of one CPU | one bad CPU is withdrawn within |\n|---|---|---|---|---|"
        );
        for cpus in HOSTS {
            let cost = unit.of_round(cpus);
            let every = rhythm.rest_after(cost);
            println!(
                "| {cpus} | {:.2} ms | {} | {:.3} % | {} |",
                cost.as_secs_f64() * 1e3,
                span(every),
                100.0 * cost.as_secs_f64() / every.as_secs_f64(),
                // The visits of a round take as long as their CPU time, on idle CPUs.
                span(every + cost)
            );
        }
        println!();
    }
}

fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{:.0} ms", duration.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
