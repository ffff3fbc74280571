//! Cost of a read of MONOTONIC on each host of a fleet.

use super::figure;
use super::scale::{AXIS, Log, Rows, of_time, percent};
use crate::data::Host;
use crate::nanoseconds::{Nanoseconds, figure as number, in_words};
use crate::words::plural;
use fastpath_doctor::Verdict;
use maud::{Markup, html};

/// Number of hosts with a row and a name of their own. The other hosts share one row; the table names them.
const NAMED: usize = 12;
const TEXT: u32 = 18;
/// Number of lines over which the marks of one row are spread, so that neighbours do not overlap.
const LINES: u32 = 3;
const LINE: u32 = 11;

/// A host's cost, and its path in the data.
struct Mark<'a> {
    verdict: Verdict,
    label: &'a str,
    ns: Nanoseconds,
    at: String,
}

/// Returns the chart, or `None` if no host has a cost. `hosts` starts with the worst; each has its label and its index
/// in the data.
pub(crate) fn chart(hosts: &[(&Host, &str, usize)]) -> Option<Markup> {
    let mut marks: Vec<Mark> = hosts.iter().filter_map(mark).collect();
    if marks.is_empty() {
        return None;
    }
    let named = if marks.len() <= NAMED + 1 { marks.len() } else { NAMED };
    // Neighbours get different lines.
    marks[named..].sort_by(|a, b| a.ns.get().total_cmp(&b.ns.get()));
    let (own, others) = marks.split_at(named);
    let axis = Log::over(marks.iter().map(|mark| mark.ns.get()));
    let place = |mark: &Mark| percent(axis.place(mark.ns.get()));
    let rows = Rows {
        count: named + usize::from(!others.is_empty()),
        text: TEXT,
        drawing: LINE + 3,
        gap: 4,
        last_higher: if others.is_empty() { 0 } else { LINE * (LINES - 1) },
    };
    let description = format!(
        "A mark for each of {} hosts on a logarithmic axis of nanoseconds, the worst first. The table below has the figures.",
        marks.len()
    );
    let drawing = html! {
        (rows.grid(&axis.ticks(), |ns| axis.place(ns), of_time))
        @for (index, mark) in own.iter().enumerate() {
            @let top = rows.top(index);
            text.label x="0" y=(top + 13) { tspan.name { (mark.label) } }
            text.label.value x="100%" y=(top + 13) text-anchor="end" { (number(mark.ns.get())) " ns" }
            (of_mark(mark, &place(mark), top + TEXT + LINE / 2 + 1))
        }
        @if !others.is_empty() {
            @let top = rows.top(named);
            text.label x="0" y=(top + 13) { (plural(others.len() as u64, "more host")) }
            @for (index, mark) in others.iter().enumerate() {
                (of_mark(mark, &place(mark), top + TEXT + LINE / 2 + 1 + LINE * (index as u32 % LINES)))
            }
        }
    };
    let caption = html! {
        "One mark for each host, the worst first: the cost of a read of MONOTONIC. "
        @for verdict in [Verdict::Healthy, Verdict::Slow, Verdict::Wrong, Verdict::Unknown] {
            @if marks.iter().any(|mark| mark.verdict == verdict) {
                span.key {
                    svg.mark.key-mark.{ "verdict-" (verdict.word()) } width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true" {
                        path d=(outline(verdict)) {}
                    }
                    " " (verdict.word())
                }
            }
        }
    };
    Some(figure(
        "fleet",
        rows.height() + AXIS,
        "Cost of a read of MONOTONIC on each host",
        &description,
        caption,
        drawing,
    ))
}

fn mark<'a>((host, label, index): &(&Host, &'a str, usize)) -> Option<Mark<'a>> {
    let clock = host.probe.clocks.iter().position(|clock| clock.clock == "MONOTONIC")?;
    Some(Mark {
        verdict: host.verdict(),
        label,
        ns: host.probe.clocks[clock].ns?,
        at: format!("/hosts/{index}/probe/clocks/{clock}/ns"),
    })
}

fn of_mark(mark: &Mark, x: &str, y: u32) -> Markup {
    html! {
        svg.{ "mark verdict-" (mark.verdict.word()) } x=(x) y=(y) data-json=(mark.at) {
            path d=(outline(mark.verdict)) { title { (mark.label) ": " (in_words(mark.ns)) ", " (mark.verdict.word()) } }
        }
    }
}

/// Returns the shape of a verdict, because colour alone does not suffice.
fn outline(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Healthy => "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        Verdict::Slow => "M0-5 5 4-5 4z",
        Verdict::Wrong => "M-4-4h8v8h-8z",
        Verdict::Unknown => "M0-5 5 0 0 5-5 0z",
    }
}
