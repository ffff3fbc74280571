//! Facts about the CPU's counter, and the verdict on it.

use super::super::causes;
use super::super::facts::{Facts, MeasuredRate};
use super::super::words::{megahertz, nanoseconds};
use super::line::{Add, Line, Mark, if_it_matters, line};
use fastpath_evidence::counter::Features;
use fastpath_evidence::{Distrust, Drift, Pair, Trust, Warp};
use fastpath_image::Isa;
use std::collections::BTreeMap;

const COUNTER: &str = "counter";

pub(super) fn from_facts(facts: &Facts) -> Vec<Line> {
    let evidence = &facts.counter.evidence;
    let mut lines = Vec::new();
    let mut add = |what: &str, mark, shows: String, source: &str| lines.push(line(COUNTER, what, mark, shows, source));
    of_reads(facts, &mut add);
    of_promises(facts, &mut add);
    of_rates(facts, &mut add);
    if let Some(warp) = &evidence.warp {
        let (mark, shows) = agreement(warp);
        add("CPUs agree", mark, format!("{shows}{}", missed(warp)), "measured");
        for pair in warp.pairs.iter().take(MOST_PAIRS) {
            let (mark, shows) = of_pair(pair);
            add("a pair", mark, shows, "measured");
        }
    }
    for drift in counter_drifts(facts) {
        let shows = format!(
            "CPU {} runs {:+.2} ± {:.2} ppm against CPU {}",
            drift.cpu, drift.ppm, drift.error_ppm, drift.against
        );
        let mark = if drift.is_certain() { Mark::Bad } else { Mark::Ok };
        add("a drift", mark, shows, "measured");
    }
    // `--trust-counter` changes nothing else about the verdict.
    let refused = evidence.verdict(Trust::Invariant);
    let can_be_allowed = matches!(refused, Err(Distrust::NotInvariant | Distrust::Warp { .. }));
    let allowed = can_be_allowed.then_some(("--trust-counter", Trust::AllowNonInvariant));
    for (command, trust) in [("fastpath run", Trust::Invariant)].into_iter().chain(allowed) {
        let (mark, shows) = match facts.verdict(trust) {
            Ok(()) => (Mark::Ok, "would accept it".to_owned()),
            Err(why) => (if_it_matters(facts), format!("would not accept it: {why}")),
        };
        add(command, mark, shows, "all of this");
    }
    lines
}

/// Returns the largest drifts.
fn counter_drifts(facts: &Facts) -> Vec<Drift> {
    let mut drifts = facts.counter.drifts.clone();
    drifts.sort_by(|one, other| other.ppm.abs().total_cmp(&one.ppm.abs()));
    drifts.truncate(MOST_PAIRS);
    drifts
}

fn of_reads(facts: &Facts, add: &mut Add<'_>) {
    let evidence = &facts.counter.evidence;
    let (mark, readable) = if evidence.is_readable {
        (Mark::Ok, "allowed")
    } else {
        let ends = "forbidden: it ends in SIGSEGV (doctor has allowed itself to)";
        (Mark::Bad, ends)
    };
    if Isa::HOST.is_x86() || !evidence.is_readable {
        add("reading it", mark, readable.to_owned(), "prctl PR_GET_TSC");
    }
    if let slow @ [_, ..] = facts.counter.slow_cpus() {
        let shows = format!(
            "by the kernel on {} of the CPUs, as slowly as a system call: {slow:?}",
            slow.len()
        );
        add("answered", Mark::Bad, shows, "measured");
    } else if evidence.is_trapped {
        let shows = "by the kernel, as slowly as a system call (an erratum of this CPU)".to_owned();
        add("answered", Mark::Bad, shows, "measured");
    }
    if let Some(ns) = facts.counter.read_ns {
        let mark = if ns > 100.0 { Mark::Bad } else { Mark::Ok };
        let shows = format!("{} ({})", nanoseconds(ns), facts.counter.name);
        add("a read", mark, shows, "measured");
    }
}

fn of_promises(facts: &Facts, add: &mut Add<'_>) {
    let counter = &facts.counter;
    if let Some(features) = counter.evidence.features {
        if !features.exists {
            add(
                "stated",
                Mark::Bad,
                "no: CPUID states no TSC".to_owned(),
                "CPUID leaf 1, EDX bit 4",
            );
        }
        let (mark, shows) = if features.invariant {
            (Mark::Ok, "guaranteed")
        } else {
            (if_it_matters(facts), "not guaranteed")
        };
        add("one rate", mark, shows.to_owned(), Features::INVARIANT_SOURCE);
    }
    let missing = counter.flags_missing.join(" ");
    let (mark, shows) = match &counter.flags {
        None => (Mark::Unknown, "cannot be seen".to_owned()),
        Some(flags) if flags.is_empty() && missing.is_empty() => return,
        Some(flags) if missing.is_empty() => (Mark::Ok, flags.join(" ")),
        Some(flags) => (if_it_matters(facts), format!("{}; missing: {missing}", flags.join(" "))),
    };
    add("flags", mark, shows, "/proc/cpuinfo");
}

