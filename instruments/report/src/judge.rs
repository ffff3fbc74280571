//! Verdicts and summaries of hosts, and the next steps.

use crate::data::{Clock, Host};
use crate::nanoseconds::in_words;
use fastpath_doctor::{Remedy, Verdict, When};
use fastpath_measure::CallVerdict;

impl Host {
    /// Returns doctor's verdict or, without one, the verdict that the probe alone allows.
    pub fn verdict(&self) -> Verdict {
        if let Some(doctor) = &self.doctor {
            return doctor.verdict;
        }
        let calls = || self.calls().map(|(_, verdict)| verdict);
        if calls().any(|verdict| verdict == CallVerdict::Slow) {
            Verdict::Slow
        } else if calls().any(|verdict| verdict == CallVerdict::Unknown) || self.probe.clocks.is_empty() {
            Verdict::Unknown
        } else {
            Verdict::Healthy
        }
    }

    /// Returns the summary, a sentence without its full stop.
    pub fn summary(&self) -> String {
        if let Some(doctor) = &self.doctor {
            return doctor.summary.clone();
        }
        match self.verdict() {
            Verdict::Slow => format!("slow here: {}", self.slow().join(", ")),
            Verdict::Unknown => "the path or the cost of some clocks could not be determined".to_owned(),
            _ => format!("every clock that can be fast is fast{}", self.reference()),
        }
    }

    fn reference(&self) -> String {
        let costs = self.monotonic().map(|clock| (clock.ns, clock.syscall_ns));
        match costs {
            Some((Some(ns), Some(call))) => {
                format!(": MONOTONIC {}, by system call {}", in_words(ns), in_words(call))
            }
            _ => String::new(),
        }
    }

    /// Returns the steps to take; those with an immediate effect come first.
    pub fn steps(&self) -> Vec<Remedy> {
        // The ids are doctor's: a fleet lists a step once, whether a host was probed or examined.
        let step = |id: &'static str, does: &str, cost: &str| Remedy {
            id: id.into(),
            when: When::Now,
            does: does.to_owned(),
            cost: cost.to_owned(),
        };
        match (&self.doctor, self.verdict()) {
            (Some(doctor), _) if !doctor.remedies.is_empty() => doctor.remedies.clone(),
            (_, Verdict::Healthy) => vec![step(
                "",
                "nothing needs to be fixed; `fastpath guard` in CI, or `fastpath export` for Prometheus, reports when that changes",
                "",
            )],
            (None, Verdict::Slow) => vec![
                step("examine", "`fastpath doctor` on the host explains why", "a second"),
                step(
                    "run",
                    "`fastpath run -- PROGRAM` starts a program on the fast path",
                    "a start of the program",
                ),
            ],
            (None, _) => vec![step("examine", "`fastpath doctor` on the host examines it", "a second")],
            (Some(_), _) => vec![step("", "there is no remedy; see the findings below", "")],
        }
    }

    /// Returns the clocks and functions that are slow but could be fast.
    pub fn slow(&self) -> Vec<&str> {
        let slow = self.calls().filter(|(_, verdict)| *verdict == CallVerdict::Slow);
        slow.map(|(name, _)| name).collect()
    }

    fn calls(&self) -> impl Iterator<Item = (&str, CallVerdict)> {
        let clocks = self
            .probe
            .clocks
            .iter()
            .map(|clock| (clock.clock.as_str(), clock.verdict));
        let functions = self.probe.functions.iter();
        clocks.chain(functions.map(|function| (function.function.as_str(), function.verdict)))
    }

    pub(crate) fn monotonic(&self) -> Option<&Clock> {
        self.probe.clocks.iter().find(|clock| clock.clock == "MONOTONIC")
    }
}

/// Sorts the worst hosts first; of equal ones, those with the most expensive MONOTONIC; the rest by name.
pub(crate) fn sort(hosts: &mut [&Host]) {
    let cost = |host: &Host| host.monotonic().and_then(|clock| clock.ns).map_or(0.0, |ns| ns.get());
    hosts.sort_by(|a, b| {
        let by_cost = || match a.verdict() {
            Verdict::Healthy => std::cmp::Ordering::Equal,
            _ => cost(b).total_cmp(&cost(a)),
        };
        a.verdict()
            .cmp(&b.verdict())
            .then_with(by_cost)
            .then_with(|| a.name.cmp(&b.name))
    });
}

