//! Simulates machines whose CPUs' counters differ, with programs that pass times from CPU to CPU by the fastest messages
//! that the machine has: what docs/counter.md promises about offsets.
//!
//! Messages take 15 ns between two threads of a core, 60 ns within a node and 250 ns between nodes, or up to 30 % longer.
//! CPUs are busy or preempted now and then. Each fault strikes at several moments of the patrol's rounds.
//! `cargo test -p fastpath-evidence simulation -- --nocapture` prints the results; a seed is fixed, so that the docs can be
//! compared with them.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::solve::*;
use super::*;
use crate::warp::pairs_of;

/// Rate of the counters.
const COUNTS_PER_NS: f64 = 3.0;
const MS: f64 = 1e6;
const SECOND: f64 = 1e9;
/// Time from one comparison to the next, at least, and what one takes (docs/counter.md).
const COMPARE_EVERY_NS: f64 = 15.0 * MS;
const RENDEZVOUS_NS: f64 = 160_000.0;
const VISIT_NS: f64 = 29_000.0;
/// A comparison takes 1 % of one CPU at most.
const RESTS: f64 = 100.0;
/// Messages of a comparison that are not interrupted, at a measurement and of a patrol.
const MEASURED: u32 = 16;
const PATROLLED: u32 = 4;
/// One of so many pairings fails, because a CPU is busy.
const BUSY: u64 = 50;
/// One of so many pairings has a message that took milliseconds, because its thread was preempted each time.
const PREEMPTED: u64 = 200;
const TRIALS: usize = 6;

/// Numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The shape of a machine.
#[derive(Clone, Copy)]
struct Shape {
    cpus: usize,
    threads_of_a_core: usize,
    nodes: usize,
}

impl Shape {
    /// Returns how long the fastest message takes.
    fn fastest_ns(self, from: usize, to: usize) -> f64 {
        let of_a_node = self.cpus / self.nodes;
        if from / self.threads_of_a_core == to / self.threads_of_a_core {
            15.0
        } else if from / of_a_node == to / of_a_node {
            60.0
        } else {
            250.0
        }
    }
}

/// What happens to the counter of one CPU.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It jumps, once.
    Jumps {
        ns: f64,
    },
    /// It jumps again three seconds later.
    JumpsTwice {
        ns: f64,
    },
    /// It gains.
    Drifts {
        ppm: f64,
    },
    /// It gains, and so do all counters of its node.
    NodeDrifts {
        ppm: f64,
    },
    /// The CPU is taken off, and comes back with a counter that starts from zero.
    ComesBack {
        after_ns: f64,
    },
}

struct Machine {
    shape: Shape,
    random: Random,
    now_ns: f64,
    /// By how much each counter is ahead of time, in counts.
    ahead: Vec<f64>,
    bad: usize,
    drifting: Range<usize>,
    drift_ppm: f64,
    is_off: bool,
    known: Known,
    changes: Changes,
    /// The offsets in force.
    offsets: Offsets,
    hub: usize,
    noticed: Vec<Pair>,
    /// From when on programs are served.
    served_from_ns: f64,
    last_found_ns: f64,
    /// When the last comparison ended, before offsets were measured anew.
    compared_at_ns: f64,
    proof_ns: f64,
    withdrawals: usize,
    /// When the kernel's list of CPUs was read, and what it was.
    looked_up: (f64, Vec<usize>),
    start: Instant,
}

impl Machine {
    fn new(shape: Shape, seed: u64) -> Machine {
        let mut random = Random(seed);
        let ahead = (0..shape.cpus)
            .map(|_| random.between(-10.0 * SECOND, 10.0 * SECOND) * COUNTS_PER_NS)
            .collect();
        let bad = 1 + random.below(shape.cpus as u64 - 1) as usize;
        let mut machine = Machine {
            shape,
            random,
            now_ns: 0.0,
            ahead,
            bad,
            drifting: bad..bad + 1,
            drift_ppm: 0.0,
            is_off: false,
            known: Known::default(),
            changes: Changes::default(),
            offsets: Offsets {
                of: Vec::new(),
                margin_cycles: 0,
                fastest: Vec::new(),
                typical_cycles: 0,
            },
            hub: 0,
            noticed: Vec::new(),
            served_from_ns: 0.0,
            last_found_ns: f64::NEG_INFINITY,
            compared_at_ns: 0.0,
            proof_ns: SECOND,
            withdrawals: 0,
            looked_up: (0.0, (0..shape.cpus).collect()),
            start: Instant::now(),
        };
        machine.offsets = machine.measure().expect("constant offsets").0;
        machine.looked_up.0 = machine.now_ns;
        machine.served_from_ns = machine.now_ns;
        machine
    }

