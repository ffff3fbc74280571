//! The log: standard error, one line for each message. The journal reads priorities from `<N>` at a line's start
//! (sd-daemon(3)).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use fastpath_publish::News;

/// Priority of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A problem that needs attention.
    Warning = 4,
    /// A significant event.
    Notice = 5,
    /// Normal operation.
    Info = 6,
}

/// Orders to the writing thread.
enum Order {
    Write(String),
    Say(SyncSender<()>),
}

static WRITER: OnceLock<SyncSender<Order>> = OnceLock::new();

/// Limit of lines that wait to be written.
const WAITING: usize = 256;
/// Time that the exit waits for them.
const FLUSHED_WITHIN: Duration = Duration::from_millis(500);

/// Starts the thread that writes the log, so that no other thread waits for a log that is stuck.
pub fn start() -> io::Result<()> {
    let (sender, orders) = sync_channel(WAITING);
    std::thread::Builder::new()
        .name("fastpath-log".into())
        .stack_size(128 << 10)
        .spawn(move || {
            orders.into_iter().for_each(|order| match order {
                Order::Write(line) => write(&line),
                Order::Say(to) => drop(to.send(())),
            });
        })?;
    let _ = WRITER.set(sender);
    Ok(())
}

/// Waits until all lines have been written, unless the log is stuck.
pub fn flush() {
    let (sender, written) = sync_channel(1);
    if let Some(writer) = WRITER.get()
        && writer.try_send(Order::Say(sender)).is_ok()
    {
        let _ = written.recv_timeout(FLUSHED_WITHIN);
    }
}

fn write(line: &str) {
    // There is nowhere to report a failure.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Logs a line.
pub fn say(priority: Priority, message: impl Display) {
    // Names of programs and files may contain anything; a log contains lines.
    let message = fastpath_os::printable(&message.to_string());
    let line = if std::env::var_os("JOURNAL_STREAM").is_some() {
        format!("<{}>{message}\n", priority as u8)
    } else {
        format!("fastpathd: {message}\n")
    };
    match WRITER.get() {
        Some(writer) => drop(writer.try_send(Order::Write(line))),
        None => write(&line),
    }
}

/// Logs a change for all clients' clocks.
pub fn say_news(news: &News) {
    let priority = match news {
        News::Withdrawn(_) => Priority::Warning,
        News::ServedAgain => Priority::Notice,
    };
    say(priority, news);
}
