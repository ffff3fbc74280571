//! The constant between two clocks that tick at one rate.
//!
//! The kernel keeps REALTIME, BOOTTIME and TAI as whole nanoseconds above MONOTONIC, and changes them only in steps. So the
//! offset is held as a whole number, refined as the average of many measurements becomes more precise than it.

/// Measurements that the average spans at most: some seconds at ten a second.
const AVERAGED: f64 = 64.0;
/// An average this far from the held number makes another number nearer, and a little more, so that it does not flutter.
const REFINE_NS: f64 = 0.75;
/// Measurements before the first refinement.
const REFINE_AFTER: f64 = 4.0;

/// What a measurement did to the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// At most by refinement.
    None,
    /// The clock was stepped.
    Stepped,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset {
    held_ns: i64,
    /// Of the measurements, above `held_ns`.
    mean_ns: f64,
    count: f64,
    /// The most that the mean can be wrong.
    bound_ns: f64,
}

/// A measured offset: whole nanoseconds and a small rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub whole_ns: i64,
    pub rest_ns: f64,
    /// The most that it can be wrong.
    pub bound_ns: f64,
    /// Its standard deviation.
    pub noise_ns: f64,
}

impl Offset {
    pub fn new(measured: &Measured) -> Offset {
        let rounded = measured.rest_ns.round();
        Offset {
            held_ns: measured.whole_ns.wrapping_add(rounded as i64),
            mean_ns: measured.rest_ns - rounded,
            count: 1.0,
            bound_ns: measured.bound_ns,
        }
    }

    /// The offset in whole nanoseconds.
    pub fn held_ns(&self) -> i64 {
        self.held_ns
    }

    /// Whether a measurement says that the clock was stepped.
    pub fn is_step(&self, measured: &Measured) -> bool {
        (self.above_held_ns(measured) - self.mean_ns).abs() > measured.bound_ns + self.bound_ns
    }

    /// Takes in a measurement: a step at once, anything less into the average.
    pub fn observe(&mut self, measured: &Measured) -> Change {
        if self.is_step(measured) {
            *self = Offset::new(measured);
            return Change::Stepped;
        }
        if measured.bound_ns < self.bound_ns / 2.0 {
            // Interrupted when it was first measured: what was known until now does not help the average.
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
        Change::None
    }

    /// How far a measurement lies above the offset, in nanoseconds.
    pub fn above_held_ns(&self, measured: &Measured) -> f64 {
        (measured.whole_ns.wrapping_sub(self.held_ns)) as f64 + measured.rest_ns
    }
}