    fn pass(&mut self, ns: f64) {
        self.now_ns += ns;
        for cpu in self.drifting.clone() {
            self.ahead[cpu] += ns * COUNTS_PER_NS * self.drift_ppm * 1e-6;
        }
    }

    fn cpus(&self) -> Vec<usize> {
        (0..self.shape.cpus)
            .filter(|cpu| *cpu != self.bad || !self.is_off)
            .collect()
    }

    /// Returns how long the fastest of some messages took.
    fn message_ns(&mut self, from: usize, to: usize, messages: u32) -> f64 {
        let fastest_ns = self.shape.fastest_ns(from, to);
        let noise = (0..messages).map(|_| self.random.below(1 << 20)).min().unwrap_or(0);
        let preempted = if self.random.below(PREEMPTED) == 0 {
            3.0 * MS
        } else {
            0.0
        };
        fastest_ns * (1.0 + 0.3 * noise as f64 / (1 << 20) as f64) + preempted
    }

    fn pair(&mut self, cpu: usize, other: usize, messages: u32) -> Option<Pair> {
        if self.random.below(BUSY) == 0 || self.is_off && (cpu == self.bad || other == self.bad) {
            return None;
        }
        let ahead = self.ahead[other] - self.ahead[cpu];
        let (there, back) = (
            self.message_ns(cpu, other, messages),
            self.message_ns(other, cpu, messages),
        );
        let pair = Pair {
            cpu,
            other,
            least_cycles: (ahead - back * COUNTS_PER_NS).floor() as i64,
            most_cycles: (ahead + there * COUNTS_PER_NS).ceil() as i64,
        };
        // As core/evidence/src/exchange.rs.
        (pair.most_cycles - pair.least_cycles < 200_000).then_some(pair)
    }

    /// As [`Offsets::measure`].
    fn measure(&mut self) -> Result<(Offsets, bool), Unsolvable> {
        let mut pairs = Vec::new();
        for _ in 0..2 {
            pairs.extend(self.compare());
            self.pass(APART.as_nanos() as f64);
        }
        let noticed = std::mem::take(&mut self.noticed);
        self.known.learn(&self.cpus(), &noticed, pairs)
    }

    /// Compares every pair.
    fn compare(&mut self) -> Vec<Pair> {
        let cpus = self.cpus();
        let pairings = pairs_of(&cpus, cpus.len().next_multiple_of(2) - 1);
        let mut pairs = Vec::new();
        for round in pairings.chunks((cpus.len() / 2).max(1)) {
            for (cpu, other) in round {
                pairs.extend(self.pair(*cpu, *other, MEASURED));
            }
            self.pass(50_000.0);
        }
        pairs
    }

    /// As [`Offsets::measure_steady`].
    fn measure_steady(&mut self) -> Result<Offsets, Unsolvable> {
        let before = self.compare();
        self.pass(STEADY_FOR.as_nanos() as f64);
        let (offsets, _) = self.measure()?;
        offsets.check_steady(&before, &self.known.0)?;
        Ok(offsets)
    }

    /// Compares one CPU with the others, as the patrol does, and measures the offsets anew if one has changed.
    fn patrol(&mut self) {
        if self.now_ns - self.looked_up.0 >= SECOND || self.cpus() != self.looked_up.1 {
            self.looked_up = (self.now_ns, self.cpus());
        }
        let known = |cpu: &usize| self.offsets.get(*cpu).is_some();
        let have_changed = self.looked_up.1.len() != self.offsets.of.len() || !self.looked_up.1.iter().all(known);
        let cpus: Vec<usize> = self.looked_up.1.iter().filter(|cpu| known(cpu)).copied().collect();
        let hub = cpus[self.hub % cpus.len()];
        let (mut is_apart, mut was_missed) = (false, false);
        self.noticed.clear();
        for other in cpus.iter().filter(|cpu| **cpu != hub) {
            self.pass(VISIT_NS);
            let Some(pair) = self.pair(hub, *other, PATROLLED) else {
                was_missed = true;
                continue;
            };
            let relative = self.offsets.subtracted_from(pair).expect("both have an offset");
            if self.offsets.check(relative).apart_cycles() > 0 {
                is_apart = true;
                self.noticed.push(pair);
            }
        }
        if was_missed {
            self.hub += 1;
        }
        self.compared_at_ns = self.now_ns;
        if is_apart {
            if self.now_ns >= self.served_from_ns {
                self.withdrawals += 1;
            }
            self.proof_ns = match self.now_ns - self.last_found_ns < 600.0 * SECOND {
                true => (2.0 * self.proof_ns).min(64.0 * SECOND),
                false => SECOND,
            };
            self.last_found_ns = self.now_ns;
            self.served_from_ns = self.now_ns + self.proof_ns;
        }
        if is_apart || have_changed {
            self.measure_anew();
        }
    }

