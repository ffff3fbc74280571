//! Paths and costs of clocks and functions, now and with fastpath.

use super::missing::why_missing;
use super::number::{cost, cost_cell, count};
use super::{heading, scrolling};
use crate::chart::{pairs, shape, spread};
use crate::data::{Costs, Host, Part};
use crate::nanoseconds::Nanoseconds;
use crate::words::{breakable, sentence, shown};
use fastpath_measure::{CallVerdict, Path};
use maud::{Markup, html};

pub(super) fn section(host: &Host, index: usize, level: u8) -> Markup {
    let id = format!("h{index}");
    let at = format!("/hosts/{index}");
    html! {
        section aria-labelledby={ (id) "-clocks" } {
            (heading(level, &format!("{id}-clocks"), "Clocks: path and cost"))
            @if let Some(costs) = &host.costs {
                (spread::chart(&format!("{id}-spread"), host, costs, &format!("{at}/costs")))
            }
            (clocks(host, &at))
        }
        section aria-labelledby={ (id) "-fastpath" } {
            (heading(level, &format!("{id}-fastpath"), "Now and with fastpath"))
            @let costs = host.costs.as_ref();
            @match costs.and_then(|costs| Some((costs, pairs::chart(&format!("{id}-pairs"), host, costs, &format!("{at}/costs"))?))) {
                Some((costs, chart)) => { (chart) (comparison(costs, &format!("{at}/costs"))) },
                None => (why_missing(host, Part::Fastpath)),
            }
        }
        @if !host.probe.functions.is_empty() {
            section aria-labelledby={ (id) "-functions" } {
                (heading(level, &format!("{id}-functions"), "Other functions"))
                (functions(host, &at))
            }
        }
    }
}

fn clocks(host: &Host, at: &str) -> Markup {
    let spread_of = |name: &str| {
        let clocks = &host.costs.as_ref()?.clocks;
        let index = clocks.iter().position(|clock| clock.clock == name)?;
        Some((&clocks[index].now, format!("{at}/costs/clocks/{index}/now")))
    };
    let has_spread = host.costs.is_some();
    let explained = host.probe.clocks.iter().any(|clock| clock.why.is_some());
    let best = if has_spread { "Probe" } else { "Cost" };
    let table = html! {
        table {
            caption {
                span {
                    "clock_gettime of each clock by " (shown(&host.probe.isa)) " programs, in nanoseconds."
                    @if has_spread {
                        " “Probe” is the result of " code { "fastpath probe" } ": the least of five medians, each of longer rows of calls. The "
                        "next three columns are of the samples in the chart."
                    }
                }
            }
            thead {
                tr {
                    th scope="col" { "Clock" }
                    th scope="col" { "Verdict" }
                    th.number scope="col" { (best) }
                    th scope="col" { "Path" }
                    @if has_spread {
                        th.number scope="col" { "p50" }
                        th.number scope="col" { "p99" }
                        th.number scope="col" { "Max" }
                    }
                    th.number scope="col" { "System call" }
                    @if explained { th scope="col" { "Why" } }
                }
            }
            tbody {
                @for (index, clock) in host.probe.clocks.iter().enumerate() {
                    @let at = format!("{at}/probe/clocks/{index}");
                    tr data-clock=(shown(&clock.clock)) {
                        th scope="row" { (breakable(&clock.clock)) }
                        td { (verdict(clock.verdict)) }
                        (cost_cell(&format!("{at}/ns"), clock.ns))
                        td { (path(clock.path, clock.verdict, &at)) }
                        @if has_spread {
                            @match spread_of(&clock.clock) {
                                Some((spread, at)) => {
                                    (cost_cell(&format!("{at}/p50_ns"), Some(spread.p50_ns)))
                                    (cost_cell(&format!("{at}/p99_ns"), Some(spread.p99_ns)))
                                    (cost_cell(&format!("{at}/max_ns"), Some(spread.max_ns)))
                                },
                                None => { @for _ in 0..3 { td.number { span.none { "–" } } } },
                            }
                        }
                        (cost_cell(&format!("{at}/syscall_ns"), clock.syscall_ns))
                        @if explained { (why(clock.why.as_deref())) }
                    }
                }
            }
        }
    };
    scrolling("Table of clocks", table)
}

