//! Every anchor that a discipline makes can be published: it is within the limits of the readers' arithmetic, and the
//! writer refuses it for its moment only. On counters of 1 kHz to 64 GHz, at any time, also after impossible samples.
//!
//! Checks 100,000 anchors, or as many as FASTPATH_ANCHORS says; `make long` checks 10^9.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_clock::{AnchorDecision, Bracket, Config, Discipline, Leap, Ntp, Sample};
use fastpath_page::{Anchor, ClockSet, Page, PublishError, Reason, Writer};
use host::Random;

/// Anchors in all, and of one machine.
const ANCHORS: u64 = 100_000;
const OF_ONE_MACHINE: u64 = 50;

/// Returns a number whose logarithm is evenly distributed.
fn of_any_size(random: &mut Random, low_log2: f64, high_log2: f64) -> f64 {
    random.between(low_log2, high_log2).exp2()
}

/// A counter and clocks that need not exist.
struct Machine {
    random: Random,
    ns_per_cycle: f64,
    counter: u64,
    mono_ns: u64,
    /// REALTIME, BOOTTIME and TAI less MONOTONIC, in nanoseconds.
    offsets_ns: [u64; 3],
    ntp: Option<Ntp>,
    has_others: bool,
    /// Probability of a sample that no clocks explain.
    wild: f64,
    /// Probability that something happens between two samples. Windows grow only where nothing does.
    unrest: f64,
}

impl Machine {
    fn new(mut random: Random) -> Machine {
        let ntp = Ntp {
            freq: (random.between(-500.0, 500.0) * 65_536.0) as i64,
            tick_us: random.between(9_000.0, 11_000.0) as i64,
            offset_ns: of_any_size(&mut random, 0.0, 29.0) as i64,
            constant: (random.next() % 11) as u32,
            single_shot_us: 0,
            tai_s: 37,
            leap: random.chance(0.1).then_some(Leap::Insert),
            is_synchronized: random.chance(0.5),
            max_error_us: of_any_size(&mut random, 0.0, 30.0) as u64,
        };
        let real_ns = of_any_size(&mut random, 0.0, 63.0) as u64;
        Machine {
            ns_per_cycle: of_any_size(&mut random, -6.0, 20.0),
            counter: random.next(),
            mono_ns: 1 + of_any_size(&mut random, 0.0, 63.0) as u64,
            offsets_ns: [
                real_ns,
                of_any_size(&mut random, 0.0, 60.0) as u64,
                real_ns + 37_000_000_000,
            ],
            ntp: random.chance(0.3).then_some(ntp),
            has_others: random.chance(0.7),
            wild: if random.chance(0.5) { 0.1 } else { 0.0 },
            unrest: if random.chance(0.5) { 0.15 } else { 0.0 },
            random,
        }
    }

    fn advance(&mut self, ns: f64) {
        let cycles = (ns / self.ns_per_cycle).ceil();
        self.counter = self.counter.wrapping_add(cycles as u64);
        self.mono_ns = self.mono_ns.wrapping_add((cycles * self.ns_per_cycle) as u64);
    }

    fn bracket(&mut self, offset_ns: u64) -> Bracket {
        let before = self.counter;
        self.advance(40.0);
        let time_ns = self.mono_ns.wrapping_add(offset_ns);
        let interrupted_ns = if self.random.chance(0.02) { 1e6 } else { 0.0 };
        self.advance(40.0 + interrupted_ns);
        Bracket {
            before,
            time_ns,
            after: self.counter,
        }
    }

    fn wild_bracket(&mut self) -> Bracket {
        let edges = [0, u64::MAX, 1 << 63, self.counter, self.random.next()];
        let mut any = || edges[(self.random.next() % edges.len() as u64) as usize];
        Bracket {
            before: any(),
            time_ns: any(),
            after: any(),
        }
    }

    fn sample(&mut self) -> Sample {
        let mono = self.bracket(0);
        let [real, boot, tai] = self.offsets_ns.map(|offset_ns| self.bracket(offset_ns));
        let raw = self.bracket(5);
        let mut sample = Sample {
            mono,
            real,
            raw: self.has_others.then_some(raw),
            boot: self.has_others.then_some(boot),
            tai: self.has_others.then_some(tai),
            ntp: self.ntp,
        };
        if self.random.chance(self.wild) {
            match self.random.next() % 4 {
                0 => sample.mono = self.wild_bracket(),
                1 => sample.real = self.wild_bracket(),
                2 => sample.raw = Some(self.wild_bracket()),
                _ => sample.boot = Some(self.wild_bracket()),
            }
        }
        sample
    }

    fn config(&mut self) -> Config {
        let clocks = [
            ClockSet::ALL,
            ClockSet::HRES,
            ClockSet::MONOTONIC_RAW | ClockSet::MONOTONIC,
        ];
        let clocks = clocks[(self.random.next() % 3) as usize];
        let config = Config {
            clocks,
            ..Config::default()
        };
        match self.random.next() % 4 {
            0 => config,
            1 => config.watched(),
            2 => Config::on_demand(clocks),
            // Anchors that live longer than a second.
            _ => Config {
                longest_window_ns: 2_000_000_000,
                ..config
            },
        }
    }
}

