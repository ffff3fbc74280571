//! The log of a helper about its program's clocks. Standard error is the program's, so it is the system's log
//! (syslog(3)), or nothing if there is none. The page records it too: `doctor PID` reads that.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use fastpath_publish::News;

/// Socket of syslogd, or journald.
const DEV_LOG: &str = "/dev/log";
/// Facility LOG_DAEMON (sys/syslog.h).
const DAEMON: u32 = 3 << 3;
/// Severity LOG_WARNING.
const WARNING: u32 = 4;
/// Severity LOG_NOTICE.
const NOTICE: u32 = 5;

/// Log of one helper.
pub(crate) struct Log {
    program: String,
}

impl Log {
    /// Creates the log for a program and its process.
    pub(crate) fn new(pid: i32, name: &str) -> Log {
        Log {
            program: format!("{name} [{pid}]"),
        }
    }

    /// Logs news if there is a log, without waiting: the clocks must be kept up to date.
    pub(crate) fn tell(&self, news: &News) {
        send(Path::new(DEV_LOG), &self.line(news));
    }

    fn line(&self, news: &News) -> String {
        let priority = match news {
            News::Withdrawn(_) => WARNING,
            News::ServedAgain => NOTICE,
        };
        let program = fastpath_os::printable(&self.program);
        format!(
            "<{}>fastpath[{}]: {program}: {news}",
            DAEMON | priority,
            std::process::id()
        )
    }
}

fn send(to: &Path, line: &str) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    // A log that is full, or stopped, gets nothing.
    if socket.set_nonblocking(true).is_ok() && socket.connect(to).is_ok() {
        let _ = socket.send(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_page::{Reason, Withdrawal};

    fn withdrawn(ahead_ns: Option<i64>) -> News {
        News::Withdrawn(Withdrawal {
            boottime_ns: 1,
            reason: Reason::CounterJumped,
            ahead_ns,
        })
    }

    #[test]
    fn a_withdrawal_is_told_with_its_reason_and_how_far_clocks_were_off() {
        let log = Log::new(7, "a\nb");
        let line = log.line(&withdrawn(Some(-1_500)));
        assert!(line.starts_with("<28>fastpath["), "{line}");
        assert!(
            line.contains("]: a\\nb [7]: clocks are left to the kernel (they were off by -1500 ns"),
            "{line}"
        );
        assert!(
            line.ends_with("the counter jumped against the kernel's clock"),
            "{line}"
        );
        assert!(!log.line(&withdrawn(None)).contains("off by"));
        assert!(log.line(&News::ServedAgain).starts_with("<29>fastpath["));
    }

    #[test]
    fn it_is_told_to_whoever_listens_and_nobody_else_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        send(&path, "nobody");
        let listener = UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        // More than any queue holds: the rest is dropped.
        for _ in 0..5_000 {
            send(&path, "somebody");
        }
        let mut bytes = [0; 64];
        let length = listener.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"somebody");
    }
}
