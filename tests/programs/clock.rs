// SPDX-License-Identifier: Apache-2.0 OR MIT
//! clock COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went
//! backwards.

use std::process::exit;
use std::time::{Instant, SystemTime};

const CLOCKS: [&str; 2] = ["REALTIME", "MONOTONIC"];

fn read_many<T: PartialOrd>(name: &str, count: u32, read: fn() -> T) {
    let start = Instant::now();
    let mut last = read();
    for _ in 0..count {
        let now = read();
        if now < last {
            eprintln!("{name} went backwards");
            exit(3);
        }
        last = now;
    }
    println!("{name} {:.1}", start.elapsed().as_nanos() as f64 / f64::from(count));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let count = args.first().and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut names: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    if count == 0 || names.iter().any(|name| !CLOCKS.contains(name)) {
        eprintln!("usage: clock COUNT [CLOCK...]\nclocks: {}", CLOCKS.join(" "));
        exit(2);
    }
    if names.is_empty() {
        names = CLOCKS.to_vec();
    }
    for name in names {
        match name {
            "REALTIME" => read_many(name, count, SystemTime::now),
            _ => read_many(name, count, Instant::now),
        }
    }
}
