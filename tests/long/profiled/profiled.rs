// SPDX-License-Identifier: Apache-2.0 OR MIT
//! profiled SECONDS: reads a clock for so long, and prints the stacks of pprof-rs: `FRAME;FRAME... COUNT`, the caller first.

use std::time::{Duration, Instant};

#[inline(never)]
fn read_clocks(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {}
}

fn main() {
    let seconds = std::env::args().nth(1).expect("seconds").parse().expect("a number");
    let profiler = pprof::ProfilerGuard::new(1000).expect("a profiler");
    read_clocks(Duration::from_secs(seconds));
    let report = profiler.report().build().expect("a report");
    for (stack, count) in &report.data {
        let frames: Vec<_> = stack
            .frames
            .iter()
            .flatten()
            .rev()
            .map(|symbol| symbol.name())
            .collect();
        println!("{} {count}", frames.join(";"));
    }
}
