//! Compares the measurements with the limits. A pure function of the two.

use super::baseline::Baseline;
use super::route::Route;
use crate::cost::Cost;
use crate::functions::VdsoCall;
use crate::monotonicity::Steps;
use crate::path::Path;
use fastpath_page::clocks::{Clock, ClockKind};

/// The limits: cost and path of a clock read, and the change since the baseline.
pub(super) struct GuardLimits<'a> {
    pub max_ns: f64,
    /// The allowed paths; empty: any.
    pub paths: &'a [Path],
    pub tolerance: f64,
}

/// How a clock goes backward.
#[derive(Clone, Copy)]
pub(super) struct Backward {
    /// In words.
    pub way: &'static str,
    pub steps: Steps,
}

/// The findings about one call; costs are in nanoseconds, and scaled.
pub(super) struct Seen<'a> {
    pub clock: Clock,
    pub route: &'a Route,
    pub cost: Option<Cost>,
    pub backward: Option<Backward>,
}

/// Reason why a call does not pass, as a sentence that names the call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Complaint {
    Broken(String),
    Unknown(String),
}

use Complaint::{Broken, Unknown};

/// Judges whether a call is as expected.
pub(super) fn judge(limits: &GuardLimits, seen: &Seen, baseline: Option<&Baseline>) -> Result<(), Complaint> {
    let route = seen.route;
    let call = VdsoCall::ClockGettime(seen.clock);
    if let Some(Backward { way, steps }) = seen.backward {
        return Err(Broken(format!(
            "{call} goes backward {way}: {} of {} reads, by up to {} ns",
            steps.backward, steps.compared, steps.worst_ns
        )));
    }
    match (route.path, &route.why) {
        (Path::Unsupported, _) => return Err(Broken(format!("{call} is not supported by this kernel"))),
        // If every path is allowed, the path need not be known, as long as the cost is.
        (Path::Unknown, why) if seen.cost.is_none() || !limits.paths.is_empty() => {
            let why = why.as_deref().unwrap_or("its path could not be established");
            return Err(Unknown(format!("{call}: {why}")));
        }
        _ => {}
    }
    let Some(cost) = seen.cost else {
        return Err(match route.path {
            Path::Syscall => Broken(format!("{call} goes by system call, and that is forbidden here")),
            _ => Unknown(format!("{call}: its cost could not be measured")),
        });
    };
    clock_read(limits, seen, cost)?;
    baseline.map_or(Ok(()), |baseline| against(baseline, limits.tolerance, seen, cost))
}

fn clock_read(limits: &GuardLimits, seen: &Seen, cost: Cost) -> Result<(), Complaint> {
    let (call, path) = (VdsoCall::ClockGettime(seen.clock), seen.route.path);
    if !limits.paths.is_empty() && !limits.paths.contains(&path) {
        let allowed: Vec<&str> = limits.paths.iter().map(|path| word(*path)).collect();
        return Err(Broken(format!(
            "{call} goes by {} ({:.1} ns), not by {}",
            word(path),
            cost.call,
            allowed.join(" or ")
        )));
    }
    if cost.call > limits.max_ns {
        return Err(Broken(format!(
            "{call} costs {:.1} ns by {}, more than {} ({:.1} counter reads)",
            cost.call,
            word(path),
            limits.max_ns,
            cost.to_counter.unwrap_or_default()
        )));
    }
    let is_vdso = matches!(path, Path::Vdso | Path::Fastpath) && seen.clock.kind() == ClockKind::Counter;
    if is_vdso && cost.is_too_much() {
        return Err(Broken(format!(
            "{call} costs {:.1} ns by {}: {:.1} counter reads, {:.2} system calls",
            cost.call,
            word(path),
            cost.to_counter.unwrap_or_default(),
            cost.to_syscall.unwrap_or_default()
        )));
    }
    Ok(())
}

fn against(baseline: &Baseline, tolerance: f64, seen: &Seen, cost: Cost) -> Result<(), Complaint> {
    let call = VdsoCall::ClockGettime(seen.clock);
    let Some(before) = baseline.remembered(&call.to_string()) else {
        return Err(Unknown(format!("{call}: the baseline does not have it")));
    };
    let is_fast = |path: &str| path == Path::Vdso.word() || path == Path::Fastpath.word();
    if is_fast(&before.path) && !is_fast(seen.route.path.word()) {
        return Err(Broken(format!(
            "{call} goes by {} ({:.1} ns), by {} in the baseline",
            word(seen.route.path),
            cost.call,
            before.path
        )));
    }
    if let Some((now, then)) = cost.to_counter.zip(before.counter_reads)
        && now > tolerance * then
    {
        return Err(Broken(format!(
            "{call} costs {now:.2} counter reads ({:.1} ns), {then:.2} in the baseline",
            cost.call
        )));
    }
    Ok(())
}

/// Describes a call that passes.
pub(super) fn in_words(seen: &Seen) -> String {
    let ns = seen.cost.map_or(f64::NAN, |cost| cost.call);
    format!(
        "{} {ns:.1} ns by {}",
        VdsoCall::ClockGettime(seen.clock),
        word(seen.route.path)
    )
}

