//! Programs that read the CPU's counter themselves, and what this host's counter does to them.

use super::super::facts::{CounterPrograms, CounterReads, ExecutedRead, Facts, Process};
use super::super::words::distance;
use super::counter::EXPENSIVE_COUNTER_NS;
use super::finding::{Finding, Severity, finding};

/// Most reads, and most programs, that are named.
const MOST_NAMED: usize = 5;

/// Returns the finding on a process: none if no read is a clock's and none was executed.
pub(super) fn of_process(process: &Process, facts: &Facts) -> Option<Finding> {
    let is_worth_it = |file: &&CounterReads| !file.is_checked && (file.is_clock() || !file.executed.is_empty());
    let files: Vec<&CounterReads> = process.counter_reads.iter().filter(is_worth_it).collect();
    if files.is_empty() {
        return None;
    }
    let sampled = process.reads.as_ref().map(|reads| reads.samples);
    let at_reads: u64 = files.iter().map(|file| file.samples()).sum();
    let says = match sampled.filter(|all| *all > 0) {
        Some(all) if at_reads > 0 => format!(
            "the process reads the CPU's counter itself: {at_reads} of {all} samples of its CPU time ({:.0} %) were at \
             such a read",
            100.0 * at_reads as f64 / all as f64
        ),
        Some(all) => format!(
            "the process has code that reads the CPU's counter itself; none of {all} samples of its CPU time was there"
        ),
        None => {
            "the process has code that reads the CPU's counter itself; whether it is executed was not seen".to_owned()
        }
    };
    let is_executed_clock = |file: &&&CounterReads| {
        let is_known = !file.families.is_empty();
        file.executed.iter().any(|read| read.is_scaled || is_known)
    };
    let is_wrong = facts.counter.apart_ns().is_some() && files.iter().any(|file| is_executed_clock(&file));
    let severity = if is_wrong { Severity::Wrong } else { Severity::Note };
    let found = finding("process-reads-counter", severity, says);
    let found = files.iter().take(MOST_NAMED).fold(found, |found, file| {
        let executed: Vec<String> = file.executed.iter().take(MOST_NAMED).map(place).collect();
        let executed = match executed.is_empty() {
            true => String::new(),
            false => format!("; samples were at {}", executed.join(", ")),
        };
        found.proof(&file.file, &format!("{}{executed}", places(file)))
    });
    Some(effects(facts).iter().fold(found, |found, effect| found.because(effect)))
}

fn place(read: &ExecutedRead) -> String {
    let clock = if read.is_scaled { ", as a clock" } else { "" };
    format!("{:#x} ({}{clock})", read.address, read.samples)
}

/// Returns the number of places in a file, with the known code that it contains.
pub(in super::super) fn places(file: &CounterReads) -> String {
    let families = match file.families.is_empty() {
        true => String::new(),
        false => format!(" (it contains {})", file.families.join(", ")),
    };
    let clocks = match file.clocks {
        0 => String::new(),
        clocks => format!(", {clocks} of them as a clock"),
    };
    let s = if file.places == 1 { "" } else { "s" };
    format!("{} place{s}{clocks}{families}", file.places)
}

/// Returns what this host's counter does to programs that read it themselves.
fn effects(facts: &Facts) -> Vec<String> {
    let counter = &facts.counter;
    let evidence = &counter.evidence;
    let mut effects = Vec::new();
    if let Some(ns) = counter.apart_ns() {
        effects.push(format!(
            "the counters of this host's CPUs differ by {} or more: a time from them goes back, or jumps ahead, \
             when a thread changes its CPU",
            distance(ns)
        ));
    }
    if let Some(drift) = counter.fastest_drift() {
        effects.push(format!("they differ more and more: {drift}"));
    }
    if evidence.features.is_some_and(|features| !features.invariant) {
        effects.push(
            "the CPU does not guarantee that its counter keeps one rate: a time from it may run too fast or too slow"
                .to_owned(),
        );
    }
    if let Some(ns) = counter
        .read_ns
        .filter(|ns| evidence.is_trapped || *ns > EXPENSIVE_COUNTER_NS)
    {
        effects.push(format!("each read traps or is emulated here, and costs {ns:.0} ns"));
    }
    if !evidence.is_readable {
        effects.push(
            "programs started like this one may not read it (PR_SET_TSC): such a read ends in SIGSEGV".to_owned(),
        );
    }
    let is_compared = evidence
        .warp
        .as_ref()
        .is_some_and(|warp| warp.cpus.len() == 1 || warp.within_cycles().is_some());
    if effects.is_empty() {
        effects.push(match is_compared {
            true => "the counter does them no harm at present: it keeps one rate, and the CPUs agree".to_owned(),
            false => "whether the CPUs' counters agree could not be measured here".to_owned(),
        });
    }
    if let Some(clocksource) = facts.clocksource.unreadable() {
        effects.push(format!(
            "the kernel reads its clock from {clocksource}: if it rejected the counter for a fault, these times have it"
        ));
    }
    if let Some(hypervisor) = &facts.machine.hypervisor {
        effects.push(format!(
            "this is a guest of {hypervisor}: the counter may jump when it is restored, or moved to another host"
        ));
    }
    effects
}

/// Returns the finding on the running programs of a host whose counter is wrong, or may be.
pub(super) fn of_host(facts: &Facts) -> Option<Finding> {
    let CounterPrograms { programs, unexamined } = facts.counter_programs.as_ref()?;
    if programs.is_empty() {
        return None;
    }
    let wrong = match facts.counter.apart_ns() {
        Some(_) => "their times are wrong, not slow",
        None => "their times may be wrong",
    };
    let named = programs.iter().take(MOST_NAMED).map(|program| {
        let families = match program.families.is_empty() {
            true => String::new(),
            false => format!(", {}", program.families.join(", ")),
        };
        format!("{} ({}{families})", program.name, program.pid)
    });
    let mut named: Vec<String> = named.collect();
    if programs.len() > MOST_NAMED {
        named.push(format!("{} others", programs.len() - MOST_NAMED));
    }
    let says = format!(
        "code of these running programs reads the CPU's counter itself as a clock, and {wrong} where they execute it: {}; \
         `fastpath doctor PID` shows whether one does",
        named.join(", ")
    );
    let found =
        finding("counter-programs", Severity::Note, says).proof("their files", "`fastpath audit`: counter-as-clock");
    Some(match unexamined {
        0 => found,
        count => found.because(&format!("{count} processes could not be examined, or not in time")),
    })
}
