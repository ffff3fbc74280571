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
    pub(crate) fn fit<'a>(points: impl Iterator<Item = &'a Point>) -> Option<Line> {
        let mut fit = Fit::default();
        points.for_each(|point| fit.add(point));
        fit.line()
    }

    /// Returns the nanoseconds above `origin_ns` at a value of the counter.
    pub(crate) fn above_origin_ns(&self, cycles: u64) -> f64 {
        self.offset_ns + self.ns_per_cycle * cycles_between(self.origin_cycles, cycles) as f64
    }

    /// Returns how far a point lies above the line, in nanoseconds.
    pub(crate) fn residual_ns(&self, point: &Point) -> f64 {
        ns_between(self.origin_ns, point.ns) as f64 - self.above_origin_ns(point.cycles)
    }

    /// Returns for how long after the origin the line is known to within `bound_ns`, if points have a standard
    /// deviation of `sigma_ns`; in nanoseconds, 0 if it is not even known at the origin.
    pub(crate) fn known_for_ns(&self, bound_ns: f64, sigma_ns: f64) -> f64 {
        let variance = bound_ns * bound_ns / (sigma_ns * sigma_ns) - 1.0 / self.points;
        let cycles = (variance.max(0.0) * self.spread).sqrt() + self.mean_cycles;
        (cycles * self.ns_per_cycle).max(0.0)
    }

    /// Returns the variance of the line at a value of the counter, for points of variance one.
    pub(crate) fn variance_at(&self, cycles: u64) -> f64 {
        let from_mean = cycles_between(self.origin_cycles, cycles) as f64 - self.mean_cycles;
        1.0 / self.points + from_mean * from_mean / self.spread
    }
}

/// The sums of a least-squares fit, to which points are added one by one: a line through all, and those without the
/// newest ones, take one pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    /// The sums are relative to the first point. So they are of the size of the spread, and keep its precision.
    first: Point,
    last: Point,
    count: f64,
    sum_x: f64,
    sum_y: f64,
    sum_xx: f64,
    sum_xy: f64,
}

impl Fit {
    /// Adds a point.
    pub(crate) fn add(&mut self, point: &Point) {
        if self.count == 0.0 {
            self.first = *point;
        }
        let x = cycles_between(self.first.cycles, point.cycles) as f64;
        let y = ns_between(self.first.ns, point.ns) as f64;
        self.last = *point;
        self.count += 1.0;
        self.sum_x += x;
        self.sum_y += y;
        self.sum_xx += x * x;
        self.sum_xy += x * y;
    }

    /// Returns the line through at least two points with different counters; the last is the origin.
    pub(crate) fn line(&self) -> Option<Line> {
        let (mean_x, mean_y) = (self.sum_x / self.count, self.sum_y / self.count);
        let spread = self.sum_xx - self.sum_x * mean_x;
        let ns_per_cycle = (self.sum_xy - self.sum_x * mean_y) / spread;
        let mean_cycles = mean_x - cycles_between(self.first.cycles, self.last.cycles) as f64;
        let mean_ns = mean_y - ns_between(self.first.ns, self.last.ns) as f64;
        (ns_per_cycle.is_finite() && ns_per_cycle > 0.0).then_some(Line {
            origin_cycles: self.last.cycles,
            origin_ns: self.last.ns,
            ns_per_cycle,
            offset_ns: mean_ns - ns_per_cycle * mean_cycles,
            points: self.count,
            mean_cycles,
            spread,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_precise_far_from_its_first_point_as_near_it() {
        // 200 points in 2 s, as under --trust-counter, after an hour in which a starved publisher took none.
        for gap_cycles in [0, 10_000_000_000_000] {
            let rate = 0.385_186_955_3;
            let mut fit = Fit::default();
            for point in 0..200 {
                let cycles = if point == 0 { 0 } else { gap_cycles + 26_000_000 * point };
                fit.add(&Point {
                    cycles: 77 + cycles,
                    ns: 1_000_000_000_000_000 + (cycles as f64 * rate).round() as u64,
                    width_cycles: 90,
                });
            }
            let line = fit.line().expect("a line");
            assert!((line.ns_per_cycle / rate - 1.0).abs() < 1e-9, "{line:?}");
            // The points are rounded to whole nanoseconds.
            assert!(line.residual_ns(&fit.last).abs() < 0.6, "{line:?}");
            assert!(line.residual_ns(&fit.first).abs() < 1.0, "{line:?}");
        }
        assert!(Fit::default().line().is_none());
    }

    #[test]
    fn points_of_one_moment_make_no_line() {
        let point = Point {
            cycles: 5,
            ns: 9,
            width_cycles: 1,
        };
        assert!(Line::fit([point].iter()).is_none());
        assert!(Line::fit([point, point].iter()).is_none());
    }
}
