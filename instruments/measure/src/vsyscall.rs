//! The vsyscall page of x86-64, which the vDSO replaced, and to which old static binaries still jump.

use crate::child::{self, ChildRecord, End};
use crate::cost;
use crate::functions::{Functions, VdsoCall};
use crate::stats::tenths;
use crate::timer::Timer;
use fastpath_os::Mapping;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Address of the page, the same since Linux 2.6.
const PAGE: usize = 0xffff_ffff_ff60_0000;

/// Its three entries (arch/x86/entry/vsyscall): 1024 bytes apart.
const ENTRIES: [(VdsoCall, usize); 3] = [
    (VdsoCall::Gettimeofday, PAGE),
    (VdsoCall::Time, PAGE + 0x400),
    (VdsoCall::Getcpu, PAGE + 0x800),
];

/// The kernel's treatment of a jump to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The page is not mapped: a program that jumps to it is killed.
    None,
    /// Execution traps to the kernel, which answers. A read faults.
    Xonly,
    /// Execution traps to the kernel, which answers. The page can be read.
    Emulate,
}

/// The vsyscall page's state and costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Vsyscall {
    /// The kernel's treatment of the page.
    pub mode: Mode,
    /// Each entry and its cost.
    pub entries: Vec<Entry>,
}

/// One entry of the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// The function that the entry is.
    pub function: VdsoCall,
    /// Cost of a call; `null` if it could not be called.
    pub ns: Option<f64>,
    /// Reason why it could not be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Measures the page in a child, because a seccomp filter or the kernel may kill a process that jumps to it.
pub(crate) fn cost(timer: &Timer) -> Vsyscall {
    let mode = fastpath_os::maps::own().map_or(Mode::None, |maps| mode(&maps));
    let entries = match mode {
        Mode::None => Vec::new(),
        Mode::Xonly | Mode::Emulate => ENTRIES
            .iter()
            .map(|(call, address)| cost_entry(timer, *call, *address))
            .collect(),
    };
    Vsyscall { mode, entries }
}

fn mode(maps: &[Mapping]) -> Mode {
    match maps.iter().find(|mapping| mapping.start == PAGE as u64) {
        None => Mode::None,
        Some(page) if page.readable => Mode::Emulate,
        Some(_) => Mode::Xonly,
    }
}

/// Number of calls in a batch, and below the number of batches: a trap takes a microsecond or two.
const CALLS: u32 = 16;
const BATCHES: u64 = 15;

fn cost_entry(timer: &Timer, call: VdsoCall, address: usize) -> Entry {
    // SAFETY: the page is mapped, and its entries have the signatures of the vDSO's functions that replaced them.
    // clock_gettime, which the page does not have, is never called below.
    let Some(page) = (unsafe { Functions::at(|_| Some(address)) }) else {
        return Entry {
            function: call,
            ns: None,
            why: Some("no address".to_owned()),
        };
    };
    let body = |reporter: &child::Reporter| {
        page.repeat(call, 1);
        for item in 0..BATCHES {
            let ticks = cost::batch(timer, CALLS, |calls| page.repeat(call, calls));
            reporter.report(0, item, ticks.to_bits());
        }
    };
    // SAFETY: reading the counter, the entry's trap and write are async-signal-safe.
    match unsafe { child::run(Duration::from_secs(1), body) } {
        Ok((records, end)) => interpret(call, &records, end, timer.ns_per_tick()),
        Err(error) => Entry {
            function: call,
            ns: None,
            why: Some(format!("no child could be started: {error}")),
        },
    }
}

fn interpret(call: VdsoCall, records: &[ChildRecord], end: End, ns_per_tick: f64) -> Entry {
    let mut ticks: Vec<f64> = records.iter().map(|record| f64::from_bits(record[2])).collect();
    let died = end != End::Finished;
    let ns = crate::stats::median(&mut ticks)
        .filter(|_| !died)
        .map(|ticks| tenths(ticks * ns_per_tick));
    Entry {
        function: call,
        ns,
        why: died.then(|| format!("a child process that called it {}", end.describe())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(permissions: &str) -> Vec<Mapping> {
        fastpath_os::maps::parse(&format!(
            "{PAGE:x}-{:x} {permissions} 0 00:00 0 [vsyscall]",
            PAGE + 4096
        ))
    }

    #[test]
    fn the_pages_permissions_tell_the_kernels_mode() {
        assert_eq!(mode(&page("--xp")), Mode::Xonly);
        assert_eq!(mode(&page("r-xp")), Mode::Emulate);
        assert_eq!(mode(&[]), Mode::None);
    }

    #[test]
    fn every_entry_of_a_mapped_page_has_a_cost_above_a_trap_or_a_reason() {
        let timer = Timer::start();
        let vsyscall = cost(&timer);
        let mapped = fastpath_os::maps::own()
            .unwrap()
            .iter()
            .any(|mapping| mapping.name == "[vsyscall]");
        assert_eq!(vsyscall.mode != Mode::None, mapped);
        assert_eq!(vsyscall.entries.len(), if mapped { 3 } else { 0 });
        for entry in &vsyscall.entries {
            // No host enters its kernel in 20 ns.
            assert!(entry.ns.is_some_and(|ns| ns > 20.0) || entry.why.is_some(), "{entry:?}");
        }
    }

    #[test]
    fn a_page_that_kills_is_reported_as_that() {
        let entry = interpret(VdsoCall::Time, &[], End::Killed(libc::SIGSEGV), 1.0);
        assert_eq!(entry.ns, None);
        assert!(entry.why.unwrap().contains("SIGSEGV"));
        // Nothing is mapped at 0x400, so the child faults.
        let fault = cost_entry(&Timer::start(), VdsoCall::Time, 0x400);
        assert!(
            fault.ns.is_none() && fault.why.as_ref().unwrap().contains("SIGSEGV"),
            "{fault:?}"
        );
    }
}