fn of_rates(facts: &Facts, add: &mut Add<'_>) {
    let measured = facts.counter.measured.as_ref();
    if let Some(rate) = measured {
        let source = format!("measured against {}", rate.against);
        add("rate", Mark::Info, rate_shows(facts, rate), &source);
    }
    for stated in &facts.counter.stated {
        let (mark, off) = match measured {
            Some(measured) => {
                let ppm = (stated.hz / measured.hz - 1.0) * 1e6;
                let error = measured.error_hz / measured.hz * 1e6;
                let mark = match stated.by.tolerance() {
                    None => Mark::Info,
                    Some(share) if ppm.abs() > share * 1e6 + error => Mark::Bad,
                    Some(_) => Mark::Ok,
                };
                (mark, format!(" ({ppm:+.1} ppm)"))
            }
            None => (Mark::Info, String::new()),
        };
        let shows = format!("{}{off}", megahertz(stated.hz));
        add("stated rate", mark, shows, &stated.source);
    }
}

/// Most pairs that have a line each; `--json` has all.
const MOST_PAIRS: usize = 6;

fn agreement(warp: &Warp) -> (Mark, String) {
    let compared = if warp.missed.is_empty() {
        format!("all {} compared", warp.cpus.len())
    } else {
        format!("{} of {} pairs compared", warp.pairs.len(), warp.pairs_in_all())
    };
    match (warp.furthest_apart(), warp.within_cycles()) {
        (Some(worst), _) => {
            let apart = warp.pairs.iter().filter(|pair| pair.apart_cycles() > 0).count();
            (
                Mark::Bad,
                format!(
                    "{compared}, {apart} apart; CPU {} and {} by {} to {} cycles",
                    worst.cpu, worst.other, worst.least_cycles, worst.most_cycles
                ),
            )
        }
        (None, Some(cycles)) => (
            Mark::Ok,
            format!("{compared}, no two apart by more than {cycles} cycles: a smaller warp could have been missed"),
        ),
        (None, None) if warp.cpus.len() == 1 => (Mark::Ok, "one CPU only".to_owned()),
        (None, None) => (Mark::Unknown, "not compared".to_owned()),
    }
}

/// Lists the pairs of CPUs that were not compared, by reason.
fn missed(warp: &Warp) -> String {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pair in &warp.missed {
        let pairs = by_reason.entry(&pair.why).or_default();
        pairs.push(format!("{}-{}", pair.cpu, pair.other));
    }
    let of_reason = |(why, pairs): (&str, Vec<String>)| {
        let named = &pairs[..pairs.len().min(MOST_PAIRS)];
        let more = if named.len() < pairs.len() { ", ..." } else { "" };
        format!("; left out {} ({}{more}): {why}", pairs.len(), named.join(", "))
    };
    by_reason.into_iter().map(of_reason).collect()
}

fn of_pair(pair: &Pair) -> (Mark, String) {
    let mark = if pair.apart_cycles() > 0 { Mark::Bad } else { Mark::Ok };
    let (least, most) = (pair.least_cycles, pair.most_cycles);
    let shows = format!(
        "CPU {} is ahead of {} by {least} to {most} cycles",
        pair.other, pair.cpu
    );
    (mark, shows)
}

fn rate_shows(facts: &Facts, rate: &MeasuredRate) -> String {
    let same = facts.clocksource.current.as_deref().is_some_and(causes::is_counter);
    format!(
        "{} ± {:.1} ppm over {:.0} ms{}",
        megahertz(rate.hz),
        rate.error_hz / rate.hz * 1e6,
        rate.over_ms,
        if same {
            " (that clock is made of the counter: this is the kernel's own figure)"
        } else {
            ""
        }
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;
    use fastpath_evidence::Missed;

    fn shown(facts: &Facts, what: &str) -> (Mark, String) {
        let lines = from_facts(facts);
        let line = lines.iter().find(|line| line.what == what);
        let line = line.unwrap_or_else(|| panic!("{what} is not among {lines:?}"));
        (line.mark, line.shows.clone())
    }

    #[test]
    fn every_pair_is_shown_with_its_bounds_and_what_could_have_been_missed() {
        let facts = samples::healthy();
        let (mark, shows) = shown(&facts, "CPUs agree");
        assert!(mark == Mark::Ok && shows.contains("more than 180 cycles"), "{shows}");
        let (_, pair) = shown(&facts, "a pair");
        assert!(pair.contains("by -180 to 150 cycles"), "{pair}");
    }

    #[test]
    fn pairs_that_were_left_out_are_named_with_the_reason() {
        let mut facts = samples::healthy();
        let warp = facts.counter.evidence.warp.as_mut().unwrap();
        warp.pairs.truncate(5);
        warp.missed = vec![Missed {
            cpu: 2,
            other: 3,
            why: "too busy to answer in time".to_owned(),
        }];
        let (_, shows) = shown(&facts, "CPUs agree");
        assert!(shows.starts_with("5 of 6 pairs"), "{shows}");
        assert!(
            shows.ends_with("left out 1 (2-3): too busy to answer in time"),
            "{shows}"
        );
    }

    #[test]
    fn the_verdict_is_shown_with_and_without_somebody_who_vouches() {
        let facts = samples::without_promise(samples::hpet());
        let (mark, shows) = shown(&facts, "fastpath run");
        assert!(mark == Mark::Bad && shows.contains("would not accept it"), "{shows}");
        assert_eq!(
            shown(&facts, "--trust-counter"),
            (Mark::Ok, "would accept it".to_owned())
        );
    }
}
