//! The recent points of one clock: its rate, its noise, whether either changed, and whether the counter is believable.

use crate::bracket::Bracket;
use crate::line::{Fit, Line, Point, cycles_between, ns_between};
use crate::recent::Recent;
use crate::steer::VISIBLE_NS;
use crate::widths::Widths;
use fastpath_page::Reason;

/// Limits where MONOTONIC_RAW is not available: NTP may change the kernel's frequency from -500 to +500 ppm at once;
/// the rest allows for the counter's own wander.
pub(crate) const NTP_LIMITS: RateLimits = RateLimits {
    change: 1_100e-6,
    total: 2_200e-6,
};
/// Limits where MONOTONIC_RAW distinguishes a slew from a counter that changes: `adjtimex` can set the tick 10 % off
/// (chrony slews with it).
pub(crate) const TICK_LIMITS: RateLimits = RateLimits {
    change: 0.22,
    total: 0.22,
};
/// Limits of MONOTONIC_RAW, which is never slewed: two oscillators differ by at most this much over all temperatures.
pub(crate) const RAW_LIMITS: RateLimits = RateLimits {
    change: 100e-6,
    total: 200e-6,
};

/// Number of second differences that determine how noisy the points are. With 16 of them, the median is often half of
/// the true one if a clock advances in steps (acpi_pm), and a rate seemed to change more than once a minute, at a
/// hundred samples a second.
const DIFFERENCES: usize = 64;
/// Fewest differences that are used at all.
const FEW_DIFFERENCES: f64 = 4.0;
/// Time for which precise points are kept.
const HORIZON_NS: f64 = 2e9;
/// Points are precise if their standard deviation is at most this; a noisier clock is filtered over a longer base.
const PRECISE_NS: f64 = 5.0;
/// Longest time for which points are kept: oscillators wander.
const LONGEST_HORIZON_NS: f64 = 16e9;
/// Largest number of points, somewhat more than those of the longest horizon at ten a second.
const POINTS: usize = 256;
/// Standard deviations that count as a change of rate and not as noise. At ten refreshes a second and three tests each,
/// fewer would show a change every few minutes where there is none.
const SIGNIFICANT: f64 = 4.0;
/// Successive points have correlated errors where the kernel's clock advances in steps. A few of them together may be
/// off by this part of half a bracket without a change of rate.
const SYSTEMATIC: f64 = 8.0;
/// Part by which a bracket is wider than the narrowest if its read was delayed.
const DELAYED: f64 = 0.2;
/// Lower bound of a clock's noise.
const LEAST_NOISE_NS: f64 = 0.5;
/// Standard deviations of the line within which the promised error must hold.
const RECKONED_WITH: f64 = 3.0;
/// Baseline that is kept if a few points seem to show another rate. Nearer to each other, points with errors on opposite
/// sides would show a rate that no clock has: where the counter advances in steps of 10 ns (AMD Zen), 50 ppm over 0.2 ms.
const LEAST_BASELINE_NS: f64 = 10e6;
/// Baseline from which a rate is precise enough to become the counter's reference rate.
const REFERENCE_BASELINE_NS: f64 = 1e9;

/// Limits on the change of a clock's rate against a believable counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimits {
    /// Largest relative change from one sample to the next.
    pub change: f64,
    /// Largest relative change since the counter was first believed.
    pub total: f64,
}

/// The result of a bracket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Seen {
    /// Too wide: the publisher was interrupted. It changes nothing.
    Poor,
    /// The bracket fits.
    Fits {
        /// Whether the bracket begins another rate, of which little is known yet.
        rate_changed: bool,
        /// Whether it follows a time without samples, over which only the average rate is known.
        after_gap: bool,
    },
    /// No clock of the kernel behaves like this against a believable counter.
    Broken(Reason),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    points: Recent<Point, { POINTS + 1 }>,
    widths: Widths,
    differences_ns: Recent<f64, DIFFERENCES>,
    /// Median of the differences; cached, because it is needed many times per sample and takes most of the work.
    median_difference_ns: f64,
    line: Option<Line>,
    /// Nanoseconds per count when the counter was first believed.
    reference: Option<f64>,
}

impl Track {
    /// Returns the line through the points that still show the present rate; `None` before the second good sample.
    pub(crate) fn line(&self) -> Option<&Line> {
        self.line.as_ref()
    }

    /// Drops the points and the counter's rate, but not the widths of brackets.
    pub(crate) fn restart(&mut self) {
        self.points.clear();
        self.differences_ns.clear();
        self.line = None;
        self.reference = None;
    }

