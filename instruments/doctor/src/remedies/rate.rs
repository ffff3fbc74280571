//! Remedies for a clock that runs at a wrong rate.

use super::super::facts::Facts;
use super::off_command_line;
use super::remedy::{Remedy, When, remedy};

pub(super) fn wrong_rate(facts: &Facts) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let causes = [facts.kernel.sets_rate(), facts.kernel.trusts_counter()];
    let causes: Vec<&str> = causes.into_iter().flatten().collect();
    if !causes.is_empty() {
        remedies.push(off_command_line(&causes));
    }
    if facts.machine.hypervisor.is_some() {
        remedies.push(remedy(
            "restart-guest",
            When::UntilReboot,
            "restart the virtual machine (in WSL: `wsl --shutdown` on the host), so that the kernel calibrates the counter again",
            "a restart of all that runs in it; it can happen again after the host has slept",
        ));
    }
    if facts.is_synchronized == Some(false) {
        remedies.push(remedy(
            "synchronize",
            When::UntilReboot,
            "run an NTP daemon such as chrony",
            "it corrects the rate by at most a tenth, and steps REALTIME at first",
        ));
    }
    remedies
}