fn word(path: Path) -> &'static str {
    match path {
        Path::Syscall => "system call",
        Path::Unknown => "an unknown path",
        other => other.word(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::baseline::Remembered;
    use super::*;

    const FAST: &[Path] = &[Path::Vdso, Path::Fastpath];
    const MONOTONIC: Clock = Clock::MONOTONIC;

    fn route(path: Path) -> Route {
        Route {
            path,
            why: None,
            is_callable: true,
            syscall_works: true,
            has_page: false,
        }
    }

    /// Judges a call on a host with a counter read of 15 ns and a system call of 140 ns.
    fn judged(clock: Clock, path: Path, ns: f64, baseline: Option<&Baseline>) -> Result<(), Complaint> {
        let limits = GuardLimits {
            max_ns: 100.0,
            paths: FAST,
            tolerance: 1.5,
        };
        let seen = Seen {
            clock,
            route: &route(path),
            cost: Some(Cost::sample(ns, 15.0, Some(140.0))),
            backward: None,
        };
        judge(&limits, &seen, baseline)
    }

    fn broken(outcome: Result<(), Complaint>) -> String {
        match outcome {
            Err(Broken(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_system_call_is_broken_however_cheap_it_is() {
        assert_eq!(judged(MONOTONIC, Path::Vdso, 22.0, None), Ok(()));
        assert_eq!(judged(MONOTONIC, Path::Fastpath, 19.0, None), Ok(()));
        let why = broken(judged(MONOTONIC, Path::Syscall, 22.0, None));
        assert_eq!(
            why,
            "clock_gettime MONOTONIC goes by system call (22.0 ns), not by vdso or fastpath"
        );
    }

    #[test]
    fn a_clock_that_goes_backward_is_broken_however_fast_it_is() {
        let limits = GuardLimits {
            max_ns: 100.0,
            paths: &[],
            tolerance: 1.5,
        };
        let seen = Seen {
            clock: MONOTONIC,
            route: &route(Path::Vdso),
            cost: Some(Cost::sample(20.0, 15.0, Some(140.0))),
            backward: Some(Backward {
                way: "between threads",
                steps: Steps {
                    compared: 5_000,
                    backward: 12,
                    worst_ns: 831,
                },
            }),
        };
        let why = broken(judge(&limits, &seen, None));
        assert_eq!(
            why,
            "clock_gettime MONOTONIC goes backward between threads: 12 of 5000 reads, by up to 831 ns"
        );
    }

    #[test]
    fn a_vdso_is_broken_above_the_limit_and_at_the_cost_of_a_system_call() {
        assert!(broken(judged(MONOTONIC, Path::Vdso, 101.0, None)).contains("more than 100"));
        assert!(broken(judged(MONOTONIC, Path::Vdso, 90.0, None)).contains("system calls"));
        assert_eq!(
            judged(Clock::MONOTONIC_COARSE, Path::Vdso, 90.0, None),
            Ok(()),
            "it does not read the counter"
        );
    }

    #[test]
    fn an_unknown_path_is_neither_ok_nor_broken() {
        let limits = GuardLimits {
            max_ns: 100.0,
            paths: FAST,
            tolerance: 1.5,
        };
        let route = Route {
            why: Some("no seccomp".to_owned()),
            ..route(Path::Unknown)
        };
        let seen = Seen {
            clock: MONOTONIC,
            route: &route,
            cost: Some(Cost::sample(20.0, 15.0, Some(140.0))),
            backward: None,
        };
        let expected = Unknown("clock_gettime MONOTONIC: no seccomp".to_owned());
        assert_eq!(judge(&limits, &seen, None), Err(expected));
        let any = GuardLimits { paths: &[], ..limits };
        assert_eq!(
            judge(&any, &seen, None),
            Ok(()),
            "if every path is allowed, the cost decides"
        );
    }

    #[test]
    fn a_baseline_is_kept_in_path_and_in_counter_reads() {
        let baseline = |path: &str, counter_reads| Baseline {
            calls: vec![Remembered {
                call: "clock_gettime MONOTONIC".to_owned(),
                path: path.to_owned(),
                counter_reads: Some(counter_reads),
            }],
        };
        let now = |baseline| judged(MONOTONIC, Path::Vdso, 30.0, Some(&baseline));
        assert_eq!(now(baseline("fastpath", 1.9)), Ok(()));
        assert!(broken(now(baseline("vdso", 1.3))).contains("1.30 in the baseline"));
        let limits = GuardLimits {
            max_ns: 1e9,
            paths: &[],
            tolerance: 1e9,
        };
        let seen = Seen {
            clock: MONOTONIC,
            route: &route(Path::Syscall),
            cost: Some(Cost::sample(140.0, 15.0, Some(140.0))),
            backward: None,
        };
        let why = broken(judge(&limits, &seen, Some(&baseline("vdso", 1.3))));
        assert!(why.contains("by vdso in the baseline"), "{why}");
        let other = Baseline { calls: Vec::new() };
        assert!(matches!(now(other), Err(Unknown(_))));
    }
}
