//! The processes that make system calls to read clocks.

use super::missing::why_missing;
use super::number::{cost_cell, count, value};
use super::{heading, scrolling};
use crate::chart::spenders::{self, share_figure};
use crate::data::{Host, Part, Row, Trace};
use crate::words::{breakable, plural, sentence, shown};
use maud::{Markup, html};

pub(super) fn section(host: &Host, index: usize, level: u8) -> Markup {
    let id = format!("h{index}-trace");
    html! {
        section aria-labelledby=(id) {
            (heading(level, &id, "Processes that read clocks by system call"))
            @match &host.trace {
                Some(trace) => (counted(trace, index)),
                None => (why_missing(host, Part::Trace)),
            }
        }
    }
}

fn counted(trace: &Trace, index: usize) -> Markup {
    let at = format!("/hosts/{index}/trace");
    html! {
        p.lead {
            (count(&format!("{at}/calls"), trace.calls)) " calls in "
            (value(&format!("{at}/seconds"), trace.seconds, &format!("{:.1}", trace.seconds))) " s, by all processes."
            @if trace.rows.is_empty() { " No process reads clocks by system call." }
            @if trace.lost.calls > 0 { " Lost for lack of room: " (plural(trace.lost.calls, "call")) "." }
            @if trace.lost.process_events > 0 { " Names may be wrong or missing, because some process events were lost." }
        }
        @if !trace.rows.is_empty() {
            @if let Some(chart) = spenders::chart(&format!("h{index}-spenders"), trace, &at) { (chart) }
            (table(trace, &at))
        }
    }
}

fn table(trace: &Trace, at: &str) -> Markup {
    let table = html! {
        table {
            caption {
                span {
                    "The most expensive first."
                    @if trace.rows_left_out > 0 { " Not shown: " (plural(trace.rows_left_out, "cheaper row")) "." }
                }
            }
            thead {
                tr {
                    th scope="col" { "Process" }
                    th scope="col" { "Call" }
                    th.number scope="col" { "Calls/s" }
                    th.number scope="col" { "ns" }
                    th.number scope="col" { "% of a CPU" }
                    th scope="col" { "Why" }
                }
            }
            tbody { @for (index, row) in trace.rows.iter().enumerate() { (of_row(row, &format!("{at}/rows/{index}"))) } }
        }
    };
    scrolling("Table of processes that read clocks by system call", table)
}

fn of_row(row: &Row, at: &str) -> Markup {
    html! {
        tr {
            th scope="row" {
                span data-text={ (at) "/comm" } { (shown(&row.comm)) } " (" (row.pid) ")"
                @if let Some(program) = &row.program { span.aside.file { (breakable(program)) } }
            }
            td { (breakable(&row.call)) @if let Some(clock) = &row.clock { " " (breakable(clock)) } }
            td.number { (value(&format!("{at}/calls_per_second"), row.calls_per_second, &rate(row.calls_per_second))) }
            (cost_cell(&format!("{at}/cost_ns"), row.cost_ns))
            td.number {
                @match row.cpu_percent {
                    Some(share) => (value(&format!("{at}/cpu_percent"), share, &share_figure(share))),
                    None => span.none { "–" },
                }
            }
            td.words { (sentence(&row.says)) }
        }
    }
}

fn rate(calls: f64) -> String {
    crate::nanoseconds::figure(calls)
}