    /// Returns the largest possible relative error of the line's rate, by the width of the brackets at its ends.
    pub(crate) fn rate_uncertainty(&self) -> f64 {
        match (self.points.first(), self.points.last(), &self.line) {
            (Some(first), Some(last), Some(_)) => {
                let baseline = cycles_between(first.cycles, last.cycles) as f64;
                (first.width_cycles as f64 + last.width_cycles as f64) / 2.0 / baseline
            }
            _ => f64::INFINITY,
        }
    }

    /// Returns the error that a program cannot see when it mixes our answers with the kernel's: half of the cost of a
    /// read of the kernel's clock.
    pub(crate) fn promised_ns(&self) -> f64 {
        self.half_width_ns().map_or(f64::INFINITY, |ns| ns.max(VISIBLE_NS))
    }

    /// Returns for how long after the last point the line is known to within `promised_ns`, in nanoseconds.
    pub(crate) fn known_for_ns(&self) -> f64 {
        self.line.map_or(0.0, |line| {
            line.known_for_ns(self.promised_ns(), RECKONED_WITH * self.noise_ns())
        })
    }

    /// Returns half the width of the narrowest bracket.
    fn half_width_ns(&self) -> Option<f64> {
        let line = self.line.as_ref()?;
        Some((self.widths.narrowest_cycles() + 1) as f64 / 2.0 * line.ns_per_cycle)
    }

    /// Returns the standard deviation of a point, in nanoseconds.
    pub(crate) fn noise_ns(&self) -> f64 {
        let (Some(line), Some(half_width_ns)) = (&self.line, self.half_width_ns()) else {
            return f64::INFINITY;
        };
        // A lower bound even where most differences are zero: times come in whole nanoseconds, and the counter in whole
        // counts (an even spread over one has a standard deviation of 0.29).
        let least_ns = LEAST_NOISE_NS.max(0.29 * line.ns_per_cycle);
        let count = self.differences_ns.len();
        if count < DIFFERENCES / 2 {
            return self.noise_by_widths_ns(line).min(self.noise_by_few_ns()).max(least_ns);
        }
        // The median of |x| is 0.6745 standard deviations where x is normal, and one change of rate does not move it. A
        // clock is read inside of its bracket, which bounds the noise whatever the differences say.
        let by_differences = self.median_difference_ns / 0.6745;
        by_differences.clamp(least_ns, half_width_ns.max(least_ns))
    }

    /// Returns the noise to expect from the points' brackets, while little is known yet.
    fn noise_by_widths_ns(&self, line: &Line) -> f64 {
        let squares: f64 = self
            .points
            .iter()
            .map(|point| (point.width_cycles as f64).powi(2))
            .sum();
        let width_ns = (squares / self.points.len() as f64).sqrt() * line.ns_per_cycle;
        width_ns / 2.0 / 3.0
    }

    /// Returns the noise to expect from a few differences: with so few, the deviation may easily be twice as much.
    fn noise_by_few_ns(&self) -> f64 {
        let count = self.differences_ns.len() as f64;
        if count < FEW_DIFFERENCES {
            return f64::INFINITY;
        }
        let squares: f64 = self.differences_ns.iter().map(|ns| ns * ns).sum();
        (squares / count).sqrt() * (1.0 + 2.0 / count.sqrt())
    }

    /// Takes into account that the clock runs at `factor` times its former rate, since some moment before this bracket.
    /// Returns false where the bracket is too wide to determine the time.
    ///
    /// Moves the points to where they would be if the clock had always run at its new rate and arrived at this bracket:
    /// the line keeps what it knows of the counter.
    pub(crate) fn turn(&mut self, bracket: &Bracket, factor: f64) -> bool {
        if !self.widths.is_good(bracket) {
            return false;
        }
        let Some(line) = self.line else {
            self.points.clear();
            return true;
        };
        let pivot = Point::from(*bracket);
        let pivot_above_ns = line.above_origin_ns(pivot.cycles);
        self.points.change(|point| {
            let back_ns = pivot_above_ns - ns_between(line.origin_ns, point.ns) as f64;
            point.ns = pivot.ns.wrapping_sub((back_ns * factor).round() as i64 as u64);
        });
        self.reference = self.reference.map(|ns_per_cycle| ns_per_cycle * factor);
        self.line = Line::fit(self.points.iter());
        true
    }