    /// Returns whether offsets were measured.
    fn measure_anew(&mut self) -> bool {
        let mut changes = std::mem::take(&mut self.changes);
        let now = self.start + Duration::from_nanos(self.now_ns as u64);
        let measured = changes.measure(|| now, || self.measure());
        let is_measured = measured.is_some();
        if let Some(offsets) = measured {
            self.offsets = offsets;
            self.served_from_ns = self.served_from_ns.max(self.now_ns + SECOND);
        } else if changes.is_drift() {
            self.served_from_ns = f64::INFINITY;
        }
        self.changes = changes;
        is_measured
    }

    /// Suspends the machine, whose firmware changes all counters, and measures the offsets as core/publish/src/patrol.rs does.
    fn suspend(&mut self) {
        self.pass(10.0 * SECOND);
        for ahead in &mut self.ahead {
            *ahead += self.random.between(-SECOND, SECOND) * COUNTS_PER_NS;
        }
        self.served_from_ns = f64::INFINITY;
        while !self.changes.is_drift() {
            self.known = Known::default();
            self.noticed.clear();
            if self.measure_anew() {
                self.served_from_ns = self.now_ns + SECOND;
                return;
            }
            self.pass(COMPARE_EVERY_NS);
        }
    }

    fn rest_ns(&self) -> f64 {
        let cost_ns = RENDEZVOUS_NS + VISIT_NS * (self.shape.cpus - 1) as f64;
        COMPARE_EVERY_NS.max(cost_ns * RESTS)
    }

    /// Returns by how much a time that a program takes from one CPU to another can be from the future there, if programs
    /// are served and both CPUs have an offset: one of the two is `cpu`.
    fn backward_ns(&self, cpu: usize) -> f64 {
        if self.now_ns < self.served_from_ns || self.is_off {
            return 0.0;
        }
        let error = |cpu: usize| Some((self.ahead[cpu] - self.offsets.get(cpu)? as f64) / COUNTS_PER_NS);
        let Some(here) = error(cpu) else { return 0.0 };
        let with = |other: usize| {
            let by_ns = (error(other)? - here).abs() - self.shape.fastest_ns(cpu, other);
            (other != cpu).then_some(by_ns)
        };
        (0..self.shape.cpus).filter_map(with).fold(0.0, f64::max)
    }
}

/// What a fault did, over all trials.
#[derive(Default)]
struct Harm {
    backward_ns: f64,
    /// From the fault to the withdrawal; 0 without one.
    withdrawn_after_ns: f64,
    withdrawals: usize,
    /// Whether programs were served at the end of all trials.
    is_served: bool,
}

impl Harm {
    fn cell(&self) -> String {
        match self.withdrawals {
            0 => "nothing".to_owned(),
            _ if self.backward_ns == 0.0 => format!("nothing; {}", rounded_up(self.withdrawn_after_ns)),
            _ => format!(
                "{} for {}",
                rounded_up(self.backward_ns),
                rounded_up(self.withdrawn_after_ns)
            ),
        }
    }
}

/// Returns a time with two digits, rounded up.
fn rounded_up(ns: f64) -> String {
    let units = [(SECOND, "s"), (MS, "ms"), (1e3, "us"), (1.0, "ns")];
    let (unit, name) = units.into_iter().find(|(unit, _)| ns >= *unit).unwrap_or((1.0, "ns"));
    let value = ns / unit;
    match value {
        _ if value > 100.0 => format!("{} {name}", (value / 10.0).ceil() * 10.0),
        _ if value >= 10.0 => format!("{} {name}", value.ceil()),
        _ => format!("{} {name}", (value * 10.0).ceil() / 10.0),
    }
}

