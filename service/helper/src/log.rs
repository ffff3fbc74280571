//! The records of a helper about its program's clocks, and about programs that its tree executes. Standard error is the
//! program's, so they go to the journal or the system's log. The page has the former too, and the mailbox counts what
//! was not served: `doctor PID` and `status` read that.

use std::time::{Duration, Instant};

use fastpath_daemon::record::{Record, Requester, Target, What};
use fastpath_inject::Shared;
use fastpath_inject::unserved::Unserved;
use fastpath_publish::News;

/// Time between two records of programs that a tree has executed: a build executes thousands, and the journal would
/// drop other records then (RateLimitBurst=, journald.conf(5)).
const SERVED_EVERY: Duration = Duration::from_secs(60);

/// Records of one helper.
pub(crate) struct Log {
    target: Target,
    /// Number of served programs that are on record, and the time of the last such record.
    served: u64,
    last: Option<Instant>,
    has_unserved: bool,
}

impl Log {
    /// Creates the records for the tree of a process.
    pub(crate) fn new(target: Target) -> Log {
        Log {
            target,
            served: 0,
            last: None,
            has_unserved: false,
        }
    }

    /// Records news about the clocks, without waiting: they must be kept up to date.
    pub(crate) fn record_news(&self, news: &News) {
        Record::of_news(news, self.target.now()).write();
    }

    /// Records how many programs of the tree were served, if more are: the first at once, others once a minute and at the
    /// end.
    pub(crate) fn record_served(&mut self, served: u64, is_over: bool) {
        if let Some(record) = self.served(served, is_over, Instant::now()) {
            record.write();
        }
    }

    /// Records that requests in the mailbox were not served, if some were: once, as a tree may execute thousands of
    /// programs.
    pub(crate) fn record_unserved(&mut self, mailbox: &Shared) {
        if let Some(record) = self.unserved(mailbox) {
            record.write();
        }
    }

    fn served(&mut self, served: u64, is_over: bool, now: Instant) -> Option<Record> {
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= SERVED_EVERY);
        if served == self.served || !(is_due || is_over) {
            return None;
        }
        let programs = served - self.served;
        (self.served, self.last) = (served, Some(now));
        let record = Record::done(What::Grant, Requester::this_process(), self.target.now());
        let s = if programs == 1 { "" } else { "s" };
        Some(Record {
            message: format!(
                "served {programs} program{s} that the tree of {} executed",
                record.target.name()
            ),
            programs: Some(programs),
            ..record
        })
    }

    fn unserved(&mut self, mailbox: &Shared) -> Option<Record> {
        if self.has_unserved {
            return None;
        }
        let counted = Unserved::ALL.iter().filter(|(why, _)| mailbox.has_counted(*why));
        let reasons: Vec<_> = counted.map(|(_, name)| *name).collect();
        let first = reasons.first()?;
        self.has_unserved = true;
        let why = format!(
            "programs executed in its tree were not served ({}): `fastpath status` counts them",
            reasons.join(", ")
        );
        let record = Record::refused(What::Grant, first, &why, Requester::this_process(), self.target.now());
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_page::{Reason, Withdrawal};

    fn target() -> Target {
        Target {
            pid: Some(i32::MAX),
            executable: Some("/bin/make".into()),
            ..Target::default()
        }
    }

    #[test]
    fn a_withdrawal_is_recorded_with_its_reason_and_how_far_clocks_were_off() {
        let withdrawn = |ahead_ns| {
            News::Withdrawn(Withdrawal {
                boottime_ns: 1,
                reason: Reason::CounterJumped,
                ahead_ns,
            })
        };
        let record = Record::of_news(&withdrawn(Some(-1_500)), target());
        assert_eq!((record.what, &*record.result), (What::Withdraw, "counter-jumped"));
        assert_eq!(
            record.message,
            "process 2147483647 (/bin/make): clocks are left to the kernel (they were off by -1500 ns at the last sample): the \
             counter jumped against the kernel's clock"
        );
        let unknown = Record::of_news(&withdrawn(None), target());
        assert!(!unknown.message.contains("off by"), "{unknown:?}");
        assert_eq!(Record::of_news(&News::ServedAgain, target()).result, "served-again");
    }

    #[test]
    fn programs_that_were_not_served_are_recorded_once_a_tree_with_the_reasons() {
        let mailbox = Shared::create().unwrap();
        let mut log = Log::new(target());
        assert_eq!(log.unserved(&mailbox), None);
        mailbox.count(Unserved::Late);
        mailbox.count(Unserved::Hidden);
        let record = log.unserved(&mailbox).unwrap();
        assert_eq!(
            (record.what, record.request, &*record.result),
            (What::Refuse, What::Grant, "late")
        );
        assert!(record.message.contains("were not served (late, hidden)"), "{record:?}");
        mailbox.count(Unserved::Failed);
        assert_eq!(log.unserved(&mailbox), None);
    }

    #[test]
    fn a_tree_of_thousands_of_programs_has_one_record_a_minute_and_all_are_counted() {
        let (mut log, begun) = (Log::new(target()), Instant::now());
        let mut records = Vec::new();
        for second in 0..600 {
            let now = begun + Duration::from_secs(second);
            records.extend(log.served(17 * second, false, now));
        }
        records.extend(log.served(17 * 600, true, begun + Duration::from_secs(600)));
        assert_eq!(log.served(17 * 600, true, begun + Duration::from_secs(601)), None);
        assert_eq!(records.len(), 11);
        let programs: u64 = records.iter().filter_map(|record| record.programs).sum();
        assert_eq!(programs, 17 * 600);
        assert_eq!(records[0].programs, Some(17));
        assert_eq!(
            records[0].message,
            "served 17 programs that the tree of process 2147483647 (/bin/make) executed"
        );
    }
}
