//! How the kernel steers its clocks by adjtimex(2), and the effect on MONOTONIC's rate.
//!
//! The kernel's rate is `tick` and `freq`, from the moment that they are set (`ntp_update_frequency` in
//! kernel/time/ntp.c), plus the slew, which changes at each second of CLOCK_REALTIME (`second_overflow`, the same
//! file).

const NS_PER_SEC: u64 = 1_000_000_000;
/// Length of REALTIME's day, at the end of which a leap second comes (adjtimex(2), STA_INS and STA_DEL).
const DAY_NS: u64 = 86_400 * NS_PER_SEC;
/// Unit of `freq`: 2^-16 ppm (adjtimex(2)).
const FREQ_UNIT: f64 = 1e-6 / 65_536.0;
/// Microseconds of a tick when nothing is adjusted, and USER_HZ = 100 (adjtimex(2), `tick`).
const NOMINAL_TICK_US: f64 = 10_000.0;
/// A phase-locked loop removes 2^-(SHIFT_PLL + constant) of the offset in each second (include/linux/timex.h).
const SHIFT_PLL: u32 = 2;
/// Rate of a slew that a refresh at the usual time follows: 1 ppm of 100 ms is 100 ns.
const NEGLIGIBLE_PPM: f64 = 1.0;
/// Largest distance of the tick from nominal that is not a slew, such as chronyd's (`maxslewrate`): to correct its
/// oscillator, a host may permanently need one or two.
const SETTLED_TICK_US: i64 = 10;
/// A single-shot adjustment (adjtime(3)) slews by 500 ppm, or by the rest of it, in each second.
const SINGLE_SHOT_PPM: f64 = 500.0;
/// The kernel applies a change at the first tick of its clock after the second: 10 ms at 100 ticks a second, and a
/// little more.
const APPLIED_WITHIN_NS: u64 = 12_000_000;
/// Time between looks within `APPLIED_WITHIN_NS`.
const LOOK_EVERY_NS: u64 = 1_000_000;
/// Longest time for which the kernel may continue a slew after it was pending: until the second's end.
pub(crate) const SLEWS_ON_NS: u64 = NS_PER_SEC + APPLIED_WITHIN_NS;
/// Longest time from an anchor's base to its publication. An anchor may begin in the past where readers fall back to
/// the kernel, which has shown them later times since.
pub(crate) const LATEST_NS: u64 = 500_000;
/// Time of the look after a second has begun: after the tick, where ticks and seconds are aligned.
const LOOK_AFTER_NS: u64 = 200_000;

/// A leap second at the end of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leap {
    /// 23:59:59 occurs twice.
    Insert,
    /// 23:59:59 is left out.
    Delete,
}

/// The kernel's state, as one call of adjtimex(2) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ntp {
    /// Frequency offset in units of 2^-16 ppm.
    pub freq: i64,
    /// Microseconds per tick of USER_HZ, nominally 10,000.
    pub tick_us: i64,
    /// The offset that a phase-locked loop has still to remove, in nanoseconds.
    pub offset_ns: i64,
    /// The loop's time constant.
    pub constant: u32,
    /// The rest of an adjustment by adjtime(3), in microseconds.
    pub single_shot_us: i64,
    /// TAI less REALTIME, in seconds.
    pub tai_s: i32,
    /// The leap second at the end of REALTIME's day, as the status announces it (STA_INS, STA_DEL): also after the leap,
    /// until a daemon takes the announcement back.
    pub leap: Option<Leap>,
    /// Whether a daemon synchronizes the kernel's clock (no STA_UNSYNC) and therefore changes it again.
    pub is_synchronized: bool,
    /// Bound on the distance of the kernel's REALTIME from UTC, as a daemon stated it, and the kernel has grown it since.
    pub max_error_us: u64,
}

impl Ntp {
    /// Returns the kernel's rate by `tick` and `freq`, relative to an unadjusted clock.
    pub(crate) fn rate(self) -> f64 {
        self.tick_us as f64 / NOMINAL_TICK_US + self.freq as f64 * FREQ_UNIT
    }

    /// Returns whether the kernel slews, and may stop at any time: refreshes come sooner, and anchors end sooner, to
    /// limit the error when it stops.
    pub(crate) fn is_slewing(self) -> bool {
        (self.tick_us - NOMINAL_TICK_US as i64).abs() > SETTLED_TICK_US || self.changes_each_second()
    }

    /// Returns whether the kernel changes nothing by itself: it does not slew, and no leap second is announced.
    pub fn is_steady(self) -> bool {
        !self.is_slewing() && self.leap.is_none()
    }

    /// Returns whether the rate changes from second to second by more than a refresh at the usual time can follow.
    pub(crate) fn changes_each_second(self) -> bool {
        let shift = SHIFT_PLL + self.constant.min(32);
        let loop_ppm = self.offset_ns.unsigned_abs() as f64 / (1u64 << shift) as f64 * 1e-3;
        let single_ppm = (self.single_shot_us.unsigned_abs() as f64).min(SINGLE_SHOT_PPM);
        loop_ppm.max(single_ppm) > NEGLIGIBLE_PPM
    }

    /// Returns the nanoseconds from a time of REALTIME to the leap second that is announced: negative after it, while
    /// the kernel has not made it yet.
    pub(crate) fn to_leap_ns(self, real_ns: u64) -> Option<i64> {
        let early_ns = match self.leap? {
            Leap::Insert => 0,
            Leap::Delete => NS_PER_SEC,
        };
        let of_day_ns = (real_ns.wrapping_add(early_ns) % DAY_NS) as i64;
        let to_come_ns = DAY_NS as i64 - of_day_ns;
        Some(if of_day_ns < NS_PER_SEC as i64 {
            -of_day_ns
        } else {
            to_come_ns
        })
    }

