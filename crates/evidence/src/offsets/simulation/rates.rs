//! Simulates what is not built: a rate for each CPU beside its offset. docs/design/drift.md has the results.
//!
//! Of three counters, one is the reference, one gains and one loses. Each comparison bounds both differences. A line through
//! all bounds of the last second predicts each difference until the next comparison; of all such lines, the middle one is
//! taken. If there is none, or a message takes less than half as long as the fastest, the lines are withdrawn.
//! `cargo test -p fastpath-evidence rates -- --nocapture` prints the results.

use std::collections::VecDeque;

use super::*;

/// Time for which a line is fitted, and observed before it is used.
const FITTED_NS: f64 = SECOND;
const OBSERVED_NS: f64 = 30.0 * SECOND;
/// Time for which nothing changes: a host is examined before.
const BEGINS_NS: f64 = 5.0 * SECOND;
/// How long the fastest message takes, and by how much more, as a share of it, others do that are not interrupted.
const MESSAGE_NS: f64 = 60.0;
const NOISE: f64 = 0.8;
/// One of so many comparisons is late by so much: by more, and a publisher's anchors have ended.
const LATE: u64 = 50;
const LATE_NS: f64 = 40.0 * MS;
/// How fast a crystal's rate changes while a machine becomes warmer or colder, in parts per million a second.
const WARMING_PPM: f64 = 0.1;
const WARMS_FOR_NS: f64 = 15.0 * SECOND;
/// The drifts that are tried, each way.
const PPM: [f64; 9] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// What makes counters drift.
#[derive(Clone, Copy, PartialEq)]
enum Cause {
    /// A crystal for each.
    Crystals,
    /// The same, and one becomes warmer and colder.
    Warming,
    /// A clock that is switched between two rates, some times a second.
    Switched,
    /// Firmware that writes to a counter once a second.
    Written,
}

/// What is known about a counter at a time: how far it is ahead of the first.
#[derive(Clone, Copy)]
struct Bounds {
    at_ns: f64,
    least_ns: f64,
    most_ns: f64,
}

/// A counter.
struct Counter {
    /// By how much it is ahead of the first, and how fast it gains.
    ahead_ns: f64,
    rate: f64,
    bounds: VecDeque<Bounds>,
    /// How far it was predicted to be ahead at a time, and its rate.
    line: Option<(f64, f64, f64)>,
}

impl Counter {
    fn predicted_ns(&self, now_ns: f64) -> Option<f64> {
        self.line
            .map(|(at_ns, ahead_ns, rate)| ahead_ns + rate * (now_ns - at_ns))
    }

    fn error_ns(&self, now_ns: f64) -> f64 {
        self.predicted_ns(now_ns)
            .map_or(0.0, |predicted| self.ahead_ns - predicted)
    }

    /// Takes the bounds of a comparison. Returns whether they, and a line, agree with those of the last second.
    fn learn(&mut self, new: Bounds) -> bool {
        let now_ns = new.at_ns;
        let half_ns = MESSAGE_NS / 2.0;
        let is_early = |ahead_ns: f64| new.most_ns - ahead_ns < half_ns || ahead_ns - new.least_ns < half_ns;
        if self.predicted_ns(now_ns).is_some_and(is_early) {
            return false;
        }
        self.bounds.retain(|old| now_ns - old.at_ns <= FITTED_NS);
        self.bounds.push_back(new);
        let (mut slowest, mut fastest) = (f64::NEG_INFINITY, f64::INFINITY);
        for (index, later) in self.bounds.iter().enumerate() {
            for before in self.bounds.iter().take(index) {
                let passed_ns = later.at_ns - before.at_ns;
                slowest = slowest.max((later.least_ns - before.most_ns) / passed_ns);
                fastest = fastest.min((later.most_ns - before.least_ns) / passed_ns);
            }
        }
        if self.bounds.len() < 2 {
            return true;
        }
        let rate = (slowest + fastest) / 2.0;
        let (mut least_ns, mut most_ns) = (f64::NEG_INFINITY, f64::INFINITY);
        for bounds in &self.bounds {
            let gained_ns = rate * (now_ns - bounds.at_ns);
            least_ns = least_ns.max(bounds.least_ns + gained_ns);
            most_ns = most_ns.min(bounds.most_ns + gained_ns);
        }
        self.line = Some((now_ns, (least_ns + most_ns) / 2.0, rate));
        slowest <= fastest && least_ns <= most_ns
    }
}

/// What programs saw.
#[derive(Clone, Copy, Default)]
struct Order {
    backward_ns: f64,
    is_withdrawn: bool,
}

