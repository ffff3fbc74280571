//! Text that is redrawn in place on a terminal, and the signals that end or disturb it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::time::TimeSpec;

use crate::output;

/// Signal that ends the command; 0: none yet.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);
/// Whether the terminal may show other text than was drawn last: it was resized, or the command was stopped and
/// continued.
static IS_DISTURBED: AtomicBool = AtomicBool::new(false);

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
const DISTURBING: [Signal; 2] = [Signal::SIGWINCH, Signal::SIGCONT];

/// Returns the signal that ends the command, once one has come; see [`end_by_signal`].
pub fn ended_by() -> Option<i32> {
    Some(ENDED_BY.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Ends the command as if by this signal.
pub fn end(signal: i32) {
    ENDED_BY.store(signal, Ordering::Relaxed);
}

/// Records SIGINT, SIGTERM and SIGHUP instead of ending this process; an ignored one stays ignored. They interrupt
/// waiting.
pub fn end_by_signal() {
    for signal in ENDING {
        handle(signal, note_end, 0);
    }
}

/// Makes [`wait`] return when the terminal is resized, and when the command continues after a stop.
pub fn redraw_by_signal() {
    for signal in DISTURBING {
        handle(signal, note_disturbance, libc::SA_RESTART);
    }
}

fn handle(signal: Signal, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: both handlers only store to an atomic, which is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &mut action);
        if action.sa_sigaction != libc::SIG_IGN {
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags;
            libc::sigaction(signal as i32, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn note_end(signal: i32) {
    end(signal);
}

extern "C" fn note_disturbance(_: i32) {
    IS_DISTURBED.store(true, Ordering::Relaxed);
}

/// Waits until the time has passed, a signal has come, or standard output has lost its reader.
pub fn wait(time: Duration) {
    let signals: SigSet = ENDING.into_iter().chain(DISTURBING).collect();
    let mut before = SigSet::empty();
    // A signal between the check and the wait ends the wait.
    if sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before)).is_err() {
        return std::thread::sleep(time);
    }
    if ended_by().is_none() && !IS_DISTURBED.load(Ordering::Relaxed) {
        let out = std::io::stdout();
        // Only errors are requested: a pipe without a reader.
        let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
        let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(time)), Some(before));
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
}

/// Text on the terminal that is standard output.
#[derive(Default)]
pub struct Screen {
    /// Number of lines that were drawn.
    lines: usize,
    /// Lines and columns of the terminal at that time.
    size: Option<(usize, usize)>,
}

impl Screen {
    /// Returns the lines and columns that [`Screen::show`] has room for.
    pub fn room() -> (usize, usize) {
        let (lines, columns) = output::terminal_size().unwrap_or((24, 80));
        // The cursor is below the last line.
        (lines.saturating_sub(1), columns)
    }

    /// Draws a text in place of the previous one, cut to the terminal; returns the exit status.
    pub fn show(&mut self, text: &str) -> i32 {
        let (lines, columns) = Screen::room();
        let cut: Vec<String> = text
            .lines()
            .map(|line| line.chars().take(columns).collect())
            .take(lines)
            .collect();
        let erase = self.erase();
        self.lines = cut.len();
        self.size = output::terminal_size();
        // One write, so that no partial text is shown.
        output::redraw(&erase, cut.join("\n") + "\n")
    }

    /// Erases the text.
    pub fn clear(&mut self) {
        let erase = self.erase();
        if !erase.is_empty() {
            output::redraw(&erase, "");
        }
    }

    fn erase(&mut self) -> String {
        let lines = std::mem::take(&mut self.lines);
        let is_disturbed = IS_DISTURBED.swap(false, Ordering::Relaxed) || self.size != output::terminal_size();
        match lines {
            0 => String::new(),
            // The position of the lines is unknown: some terminals wrap them anew, others cut them.
            _ if is_disturbed => ERASE_SCREEN.to_owned(),
            _ => erasing(lines),
        }
    }
}

/// ECMA-48: cursor to the first line and column, erase to the end of the screen.
const ERASE_SCREEN: &str = "\x1b[H\x1b[J";

/// Returns the sequence that erases this many lines above the cursor. A terminal shows `^C` at the cursor, so that is
/// not always in the first column.
fn erasing(lines: usize) -> String {
    // ECMA-48: cursor up, erase to the end of the screen.
    format!("\r\x1b[{lines}A\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the table was erased from where `^C` had left the cursor, and two columns of it stayed before
    /// the result.
    #[test]
    fn a_table_is_erased_from_the_first_column() {
        assert_eq!(erasing(7), "\r\x1b[7A\x1b[J");
    }
}
