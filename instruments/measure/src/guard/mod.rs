//! A gate: tests whether clock reads still take the expected path, at the expected cost.
//!
//! **The path decides**, and it is established, not inferred from the cost. Costs are judged as ratios to a read of the
//! counter and to a system call, which are measured alternately with the call, so that a busy neighbour or a slow clock
//! of the CPU affects all three. A call that seems broken is measured again: noise makes a fast path look slow, but
//! never a slow one fast, so the best measurement counts.

mod baseline;
mod judge;
mod route;

pub use baseline::{Baseline, Remembered};

use crate::child::{self, End};
use crate::cost::{Cost, Effort, least, until_settled};
use crate::counter;
use crate::functions::{Functions, VdsoCall};
use crate::path::Path;
use crate::stats::{tenths, thousandths};
use crate::timer::Timer;
use crate::{Limit, Steps, monotonicity};
use fastpath_page::clocks::Clock;
use judge::{Backward, Complaint, GuardLimits};
use route::Route;
use serde::Serialize;
use std::time::Duration;

/// Pauses before each further look. In the longest of them a publisher that was kept from running recovers, and a burst
/// of load ends.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
    Duration::from_millis(200),
    Duration::from_millis(300),
];

/// Number of looks that suffice if only the path is wrong. The kernel's path does not depend on the load; fastpath's
/// does, if its publisher gets no CPU.
const ENOUGH_FOR_A_PATH: usize = 2;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The clocks to check.
    pub clocks: Vec<Clock>,
    /// Most that a clock read may cost, in nanoseconds.
    pub max_ns: f64,
    /// The paths that a clock read may take; empty: any.
    pub paths: Vec<Path>,
    /// An earlier report to compare with.
    pub baseline: Option<Baseline>,
    /// Factor by which a ratio may exceed the baseline's.
    pub tolerance: f64,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GuardOutcome {
    /// All calls pass.
    Ok,
    /// A call does not pass.
    Broken,
    /// No call is known to be broken, but some call could not be judged.
    Unknown,
}

/// The measurements and the outcome.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardReport {
    /// The outcome.
    pub outcome: GuardOutcome,
    /// The outcome in one line.
    pub summary: String,
    /// The calls.
    pub calls: Vec<Checked>,
    /// Cost of an ordered read of the counter.
    pub counter_ns: Option<f64>,
    /// Number of looks before the outcome was final.
    pub looks: usize,
}

/// The result for one call.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Checked {
    /// `clock_gettime MONOTONIC` and the like.
    pub call: String,
    /// The path that the call takes.
    pub path: Path,
    /// Cost of the call; `null` if it could not be measured.
    pub ns: Option<f64>,
    /// Cost of the call in reads of the counter; both are measured alternately.
    pub counter_reads: Option<f64>,
    /// Cost of the call in system calls for the same clock.
    pub system_calls: Option<f64>,
    /// The worst backward steps of a clock that cannot be set, read on all CPUs at once; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward: Option<Steps>,
    /// Reason why the call does not pass or could not be judged; absent if it passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
}

/// The findings about one call so far.
struct Look {
    clock: Clock,
    route: Route,
    cost: Option<Cost>,
    backward: Option<Backward>,
}

/// Time for which all CPUs read the clocks that cannot be set.
const READS: Limit = Limit {
    duration: Duration::from_millis(10),
    reads: u64::MAX,
};

