//! The log: standard error, a line each. The journal takes priorities from `<N>` at a line's start (sd-daemon(3)).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use fastpath_publisher::{News, evidence};

/// What a line means to who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Something to see to.
    Warning = 4,
    /// Worth knowing.
    Notice = 5,
    /// The course of things.
    Info = 6,
}

/// Writes a line. That it cannot be written is nobody's business any more.
pub fn say(priority: Priority, message: impl Display) {
    // Names of programs and files may hold anything; a log holds lines.
    let message = message.to_string().replace(char::is_control, "?");
    let line = if std::env::var_os("JOURNAL_STREAM").is_some() {
        format!("<{}>{message}\n", priority as u8)
    } else {
        format!("fastpathd: {message}\n")
    };
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// A thread that writes the log for one that must not wait for it.
pub struct Later(SyncSender<(Priority, String)>);

impl Later {
    /// Starts it. It ends when this is dropped.
    pub fn start() -> io::Result<Later> {
        let (sender, lines) = sync_channel(64);
        std::thread::Builder::new()
            .name("fastpath-log".into())
            .stack_size(128 << 10)
            .spawn(move || {
                lines
                    .into_iter()
                    .for_each(|(priority, line): (_, String)| say(priority, line))
            })?;
        Ok(Later(sender))
    }

    /// Has a line written, unless the log is stuck.
    pub fn tell(&self, (priority, line): (Priority, String)) {
        let _ = self.0.try_send((priority, line));
    }
}

/// What happens to everybody's clocks.
pub fn of_news(news: &News) -> (Priority, String) {
    match news {
        News::Withdrawn(withdrawal) => {
            let off = withdrawal.ahead_ns.map_or(String::new(), |ns| {
                format!(" (they were off by {ns} ns at the last sample)")
            });
            let reason = evidence::reason(withdrawal.reason);
            (
                Priority::Warning,
                format!("clocks are left to the kernel{off}: {reason}"),
            )
        }
        News::ServedAgain => (Priority::Notice, "clocks are served again".into()),
    }
}
