//! Shows a person who waits how far the work is.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use fastpath_audit::Progress;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Nobody needs to be told about less.
const PATIENCE: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(100);

/// Does the work; on a terminal, shows how much has been done once it takes longer than [`PATIENCE`].
pub fn watched<T>(progress: &Progress, work: impl FnOnce() -> T) -> T {
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
                wait = EVERY;
                let bar: &mut ProgressBar = bar.get_or_insert_with(new_bar);
                bar.set_message(format!(
                    "{} files, {}",
                    progress.files.load(Ordering::Relaxed),
                    HumanBytes(progress.bytes.load(Ordering::Relaxed))
                ));
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

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    // How much there is to do is known only at the end.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise}  {msg}") {
        bar.set_style(style);
    }
    bar
}