fn harm_of(shape: Shape, fault: Fault) -> Harm {
    let mut harm = Harm {
        is_served: true,
        ..Harm::default()
    };
    let trials = if shape.cpus > 128 { TRIALS / 3 } else { TRIALS };
    for trial in 0..trials {
        let mut machine = Machine::new(shape, 1 + trial as u64);
        let rest_ns = machine.rest_ns();
        let every_pair = |machine: &Machine| (0..shape.cpus).map(|cpu| machine.backward_ns(cpu)).fold(0.0, f64::max);
        assert_eq!(every_pair(&machine), 0.0, "before the fault");
        let struck_at = machine.now_ns + rest_ns * (3.0 + trial as f64 / trials as f64);
        let ends_at = struck_at + 20.0 * rest_ns + 12.0 * SECOND;
        let mut strikes: Vec<(f64, Fault)> = vec![(struck_at, fault)];
        // A CPU's counter is wrong once it is back.
        let mut wrong_from = struck_at;
        match fault {
            Fault::ComesBack { after_ns } => {
                wrong_from += after_ns;
                strikes.push((wrong_from, fault));
            }
            Fault::JumpsTwice { ns } => strikes.push((struck_at + 3.0 * SECOND, Fault::Jumps { ns: 3.0 * ns })),
            _ => {}
        }
        let mut withdrawn_at = None;
        let mut next_patrol = machine.now_ns + rest_ns;
        while machine.now_ns < ends_at {
            let next_strike = strikes.first().map_or(f64::INFINITY, |strike| strike.0);
            if next_strike < next_patrol {
                machine.pass((next_strike - machine.now_ns).max(0.0));
                strike(&mut machine, strikes.remove(0).1);
            } else {
                machine.pass((next_patrol - machine.now_ns).max(0.0));
                // A drift has done most right before a comparison.
                harm.backward_ns = harm.backward_ns.max(machine.backward_ns(machine.bad));
                next_patrol = machine.now_ns + rest_ns;
                let was_served = machine.now_ns >= machine.served_from_ns;
                machine.patrol();
                if was_served && machine.now_ns < machine.served_from_ns && machine.now_ns > wrong_from {
                    withdrawn_at = withdrawn_at.or(Some(machine.compared_at_ns));
                }
                next_patrol = next_patrol.max(machine.now_ns);
            }
            harm.backward_ns = harm.backward_ns.max(machine.backward_ns(machine.bad));
        }
        if let Some(at) = withdrawn_at {
            harm.withdrawn_after_ns = harm.withdrawn_after_ns.max(at - wrong_from);
        }
        harm.withdrawals += machine.withdrawals;
        let is_served = machine.now_ns >= machine.served_from_ns;
        harm.is_served &= is_served;
        if is_served && fault != Fault::None {
            assert_eq!(every_pair(&machine), 0.0, "at the end");
        }
    }
    harm
}

fn strike(machine: &mut Machine, fault: Fault) {
    let bad = machine.bad;
    match fault {
        Fault::None => {}
        Fault::Jumps { ns } | Fault::JumpsTwice { ns } => machine.ahead[bad] += ns * COUNTS_PER_NS,
        Fault::Drifts { ppm } => machine.drift_ppm = ppm,
        Fault::NodeDrifts { ppm } => {
            let of_a_node = machine.shape.cpus / machine.shape.nodes;
            let first = bad / of_a_node * of_a_node;
            machine.drifting = first..first + of_a_node;
            machine.drift_ppm = ppm;
        }
        Fault::ComesBack { .. } if !machine.is_off => machine.is_off = true,
        Fault::ComesBack { .. } => {
            machine.is_off = false;
            machine.ahead[bad] = -machine.now_ns * COUNTS_PER_NS;
        }
    }
}

const SHAPES: [Shape; 4] = [
    Shape {
        cpus: 2,
        threads_of_a_core: 1,
        nodes: 1,
    },
    Shape {
        cpus: 16,
        threads_of_a_core: 2,
        nodes: 1,
    },
    Shape {
        cpus: 128,
        threads_of_a_core: 2,
        nodes: 2,
    },
    Shape {
        cpus: 512,
        threads_of_a_core: 2,
        nodes: 8,
    },
];

const AGAIN: &str = "measured anew, served again";
const KERNEL: &str = "the kernel answers from then on";

