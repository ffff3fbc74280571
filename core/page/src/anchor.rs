//! One anchor as a plain value: its exact arithmetic, and the limits that keep the reader's arithmetic from
//! overflowing.

use crate::clock::{BASES, ClockSet};

/// Nanoseconds in a second.
pub const NSEC_PER_SEC: u64 = 1_000_000_000;

/// Most bits of fraction: with one more, two seconds of shifted nanoseconds would not fit 64 bits.
pub const MAX_SHIFT: u32 = 33;

/// The time of one clock at an anchor's base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Whole seconds.
    pub sec: u64,
    /// Nanoseconds within the second, shifted left by the rate's `shift`.
    pub nsec_shifted: u64,
}

impl Base {
    /// Returns the base for nanoseconds since the clock's epoch in units of 2^-shift ns.
    pub fn from_ns_shifted(ns_shifted: u128, shift: u32) -> Base {
        let second = u128::from(NSEC_PER_SEC) << shift;
        Base {
            sec: (ns_shifted / second) as u64,
            nsec_shifted: (ns_shifted % second) as u64,
        }
    }

    /// Returns nanoseconds since the clock's epoch in units of 2^-shift ns.
    pub fn ns_shifted(self, shift: u32) -> u128 {
        u128::from(self.sec) * (u128::from(NSEC_PER_SEC) << shift) + u128::from(self.nsec_shifted)
    }
}

/// Nanoseconds per count of the counter: `mult / 2^shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per count, shifted left by `shift`.
    pub mult: u32,
    /// Bits of fraction, at most [`MAX_SHIFT`].
    pub shift: u32,
}

impl Rate {
    /// Returns the nearest rate to `ns_per_cycle_q64 / 2^64` nanoseconds per count, as precise as the page's limits
    /// allow.
    ///
    /// Returns `None` if it rounds to zero or is 2^32 ns or more per count: no such counter can be served.
    pub fn from_ns_per_cycle_q64(ns_per_cycle_q64: u128) -> Option<Rate> {
        (0..=MAX_SHIFT).rev().find_map(|shift| {
            let drop = 64 - shift;
            let rounded = ns_per_cycle_q64.checked_add(1 << (drop - 1))? >> drop;
            u32::try_from(rounded)
                .ok()
                .filter(|mult| *mult > 0)
                .map(|mult| Rate { mult, shift })
        })
    }

    /// Returns nanoseconds per count in units of 2^-64 ns, exactly.
    pub fn ns_per_cycle_q64(self) -> u128 {
        u128::from(self.mult) << (64 - self.shift)
    }

    /// Returns the counts after which the reader's arithmetic would leave its limits: `cap * mult <= 10^9 << shift`,
    /// `cap < 2^32`.
    pub fn max_cap(self) -> u32 {
        let limit = (NSEC_PER_SEC << self.shift) / u64::from(self.mult.max(1));
        u32::try_from(limit).unwrap_or(u32::MAX)
    }

    /// Returns the largest cap of at most `ns` nanoseconds that [`Rate::max_cap`] allows.
    pub fn cap_for_ns(self, ns: u64) -> u32 {
        let cycles = (u128::from(ns) << self.shift) / u128::from(self.mult.max(1));
        u32::try_from(cycles).unwrap_or(u32::MAX).min(self.max_cap())
    }

    /// Returns the least counts that take at least `ns` nanoseconds.
    pub fn cycles_for_ns(self, ns: u64) -> u64 {
        let cycles = (u128::from(ns) << self.shift).div_ceil(u128::from(self.mult.max(1)));
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }
}

/// Longest distance from UTC that an anchor states, in nanoseconds: the kernel's own limit (NTP_PHASE_LIMIT,
/// include/linux/timex.h), where it is unknown.
pub const MAX_UTC_ERROR_NS: u64 = 16 * NSEC_PER_SEC;

/// Bound on the distance of REALTIME from UTC. The default: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UtcError {
    /// Nanoseconds at the anchor's base; 0: unknown.
    pub ns: u64,
    /// Growth per count, in nanoseconds shifted left by the rate's `shift`.
    pub mult: u32,
}

/// The times of the clocks at one value of the counter, the rate from there, and the max age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The clocks that this anchor answers.
    pub clocks: ClockSet,
    /// The counter at which `base` holds. It may lie a little in the future.
    pub base_cycles: u64,
    /// The clocks' rate.
    pub rate: Rate,
    /// Counts after `base_cycles` beyond which the anchor answers nothing.
    pub cap_cycles: u32,
    /// The time of each clock at `base_cycles`; see [`crate::clock::base_index`].
    pub base: [Base; BASES],
    /// How far REALTIME may be from UTC.
    pub utc_error: UtcError,
}

