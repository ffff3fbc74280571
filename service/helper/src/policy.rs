//! The policy of the host's daemon, as far as it excludes processes.

use std::path::PathBuf;

use fastpath_daemon::Policy;
use fastpath_protocol::{Client, ClientError};

/// Policy of this host's daemon, read at each question: the file may change.
#[derive(Clone)]
pub struct DaemonsPolicy(PathBuf);

impl DaemonsPolicy {
    /// Returns the policy of the file at this path.
    pub fn at(file: PathBuf) -> DaemonsPolicy {
        DaemonsPolicy(file)
    }

    /// Finds the policy; `None` if no daemon runs. The error: another user listens in its place.
    pub fn find() -> Result<Option<DaemonsPolicy>, ClientError> {
        let status = match Client::connect() {
            Err(failure @ ClientError::AnotherUsers { .. }) => return Err(failure),
            connected => connected.and_then(|client| client.state()).ok(),
        };
        Ok(status.and_then(|status| Some(DaemonsPolicy::at(status.policy?.into()))))
    }

    /// Returns the check that decides at each exec whether the process may be served.
    pub fn check(policy: Option<DaemonsPolicy>) -> Box<dyn Fn(i32) -> Result<(), String> + Send + Sync> {
        Box::new(
            move |pid| match policy.as_ref().and_then(|policy| policy.against(pid)) {
                Some(why) => Err(why),
                None => Ok(()),
            },
        )
    }

    /// Reads the policy as it is now.
    pub fn read(&self) -> Result<Policy, String> {
        Policy::read(&self.0).map(Option::unwrap_or_default)
    }

    /// Returns why `policy`, which was read from this file, lets no process be served, or not this one.
    pub fn refusal(&self, policy: &Policy, pid: i32) -> Option<String> {
        let why = || format!("{} says never for process {pid}", self.0.display());
        self.unrecordable(policy).or_else(|| policy.forbids(pid).then(why))
    }

    /// Returns why no process may be changed now by `policy`, which was read from this file: a record is required, and
    /// cannot be written.
    pub fn unrecordable(&self, policy: &Policy) -> Option<String> {
        let why = policy.unrecordable()?;
        Some(format!("{}: {why}", self.0.display()))
    }

    /// Returns why a process must not be served. A policy that cannot be read, or has a mistake, forbids it: leaving a
    /// process alone is safe.
    fn against(&self, pid: i32) -> Option<String> {
        match self.read() {
            Ok(policy) => self.refusal(&policy, pid),
            Err(why) => Some(why),
        }
    }
}
