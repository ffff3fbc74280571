//! Cost of a read now and with fastpath: two bars per clock, beside the costs of a counter read and of a system call.

use super::scale::{AXIS, Linear, Rows, of_time, percent};
use super::{figure, of_counter, shape};
use crate::data::{Costs, Host};
use crate::nanoseconds::{Nanoseconds, figure as number, in_words};
use fastpath_measure::Path;
use maud::{Markup, html};

const TEXT: u32 = 20;
const BAR: u32 = 12;

/// The two costs of a clock, and their path in the data.
struct Pair<'a> {
    clock: &'a str,
    path: Path,
    now: Nanoseconds,
    fastpath: Nanoseconds,
    syscall: Option<Nanoseconds>,
    at: String,
}

/// Returns the chart, or `None` if there is nothing to compare.
pub(crate) fn chart(id: &str, host: &Host, costs: &Costs, at: &str) -> Option<Markup> {
    let pairs: Vec<Pair> = costs
        .clocks
        .iter()
        .enumerate()
        .filter_map(|(index, clock)| {
            let probed = host.probe.clocks.iter().find(|probed| probed.clock == clock.clock);
            Some(Pair {
                clock: &clock.clock,
                path: probed.map_or(Path::Unknown, |probed| probed.path),
                now: clock.now.p50_ns,
                fastpath: clock.fastpath.as_ref()?.p50_ns,
                syscall: probed.and_then(|probed| probed.syscall_ns),
                at: format!("{at}/clocks/{index}"),
            })
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let counter = host.probe.host.counter_ns;
    let values = pairs
        .iter()
        .flat_map(|pair| [Some(pair.now), Some(pair.fastpath), pair.syscall]);
    let axis = Linear::over(values.chain([counter]).flatten().map(|ns| ns.get()));
    let rows = Rows {
        count: pairs.len(),
        text: TEXT,
        drawing: 2 * BAR + 2,
        gap: 12,
        last_higher: 0,
    };
    let description = format!(
        "Two bars for each of {} clocks: the median cost of a read now, and with fastpath. The table below has the figures.",
        pairs.len()
    );
    let caption = html! {
        span.key { span.swatch.now {} " now" }
        span.key { span.swatch.with-fastpath {} " ◆ with fastpath" }
        @if let Some(counter) = counter { span.key { span.dots {} " the counter's own read, " (in_words(counter)) } }
        @if pairs.iter().any(|pair| pair.syscall.is_some()) { span.key { span.bar.syscall {} " the clock by system call" } }
        " Medians; bars begin at zero."
    };
    let drawing = html! {
        (rows.grid(&axis.ticks(), |ns| axis.place(ns), of_time))
        @if let Some(counter) = counter { (rows.line("counter", axis.place(counter.get()), Some(&of_counter(counter)))) }
        @for (index, pair) in pairs.iter().enumerate() {
            @let top = rows.top(index);
            text.label x="0" y=(top + 14) {
                tspan.name { (crate::words::shown(pair.clock)) } " "
                tspan.{ "path-" (pair.path.word()) } { (shape(pair.path)) }
            }
            text.label.value x="100%" y=(top + 14) text-anchor="end" {
                (number(pair.now.get())) " → " (number(pair.fastpath.get())) " ns"
            }
            (bar("now", pair.now, &axis, top + TEXT, &format!("{}/now/p50_ns", pair.at)))
            (bar("with-fastpath", pair.fastpath, &axis, top + TEXT + BAR + 2, &format!("{}/fastpath/p50_ns", pair.at)))
            @if let Some(syscall) = pair.syscall {
                @let at = percent(axis.place(syscall.get()));
                line.syscall x1=(at) x2=(at) y1=(top + TEXT) y2=(top + TEXT + 2 * BAR + 2) {
                    title { "by system call " (in_words(syscall)) }
                }
            }
        }
    };
    Some(figure(
        id,
        rows.height() + AXIS,
        "Cost of a read now and with fastpath",
        &description,
        caption,
        drawing,
    ))
}

fn bar(class: &str, ns: Nanoseconds, axis: &Linear, top: u32, at: &str) -> Markup {
    html! {
        rect.{ "bar " (class) } x="0" width=(percent(axis.place(ns.get()))) y=(top) height=(BAR) data-json=(at) {
            title { (class.replace('-', " ")) " " (in_words(ns)) }
        }
    }
}
