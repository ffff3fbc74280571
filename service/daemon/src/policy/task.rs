//! A process to attach, and the result.

use std::process::Child;

use super::Decision;
use crate::account::Account;
use crate::record::{Record, Requester, Target, What};
use crate::record_limit;

/// Number of times that a process is tried which may be attached later: for a minute.
pub(super) const MOST_TRIES: u32 = 7;

/// A process that a rule attaches.
#[derive(Debug)]
pub(super) struct Task {
    /// Process id as seen from here.
    pub pid: i32,
    /// Account whose turn it is.
    pub account: Account,
    /// What it gets, and the rule.
    pub decision: Decision,
    /// Start time of the process ([`fastpath_os::Stat`]) if root asked for it; `None` if a rule selects it.
    pub asked_for: Option<u64>,
    /// Process that asked for it: this one, for a rule.
    pub by: Requester,
    /// Number of tries so far.
    pub tries: u32,
}

impl Task {
    /// Puts on record that the process stays as it is, with a stable word for the reason, and a sentence.
    pub(super) fn refuse(&self, result: &str, why: &str) {
        record_limit::put(self.account, What::Refuse, result, || Record {
            rule: self.rule(),
            ..Record::refused(What::Attach, result, why, self.by, Target::read(self.pid))
        });
    }

    /// Returns the rule that selects the process.
    pub(super) fn rule(&self) -> Option<usize> {
        self.asked_for.is_none().then_some(self.decision.rule)
    }
}

/// Result of an attach.
#[derive(Debug)]
pub(super) enum Done {
    /// The process is attached, or left as it is for good.
    InTime,
    /// It may succeed later.
    TryAgain,
    /// It took too long. Contains the child if that has not ended.
    TooLate(Option<Child>),
}
