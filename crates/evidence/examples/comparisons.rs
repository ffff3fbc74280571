//! Prints result and cost of a comparison of the CPUs' counters on this host: `cargo run --release -p fastpath-evidence
//! --example comparisons`.

use std::time::{Duration, Instant};

use fastpath_evidence::{Evidence, Patrol, Timeouts};

const ROUNDS: u32 = 200;
const REST: Duration = Duration::from_millis(20);

fn main() {
    let begun = Instant::now();
    let evidence = Evidence::gather(Timeouts {
        in_all: Duration::from_secs(1),
        for_a_pair: Duration::from_millis(500),
        for_an_answer: Duration::from_millis(100),
    });
    println!("every pair, in {:?}: {evidence:?}", begun.elapsed());
    let mut patrol = Patrol::default();
    let mut costs: Vec<Duration> = Vec::new();
    let mut within = Vec::new();
    let mut complete = 0;
    for _ in 0..ROUNDS {
        let next = Instant::now() + REST;
        let (warp, cost) = patrol.round(next);
        complete += u32::from(warp.left_out.is_empty());
        within.extend(warp.within_cycles());
        costs.push(cost);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    costs.sort_unstable();
    within.sort_unstable();
    println!(
        "one with all others: {complete} of {ROUNDS} complete; CPU time {:?} in the median, {:?} at most",
        costs[costs.len() / 2],
        costs[costs.len() - 1]
    );
    if let (Some(least), Some(most)) = (within.first(), within.last()) {
        println!(
            "could have missed {least} to {most} cycles, {} in the median",
            within[within.len() / 2]
        );
    }
}