fn follow(cause: Cause, ppm: f64, compared_every_ns: f64, seed: u64) -> Order {
    let mut random = Random(seed);
    let mut counters = [1.0, -1.0].map(|sign| Counter {
        ahead_ns: 0.0,
        rate: if cause == Cause::Written {
            0.0
        } else {
            sign * ppm * 1e-6
        },
        bounds: VecDeque::new(),
        line: None,
    });
    let mut order = Order::default();
    let mut now_ns = 0.0;
    let (mut next_comparison, mut next_event) = (0.0, BEGINS_NS + random.between(0.0, SECOND));
    while now_ns < OBSERVED_NS && !order.is_withdrawn {
        let is_comparison = next_comparison <= next_event;
        let passed_ns = f64::min(next_comparison, next_event) - now_ns;
        if cause == Cause::Warming {
            let sign = if now_ns % (2.0 * WARMS_FOR_NS) < WARMS_FOR_NS {
                1.0
            } else {
                -1.0
            };
            let gained = sign * WARMING_PPM * 1e-6 * passed_ns / SECOND;
            counters[0].ahead_ns -= gained / 2.0 * passed_ns;
            counters[0].rate += gained;
        }
        for counter in &mut counters {
            counter.ahead_ns += counter.rate * passed_ns;
        }
        now_ns += passed_ns;
        if !is_comparison {
            match cause {
                Cause::Switched => counters[0].rate = ppm * 1e-6 - counters[0].rate,
                Cause::Written => counters[0].ahead_ns += ppm * 1e-6 * SECOND,
                Cause::Crystals | Cause::Warming => {}
            }
            next_event = now_ns
                + if cause == Cause::Written {
                    SECOND
                } else {
                    random.between(0.0, SECOND)
                };
        }
        // A counter is furthest from its line right before a comparison, or once it was written to.
        if now_ns > FITTED_NS {
            let [one, other] = counters.each_ref().map(|counter| counter.error_ns(now_ns));
            let apart_ns = one.abs().max(other.abs()).max((one - other).abs());
            order.backward_ns = order.backward_ns.max(apart_ns - MESSAGE_NS);
        }
        if is_comparison {
            let is_late = random.below(LATE) == 0;
            next_comparison = now_ns + compared_every_ns + if is_late { LATE_NS } else { 0.0 };
            for counter in &mut counters {
                if random.below(BUSY) == 0 || random.below(PREEMPTED) == 0 {
                    continue;
                }
                let mut message_ns = || {
                    let noise = (0..PATROLLED).map(|_| random.between(0.0, NOISE)).fold(NOISE, f64::min);
                    MESSAGE_NS * (1.0 + noise)
                };
                let agrees = counter.learn(Bounds {
                    at_ns: now_ns,
                    least_ns: counter.ahead_ns - message_ns(),
                    most_ns: counter.ahead_ns + message_ns(),
                });
                order.is_withdrawn |= !agrees;
            }
        }
    }
    order
}

/// Returns the worst of some trials.
fn worst(cause: Cause, ppm: f64, compared_every_ns: f64) -> Order {
    let orders = (1..=3).map(|seed| follow(cause, ppm, compared_every_ns, seed));
    orders.fold(Order::default(), |worst, order| Order {
        backward_ns: worst.backward_ns.max(order.backward_ns),
        is_withdrawn: worst.is_withdrawn | order.is_withdrawn,
    })
}

/// Returns the largest drift up to which something holds; 0 if it holds for none that is tried.
fn up_to(holds: impl Fn(&Order) -> bool, orders: &[(f64, Order)]) -> f64 {
    let held = orders.iter().take_while(|(_, order)| holds(order));
    held.last().map_or(0.0, |(ppm, _)| *ppm)
}

/// The causes, and below which drift each must keep the order, and must not.
const CAUSES: [(&str, Cause, f64, f64); 4] = [
    ("a crystal for each CPU", Cause::Crystals, 100.0, f64::INFINITY),
    (
        "the same, and one changes by 0.1 ppm a second",
        Cause::Warming,
        100.0,
        f64::INFINITY,
    ),
    ("a clock that is switched between two rates", Cause::Switched, 0.03, 3.0),
    (
        "firmware that writes to a counter once a second",
        Cause::Written,
        0.03,
        0.3,
    ),
];

/// FASTPATH_WRITE_DOCS=1 writes the table.
#[test]
fn rates_keep_the_order_only_if_they_never_change_and_the_table_in_the_docs_says_up_to_which() {
    const HEAD: &str =
        "| The cause | 2 CPUs, every 19 ms | 16 CPUs, every 60 ms | 2 CPUs, every 200 ms |\n|---|---|---|---|\n";
    let mut rows = String::new();
    for (name, cause, least, most) in CAUSES {
        rows += &format!("| {name} |");
        for compared_every_ns in [19.0 * MS, 60.0 * MS, 200.0 * MS] {
            let orders = PPM.map(|ppm| (ppm, worst(cause, ppm, compared_every_ns)));
            let ordered = up_to(|order| order.backward_ns == 0.0, &orders);
            let served = up_to(|order| !order.is_withdrawn, &orders);
            assert!((least..most).contains(&ordered), "{name}: {ordered} ppm");
            rows += &format!(" {ordered}; {served}");
            if let Some((ppm, order)) = orders.iter().find(|(_, order)| order.backward_ns > 0.0) {
                rows += &format!("; {} back at {ppm}", rounded_up(order.backward_ns));
            }
            rows += " |";
        }
        rows += "\n";
    }
    println!("{HEAD}{rows}");
    agree_with_docs("design/drift.md", HEAD, &rows);
}

/// Prints how long the messages of this machine take: half of the width of each comparison, in counts.
#[test]
fn rates_are_fitted_to_exchanges_like_those_of_this_machine() {
    let mut patrol = crate::Patrol::default();
    let rounds = (0..400).flat_map(|_| {
        let next = Instant::now() + Duration::from_millis(2);
        pause(Duration::from_millis(2));
        patrol.round(next).0.pairs
    });
    let mut half_widths: Vec<i64> = rounds.map(|pair| (pair.most_cycles - pair.least_cycles) / 2).collect();
    half_widths.sort_unstable();
    let at = |percent: usize| half_widths.get(half_widths.len() * percent / 100);
    println!("{} comparisons", half_widths.len());
    for percent in [0, 10, 50, 90, 99] {
        println!("{percent} %: {:?} counts", at(percent));
    }
    assert!(at(0).is_none_or(|least| *least >= 0));
}