/// Measures and judges the calls. Takes some 30 ms if all calls pass, up to a second if one is too expensive.
pub fn guard(options: &GuardOptions) -> GuardReport {
    if !counter::usable() {
        let why = "this process may not read the CPU's counter (PR_SET_TSC): a clock read by a vDSO would kill it";
        return forbidden(&options.clocks, why);
    }
    // Tested before any clock is read here: the read could kill the process.
    // SAFETY: a clock read is async-signal-safe and returns.
    match unsafe { child::exit_of(|| errno_of(Clock::MONOTONIC)) } {
        None | Some(End::Finished) => {}
        Some(End::Exited(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            let why = format!("a clock read goes by system call, and is answered with an error: {error}");
            return forbidden(&options.clocks, &why);
        }
        Some(end) => {
            let why = format!(
                "a clock read goes by system call, and that is forbidden: a child that tried {}",
                end.describe()
            );
            return forbidden(&options.clocks, &why);
        }
    }
    let timer = Timer::start();
    let limits = GuardLimits {
        max_ns: options.max_ns,
        paths: &options.paths,
        tolerance: options.tolerance,
    };
    let is_doubtful = |look: &Look, ns_per_tick| {
        let seen = look.seen(ns_per_tick);
        judge::judge(&limits, &seen, options.baseline.as_ref()).is_err()
    };
    let is_open = |look: &Look, looked, ns_per_tick| {
        look.backward.is_none()
            && is_doubtful(look, ns_per_tick)
            && !(looked >= ENOUGH_FOR_A_PATH && look.is_lost_for_good(&options.paths))
    };
    let look = |(route, clock): (Route, &Clock)| Look {
        clock: *clock,
        route,
        cost: None,
        backward: None,
    };
    let mut looks: Vec<Look> = route::of_all(&options.clocks)
        .into_iter()
        .zip(&options.clocks)
        .map(look)
        .collect();
    look_for_backward_steps(&mut looks);
    looks.iter_mut().for_each(|look| look.cost(&timer));
    let pauses = until_settled(
        &mut looks,
        &PAUSES,
        |look, pauses| !is_open(look, pauses + 1, timer.ns_per_tick()),
        |look| look.again(&timer, &options.paths),
    );
    report(
        &limits,
        options.baseline.as_ref(),
        &looks,
        timer.ns_per_tick(),
        pauses + 1,
    )
}

/// Reads a clock by libc, as programs do. Returns 0 or the errno.
fn errno_of(clock: Clock) -> i32 {
    if Functions::libc().call(VdsoCall::ClockGettime(clock)) == 0 {
        return 0;
    }
    let error = std::io::Error::last_os_error();
    error.raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EIO)
}

/// Reads the clocks that cannot be set, on all CPUs at once. A step back is no noise, so once is enough.
fn look_for_backward_steps(looks: &mut [Look]) {
    let is_read =
        |look: &&Look| Clock::NEVER_SET.contains(&look.clock) && look.route.is_callable && look.route.syscall_works;
    let clocks: Vec<Clock> = looks.iter().filter(is_read).map(|look| look.clock).collect();
    if clocks.is_empty() {
        return;
    }
    for seen in monotonicity(&Functions::libc(), &clocks, READS).clocks {
        let worst = seen.faults().max_by_key(|(_, steps)| steps.worst_ns);
        let of_clock = looks.iter_mut().filter(|look| look.clock == seen.clock);
        of_clock.for_each(|look| look.backward = worst.map(|(way, steps)| Backward { way, steps }));
    }
}

impl Look {
    fn cost(&mut self, timer: &Timer) {
        if self.route.is_callable {
            let call = VdsoCall::ClockGettime(self.clock);
            let cost = Cost::measure(timer, Effort::PROBE, call, self.route.syscall_works);
            self.cost = Some(self.cost.map_or(cost, |before| before.least(cost)));
        }
    }

    fn again(&mut self, timer: &Timer, allowed: &[Path]) {
        if !allowed.is_empty() && !allowed.contains(&self.route.path) {
            self.route = route::of_all(&[self.clock]).remove(0);
        }
        self.cost(timer);
    }

    /// Returns whether every call enters the kernel, and no page in this process could answer a little later.
    fn is_lost_for_good(&self, allowed: &[Path]) -> bool {
        let is_allowed = allowed.is_empty() || allowed.contains(&Path::Syscall);
        self.route.path == Path::Syscall && !is_allowed && !self.route.has_page
    }

    fn seen(&self, ns_per_tick: f64) -> judge::Seen<'_> {
        judge::Seen {
            clock: self.clock,
            route: &self.route,
            cost: self.cost.map(|cost| cost.scaled().in_ns(ns_per_tick)),
            backward: self.backward,
        }
    }
}