/// Returns the summary of a fleet.
pub(crate) fn fleet_summary(hosts: &[&Host]) -> String {
    let of = |verdict| hosts.iter().filter(|host| host.verdict() == verdict).count();
    let count = hosts.len();
    let mut parts = Vec::new();
    for verdict in [Verdict::Wrong, Verdict::Slow, Verdict::Unknown] {
        let these = of(verdict);
        if these > 0 {
            parts.push(match verdict {
                Verdict::Wrong => format!("{these} of {count} hosts {} a counter that is not reliable", has(these)),
                Verdict::Slow => format!("{these} of {count} hosts {} slow clocks", has(these)),
                _ => format!("the verdict on {these} of {count} hosts could not be determined"),
            });
        }
    }
    if parts.is_empty() {
        return format!("on all {count} hosts every clock that can be fast is fast");
    }
    parts.join("; ")
}

fn has(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

/// Returns the steps with their hosts; those for the most hosts come first.
pub(crate) fn fleet_steps<'a>(hosts: &[&'a Host]) -> Vec<(Remedy, Vec<&'a Host>)> {
    let mut steps: Vec<(Remedy, Vec<&Host>)> = Vec::new();
    for host in hosts.iter().filter(|host| host.verdict() != Verdict::Healthy) {
        for step in host.steps() {
            // Its text may contain the host's own figures.
            let is_it = |known: &Remedy| known.does == step.does || !step.id.is_empty() && known.id == step.id;
            match steps.iter_mut().find(|(known, _)| is_it(known)) {
                Some((_, hosts)) => hosts.push(host),
                None => steps.push((step, vec![host])),
            }
        }
    }
    steps.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_probe_alone_is_judged_by_its_calls() {
        let mut host = samples::slow("db1");
        host.doctor = None;
        assert_eq!(host.verdict(), Verdict::Slow);
        assert!(host.summary().contains("MONOTONIC"), "{}", host.summary());
        assert!(host.steps()[0].does.contains("fastpath doctor"));
        let mut host = samples::healthy("web1");
        host.doctor = None;
        assert_eq!(host.verdict(), Verdict::Healthy);
        host.probe.clocks[0].verdict = CallVerdict::Unknown;
        assert_eq!(host.verdict(), Verdict::Unknown);
    }

    #[test]
    fn slow_hosts_come_first_and_the_most_expensive_of_them_before_others() {
        let (well, also_well) = (samples::healthy("a"), samples::healthy("b"));
        let (slow, mut slower) = (samples::slow("c"), samples::slow("d"));
        let monotonic = slower.probe.clocks.iter_mut().find(|clock| clock.clock == "MONOTONIC");
        monotonic.unwrap().ns = Some(crate::Nanoseconds::new(5000.0));
        let mut hosts = vec![&also_well, &slow, &well, &slower];
        sort(&mut hosts);
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["d", "c", "a", "b"]);
        assert_eq!(fleet_summary(&hosts), "2 of 4 hosts have slow clocks");
        assert_eq!(
            fleet_summary(&[&well, &also_well]),
            "on all 2 hosts every clock that can be fast is fast"
        );
    }

    #[test]
    fn a_step_that_helps_many_hosts_is_listed_once() {
        let (a, b) = (samples::slow("a"), samples::slow("b"));
        let steps = fleet_steps(&[&a, &b]);
        assert!(!steps.is_empty() && steps.iter().all(|(_, hosts)| hosts.len() == 2));

        let mut probed = samples::slow("c");
        probed.doctor = None;
        let steps = fleet_steps(&[&a, &probed]);
        let of_run = steps.iter().filter(|(step, _)| step.does.contains("fastpath run"));
        assert_eq!(of_run.map(|(_, hosts)| hosts.len()).collect::<Vec<_>>(), [2]);
    }
}
