//! The processes that spend most on system calls that read clocks.

use super::figure;
use super::scale::{AXIS, Linear, Rows, percent};
use crate::data::Trace;
use crate::words::shown;
use maud::{Markup, html};

const TEXT: u32 = 20;
const BAR: u32 = 12;
/// Most rows of the chart; the table has the others.
const MOST: usize = 10;

/// Returns the chart, or `None` if no row has a cost.
pub(crate) fn chart(id: &str, trace: &Trace, at: &str) -> Option<Markup> {
    let rows = trace.rows.iter().enumerate();
    let spenders: Vec<_> = rows
        .filter_map(|(index, row)| Some((index, row, row.cpu_percent.filter(|share| *share > 0.0)?)))
        .take(MOST)
        .collect();
    if spenders.is_empty() {
        return None;
    }
    let axis = Linear::over(spenders.iter().map(|(_, _, share)| *share));
    let rows = Rows {
        count: spenders.len(),
        text: TEXT,
        drawing: BAR,
        gap: 10,
        last_higher: 0,
    };
    let description = format!(
        "A bar for each of the {} most expensive rows: the share of one CPU that their system calls for clocks cost. The table below has the figures.",
        spenders.len()
    );
    let drawing = html! {
        (rows.grid(&axis.ticks(), |share| axis.place(share), |share| format!("{} %", share_figure(share))))
        @for (place, (index, row, share)) in spenders.iter().enumerate() {
            @let top = rows.top(place);
            text.label x="0" y=(top + 14) {
                tspan.name { (shortened(&row.comm)) } " (" (row.pid) ") " (row.clock.as_deref().map(shown).unwrap_or_default())
            }
            text.label.value x="100%" y=(top + 14) text-anchor="end" { (share_figure(*share)) " %" }
            rect.bar.spender x="0" width=(percent(axis.place(*share))) y=(top + TEXT) height=(BAR) data-json={ (at) "/rows/" (index) "/cpu_percent" } {
                title { (shown(&row.comm)) ": " (share_figure(*share)) " % of a CPU" }
            }
        }
    };
    let caption = html! { "Percent of one CPU: calls per second, times what such a call costs on this host." };
    Some(figure(
        id,
        rows.height() + AXIS,
        "Processes that spend most on system calls that read clocks",
        &description,
        caption,
        drawing,
    ))
}

/// Shortens a name. The kernel's names have at most 15 characters; those in a file can have any number.
fn shortened(name: &str) -> String {
    let name = shown(name);
    if name.chars().count() > 16 {
        name.chars().take(15).chain(['…']).collect()
    } else {
        name
    }
}

/// Formats a share: `12.3`, `0.45`, `0.006`.
pub(crate) fn share_figure(share: f64) -> String {
    match share {
        0.0 => "0".to_owned(),
        ..0.1 => format!("{share:.3}"),
        ..10.0 => format!("{share:.2}"),
        _ => format!("{share:.1}"),
    }
}
