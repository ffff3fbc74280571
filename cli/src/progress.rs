//! Shows a person who waits how far the work is: on a terminal that is standard error, once the work takes longer than two seconds.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Work that takes no longer than this is not reported on.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a bar is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// Does the work; shows the message anew `every` so often, with the time that has passed, for work whose length is not known.
pub fn watched<T>(every: Duration, message: impl Fn() -> String + Send, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        // Where no thread may be started, the work is done unseen.
        let _ = std::thread::Builder::new().spawn_scoped(scope, move || {
            let mut bar = None;
            let mut wait = PATIENCE;
            while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = every;
                let bar =
                    bar.get_or_insert_with(|| styled(ProgressBar::new_spinner(), "{spinner} {elapsed_precise}  {msg}"));
                bar.set_message(message());
                bar.tick();
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// A bar that is drawn by who works, between two steps: no thread disturbs a measurement.
pub struct Steps {
    /// `None`: nobody sees it.
    begun: Option<Instant>,
    bar: Option<ProgressBar>,
    drawn: Duration,
}

impl Steps {
    /// Begins.
    pub fn begin() -> Steps {
        Steps {
            begun: std::io::stderr().is_terminal().then(Instant::now),
            bar: None,
            drawn: Duration::ZERO,
        }
    }

    /// Shows that so many steps of all have been done.
    pub fn show(&mut self, done: u64, all: u64) {
        let Some(taken) = self.begun.map(|begun| begun.elapsed()) else {
            return;
        };
        if taken < PATIENCE || taken < self.drawn + EVERY {
            return;
        }
        self.drawn = taken;
        let bar = self
            .bar
            .get_or_insert_with(|| styled(ProgressBar::new(all), "measuring {wide_bar} {percent:>3} %, {eta} left"));
        bar.set_position(done);
    }

    /// Erases it.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
