//! What [`crate::Operation::Status`] is answered with, as JSON. Fields are only ever added.

use serde::{Deserialize, Serialize};

/// A daemon and the pages that who asked may see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// fastpath's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// For how long it has been running.
    pub uptime_seconds: u64,
    /// Clock ids that are slow on this host by the kernel's own path.
    pub slow_clocks: Vec<u32>,
    /// Rules of the policy in force.
    pub rules: usize,
    /// Where the policy comes from.
    pub policy: Option<String>,
    /// Why the policy file as it is now is not in force.
    pub policy_error: Option<String>,
    /// How processes are noticed that the policy attaches: `connector`, `polling`, or nothing.
    pub notices: Option<String>,
    /// Pages that the asking user may see.
    pub pages: Vec<Page>,
    /// Pages in all.
    pub pages_in_all: usize,
    /// There are more pages that the asking user may see: the next request says this (`Request::after`).
    #[serde(default)]
    pub next: Option<u64>,
    /// Requests that were refused, of all users.
    #[serde(default)]
    pub refused: u64,
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The process that it was made for, as the daemon sees it. Its descendants may be using it, too.
    pub pid: i32,
    /// That process's user.
    pub uid: u32,
    /// The page's inode, as /proc/PID/maps shows it.
    pub inode: u64,
    /// Clock ids that it answers.
    pub clocks: Vec<u32>,
    /// Whether it is shown to another time namespace than the daemon's.
    pub is_offset: bool,
    /// Anchors published by this daemon.
    pub refreshes: u64,
    /// Error against the kernel's clock before the last refresh.
    pub residual_ns: i64,
    /// Of the anchor in force.
    pub age_ns: Option<u64>,
    /// Why it answers nothing; nothing: it does.
    pub withdrawn: Option<String>,
    /// Whether it was found again after a daemon had died.
    pub was_found_again: bool,
    /// The rule of the policy by which this daemon attached the process: 1 for the first of the file as it was then.
    #[serde(default)]
    pub rule: Option<usize>,
}
