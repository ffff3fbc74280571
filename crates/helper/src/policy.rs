//! The policy of the host's daemon, as far as it excludes processes.

use std::path::PathBuf;

use fastpath_daemon::Policy;
use fastpath_protocol::Client;

/// Policy of this host's daemon, read at each question: the file may change.
#[derive(Clone)]
pub struct DaemonsPolicy(PathBuf);

impl DaemonsPolicy {
    /// Finds the policy; `None` if no daemon runs.
    pub fn find() -> Option<DaemonsPolicy> {
        let status = Client::connect().ok()?.status().ok()?;
        Some(DaemonsPolicy(status.policy?.into()))
    }

    /// Returns why a process must not be served. A policy that cannot be read, or has a mistake, forbids it: leaving a
    /// process alone is safe.
    pub fn against(&self, pid: i32) -> Option<String> {
        match Policy::read(&self.0) {
            Ok(Some(policy)) if policy.forbids(pid) => {
                Some(format!("{} says never for process {pid}", self.0.display()))
            }
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }
}
