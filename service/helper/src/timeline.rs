//! Durations of the steps of a start, for `--verbose`.

use std::time::{Duration, Instant};

/// Steps with their durations, in order.
pub struct Timeline {
    begun: Instant,
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
    wanted: bool,
}

impl Timeline {
    /// Starts now.
    pub fn start(wanted: bool) -> Timeline {
        let now = Instant::now();
        Timeline {
            begun: now,
            last: now,
            steps: Vec::new(),
            wanted,
        }
    }

    /// Ends a step.
    pub fn mark(&mut self, step: &'static str) {
        let now = Instant::now();
        self.steps.push((step, now - self.last));
        self.last = now;
    }

    /// Reports one line per step, if the user asked.
    pub fn report(&self, mut say: impl FnMut(String)) {
        if !self.wanted {
            return;
        }
        for (step, duration) in &self.steps {
            say(format!("{:>8.3} ms  {step}", duration.as_secs_f64() * 1e3));
        }
        say(format!(
            "{:>8.3} ms  in all",
            (self.last - self.begun).as_secs_f64() * 1e3
        ));
    }
}
