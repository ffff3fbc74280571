//! The constant between two clocks that tick at one rate.
//!
//! The kernel keeps REALTIME, BOOTTIME and TAI as whole nanoseconds above MONOTONIC, and changes them only in steps. So
//! the offset is held as a whole number, and refined when the average of many measurements becomes more precise.

/// Largest number of measurements that the average spans: some seconds at ten a second.
const AVERAGED: f64 = 64.0;
/// Distance of the average from the held number at which another number is nearer, plus a margin against flutter.
const REFINE_NS: f64 = 0.75;
/// Number of measurements before the first refinement.
const REFINE_AFTER: f64 = 4.0;

/// The effect of a measurement on the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetChange {
    /// Unchanged, or refined.
    None,
    /// The clock was stepped.
    Stepped,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset {
    held_ns: i64,
    /// Mean of the measurements, above `held_ns`.
    mean_ns: f64,
    count: f64,
    /// Largest possible error of the mean.
    bound_ns: f64,
}

/// A measured offset: whole nanoseconds and a small rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub whole_ns: i64,
    pub rest_ns: f64,
    /// Largest possible error.
    pub bound_ns: f64,
    /// Its standard deviation.
    pub noise_ns: f64,
}

impl Offset {
    pub(crate) fn new(measured: &Measured) -> Offset {
        let rounded = measured.rest_ns.round();
        Offset {
            held_ns: measured.whole_ns.wrapping_add(rounded as i64),
            mean_ns: measured.rest_ns - rounded,
            count: 1.0,
            bound_ns: measured.bound_ns,
        }
    }

    /// Returns the offset in whole nanoseconds.
    pub(crate) fn held_ns(&self) -> i64 {
        self.held_ns
    }

    /// Returns whether a measurement shows that the clock was stepped.
    pub(crate) fn is_step(&self, measured: &Measured) -> bool {
        (self.above_held_ns(measured) - self.mean_ns).abs() > measured.bound_ns + self.bound_ns
    }

    /// Takes a measurement: applies a step at once, and averages anything less.
    pub(crate) fn observe(&mut self, measured: &Measured) -> OffsetChange {
        if self.is_step(measured) {
            *self = Offset::new(measured);
            return OffsetChange::Stepped;
        }
        if measured.bound_ns < self.bound_ns / 2.0 {
            // The first measurements were interrupted: they do not help the average.
            self.count = 0.0;
        }
        self.count = (self.count + 1.0).min(AVERAGED);
        self.bound_ns += (measured.bound_ns - self.bound_ns) / self.count;
        self.mean_ns += (self.above_held_ns(measured) - self.mean_ns) / self.count;
        let uncertain_ns = 2.5 * measured.noise_ns / self.count.sqrt();
        if self.count >= REFINE_AFTER && self.mean_ns.abs() > REFINE_NS.max(uncertain_ns) {
            let refined_ns = self.mean_ns.round();
            self.held_ns = self.held_ns.wrapping_add(refined_ns as i64);
            self.mean_ns -= refined_ns;
        }
        OffsetChange::None
    }

    /// Returns how far a measurement lies above the offset, in nanoseconds.
    pub(crate) fn above_held_ns(&self, measured: &Measured) -> f64 {
        (measured.whole_ns.wrapping_sub(self.held_ns)) as f64 + measured.rest_ns
    }
}