    /// Takes a bracket.
    pub(crate) fn see(&mut self, bracket: &Bracket, limits: RateLimits) -> Seen {
        let point = Point::from(*bracket);
        // Holds for every width: the clock was read inside of the bracket.
        if let Some(reason) = self.disbelieve(&point, limits) {
            return Seen::Broken(reason);
        }
        if !self.widths.see(bracket) {
            return Seen::Poor;
        }
        let after_gap = (self.points.last()).is_some_and(|last| ns_between(last.ns, point.ns) as f64 > HORIZON_NS);
        // An interrupted first sample is recognized only when better ones follow.
        let widest = 4 * self.widths.narrowest_cycles() + 5;
        self.points.retain(|point| point.width_cycles <= widest);
        self.points.push(point);
        self.measure_noise();
        self.forget_old();
        let rate_changed = self.forget_another_rate();
        self.line = Line::fit(self.points.iter());
        match self.drift(limits) {
            Some(reason) => Seen::Broken(reason),
            None => Seen::Fits {
                rate_changed,
                after_gap,
            },
        }
    }

    /// Returns why the counter cannot be believed if this point is true.
    fn disbelieve(&self, point: &Point, limits: RateLimits) -> Option<Reason> {
        let last = self.points.last()?;
        let counted = cycles_between(last.cycles, point.cycles);
        let elapsed_ns = ns_between(last.ns, point.ns) as f64;
        if counted < 0 {
            return Some(Reason::CounterJumped);
        }
        if counted == 0 {
            return (elapsed_ns > 0.0).then_some(Reason::CounterStopped);
        }
        let line = self.line.as_ref()?;
        let bracket_ns = (point.width_cycles as f64 + last.width_cycles as f64) / 2.0 * line.ns_per_cycle;
        let explained_by_noise_ns = bracket_ns + SIGNIFICANT * self.noise_ns() + 5.0;
        let explained_by_rate_ns = elapsed_ns.abs() * (limits.change + 2.0 * self.rate_uncertainty());
        let off_ns = line.residual_ns(point);
        if off_ns.abs() <= explained_by_noise_ns + explained_by_rate_ns {
            return None;
        }
        let counted_ns = counted as f64 * line.ns_per_cycle;
        Some(if counted_ns < elapsed_ns / 2.0 {
            Reason::CounterStopped
        } else if off_ns.abs() > elapsed_ns.abs() / 10.0 {
            Reason::CounterJumped
        } else {
            Reason::RateImplausible
        })
    }

    /// Returns a reason if the rate has drifted too far from the reference, in steps that are each explained.
    fn drift(&mut self, limits: RateLimits) -> Option<Reason> {
        let line = self.line.as_ref()?;
        let first = self.points.first()?;
        let baseline_ns = cycles_between(first.cycles, line.origin_cycles) as f64 * line.ns_per_cycle;
        if baseline_ns < REFERENCE_BASELINE_NS {
            return None;
        }
        let reference = *self.reference.get_or_insert(line.ns_per_cycle);
        ((line.ns_per_cycle / reference - 1.0).abs() > limits.total).then_some(Reason::RateImplausible)
    }

    /// Measures how far the last point but one lies off the line between its neighbours: noise, whatever the rate.
    fn measure_noise(&mut self) {
        let count = self.points.len();
        if count < 3 {
            return;
        }
        let (before, middle, after) = (self.points[count - 3], self.points[count - 2], self.points[count - 1]);
        let part =
            cycles_between(before.cycles, middle.cycles) as f64 / cycles_between(before.cycles, after.cycles) as f64;
        let off_ns = ns_between(before.ns, middle.ns) as f64 - part * ns_between(before.ns, after.ns) as f64;
        let variance = 1.0 + part * part + (1.0 - part) * (1.0 - part);
        self.differences_ns.push(off_ns.abs() / variance.sqrt());
        let mut differences_ns = [0.0; DIFFERENCES];
        let differences_ns = &mut differences_ns[..self.differences_ns.len()];
        differences_ns.copy_from_slice(&self.differences_ns);
        let middle = differences_ns.len() / 2;
        let (_, median_ns, _) = differences_ns.select_nth_unstable_by(middle, f64::total_cmp);
        self.median_difference_ns = *median_ns;
    }

    /// Drops the points beyond the horizon, but never so many that the baseline becomes short.
    fn forget_old(&mut self) {
        let noise_ns = self.noise_ns();
        let horizon_ns = if noise_ns.is_finite() {
            (HORIZON_NS * noise_ns / PRECISE_NS).clamp(HORIZON_NS, LONGEST_HORIZON_NS)
        } else {
            HORIZON_NS
        };
        while self.points.len() > 2 {
            let (first, second, last) = (self.points[0], self.points[1], self.points[self.points.len() - 1]);
            let age_ns = ns_between(first.ns, last.ns) as f64;
            let left_ns = ns_between(second.ns, last.ns) as f64;
            // A publisher that was starved keeps an old point until the new ones have a baseline of their own.
            if (age_ns <= horizon_ns || left_ns < horizon_ns / 2.0) && self.points.len() <= POINTS {
                return;
            }
            self.points.drop_oldest(1);
        }
    }

