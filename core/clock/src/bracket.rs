//! The measurement of a publisher: a clock's value between two reads of the counter.

use crate::ntp::Ntp;

/// A clock read between two reads of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracket {
    /// The counter just before the clock was read.
    pub before: u64,
    /// The clock's value, in nanoseconds since its epoch.
    pub time_ns: u64,
    /// The counter just after the clock was read.
    pub after: u64,
}

impl Bracket {
    /// Returns the counts from one end to the other. A counter that went backwards in between gives a very wide
    /// bracket.
    pub fn width_cycles(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }

    /// Returns the counter in the middle: the best estimate of when the clock was read, right to within half the width.
    pub fn middle_cycles(&self) -> u64 {
        self.before.wrapping_add(self.width_cycles() / 2)
    }
}

/// Returns the narrowest bracket, which says most precisely when its clock was read. The wide ones were interrupted.
pub fn tightest(brackets: &[Bracket]) -> Option<Bracket> {
    brackets.iter().copied().min_by_key(Bracket::width_cycles)
}

/// The clocks of a host, each the tightest of a few brackets, all taken within a few microseconds.
///
/// `raw` also distinguishes an NTP slew from a counter that changes its rate, and `boot` a suspend from a counter that
/// jumps: fill them in where they exist, even if these clocks are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// CLOCK_MONOTONIC.
    pub mono: Bracket,
    /// CLOCK_REALTIME.
    pub real: Bracket,
    /// CLOCK_MONOTONIC_RAW.
    pub raw: Option<Bracket>,
    /// CLOCK_BOOTTIME.
    pub boot: Option<Bracket>,
    /// CLOCK_TAI.
    pub tai: Option<Bracket>,
    /// How the kernel steers its clocks, read just before the clocks.
    pub ntp: Option<Ntp>,
}

impl Sample {
    /// Returns whether this is a possible sample: each clock was read between two reads of the counter that are in
    /// order, and is past its epoch. Rejects a struct that the host never filled.
    pub fn is_possible(&self) -> bool {
        let brackets = [Some(self.mono), Some(self.real), self.raw, self.boot, self.tai];
        let is_possible = |bracket: &Bracket| {
            let is_in_order = bracket.width_cycles() as i64 >= 0;
            is_in_order && bracket.time_ns != 0 && (bracket.before, bracket.after) != (0, 0)
        };
        brackets.iter().flatten().all(is_possible)
    }
}
