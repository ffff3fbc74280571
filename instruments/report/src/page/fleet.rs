//! Many hosts: a table, the worst first, and each host below it.

use super::host::{self, vdso};
use super::number::{cost_cell, count};
use super::{badge, banner, clocks, scrolling};
use crate::chart;
use crate::data::Host;
use crate::judge::{fleet_steps, fleet_summary, sort};
use crate::words::{breakable, ended, sentence, shown};
use fastpath_doctor::Verdict;
use maud::{Markup, html};

/// Most hosts that are named at a step; more do not help.
const NAMES: usize = 8;

pub(super) fn body(hosts: &[Host], labels: &[String]) -> Markup {
    let mut sorted: Vec<&Host> = hosts.iter().collect();
    sort(&mut sorted);
    let place = |host: &Host| hosts.iter().position(|other| std::ptr::eq(other, host)).unwrap_or(0);
    let listed: Vec<(&Host, &str, usize)> = sorted
        .iter()
        .map(|host| (*host, labels[place(host)].as_str(), place(host)))
        .collect();
    let verdict = sorted.first().map_or(Verdict::Unknown, |host| host.verdict());
    let steps = fleet_steps(&sorted);
    html! {
        header {
            h1 { "Clocks of " (labels.len()) " hosts" }
            (banner(verdict, &fleet_summary(&sorted)))
        }
        section aria-labelledby="next" {
            h2 id="next" { "What to do next" }
            @if steps.is_empty() {
                p { "Nothing needs to be fixed. " code { "fastpath guard" } " in CI, or " code { "fastpath export" } " for Prometheus, reports when that changes." }
            } @else {
                ol.steps { @for (step, on) in &steps { (host::step(step, Some(names(on, &listed)))) } }
            }
        }
        section aria-labelledby="hosts" {
            h2 id="hosts" { "Hosts" }
            @if let Some(chart) = chart::fleet::chart(&listed) { (chart) }
            (table(&listed))
        }
        section aria-labelledby="each" {
            h2 id="each" { "Each host" }
            @for (host, label, index) in &listed { (details(host, label, *index)) }
        }
    }
}

fn names(on: &[&Host], listed: &[(&Host, &str, usize)]) -> Markup {
    let label = |host: &Host| {
        let entry = listed.iter().find(|(other, _, _)| std::ptr::eq(*other, host));
        entry.map_or(("", 0), |(_, label, index)| (*label, *index))
    };
    html! {
        "On "
        @for (number, host) in on.iter().take(NAMES).enumerate() {
            @let (label, index) = label(host);
            @if number > 0 { ", " }
            a href={ "#h" (index) "-host" } { (label) }
        }
        @if on.len() > NAMES { " and " (on.len() - NAMES) " more" }
        "."
    }
}

fn table(hosts: &[(&Host, &str, usize)]) -> Markup {
    let table = html! {
        table.sortable {
            caption {
                span { "The worst hosts first. Costs of MONOTONIC in nanoseconds. Each host's name is a link to its details." }
            }
            thead {
                tr {
                    th scope="col" { "Host" }
                    th scope="col" { "Verdict" }
                    th.number scope="col" { "Cost" }
                    th scope="col" { "Path" }
                    th.number scope="col" { "System call" }
                    th.number scope="col" { "Slow calls" }
                    th scope="col" { "Clocksource" }
                    th scope="col" { "vDSO" }
                    th scope="col" { "Kernel" }
                    th.number scope="col" { "CPUs" }
                }
            }
            tbody { @for (host, label, index) in hosts { (row(host, label, *index)) } }
        }
    };
    scrolling("Table of hosts", table)
}

fn row(host: &Host, label: &str, index: usize) -> Markup {
    let clock = host.probe.clocks.iter().position(|clock| clock.clock == "MONOTONIC");
    let monotonic = clock.map(|clock| &host.probe.clocks[clock]);
    let at = format!("/hosts/{index}/probe/clocks/{}", clock.unwrap_or(0));
    let facts = &host.probe.host;
    let slow = host.slow().len();
    html! {
        tr data-host=(label) data-verdict=(host.verdict().word()) {
            th scope="row" { a href={ "#h" (index) "-host" } { (breakable(label)) } }
            td data-sort=(host.verdict() as u8) { (badge(host.verdict())) }
            (cost_cell(&format!("{at}/ns"), monotonic.and_then(|clock| clock.ns)))
            td { @match monotonic { Some(clock) => (clocks::path(clock.path, clock.verdict, &at)), None => span.none { "–" } } }
            (cost_cell(&format!("{at}/syscall_ns"), monotonic.and_then(|clock| clock.syscall_ns)))
            td.number data-sort=(slow) { (slow) }
            td { (shown(facts.clocksource.as_deref().unwrap_or("unknown"))) }
            td { (vdso(facts)) }
            td { (shown(&facts.kernel)) }
            td.number data-sort=(facts.ncpu) { (count(&format!("/hosts/{index}/probe/host/ncpu"), facts.ncpu)) }
        }
    }
}

/// Renders a host's details, collapsed. Browsers open them when a link points into them.
fn details(host: &Host, label: &str, index: usize) -> Markup {
    html! {
        details.host {
            summary { h3 { (label) } " " (badge(host.verdict())) }
            p { (sentence(&ended(&host.summary()))) }
            @if host.verdict() != Verdict::Healthy {
                ol.steps { @for step in host.steps() { (host::step(&step, None)) } }
            }
            (host::sections(host, index, 4))
        }
    }
}