const FAULTS: [(&str, Fault, &str); 9] = [
    ("one CPU jumps by 1 us", Fault::Jumps { ns: 1e3 }, AGAIN),
    ("one CPU jumps by 10 s", Fault::Jumps { ns: 10.0 * SECOND }, AGAIN),
    (
        "one CPU jumps twice, by 1 and 3 ms",
        Fault::JumpsTwice { ns: MS },
        KERNEL,
    ),
    ("one CPU drifts by 0.1 ppm", Fault::Drifts { ppm: 0.1 }, KERNEL),
    ("one CPU drifts by 1 ppm", Fault::Drifts { ppm: 1.0 }, KERNEL),
    ("one CPU drifts by 100 ppm", Fault::Drifts { ppm: 100.0 }, KERNEL),
    ("a node drifts by 1 ppm", Fault::NodeDrifts { ppm: 1.0 }, KERNEL),
    (
        "a CPU is off for 0.3 s and comes back with a counter from zero",
        Fault::ComesBack { after_ns: 0.3 * SECOND },
        AGAIN,
    ),
    (
        "a CPU is off for 5 s and comes back with a counter from zero",
        Fault::ComesBack { after_ns: 5.0 * SECOND },
        AGAIN,
    ),
];

/// Returns whether the table has this fault for this machine: a single node cannot drift against others, and the largest
/// machine takes long to simulate.
fn is_in_table(shape: Shape, fault: Fault) -> bool {
    match fault {
        Fault::NodeDrifts { .. } => shape.nodes > 1,
        Fault::Jumps { .. } | Fault::ComesBack { .. } => true,
        _ => shape.cpus <= 128,
    }
}

/// The bounds that hold whatever the seed.
fn assert_bounded(shape: Shape, fault: Fault, then: &str, harm: &Harm, rest_ns: f64) {
    let what = format!("{} CPUs: {}", shape.cpus, harm.cell());
    // A comparison of all CPUs takes some time itself, and two in a row may miss the CPU.
    let soon_ns = 3.0 * (rest_ns + VISIT_NS * shape.cpus as f64);
    // Half of the messages between two nodes, and their noise.
    const UNSEEN_NS: f64 = 125.0 + 75.0;
    let is_bounded = match fault {
        Fault::None => harm.withdrawals == 0 && harm.backward_ns == 0.0,
        Fault::Jumps { ns } => harm.backward_ns <= ns && harm.withdrawn_after_ns <= soon_ns,
        Fault::JumpsTwice { ns } => harm.backward_ns <= 4.0 * ns && harm.withdrawn_after_ns <= soon_ns,
        Fault::Drifts { ppm } | Fault::NodeDrifts { ppm } => harm.backward_ns <= UNSEEN_NS + ppm * 1e-6 * soon_ns,
        // Its absence is noticed by the next comparison.
        Fault::ComesBack { after_ns } if after_ns > soon_ns => harm.backward_ns == 0.0,
        Fault::ComesBack { .. } => harm.withdrawn_after_ns <= soon_ns,
    };
    assert!(is_bounded, "{what}");
    if fault != Fault::None {
        assert_eq!(harm.is_served, then == AGAIN, "{what}");
    }
}

#[test]
fn constant_offsets_stay_served() {
    for shape in SHAPES {
        let harm = harm_of(shape, Fault::None);
        assert_bounded(shape, Fault::None, AGAIN, &harm, 0.0);
    }
}

/// A host that is served without `--trust-counter`.
const BY_DEFAULT: [Shape; 3] = [
    SHAPES[0],
    SHAPES[1],
    Shape {
        cpus: MOST_CPUS_BY_DEFAULT,
        threads_of_a_core: 2,
        nodes: 1,
    },
];

#[test]
fn counters_that_drift_are_refused_before_anything_is_served() {
    for shape in BY_DEFAULT {
        for (seed, ppm) in [(1, 0.25), (2, -0.25), (3, 1.0), (4, -5.0), (5, 100.0)] {
            let mut machine = Machine::new(shape, seed);
            machine.known = Known::default();
            assert!(machine.measure_steady().is_ok(), "{} CPUs", shape.cpus);
            (machine.known, machine.drift_ppm) = (Known::default(), ppm);
            let measured = machine.measure_steady().map(drop);
            assert_eq!(
                measured,
                Err(Unsolvable::Inconsistent),
                "{} CPUs, {ppm} ppm",
                shape.cpus
            );
        }
    }
}

