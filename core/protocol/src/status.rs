//! The answer to [`crate::Operation::Status`], as JSON. Fields are only ever added.

use serde::{Deserialize, Serialize};

/// A daemon's state, and the pages that the asking user may see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// fastpath's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Time since the daemon started.
    pub uptime_seconds: u64,
    /// Clock ids that are slow on this host by the kernel's own path.
    pub slow_clocks: Vec<u32>,
    /// Number of rules of the policy in force.
    pub rules: usize,
    /// Path of the policy.
    pub policy: Option<String>,
    /// Error of the policy file, if its present contents are not in force.
    pub policy_error: Option<String>,
    /// How the daemon notices new processes for the policy: `connector`, `polling`, or null.
    pub notices: Option<String>,
    /// Reason why it attaches no process that has a seccomp filter; null: it does.
    #[serde(default)]
    pub leaves_filtered: Option<String>,
    /// Pages that the asking user may see.
    pub pages: Vec<Page>,
    /// Number of all pages.
    pub pages_in_all: usize,
    /// Set if there are more pages that the asking user may see: `Request::after` of the next request.
    #[serde(default)]
    pub next: Option<u64>,
    /// Refused requests of all users.
    #[serde(default)]
    pub refused: u64,
    /// Changes and refusals so far, by what was done and the result.
    #[serde(default)]
    pub interventions: Vec<Intervention>,
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The process that it was made for, in the daemon's PID namespace. Its descendants may use it too.
    pub pid: i32,
    /// That process's user.
    pub uid: u32,
    /// The page's inode, as /proc/PID/maps shows it.
    pub inode: u64,
    /// Clock ids that it answers.
    pub clocks: Vec<u32>,
    /// Whether its readers are in another time namespace than the daemon.
    pub is_offset: bool,
    /// Anchors published by this daemon.
    pub refreshes: u64,
    /// Error against the kernel's clock before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// Age of the anchor in force, in nanoseconds.
    pub age_ns: Option<u64>,
    /// Reason why it answers nothing; null if it answers.
    pub withdrawn: Option<String>,
    /// Whether the daemon found it again after an earlier daemon had died.
    pub was_found_again: bool,
    /// The policy's rule by which this daemon attached the process: 1 for the first rule of the file at that time.
    #[serde(default)]
    pub rule: Option<usize>,
    /// Whether the policy has come to say never for the process, which keeps its page until it is detached.
    #[serde(default)]
    pub is_forbidden: bool,
}

/// A number of changes, or refusals, of this daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervention {
    /// What was done.
    pub what: String,
    /// `done`, or a stable word for the reason.
    pub result: String,
    /// How often.
    pub count: u64,
}
