//! Adds up the calls and makes the rows of the report.

use crate::trace::call::{CallAbi, CallSample, CallSite};
use crate::trace::process::Processes;
use crate::trace::report::{Caller, TraceRow};
use crate::trace::symbols::{Frame, Symbols};
use crate::trace::why::{Judge, Why};
use fastpath_code::TimeCall;
use fastpath_measure::Probe;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Measurements of the host on which costs and reasons depend, made before the counting.
pub(crate) struct HostCosts {
    native: Probe,
}

impl HostCosts {
    pub(crate) fn look() -> HostCosts {
        HostCosts { native: Probe::run() }
    }

    /// Returns the cost of such a call on this host; `None` for one of a 32-bit program, which is not measured.
    fn cost_ns(&self, site: &CallSite) -> Option<f64> {
        let probe = match site.abi {
            CallAbi::Native => &self.native,
            CallAbi::Compat => return None,
            CallAbi::Vsyscall => {
                let entries = &self.native.vsyscall.as_ref()?.entries;
                let entry = entries
                    .iter()
                    .find(|entry| entry.function.function() == site.function.name())?;
                return entry.ns;
            }
        };
        if matches!(site.function, TimeCall::ClockGettime | TimeCall::ClockGettime64) {
            let report = probe.clocks.iter().find(|report| report.id == site.clock)?;
            return report.measured.syscall_ns;
        }
        let is_it = |name: &str| name.starts_with(site.function.name()) || site.function.name().starts_with(name);
        let report = probe.functions.iter().find(|report| is_it(&report.function))?;
        report.measured.syscall_ns
    }
}

/// A site, and the time from which it was counted, which identifies the program of the process.
type Counted = (CallSite, u64);

/// All counts.
#[derive(Default)]
pub(crate) struct Tally {
    calls: HashMap<Counted, u64>,
    images: HashMap<Counted, u64>,
    stacks: HashMap<(CallSite, u64), HashMap<Vec<Frame>, u64>>,
    pub(crate) processes: Processes,
    pub(crate) symbols: Symbols,
}

/// Key of a row: calls with the same key are counted together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    pid: u32,
    since_ns: u64,
    function: TimeCall,
    abi: CallAbi,
    clock: i32,
    why: Why,
}

impl Tally {
    /// Sets the number of a site's calls.
    pub(crate) fn set(&mut self, site: CallSite, first_ns: u64, comm: &str, calls: u64) {
        let counted = (site, first_ns);
        self.calls.insert(counted, calls);
        if !self.images.contains_key(&counted) {
            let image = self.processes.at(&site, first_ns, comm);
            self.images.insert(counted, image.since_ns);
        }
    }

    /// Counts one more call.
    pub(crate) fn add(&mut self, site: CallSite, now_ns: u64) {
        let since_ns = self.processes.at(&site, now_ns, "").since_ns;
        *self.calls.entry((site, since_ns)).or_default() += 1;
        self.images.insert((site, since_ns), since_ns);
    }

    pub(crate) fn sample(&mut self, sample: &CallSample) {
        let image = self.processes.at(&sample.site, sample.time_ns, "").clone();
        let stack = self.symbols.callers(sample, &image);
        let stacks = self.stacks.entry((sample.site, image.since_ns)).or_default();
        *stacks.entry(stack).or_default() += sample.calls;
    }

    pub(crate) fn forget_the_dead(&mut self) {
        let needed: std::collections::HashSet<u32> = self.images.keys().map(|(site, _)| site.pid).collect();
        self.processes.forget(|pid| needed.contains(&pid));
    }

    /// Returns the rows, the most expensive first. With `root`, only of this process and its descendants.
    pub(crate) fn rows(&mut self, host: &HostCosts, elapsed: Duration, root: Option<u32>) -> Vec<TraceRow> {
        let native = host.native.clone();
        let mut judge = Judge::new(&native);
        let mut sums: BTreeMap<RowKey, (u64, Vec<CallSite>)> = BTreeMap::new();
        for (counted, calls) in &self.calls {
            let (site, since_ns) = (counted.0, self.images[counted]);
            if root.is_some_and(|root| !self.processes.descends(site.pid, root)) {
                continue;
            }
            let Some(image) = self.processes.image(site.pid, since_ns) else {
                continue;
            };
            let place = self.symbols.frame(site.pid, image, site.ip.saturating_sub(1));
            let key = RowKey {
                pid: site.pid,
                since_ns,
                function: site.function,
                abi: site.abi,
                clock: site.clock,
                why: judge.why(&site, image, &place),
            };
            let sum = sums.entry(key).or_default();
            sum.0 += calls;
            sum.1.push(site);
        }
        let mut rows: Vec<TraceRow> = Vec::new();
        for (key, (calls, sites)) in sums {
            let site = sites[0];
            let Some(image) = self.processes.image(key.pid, key.since_ns) else {
                continue;
            };
            let cost_ns = host.cost_ns(&site);
            let calls_per_second = calls as f64 / elapsed.as_secs_f64().max(1e-9);
            rows.push(TraceRow {
                pid: key.pid,
                comm: image.comm.clone(),
                program: image.program.clone(),
                has_ended: self.processes.has_ended(key.pid),
                call: key.function.name(),
                clock: site.clock_name(),
                abi: key.abi.name(),
                calls,
                calls_per_second: round(calls_per_second, 10.0),
                cost_ns: cost_ns.map(|ns| round(ns, 10.0)),
                cpu_percent: cost_ns.map(|ns| round(calls_per_second * ns / 1e7, 1000.0)),
                why: key.why,
                says: key.why.says(),
                callers: self.callers(&key, &sites, calls),
            });
        }
        let cost = |row: &TraceRow| row.cpu_percent.unwrap_or(0.0);
        rows.sort_by(|a, b| {
            cost(b)
                .total_cmp(&cost(a))
                .then(b.calls.cmp(&a.calls))
                .then(a.pid.cmp(&b.pid))
        });
        rows
    }

    /// Returns the callers. A sample represents the calls since the previous one; the calls after the last sample are
    /// distributed over all of them.
    fn callers(&self, row: &RowKey, sites: &[CallSite], calls: u64) -> Vec<Caller> {
        let mut sums: HashMap<&Vec<Frame>, u64> = HashMap::new();
        let mut distinct = sites.to_vec();
        distinct.sort_by_key(|site| site.ip);
        distinct.dedup();
        for site in distinct {
            for (stack, calls) in self.stacks.get(&(site, row.since_ns)).into_iter().flatten() {
                *sums.entry(stack).or_default() += calls;
            }
        }
        let sampled: u64 = sums.values().sum();
        let share = |part: u64| (part as f64 / sampled.max(1) as f64 * calls as f64).round() as u64;
        let mut callers: Vec<Caller> = Vec::new();
        for (stack, part) in sums {
            let outside = stack.iter().find(|frame| !frame.is_go_between()).or(stack.last());
            let frame = outside.cloned().unwrap_or(Frame {
                function: None,
                library: None,
            });
            callers.push(Caller {
                function: frame.function,
                library: frame.library,
                calls: share(part),
                stack: stack.clone(),
            });
        }
        callers.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.function.cmp(&b.function)));
        callers
    }
}

fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}