/// A core begins to drift at a resume, or at some moment after it; each suspend changes all offsets.
#[test]
fn a_cpu_that_drifts_by_1_ppm_among_suspends_is_withdrawn_for_good() {
    const SUSPENDS: u64 = 20;
    let of_cpus = |cpus| Shape { cpus, ..SHAPES[1] };
    for shape in [SHAPES[0], of_cpus(4), of_cpus(8), of_cpus(16), of_cpus(32)] {
        for seed in 1..=SUSPENDS {
            let mut machine = Machine::new(shape, seed);
            let rest_ns = machine.rest_ns();
            let (mut most_ns, mut was_served) = (0.0_f64, 0);
            // Half of them at a resume.
            let core = machine.bad / shape.threads_of_a_core * shape.threads_of_a_core;
            machine.drifting = core..core + shape.threads_of_a_core;
            let drifts_at = machine.random.below(100).max(50) - 50;
            for suspend in 0..SUSPENDS {
                machine.suspend();
                for round in 0..100 {
                    if suspend + 1 == seed && round == drifts_at {
                        machine.drift_ppm = 1.0;
                    }
                    machine.pass(rest_ns);
                    let before_ns = machine.backward_ns(machine.bad);
                    machine.patrol();
                    most_ns = most_ns.max(before_ns).max(machine.backward_ns(machine.bad));
                }
                was_served += u64::from(machine.now_ns >= machine.served_from_ns);
            }
            for _ in 0..1_000 {
                machine.pass(rest_ns);
                most_ns = most_ns.max(machine.backward_ns(machine.bad));
                machine.patrol();
            }
            let what = format!("{} CPUs, seed {seed}: {most_ns} ns", shape.cpus);
            println!("{what}");
            assert!(was_served + 1 >= seed, "{what}: suspends are no drift");
            assert!(
                machine.changes.is_drift() && machine.served_from_ns.is_infinite(),
                "{what}"
            );
            let bound_ns = match shape.cpus {
                ..=8 => 0.0,
                // Half of a message and its noise, and what the core gains from one comparison, or the next if that misses it.
                _ => 30.0 + 18.0 + 1e-6 * 3.0 * (rest_ns + VISIT_NS * shape.cpus as f64),
            };
            assert!(most_ns <= bound_ns, "{what}");
        }
    }
}

#[test]
fn cpus_that_go_off_and_on_show_no_wrong_time_where_no_flag_is_needed() {
    for shape in BY_DEFAULT {
        for after_ns in [300.0 * MS, 5.0 * SECOND] {
            let harm = harm_of(shape, Fault::ComesBack { after_ns });
            assert_eq!(harm.backward_ns, 0.0, "{} CPUs, off for {after_ns} ns", shape.cpus);
        }
    }
}

/// FASTPATH_WRITE_DOCS=1 writes the table.
#[test]
fn changes_of_offsets_are_bounded_and_the_table_in_the_docs_says_how() {
    const HEAD: &str = "| With offsets in use | 2 CPUs | 16 CPUs | 128 CPUs, two nodes | 512 CPUs, eight nodes | then |\n\
                        |---|---|---|---|---|---|\n";
    let row = |(name, fault, then): (&str, Fault, &str)| {
        let cell = |shape: Shape| {
            if !is_in_table(shape, fault) {
                return "-".to_owned();
            }
            let harm = harm_of(shape, fault);
            assert_bounded(shape, fault, then, &harm, Machine::new(shape, 1).rest_ns());
            harm.cell()
        };
        let cells: Vec<String> = SHAPES.into_iter().map(cell).collect();
        format!("| {name} | {} | {then} |\n", cells.join(" | "))
    };
    let rows: String = FAULTS.into_iter().map(row).collect();
    println!("{HEAD}{rows}");
    agree_with_docs(HEAD, &rows);
}

/// Checks the table of docs/counter.md, or writes it.
fn agree_with_docs(head: &str, rows: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counter.md");
    let docs = std::fs::read_to_string(path).expect("the page");
    let (before, rest) = docs.split_once(head).expect("the table's head");
    let (_, after) = rest.split_once("\n\n").expect("the table's end");
    let wanted = format!("{before}{head}{rows}\n{after}");
    if std::env::var_os("FASTPATH_WRITE_DOCS").is_some() {
        std::fs::write(path, &wanted).expect("the page");
    } else {
        assert!(docs == wanted, "run me with FASTPATH_WRITE_DOCS=1");
    }
}