impl Anchor {
    /// Returns whether the reader's arithmetic stays within its limits: the writer publishes no other anchor.
    pub fn is_within_limits(&self) -> bool {
        self.rate.mult > 0
            && self.rate.shift <= MAX_SHIFT
            && self.cap_cycles <= self.rate.max_cap()
            && self.utc_error.mult <= self.rate.mult
            && self.utc_error.ns < MAX_UTC_ERROR_NS
            && self
                .base
                .iter()
                .all(|base| base.nsec_shifted < NSEC_PER_SEC << self.rate.shift)
    }

    /// Returns whether the anchor covers `counter`, whichever clocks it answers.
    pub fn covers(&self, counter: u64) -> bool {
        counter.wrapping_sub(self.base_cycles) <= u64::from(self.cap_cycles)
    }

    /// Returns the last value of the counter at which the anchor answers.
    pub fn end_cycles(&self) -> u64 {
        self.base_cycles.wrapping_add(u64::from(self.cap_cycles))
    }

    /// Returns the same anchor, ended at `counter` if not before. With a counter before the base it covers the base
    /// alone.
    pub fn ended_at(mut self, counter: u64) -> Anchor {
        let shown_cycles = (counter.wrapping_sub(self.base_cycles) as i64).max(0);
        self.cap_cycles = self.cap_cycles.min(u32::try_from(shown_cycles).unwrap_or(u32::MAX));
        self
    }

    /// Returns whether the anchor can still answer at `counter` or after it.
    pub fn may_answer_from(&self, counter: u64) -> bool {
        !self.clocks.is_empty() && (self.end_cycles().wrapping_sub(counter) as i64) >= 0
    }

    /// Returns seconds and nanoseconds of `base[index]` at `counter`, as a reader computes them; `None` outside of base
    /// and cap.
    pub fn at(&self, index: usize, counter: u64) -> Option<(u64, u32)> {
        let elapsed_cycles = counter.wrapping_sub(self.base_cycles);
        if elapsed_cycles > u64::from(self.cap_cycles) {
            return None;
        }
        let base = self.base.get(index)?;
        let ns = (elapsed_cycles * u64::from(self.rate.mult) + base.nsec_shifted) >> self.rate.shift;
        // Below two seconds by the limits, so one subtraction suffices.
        Some(if ns >= NSEC_PER_SEC {
            (base.sec + 1, (ns - NSEC_PER_SEC) as u32)
        } else {
            (base.sec, ns as u32)
        })
    }

    /// Returns the extrapolation of `base[index]` to `counter`, whatever the cap, in units of 2^-shift ns since the
    /// clock's epoch.
    ///
    /// Exact. A counter before the base reads as the base.
    pub fn ns_shifted_at(&self, index: usize, counter: u64) -> u128 {
        let elapsed_cycles = (counter.wrapping_sub(self.base_cycles) as i64).max(0) as u128;
        self.base[index].ns_shifted(self.rate.shift) + elapsed_cycles * u128::from(self.rate.mult)
    }

    /// Returns the same anchor with `base[index]` later by `offset_ns`, as a time namespace shows it. Exact; no time is
    /// below 0.
    pub fn offset_by(mut self, index: usize, offset_ns: i64) -> Anchor {
        let ns_shifted = self.base[index].ns_shifted(self.rate.shift) as i128;
        let moved = ns_shifted + (i128::from(offset_ns) << self.rate.shift);
        self.base[index] = Base::from_ns_shifted(moved.max(0) as u128, self.rate.shift);
        self
    }

    /// Returns the same line with its base moved to a later counter, exactly: readers get the same times from both at
    /// any counter that both cover. A counter before the base leaves the base where it is.
    pub fn rebase(&self, counter: u64) -> Anchor {
        self.rebase_with(counter, self.rate)
    }

    /// Returns an anchor that continues this one from `counter`, with another rate.
    ///
    /// Where the shift changes, fractions are rounded up: at `counter` no clock shows less than on this anchor, not by
    /// the smallest fraction, so time cannot go back by rounding. The cap is kept in counts and clipped to the new
    /// rate's limit. How far REALTIME is from UTC is unknown.
    pub fn rebase_with(&self, counter: u64, rate: Rate) -> Anchor {
        let counter = if (counter.wrapping_sub(self.base_cycles) as i64) < 0 {
            self.base_cycles
        } else {
            counter
        };
        let mut base = [Base::default(); BASES];
        for (index, moved) in base.iter_mut().enumerate() {
            let ns_shifted = self.ns_shifted_at(index, counter);
            *moved = Base::from_ns_shifted(reshift_up(ns_shifted, self.rate.shift, rate.shift), rate.shift);
        }
        Anchor {
            clocks: self.clocks,
            base_cycles: counter,
            rate,
            cap_cycles: self.cap_cycles.min(rate.max_cap()),
            base,
            utc_error: UtcError::default(),
        }
    }
}

/// Converts a fixed-point number with `from` bits of fraction to one with `to` bits, rounded up where bits are lost.
pub fn reshift_up(value: u128, from: u32, to: u32) -> u128 {
    if to >= from {
        value << (to - from)
    } else {
        value.div_ceil(1 << (from - to))
    }
}