fn report(
    limits: &GuardLimits,
    baseline: Option<&Baseline>,
    looks: &[Look],
    ns_per_tick: f64,
    looked: usize,
) -> GuardReport {
    let mut report = GuardReport {
        outcome: GuardOutcome::Ok,
        summary: String::new(),
        calls: Vec::new(),
        counter_ns: None,
        looks: looked,
    };
    let (mut broken, mut unknown, mut fine) = (Vec::new(), Vec::new(), Vec::new());
    for look in looks {
        let seen = look.seen(ns_per_tick);
        let judged = judge::judge(limits, &seen, baseline);
        let cost = seen.cost;
        report.counter_ns = least(report.counter_ns, cost.and_then(|cost| cost.counter).map(tenths));
        let complaint = match &judged {
            Ok(()) => None,
            Err(Complaint::Broken(why) | Complaint::Unknown(why)) => Some(why.clone()),
        };
        match judged {
            Ok(()) => fine.push(judge::in_words(&seen)),
            Err(Complaint::Broken(why)) => broken.push(why),
            Err(Complaint::Unknown(why)) => unknown.push(why),
        }
        report.calls.push(Checked {
            call: VdsoCall::ClockGettime(look.clock).to_string(),
            path: look.route.path,
            ns: cost.map(|cost| tenths(cost.call)),
            counter_reads: cost.and_then(|cost| cost.to_counter).map(thousandths),
            system_calls: cost.and_then(|cost| cost.to_syscall).map(thousandths),
            backward: look.backward.map(|backward| backward.steps),
            complaint,
        });
    }
    let (outcome, sentences) = match (broken.is_empty(), unknown.is_empty()) {
        (false, _) => (GuardOutcome::Broken, broken),
        (true, false) => (GuardOutcome::Unknown, unknown),
        (true, true) => (GuardOutcome::Ok, fine),
    };
    report.outcome = outcome;
    report.summary = sentences.join("; ");
    report
}

/// Returns the report for a process that a clock read would kill: nothing can be measured.
fn forbidden(clocks: &[Clock], why: &str) -> GuardReport {
    let checked = |clock: &Clock| Checked {
        call: VdsoCall::ClockGettime(*clock).to_string(),
        path: Path::Unknown,
        ns: None,
        counter_reads: None,
        system_calls: None,
        backward: None,
        complaint: Some(why.to_owned()),
    };
    GuardReport {
        outcome: GuardOutcome::Broken,
        summary: why.to_owned(),
        calls: clocks.iter().map(checked).collect(),
        counter_ns: None,
        looks: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> GuardOptions {
        GuardOptions {
            clocks: vec![Clock::MONOTONIC, Clock::PROCESS_CPUTIME_ID],
            max_ns: 1e6,
            paths: Vec::new(),
            baseline: None,
            tolerance: 1.5,
        }
    }

    #[test]
    fn every_call_is_seen_with_its_path_and_its_cost() {
        let report = guard(&options());
        assert_eq!(report.calls.len(), 2);
        for checked in &report.calls {
            assert!(
                checked.ns.unwrap() > 1.0 && checked.counter_reads.unwrap() > 0.5,
                "{checked:?}"
            );
        }
        assert_eq!(report.calls[1].path, Path::Syscall, "CPU time is the kernel's");
    }

    #[test]
    fn a_forbidden_counter_is_reported_and_the_thread_lives() {
        let forbid = || {
            // SAFETY: the permission is that of this thread alone, which reads no clock from here to its end.
            let answer = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
            (answer == 0).then(|| guard(&options()))
        };
        let Some(report) = std::thread::spawn(forbid).join().unwrap() else {
            return crate::skip::skip("this kernel cannot forbid the counter (PR_SET_TSC)");
        };
        assert_eq!(report.outcome, GuardOutcome::Broken);
        assert!(report.summary.contains("PR_SET_TSC"), "{}", report.summary);
    }

    #[test]
    fn a_path_that_is_not_allowed_is_broken_whatever_it_costs() {
        let report = guard(&GuardOptions {
            clocks: vec![Clock::PROCESS_CPUTIME_ID],
            paths: vec![Path::Vdso, Path::Fastpath],
            ..options()
        });
        assert_eq!(report.outcome, GuardOutcome::Broken);
        assert!(report.summary.contains("system call"), "{}", report.summary);
        assert!(report.looks > 1, "nothing is called broken at a first look");
    }

    #[test]
    fn a_report_is_a_baseline_of_itself() {
        let report = guard(&options());
        let json = serde_json::to_string(&report).unwrap();
        let baseline: Baseline = serde_json::from_str(&json).unwrap();
        let again = guard(&GuardOptions {
            baseline: Some(baseline),
            tolerance: 5.0,
            ..options()
        });
        assert_eq!(again.outcome, GuardOutcome::Ok, "{}", again.summary);
    }
}
