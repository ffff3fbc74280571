//! The log: standard error, one line for each message. The journal reads priorities from `<N>` at a line's start
//! (sd-daemon(3)).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use crate::record::{self, Record};

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
    Record(Box<Record>),
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
                Order::Record(record) => write_record(*record),
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
    let line = if is_journal() {
        format!("<{}>{message}\n", priority as u8)
    } else {
        format!("fastpathd: {message}\n")
    };
    match WRITER.get() {
        Some(writer) => drop(writer.try_send(Order::Write(line))),
        None => write(&line),
    }
}

/// Puts a change, or a refusal, on record, and counts it: in the journal, and as a line of JSON where that is not the log.
pub fn record(record: Record) {
    record::count(record.what, &record.result);
    match WRITER.get() {
        Some(writer) => drop(writer.try_send(Order::Record(Box::new(record)))),
        None => write_record(record),
    }
}

/// Reports to the daemon that started this process what came of its order, for its counts.
pub fn tell_daemon(result: &str) {
    let _ = io::stdout().lock().write_all(format!("{result}\n").as_bytes());
}

fn write_record(mut record: Record) {
    record.target.find_inode();
    let is_sent = record.send().is_ok();
    match is_journal() {
        true if is_sent => {}
        true => write(&format!("<{}>{}\n", record.priority(), record.json())),
        false => write(&(record.json() + "\n")),
    }
}

/// Returns whether standard error is a stream to the journal.
fn is_journal() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some()
}