fn assert_within_limits(anchor: &Anchor) {
    assert!(anchor.is_within_limits(), "{anchor:?}");
    // A page of a time namespace, and one that joins.
    for offset_ns in [i64::MIN, -1, i64::MAX] {
        assert!(anchor.offset_by(0, offset_ns).is_within_limits(), "{anchor:?}");
    }
}

/// Follows one machine, and returns how many anchors were made, and how many of them stayed on the page.
fn follow(machine: &mut Machine) -> (u64, u64) {
    let mut discipline = Discipline::new(machine.config());
    let page = Box::new(Page::zeroed());
    let writer = Writer::new(&page);
    let (mut anchors, mut published) = (0, 0);
    for _ in 0..20 * OF_ONE_MACHINE {
        let window_ns = discipline.next_window_ns().max(1) as f64;
        let event = match machine.random.chance(machine.unrest) {
            true => machine.random.next() % 8,
            false => u64::MAX,
        };
        let times = if event == 0 { 1e4 } else { 1.0 };
        let window_ns = window_ns * machine.random.between(0.3, 1.3) * times;
        machine.advance(window_ns);
        let is_step = event == 1;
        if is_step {
            let by_ns = machine.random.next() >> (machine.random.next() % 64);
            machine.offsets_ns[0] = machine.offsets_ns[0].wrapping_add(by_ns);
            machine.offsets_ns[2] = machine.offsets_ns[2].wrapping_add(by_ns);
        }
        if event == 2 {
            machine.ns_per_cycle *= machine.random.between(0.9, 1.1);
        }
        let sample = machine.sample();
        if !sample.is_possible() {
            continue;
        }
        let now = machine.counter;
        let in_force = [discipline.hres(), discipline.raw()];
        // Where no reader uses an anchor, the next one begins at once.
        let effective_at = match in_force.iter().flatten().any(|anchor| anchor.may_answer_from(now)) {
            true => now.wrapping_add((50_000.0 / machine.ns_per_cycle).ceil() as u64),
            false => now,
        };
        let decision = match event {
            3 => discipline.compared(true),
            4..7 => discipline.compared(false),
            7 => discipline.clocksource_changed(),
            _ if is_step => discipline.step(&sample, || effective_at),
            _ => discipline.observe(&sample, || effective_at),
        };
        match decision {
            AnchorDecision::Wait => {}
            AnchorDecision::Withdraw(reason) => withdraw(&writer, &mut discipline, reason, now),
            AnchorDecision::Publish { hres, raw, .. } => {
                anchors += 1;
                assert_within_limits(&hres);
                raw.iter().for_each(assert_within_limits);
                match publish(&writer, &hres, raw.as_ref(), now) {
                    Ok(()) if !machine.random.chance(machine.unrest) => published += 1,
                    // Where a clock or its rate changed while nothing was in force, the writer waits for the kernel.
                    Err(PublishError::BelowFloor) if machine.wild + machine.unrest > 0.0 => discipline.retract(),
                    Err(error @ (PublishError::OutOfLimits(_) | PublishError::BelowFloor)) => {
                        panic!("{error}: {:?}", machine.ns_per_cycle)
                    }
                    _ => {
                        discipline.retract();
                        withdraw(&writer, &mut discipline, Reason::Warp, now);
                    }
                }
            }
        }
        if anchors == OF_ONE_MACHINE {
            break;
        }
    }
    (anchors, published)
}

fn publish(writer: &Writer<'_>, hres: &Anchor, raw: Option<&Anchor>, now: u64) -> Result<(), PublishError> {
    fastpath_page::publish_all([writer], Some(hres), raw, 0, || now, || false)
}

fn withdraw(writer: &Writer<'_>, discipline: &mut Discipline, reason: Reason, now: u64) {
    writer.withdraw(reason, || now);
    discipline.end_at(now);
}

#[test]
fn every_anchor_can_be_published() {
    let wanted = std::env::var("FASTPATH_ANCHORS").map_or(ANCHORS, |text| text.parse().expect("a number"));
    let mut random = Random::seeded();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let follow_many = |mut random: Random| {
        let (mut anchors, mut published, mut machines) = (0, 0, 0);
        while anchors < wanted.div_ceil(threads) {
            let (made, stayed) = follow(&mut Machine::new(Random::from_seed(random.next())));
            (anchors, published, machines) = (anchors + made, published + stayed, machines + 1);
        }
        println!("{anchors} anchors of {machines} machines, {published} published");
        assert!(
            anchors > machines * OF_ONE_MACHINE / 2 && published > anchors / 2,
            "too few"
        );
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let random = Random::from_seed(random.next());
            scope.spawn(|| follow_many(random));
        }
    });
}
