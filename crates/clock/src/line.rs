//! The straight line through a clock's points: nanoseconds over counts.

use crate::bracket::Bracket;

/// One reading of a clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Point {
    pub cycles: u64,
    pub ns: u64,
    /// Width of its bracket, plus the one count by which its ends, which are rounded down, may have been further apart.
    pub width_cycles: u64,
}

impl From<Bracket> for Point {
    fn from(bracket: Bracket) -> Point {
        Point {
            cycles: bracket.middle_cycles(),
            ns: bracket.time_ns,
            width_cycles: bracket.width_cycles().saturating_add(1),
        }
    }
}

/// Returns the counts from one value of the counter to another, negative if `to` comes first.
pub(crate) fn cycles_between(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// Returns the nanoseconds from one time to another, negative if `to` comes first.
pub(crate) fn ns_between(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// A least-squares line. All floating-point values are relative to its origin, one of the points, so they stay small
/// enough (seconds) to be exact to far below a nanosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub origin_cycles: u64,
    pub origin_ns: u64,
    pub ns_per_cycle: f64,
    /// Height of the line above `origin_ns` at the origin.
    offset_ns: f64,
    points: f64,
    mean_cycles: f64,
    /// Sum of the squared distances from the mean, in counts squared.
    spread: f64,
}

impl Line {
    /// Returns the line through at least two points with different counters; the last is the origin.
    pub fn fit<'a>(points: impl DoubleEndedIterator<Item = &'a Point> + Clone) -> Option<Line> {
        let origin = *points.clone().next_back()?;
        let relative = points.map(|point| {
            let x = cycles_between(origin.cycles, point.cycles) as f64;
            let y = ns_between(origin.ns, point.ns) as f64;
            (x, y)
        });
        let (mut count, mut sum_x, mut sum_y) = (0.0, 0.0, 0.0);
        for (x, y) in relative.clone() {
            count += 1.0;
            sum_x += x;
            sum_y += y;
        }
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (mut spread, mut slope) = (0.0, 0.0);
        for (x, y) in relative {
            spread += (x - mean_x) * (x - mean_x);
            slope += (x - mean_x) * (y - mean_y);
        }
        let ns_per_cycle = slope / spread;
        (ns_per_cycle.is_finite() && ns_per_cycle > 0.0).then_some(Line {
            origin_cycles: origin.cycles,
            origin_ns: origin.ns,
            ns_per_cycle,
            offset_ns: mean_y - ns_per_cycle * mean_x,
            points: count,
            mean_cycles: mean_x,
            spread,
        })
    }

    /// Returns the nanoseconds above `origin_ns` at a value of the counter.
    pub fn above_origin_ns(&self, cycles: u64) -> f64 {
        self.offset_ns + self.ns_per_cycle * cycles_between(self.origin_cycles, cycles) as f64
    }

    /// Returns how far a point lies above the line, in nanoseconds.
    pub fn residual_ns(&self, point: &Point) -> f64 {
        ns_between(self.origin_ns, point.ns) as f64 - self.above_origin_ns(point.cycles)
    }

    /// Returns for how long after the origin the line is known to within `bound_ns`, if points have a standard
    /// deviation of `sigma_ns`; in nanoseconds, 0 if it is not even known at the origin.
    pub fn known_for_ns(&self, bound_ns: f64, sigma_ns: f64) -> f64 {
        let variance = bound_ns * bound_ns / (sigma_ns * sigma_ns) - 1.0 / self.points;
        let cycles = (variance.max(0.0) * self.spread).sqrt() + self.mean_cycles;
        (cycles * self.ns_per_cycle).max(0.0)
    }

    /// Returns the variance of the line at a value of the counter, for points of variance one.
    pub fn variance_at(&self, cycles: u64) -> f64 {
        let from_mean = cycles_between(self.origin_cycles, cycles) as f64 - self.mean_cycles;
        1.0 / self.points + from_mean * from_mean / self.spread
    }
}
