//! The sections about one host.

use super::number::{cost, count};
use super::{clocks, evidence, heading, trace};
use crate::data::{Host, HostFacts};
use crate::words::{date, ended, sentence, shown};
use fastpath_doctor::Remedy;
use maud::{Markup, html};

/// Renders every section. `index` is the host's index in the data, `level` that of the headings.
pub(super) fn sections(host: &Host, index: usize, level: u8) -> Markup {
    let id = format!("h{index}");
    html! {
        section aria-labelledby={ (id) "-host" } {
            (heading(level, &format!("{id}-host"), "The host"))
            (facts(host, &format!("/hosts/{index}/probe/host")))
        }
        (clocks::section(host, index, level))
        (trace::section(host, index, level))
        (evidence::section(host, index, level))
    }
}

fn facts(host: &Host, at: &str) -> Markup {
    let facts = &host.probe.host;
    let mut rows: Vec<(&str, Markup)> = vec![
        ("Kernel", html! { (shown(&facts.kernel)) " " (shown(&facts.machine)) }),
        (
            "CPU",
            html! {
                (shown(facts.cpu.as_deref().unwrap_or("unknown")))
                @if let Some(hypervisor) = &facts.hypervisor { ", under " (shown(hypervisor)) }
                ", " (count(&format!("{at}/ncpu"), facts.ncpu)) " in use"
            },
        ),
        ("Clocksource", clocksource(facts)),
        ("vDSO", html! { (vdso(facts)) }),
    ];
    if let Some(counter) = &facts.counter {
        let read = html! {
            (shown(counter)) ", a read "
            @if facts.counter_ns.is_some() { (cost(&format!("{at}/counter_ns"), facts.counter_ns)) " ns" } @else { "is not allowed" }
        };
        rows.push(("Counter", read));
    }
    if let Some(unix) = host.measured_unix {
        let when = html! { data value=(unix) data-json={ (at.trim_end_matches("/probe/host")) "/measured_unix" } { (date(unix)) } };
        rows.push(("Measured", when));
    }
    html! {
        dl.facts {
            @for (name, value) in rows { div { dt { (name) } dd { (value) } } }
        }
    }
}

fn clocksource(facts: &HostFacts) -> Markup {
    let current = facts.clocksource.as_deref().unwrap_or("unknown");
    let others: Vec<String> = facts
        .clocksources_available
        .iter()
        .filter(|name| *name != current)
        .map(|name| shown(name))
        .collect();
    html! {
        (shown(current))
        @if !others.is_empty() { span.aside { " (also there: " (others.join(", ")) ")" } }
    }
}

pub(super) fn vdso(facts: &HostFacts) -> &'static str {
    match &facts.vdso {
        None => "none",
        Some(vdso) if vdso.is_fastpath => "fastpath",
        Some(_) => "kernel",
    }
}

/// Renders a remedy with its cost and, in a fleet, its hosts.
pub(super) fn step(step: &Remedy, hosts: Option<Markup>) -> Markup {
    html! {
        li {
            span.when { (step.when.words()) } " " (sentence(&ended(&step.does)))
            @if !step.cost.is_empty() { span.aside { " Cost: " (sentence(&step.cost)) "." } }
            @if let Some(hosts) = hosts { div.on { (hosts) } }
        }
    }
}
