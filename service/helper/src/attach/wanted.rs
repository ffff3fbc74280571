//! What an attach is to do.

use fastpath_daemon::{Policy, ProcessFacts, Service};

use crate::policy::DaemonsPolicy;

/// Options of an attach.
pub struct Wanted {
    /// What the processes get. With `auto`, the host's daemon chooses the clocks.
    pub service: Service,
    /// Policy that excludes some processes.
    pub policy: Option<DaemonsPolicy>,
    /// A process that a rule selected, and the facts by which ([`ProcessFacts::fingerprint`]): those hold for no other
    /// program that it executes.
    pub selected: Option<(i32, u64)>,
    /// Whether the helper publishes where the host's daemon gives no page.
    pub may_publish: bool,
}

impl Wanted {
    /// Returns the policy's refusal of a process; `None` also for one without a policy.
    pub(super) fn refusal(&self, policy: Option<&Policy>, pid: i32) -> Option<String> {
        match (self.selected, policy, &self.policy) {
            (Some((selected, facts)), ..) if selected == pid => {
                let now = ProcessFacts::of_pid(pid).map(|facts| facts.fingerprint());
                (now != Some(facts)).then(|| OTHER_PROGRAM.to_owned())
            }
            (_, Some(policy), Some(file)) => file.refusal(policy, pid),
            _ => None,
        }
    }
}

/// Reason why a process is not attached that a rule selected.
pub(crate) const OTHER_PROGRAM: &str = "it is another program than the one that a rule selected";
