//! What reading MONOTONIC costs on each host of a fleet.

use super::figure;
use super::scale::{AXIS, Log, grid, of_time, percent};
use crate::data::{Host, Verdict};
use crate::nanoseconds::in_words;
use maud::{Markup, html};

/// Marks that would lie on each other are laid in so many rows.
const ROWS: u32 = 5;
const ROW: u32 = 14;

/// The chart; nothing where no host has a price. `hosts`: each with its label and its place in the data.
pub(crate) fn chart(hosts: &[(&Host, &str, usize)]) -> Option<Markup> {
    let priced = |(host, label, index): &(&Host, &'_ str, usize)| {
        let clock = host.probe.clocks.iter().position(|clock| clock.clock == "MONOTONIC")?;
        let ns = host.probe.clocks[clock].ns?;
        let at = format!("/hosts/{index}/probe/clocks/{clock}/ns");
        Some((host.verdict(), (*label).to_owned(), ns, at))
    };
    let mut marks: Vec<_> = hosts.iter().filter_map(priced).collect();
    if marks.is_empty() {
        return None;
    }
    // Neighbours get different rows.
    marks.sort_by(|a, b| a.2.get().total_cmp(&b.2.get()));
    let axis = Log::over(marks.iter().map(|(_, _, ns, _)| ns.get()));
    let height = ROWS * ROW + 10;
    let description = format!(
        "A mark for each of {} hosts on a logarithmic axis of nanoseconds. The table below has the figures.",
        marks.len()
    );
    let drawing = html! {
        (grid(&axis.ticks(), |ns| axis.place(ns), height, of_time))
        @for (index, (verdict, label, ns, at)) in marks.iter().enumerate() {
            @let y = 12 + ROW * (index as u32 * 2 % ROWS);
            svg.{ "mark verdict-" (verdict.word()) } x=(percent(axis.place(ns.get()))) y=(y) data-json=(at) {
                path d=(outline(*verdict)) { title { (label) ": " (in_words(*ns)) ", " (verdict.word()) } }
            }
        }
    };
    let caption = html! {
        "One mark for each host. "
        @for verdict in [Verdict::Healthy, Verdict::Slow, Verdict::Wrong, Verdict::Unknown] {
            @if marks.iter().any(|mark| mark.0 == verdict) {
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
        height + AXIS,
        "Price of a read of MONOTONIC on each host",
        &description,
        caption,
        drawing,
    ))
}

/// A verdict is told by a shape too.
fn outline(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Healthy => "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        Verdict::Slow => "M0-5 5 4-5 4z",
        Verdict::Wrong => "M-4-4h8v8h-8z",
        Verdict::Unknown => "M0-5 5 0 0 5-5 0z",
    }
}
