//! A simulated host: a counter and the kernel's clocks, in virtual time.

pub mod publisher;

use fastpath_clock::{Bracket, Leap, Ntp, Sample, tightest};

/// splitmix64.
pub struct Random(u64);

impl Random {
    /// Returns a generator seeded from FASTPATH_SEED, else from the time. Prints the seed, so that a failure can be run
    /// again.
    pub fn seeded() -> Random {
        let seed = match std::env::var("FASTPATH_SEED") {
            Ok(text) => text.parse().expect("FASTPATH_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64,
        };
        println!("FASTPATH_SEED={seed}");
        Random(seed)
    }

    pub fn from_seed(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// A whole number and a fraction, so that hours of small advances lose nothing.
#[derive(Clone, Copy)]
pub struct Accumulator {
    pub whole: u64,
    fraction: f64,
}

impl Accumulator {
    pub fn new(whole: u64) -> Accumulator {
        Accumulator { whole, fraction: 0.0 }
    }

    pub fn add(&mut self, amount: f64) {
        let sum = self.fraction + amount;
        let floor = sum.floor();
        self.whole = self.whole.wrapping_add(floor as i64 as u64);
        self.fraction = sum - floor;
    }
}

/// Timing of one clock read on this host.
#[derive(Clone, Copy)]
pub struct Reads {
    /// Time from the first read of the counter to the clock's, in nanoseconds: the least, and the most that is added at
    /// random.
    pub to_clock_ns: (f64, f64),
    /// Time from the clock's read to the second read of the counter, likewise.
    pub from_clock_ns: (f64, f64),
    /// Step in which the kernel's clock advances, in nanoseconds; 0: it is computed from the same counter.
    pub quantum_ns: f64,
    /// Step in which the counter advances, in hundredths of a count.
    pub counter_step: u32,
    /// Probability that one read is interrupted.
    pub interrupted: f64,
    /// Longest interruption.
    pub interrupted_for_ns: f64,
    /// Brackets taken for each clock of a sample.
    pub attempts: u32,
}

/// Brackets of about 85 cycles at 2.6 GHz, as measured through a kernel's vDSO.
pub const VDSO: Reads = Reads {
    to_clock_ns: (14.0, 4.0),
    from_clock_ns: (14.0, 4.0),
    quantum_ns: 0.0,
    counter_step: 100,
    interrupted: 0.001,
    interrupted_for_ns: 1e6,
    attempts: 5,
};

pub const HPET: Reads = Reads {
    to_clock_ns: (550.0, 150.0),
    from_clock_ns: (450.0, 150.0),
    quantum_ns: 69.84,
    interrupted: 0.01,
    ..VDSO
};

pub const ACPI_PM: Reads = Reads {
    to_clock_ns: (700.0, 300.0),
    from_clock_ns: (700.0, 300.0),
    quantum_ns: 279.4,
    ..HPET
};

/// Behaviour of the counter while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asleep {
    GoesOn,
    Stops,
    IsReset,
}

/// Delay of the kernel's tick after REALTIME's second.
pub const TICK_AFTER_NS: i64 = 2_700_000;

pub struct Host {
    pub random: Random,
    pub counter: Accumulator,
    /// Counter of the current CPU, above `counter`.
    pub skew_cycles: i64,
    /// Counts per nanosecond of true time; 0: stopped.
    pub ghz: f64,
    /// Relative change of `ghz` per second of true time, a random walk.
    pub wander_per_second: f64,
    pub mono: Accumulator,
    /// The kernel's frequency against true time, in parts per million.
    pub ntp_ppm: f64,
    pub raw: Accumulator,
    pub real_offset_ns: i64,
    pub boot_offset_ns: i64,
    pub tai_offset_s: i64,
    pub reads: Reads,
    pub has_raw: bool,
    /// Whether adjtimex(2) is available.
    pub tells: bool,
    /// What adjtimex(2) says of the distance from UTC.
    pub max_error_us: u64,
    pub is_synchronized: bool,
    /// The leap second that is announced.
    pub leap: Option<Leap>,
    /// The offset that a phase-locked loop has still to remove, its slew in this second, and its time constant.
    pub offset_ns: f64,
    slewed_ppm: f64,
    pub constant: u32,
    pub elapsed_ns: f64,
    /// A sleep to come: after so many moments at which the publisher may be stopped, and how long.
    pub sleep_after: Option<(u32, f64, Asleep)>,
}

impl Host {
    pub fn new(ghz: f64, reads: Reads) -> Host {
        Host::with(Random::seeded(), ghz, reads)
    }

    /// Returns the same host every time.
    #[allow(dead_code, reason = "not every test wants the same again")]
    pub fn fixed(seed: u64, ghz: f64, reads: Reads) -> Host {
        Host::with(Random(seed), ghz, reads)
    }

    fn with(mut random: Random, ghz: f64, reads: Reads) -> Host {
        Host {
            counter: Accumulator::new(random.next() >> random.between(0.0, 30.0) as u32),
            skew_cycles: 0,
            ghz,
            wander_per_second: 0.0,
            mono: Accumulator::new(random.between(1e9, 1e15) as u64),
            ntp_ppm: random.between(-100.0, 100.0),
            raw: Accumulator::new(random.between(1e9, 1e15) as u64),
            real_offset_ns: 1_700_000_000_000_000_000 + random.between(0.0, 1e9) as i64,
            boot_offset_ns: random.between(0.0, 1e12) as i64,
            tai_offset_s: 37,
            reads,
            has_raw: true,
            tells: false,
            max_error_us: 16_000_000,
            is_synchronized: true,
            leap: None,
            offset_ns: 0.0,
            slewed_ppm: 0.0,
            constant: 1,
            elapsed_ns: 0.0,
            sleep_after: None,
            random,
        }
    }

    /// Returns the counter of the current CPU.
    pub fn count(&self) -> u64 {
        let shown = self.counter.whole - self.beyond_step();
        shown.wrapping_add_signed(self.skew_cycles)
    }

    /// Returns the counts since the counter's last step.
    fn beyond_step(&self) -> u64 {
        let (whole, step) = (u128::from(self.counter.whole), u128::from(self.reads.counter_step));
        (whole - whole * 100 / step * step / 100) as u64
    }

    /// Returns the result of adjtimex(2).
    pub fn ntp(&self) -> Ntp {
        let tick_us = 10_000 + (self.ntp_ppm / 100.0).trunc() as i64;
        Ntp {
            freq: ((self.ntp_ppm - (tick_us - 10_000) as f64 * 100.0) * 65_536.0).round() as i64,
            tick_us,
            offset_ns: self.offset_ns as i64,
            constant: self.constant,
            single_shot_us: 0,
            tai_s: self.tai_offset_s as i32,
            leap: self.leap,
            is_synchronized: self.is_synchronized,
            max_error_us: self.max_error_us,
        }
    }

    /// Returns the time until the kernel's next tick after the next second of REALTIME, where it slews.
    #[allow(dead_code, reason = "not every test waits for it")]
    pub fn to_overflow_ns(&self) -> f64 {
        if self.offset_ns == 0.0 && self.slewed_ppm == 0.0 {
            return f64::INFINITY;
        }
        let since_ns = self.mono.whole.wrapping_add_signed(self.real_offset_ns - TICK_AFTER_NS) % 1_000_000_000;
        (1_000_000_000 - since_ns) as f64
    }

    /// Does the work of second_overflow() in kernel/time/ntp.c.
    fn overflow(&mut self) {
        let taken_off_ns = self.offset_ns / f64::from(1u32 << (2 + self.constant));
        self.offset_ns -= taken_off_ns;
        if self.offset_ns.abs() < 1.0 {
            self.offset_ns = 0.0;
        }
        self.slewed_ppm = taken_off_ns / 1_000.0;
    }

    pub fn advance(&mut self, ns: f64) {
        let mut left = ns;
        while left > 0.0 {
            let step = if self.wander_per_second > 0.0 {
                left.min(1e7)
            } else {
                left
            };
            let rate = 1.0 + (self.ntp_ppm + self.slewed_ppm) * 1e-6;
            let to_overflow_ns = self.to_overflow_ns() / rate;
            let overflows = to_overflow_ns <= step;
            let step = step.min(to_overflow_ns);
            if self.wander_per_second > 0.0 && self.ghz > 0.0 {
                let sigma = self.wander_per_second * (step / 1e9).sqrt();
                self.ghz *= 1.0 + sigma * self.random.between(-1.732, 1.732);
            }
            self.counter.add(step * self.ghz);
            self.mono.add(step * rate);
            self.raw.add(step);
            self.elapsed_ns += step;
            left -= step;
            if overflows {
                self.overflow();
            }
        }
    }

    /// Returns a time as the kernel shows it: computed from the last count of this counter, or of a coarser one.
    fn quantised(&self, time: Accumulator) -> u64 {
        let quantum = self.reads.quantum_ns;
        if quantum > 0.0 {
            return ((time.whole as f64 / quantum).floor() * quantum) as u64;
        }
        let mut shown = time;
        if self.ghz > 0.0 {
            shown.add(-(self.beyond_step() as f64 + self.counter.fraction) / self.ghz);
        }
        shown.whole
    }

    /// Returns the kernel's MONOTONIC, on average over the steps in which it advances.
    pub fn mono_ns(&self) -> u64 {
        match self.reads.quantum_ns {
            0.0 => self.quantised(self.mono),
            quantum_ns => self.mono.whole - (quantum_ns / 2.0) as u64,
        }
    }

    /// Returns REALTIME, likewise.
    pub fn real_ns(&self) -> u64 {
        self.mono_ns().wrapping_add_signed(self.real_offset_ns)
    }

    /// Returns the kernel's time of a clock, on average over the steps in which it advances.
    pub fn mean_clock_ns(&self, id: u32) -> Option<u64> {
        let mean = |shown: Accumulator| shown.whole - (self.reads.quantum_ns / 2.0) as u64;
        match id {
            4 if self.reads.quantum_ns > 0.0 => self.has_raw.then(|| mean(self.raw)),
            4 => self.clock_ns(4),
            _ => {
                let above_mono_ns = self.clock_ns(id)?.wrapping_sub(self.quantised(self.mono));
                Some(self.mono_ns().wrapping_add(above_mono_ns))
            }
        }
    }

    /// Returns the kernel's time of a clock at this moment.
    pub fn clock_ns(&self, id: u32) -> Option<u64> {
        let mono_ns = self.quantised(self.mono);
        match id {
            0 => Some(mono_ns.wrapping_add_signed(self.real_offset_ns)),
            1 => Some(mono_ns),
            4 => self.has_raw.then(|| self.quantised(self.raw)),
            7 => Some(mono_ns.wrapping_add_signed(self.boot_offset_ns)),
            11 => Some(mono_ns.wrapping_add_signed(self.real_offset_ns + self.tai_offset_s * 1_000_000_000)),
            _ => None,
        }
    }

    fn bracket(&mut self, id: u32) -> Option<Bracket> {
        self.clock_ns(id)?;
        let reads = self.reads;
        let brackets: Vec<Bracket> = (0..reads.attempts)
            .map(|_| {
                let before = self.count();
                let to_clock_ns = reads.to_clock_ns.0 + reads.to_clock_ns.1 * self.random.unit();
                self.advance(to_clock_ns);
                self.maybe_interrupt();
                let time_ns = self.clock_ns(id).expect("it was there before");
                self.maybe_interrupt();
                let from_clock_ns = reads.from_clock_ns.0 + reads.from_clock_ns.1 * self.random.unit();
                self.advance(from_clock_ns);
                Bracket {
                    before,
                    time_ns,
                    after: self.count(),
                }
            })
            .collect();
        tightest(&brackets)
    }

    /// Sleeps, as CLOCK_BOOTTIME shows.
    pub fn sleep(&mut self, ns: f64, counter: Asleep) {
        self.boot_offset_ns += ns as i64;
        self.real_offset_ns += ns as i64;
        match counter {
            Asleep::GoesOn => self.counter.add(ns * self.ghz),
            Asleep::Stops => {}
            Asleep::IsReset => self.counter = Accumulator::new(0),
        }
    }

    /// Passes a moment at which the publisher may be stopped, and sleeps if that is due.
    pub fn maybe_sleep(&mut self) {
        match &mut self.sleep_after {
            Some((0, ns, counter)) => {
                let (ns, counter) = (*ns, *counter);
                self.sleep_after = None;
                self.sleep(ns, counter);
            }
            Some((left, _, _)) => *left -= 1,
            None => {}
        }
    }

    fn maybe_interrupt(&mut self) {
        self.maybe_sleep();
        if self.random.chance(self.reads.interrupted / 2.0) {
            let ns = self.random.between(500.0, self.reads.interrupted_for_ns);
            self.advance(ns);
        }
    }

    pub fn sample(&mut self) -> Sample {
        let ntp = self.tells.then(|| self.ntp());
        let mut bracket = |id| self.bracket(id);
        Sample {
            mono: bracket(1).expect("there is always MONOTONIC"),
            real: bracket(0).expect("there is always REALTIME"),
            raw: bracket(4),
            boot: bracket(7),
            tai: bracket(11),
            ntp,
        }
    }
}
