//! Shows the progress of work: if standard error is a terminal, once the work takes longer than two seconds.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time before progress is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Time between two drawings of a bar.
const EVERY: Duration = Duration::from_millis(100);

/// Does the work; shows the message again at every interval `every`, with the elapsed time, for work of unknown length.
pub fn watched<T>(every: Duration, message: impl Fn() -> String + Send, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        // If no thread may be started, no progress is shown.
        let _ = std::thread::Builder::new().spawn_scoped(scope, move || {
            let mut bar = None;
            let mut wait = SHOWN_AFTER;
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

/// A bar that the working thread draws between two steps: no other thread disturbs a measurement.
pub struct Steps {
    /// `None`: standard error is not a terminal.
    begun: Option<Instant>,
    bar: Option<ProgressBar>,
    drawn: Duration,
}

impl Steps {
    pub fn begin() -> Steps {
        Steps {
            begun: std::io::stderr().is_terminal().then(Instant::now),
            bar: None,
            drawn: Duration::ZERO,
        }
    }

    /// Shows that `done` of `all` steps are done.
    pub fn show(&mut self, done: u64, all: u64) {
        let Some(taken) = self.begun.map(|begun| begun.elapsed()) else {
            return;
        };
        if taken < SHOWN_AFTER || taken < self.drawn + EVERY {
            return;
        }
        self.drawn = taken;
        let bar = self
            .bar
            .get_or_insert_with(|| styled(ProgressBar::new(all), "measuring {wide_bar} {percent:>3} %, {eta} left"));
        bar.set_position(done);
    }

    /// Erases the bar.
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