    /// Drops the points from before the clock's rate changed, if the newest ones show that it did.
    ///
    /// The newest one alone counts if it is beyond the error of its bracket; two, four and eight of them if they are
    /// beyond chance, and beyond the delays that their brackets show.
    fn forget_another_rate(&mut self) -> bool {
        let count = self.points.len();
        let noise_ns = self.noise_ns();
        let narrowest_cycles = (self.widths.narrowest_cycles() + 1) as f64;
        // A delay may be all on one side of the clock's read. Smaller differences are noise.
        let delay_cycles = |point: &Point| {
            let wider_cycles = point.width_cycles as f64 - narrowest_cycles;
            if wider_cycles > DELAYED * narrowest_cycles {
                wider_cycles / 2.0
            } else {
                0.0
            }
        };
        const TESTS: [(usize, usize); 4] = [(1, 2), (2, 3), (4, 4), (8, 8)];
        let (mut fit, mut squares) = (Fit::default(), 0.0);
        let mut without = [(fit, squares); TESTS.len()];
        for (at, point) in self.points.iter().enumerate() {
            fit.add(point);
            squares += delay_cycles(point).powi(2);
            if let Some(test) = TESTS.iter().position(|(newest, _)| at + 1 + newest == count) {
                without[test] = (fit, squares);
            }
        }
        for ((newest, older), (fit, squares)) in TESTS.into_iter().zip(without) {
            if count < newest + older {
                break;
            }
            let Some(line) = fit.line() else {
                continue;
            };
            let (mut off_ns, mut variance, mut delay) = (0.0, 0.0, 0.0);
            for point in &self.points[count - newest..] {
                off_ns += line.residual_ns(point) / newest as f64;
                variance += line.variance_at(point.cycles) / newest as f64;
                delay += delay_cycles(point) / newest as f64;
            }
            let (error_ns, own_variance) = if newest == 1 {
                let half_width_cycles = self.points[count - 1].width_cycles as f64 / 2.0;
                (half_width_cycles * line.ns_per_cycle + 1.0, 0.0)
            } else {
                let error_cycles = narrowest_cycles / 2.0 / SYSTEMATIC + delay;
                (error_cycles * line.ns_per_cycle, 1.0 / newest as f64)
            };
            // The line is a sum of its points, with weights whose squares add up to its variance.
            let error_of_line_ns = (variance * squares).sqrt() * line.ns_per_cycle;
            let by_chance_ns = SIGNIFICANT * noise_ns * (variance + own_variance).sqrt();
            let limit_ns = error_ns + error_of_line_ns + by_chance_ns;
            if off_ns.abs() > limit_ns {
                let last = self.points[count - 1];
                let is_baseline =
                    |first: &Point| newest == 1 || ns_between(first.ns, last.ns) as f64 >= LEAST_BASELINE_NS;
                let dropped = (1..=count - newest.max(2))
                    .rev()
                    .find(|at| is_baseline(&self.points[*at]));
                self.points.drop_oldest(dropped.unwrap_or(0));
                return dropped.is_some();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_coarse_clock_are_not_mistaken_for_changes_of_its_rate() {
        // The ACPI PM timer, read a hundred times a second for an hour by a counter of 2 GHz.
        const STEP_NS: f64 = 279.365;
        let limits = RateLimits {
            change: 0.22,
            total: 0.22,
        };
        let mut track = Track::default();
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut now_ns, mut changes) = (1e9, 0);
        for _ in 0..360_000 {
            now_ns += 1e7 + 1e6 * random();
            let (before_ns, read_ns) = (now_ns, now_ns + 300.0 + 60.0 * random());
            let after_ns = read_ns + 300.0 + 60.0 * random();
            let bracket = Bracket {
                before: (2.0 * before_ns) as u64,
                time_ns: ((read_ns / STEP_NS).floor() * STEP_NS) as u64,
                after: (2.0 * after_ns) as u64,
            };
            match track.see(&bracket, limits) {
                Seen::Fits { rate_changed, .. } => changes += u32::from(rate_changed),
                other => panic!("{other:?}"),
            }
        }
        assert!(changes <= 10, "{changes} changes");
    }
}