fn comparison(costs: &Costs, at: &str) -> Markup {
    let times = |now: Nanoseconds, then: Nanoseconds| match then.get() {
        0.0 => "–".to_owned(),
        then => format!("{:.1}×", now.get() / then),
    };
    let table = html! {
        table {
            caption {
                span { "The same samples in nanoseconds, taken in turns: the costs for programs now, and with fastpath's vDSO." }
            }
            thead {
                tr {
                    th scope="col" { "Clock" }
                    th.number scope="col" { "Now p50" }
                    th.number scope="col" { "fastpath p50" }
                    th.number scope="col" { "p99" }
                    th.number scope="col" { "Max" }
                    th.number scope="col" { "Cheaper" }
                    th.number scope="col" { "Samples" }
                }
            }
            tbody {
                @for (index, clock) in costs.clocks.iter().enumerate() {
                    @if let Some(fastpath) = &clock.fastpath {
                        @let at = format!("{at}/clocks/{index}");
                        @let ours = format!("{at}/fastpath");
                        tr {
                            th scope="row" { (breakable(&clock.clock)) }
                            (cost_cell(&format!("{at}/now/p50_ns"), Some(clock.now.p50_ns)))
                            (cost_cell(&format!("{ours}/p50_ns"), Some(fastpath.p50_ns)))
                            (cost_cell(&format!("{ours}/p99_ns"), Some(fastpath.p99_ns)))
                            (cost_cell(&format!("{ours}/max_ns"), Some(fastpath.max_ns)))
                            td.number { (times(clock.now.p50_ns, fastpath.p50_ns)) }
                            td.number { (count(&format!("{ours}/samples"), fastpath.samples)) }
                        }
                    }
                }
            }
        }
    };
    scrolling("Table of costs now and with fastpath", table)
}

fn functions(host: &Host, at: &str) -> Markup {
    let explained = host.probe.functions.iter().any(|function| function.why.is_some());
    let table = html! {
        table {
            caption { span { "Other functions that a vDSO can answer, in nanoseconds." } }
            thead {
                tr {
                    th scope="col" { "Function" }
                    th scope="col" { "Verdict" }
                    th.number scope="col" { "Cost" }
                    th scope="col" { "Path" }
                    th.number scope="col" { "System call" }
                    @if explained { th scope="col" { "Why" } }
                }
            }
            tbody {
                @for (index, function) in host.probe.functions.iter().enumerate() {
                    @let at = format!("{at}/probe/functions/{index}");
                    tr {
                        th scope="row" { (breakable(&function.function)) }
                        td { (verdict(function.verdict)) }
                        (cost_cell(&format!("{at}/ns"), function.ns))
                        td { (path(function.path, function.verdict, &at)) }
                        (cost_cell(&format!("{at}/syscall_ns"), function.syscall_ns))
                        @if explained { (why(function.why.as_deref())) }
                    }
                }
            }
        }
        @if let Some(vsyscall) = &host.probe.vsyscall {
            p {
                "vsyscall page: " (shown(&vsyscall.mode))
                @for (index, entry) in vsyscall.entries.iter().enumerate() {
                    @if entry.ns.is_some() {
                        ", " (shown(&entry.function)) " " (cost(&format!("{at}/probe/vsyscall/entries/{index}/ns"), entry.ns)) " ns"
                    }
                }
            }
        }
    };
    scrolling("Table of functions", table)
}

/// Renders a path by its shape, its colour and its word. Where no host has another path, its colour is no warning.
pub(super) fn path(path: Path, verdict: CallVerdict, at: &str) -> Markup {
    let colour = match verdict {
        CallVerdict::SyscallOnly => "only",
        _ => path.word(),
    };
    html! {
        span.path.{ "path-" (colour) } {
            span aria-hidden="true" { (shape(path)) " " }
            span data-text={ (at) "/path" } { (path.word()) }
        }
    }
}

fn verdict(verdict: CallVerdict) -> Markup {
    html! { span.call.{ "call-" (verdict.word()) } { (verdict.word().replace('-', " ")) } }
}

fn why(why: Option<&str>) -> Markup {
    html! { td.words { @if let Some(why) = why { span.aside { (sentence(why)) } } } }
}