    /// Returns whether the rate may change, at a time that adjtimex(2) does not report, when REALTIME shows about
    /// `real_ns`. `was_pending` is as in [`Ntp::next_look_ns`].
    pub(crate) fn may_change_at(self, real_ns: u64, was_pending: bool) -> bool {
        let of_second_ns = real_ns % NS_PER_SEC;
        let is_about_then = !(APPLIED_WITHIN_NS..NS_PER_SEC - LATEST_NS).contains(&of_second_ns);
        is_about_then && (was_pending || self.changes_each_second())
    }

    /// Returns when to look at the clocks again, in nanoseconds from a time of REALTIME, where the rate, or REALTIME
    /// itself, may change at the beginning of a second; at most `window_ns`. `was_pending` says that a slew was pending
    /// within the second before: the kernel continues it until the second's end.
    pub(crate) fn next_look_ns(self, real_ns: u64, window_ns: u64, was_pending: bool) -> u64 {
        let is_leaping = self
            .to_leap_ns(real_ns)
            .is_some_and(|to_leap_ns| to_leap_ns < 2 * NS_PER_SEC as i64);
        if !is_leaping && !was_pending && !self.changes_each_second() {
            return window_ns;
        }
        let of_second_ns = real_ns % NS_PER_SEC;
        if of_second_ns < APPLIED_WITHIN_NS {
            return window_ns.min(LOOK_EVERY_NS);
        }
        window_ns.min(NS_PER_SEC - of_second_ns + LOOK_AFTER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Ntp = Ntp {
        freq: 0,
        tick_us: 10_000,
        offset_ns: 0,
        constant: 2,
        single_shot_us: 0,
        tai_s: 37,
        leap: None,
        is_synchronized: false,
        max_error_us: 16_000_000,
    };
    const MIDNIGHT_NS: u64 = 20_000 * DAY_NS;

    #[test]
    fn tick_and_frequency_make_the_rate() {
        assert_eq!(QUIET.rate(), 1.0);
        let fast = Ntp {
            tick_us: 10_833,
            freq: 500 << 16,
            ..QUIET
        };
        assert!((fast.rate() - 1.0838).abs() < 1e-12, "{}", fast.rate());
    }

    #[test]
    fn only_a_slew_that_shows_is_one() {
        let with = |offset_ns, constant, single_shot_us| Ntp {
            offset_ns,
            constant,
            single_shot_us,
            ..QUIET
        };
        assert!(!QUIET.is_slewing());
        // 400 ms: 50 ms in the first second.
        assert!(with(-400_000_000, 1, 0).is_slewing());
        // The rest of a good synchronization: 100 us, a 4096th a second.
        assert!(!with(100_000, 10, 0).is_slewing());
        assert!(with(0, 10, 100).is_slewing());
        let ticking = |tick_us| Ntp { tick_us, ..QUIET };
        assert!(ticking(9_167).is_slewing() && !ticking(10_001).is_slewing());
    }

    #[test]
    fn a_leap_second_comes_at_the_end_of_the_day_and_is_late_by_a_tick() {
        let insert = Ntp {
            leap: Some(Leap::Insert),
            ..QUIET
        };
        let delete = Ntp {
            leap: Some(Leap::Delete),
            ..QUIET
        };
        assert_eq!(QUIET.to_leap_ns(MIDNIGHT_NS), None);
        assert_eq!(insert.to_leap_ns(MIDNIGHT_NS - 5), Some(5));
        assert_eq!(insert.to_leap_ns(MIDNIGHT_NS + 5), Some(-5));
        assert_eq!(delete.to_leap_ns(MIDNIGHT_NS - NS_PER_SEC - 5), Some(5));
        assert_eq!(delete.to_leap_ns(MIDNIGHT_NS - NS_PER_SEC), Some(0));
    }

    #[test]
    fn a_rate_may_change_about_the_beginning_of_a_second() {
        let slewing = Ntp {
            single_shot_us: 5_000,
            ..QUIET
        };
        let second_ns = 7 * NS_PER_SEC;
        assert!(slewing.may_change_at(second_ns, false) && slewing.may_change_at(second_ns + 10_000_000, false));
        assert!(slewing.may_change_at(second_ns - LATEST_NS, false));
        assert!(!slewing.may_change_at(second_ns - LATEST_NS - 1, false));
        assert!(!slewing.may_change_at(second_ns + APPLIED_WITHIN_NS, false));
        assert!(!QUIET.may_change_at(second_ns, false) && QUIET.may_change_at(second_ns, true));
    }

    #[test]
    fn seconds_matter_only_while_the_rate_changes_with_them() {
        let slewing = Ntp {
            single_shot_us: 5_000,
            ..QUIET
        };
        let second_ns = 7 * NS_PER_SEC;
        assert_eq!(QUIET.next_look_ns(second_ns, 100, false), 100);
        assert_eq!(QUIET.next_look_ns(second_ns, 10_000_000, false), 10_000_000);
        assert_eq!(slewing.next_look_ns(second_ns + 1, 10_000_000, false), LOOK_EVERY_NS);
        assert_eq!(
            slewing.next_look_ns(second_ns + APPLIED_WITHIN_NS, 10_000_000, false),
            10_000_000
        );
        assert_eq!(
            slewing.next_look_ns(second_ns - 500, 10_000_000, false),
            500 + LOOK_AFTER_NS
        );
        // Cancelled in the middle of a second.
        assert_eq!(
            QUIET.next_look_ns(second_ns - 500, 10_000_000, true),
            500 + LOOK_AFTER_NS
        );
    }
}
