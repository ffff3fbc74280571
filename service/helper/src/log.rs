//! The log of a helper about its program's clocks, and about programs that were not served. Standard error is the
//! program's, so it is the system's log (syslog(3)), or nothing if there is none. The page records the former too, and the
//! mailbox counts the latter: `doctor PID` and `status` read that.

use std::fmt::Display;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use fastpath_inject::Shared;
use fastpath_inject::unserved::Unserved;
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
    /// Whether it has reported a request that was not served.
    has_told_unserved: bool,
}

impl Log {
    /// Creates the log for a program and its process.
    pub(crate) fn new(pid: i32, name: &str) -> Log {
        Log {
            program: format!("{name} [{pid}]"),
            has_told_unserved: false,
        }
    }

    /// Logs news if there is a log, without waiting: the clocks must be kept up to date.
    pub(crate) fn tell(&self, news: &News) {
        send(Path::new(DEV_LOG), &self.news(news));
    }

    /// Logs that requests in the mailbox were not served, if some were: once, as a tree may execute thousands of
    /// programs.
    pub(crate) fn tell_unserved(&mut self, mailbox: &Shared) {
        if let Some(line) = self.unserved(mailbox) {
            send(Path::new(DEV_LOG), &line);
        }
    }

    fn news(&self, news: &News) -> String {
        let priority = match news {
            News::Withdrawn(_) => WARNING,
            News::ServedAgain => NOTICE,
        };
        self.line(priority, news)
    }

    fn unserved(&mut self, mailbox: &Shared) -> Option<String> {
        if self.has_told_unserved {
            return None;
        }
        let counted = Unserved::ALL.iter().filter(|(why, _)| mailbox.has_counted(*why));
        let reasons: Vec<_> = counted.map(|(_, name)| *name).collect();
        self.has_told_unserved = !reasons.is_empty();
        self.has_told_unserved.then(|| {
            let what = format!(
                "programs executed in its tree were not served ({}): `fastpath status` counts them",
                reasons.join(", ")
            );
            self.line(NOTICE, &what)
        })
    }

    fn line(&self, priority: u32, what: &dyn Display) -> String {
        let program = fastpath_os::printable(&self.program);
        format!(
            "<{}>fastpath[{}]: {program}: {what}",
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
        let line = log.news(&withdrawn(Some(-1_500)));
        assert!(line.starts_with("<28>fastpath["), "{line}");
        assert!(
            line.contains("]: a\\nb [7]: clocks are left to the kernel (they were off by -1500 ns"),
            "{line}"
        );
        assert!(
            line.ends_with("the counter jumped against the kernel's clock"),
            "{line}"
        );
        assert!(!log.news(&withdrawn(None)).contains("off by"));
        assert!(log.news(&News::ServedAgain).starts_with("<29>fastpath["));
    }

    #[test]
    fn programs_that_were_not_served_are_reported_once_a_tree_with_the_reasons() {
        let mailbox = Shared::create().unwrap();
        let mut log = Log::new(7, "make");
        assert_eq!(log.unserved(&mailbox), None);
        mailbox.count(Unserved::Late);
        mailbox.count(Unserved::Hidden);
        let line = log.unserved(&mailbox).unwrap();
        assert!(line.starts_with("<29>fastpath["), "{line}");
        assert!(
            line.contains("]: make [7]: programs executed in its tree were not served (late, hidden)"),
            "{line}"
        );
        mailbox.count(Unserved::Failed);
        assert_eq!(log.unserved(&mailbox), None);
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
