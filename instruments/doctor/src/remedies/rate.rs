//! Remedies for a clock that runs at a wrong rate.

use super::super::facts::Facts;
use super::remedy::{Remedy, When, remedy};

pub(super) fn wrong_rate(facts: &Facts) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let is_cause = |parameter: &&String| {
        parameter.starts_with("tsc_early_khz=") || matches!(parameter.as_str(), "tsc=reliable" | "tsc=nowatchdog")
    };
    let causes: Vec<&str> = facts
        .kernel
        .parameters
        .iter()
        .flatten()
        .filter(is_cause)
        .map(String::as_str)
        .collect();
    if !causes.is_empty() {
        remedies.push(remedy(
            "command-line",
            When::Permanent,
            format!("remove `{}` from the kernel's command line", causes.join(" ")),
            "a reboot; the parameter may be there for a reason, so check the kernel's log afterwards",
        ));
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
