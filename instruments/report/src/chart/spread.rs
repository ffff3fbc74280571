//! Distribution of the costs of each clock: a histogram above a line, and below it, upside down, the one under
//! fastpath.

use super::scale::{AXIS, Log, Rows, of_time, percent};
use super::{figure, of_counter, shape};
use crate::data::{Costs, Host};
use crate::distribution::Distribution;
use crate::nanoseconds::{Nanoseconds, in_words, round_figure};
use fastpath_measure::Path;
use maud::{Markup, html};

/// Heights in pixels: a clock's line of text, and a histogram.
const TEXT: u32 = 20;
const STRIP: u32 = 26;

/// Returns the chart. `at` is the path of the host's costs in the data.
pub(crate) fn chart(id: &str, host: &Host, costs: &Costs, at: &str) -> Markup {
    let has_fastpath = costs.clocks.iter().any(|clock| clock.fastpath.is_some());
    let rows = Rows {
        count: costs.clocks.len(),
        text: TEXT,
        drawing: if has_fastpath { 2 * STRIP } else { STRIP },
        gap: 10,
        last_higher: 0,
    };
    let counter = host.probe.host.counter_ns;
    let axis = axis(costs, counter);
    let description = format!(
        "Histograms of {} samples of each of {} clocks, on a logarithmic axis of nanoseconds. The table below has the figures.",
        costs.clocks.first().map_or(0, |clock| clock.now.samples),
        costs.clocks.len()
    );
    let caption = html! {
        "Each sample is the mean of " (costs.calls_per_sample) " calls in a row. Areas grow with the square root of how many samples lie "
        "there, so that rare ones are visible. "
        span.key { span.bar {} " half are cheaper (p50)" }
        span.key { span.dash {} " 99 of 100 are (p99)" }
        span.key { "✕ the most expensive (→ beyond the axis)" }
        @if let Some(counter) = counter { span.key { span.dots {} " the counter's own read, " (in_words(counter)) } }
        @if has_fastpath { span.key { "above the line: now; below it: with fastpath" } }
    };
    let drawing = html! {
        (rows.grid(&axis.ticks(), |ns| axis.place(ns), of_time))
        @if let Some(counter) = counter { (rows.line("counter", axis.place(counter.get()), Some(&of_counter(counter)))) }
        @for (index, clock) in costs.clocks.iter().enumerate() {
            @let top = rows.top(index);
            @let line = top + TEXT + STRIP;
            @let path = path_of(host, &clock.clock);
            @let at = format!("{at}/clocks/{index}");
            text.label x="0" y=(top + 14) {
                tspan.name { (crate::words::shown(&clock.clock)) } " "
                tspan.{ "path-" (path.word()) } { (shape(path)) " " (path.word()) }
            }
            (strip(&clock.now, &axis, line, false, path, &format!("{at}/now")))
            @if let Some(fastpath) = &clock.fastpath {
                (strip(fastpath, &axis, line, true, Path::Fastpath, &format!("{at}/fastpath")))
            }
            line.base x1="0" x2="100%" y1=(line) y2=(line) {}
        }
    };
    figure(
        id,
        rows.height() + AXIS,
        "Distribution of the cost of a read of each clock",
        &description,
        caption,
        drawing,
    )
}

/// Returns an axis that omits the most disturbed samples: one in thousands would leave no width to the others.
fn axis(costs: &Costs, counter: Option<Nanoseconds>) -> Log {
    let spreads = || {
        costs
            .clocks
            .iter()
            .flat_map(|clock| [Some(&clock.now), clock.fastpath.as_ref()])
            .flatten()
    };
    let most = spreads()
        .map(|spread| spread.p99_ns.get() * BEYOND_P99)
        .fold(0.0, f64::max);
    let values = spreads().flat_map(|spread| [spread.min_ns.get(), spread.max_ns.get().min(most)]);
    Log::over(values.chain(counter.map(|ns| ns.get())))
}

const BEYOND_P99: f64 = 4.0;

/// Draws one histogram with its marks, upwards or downwards from a line.
fn strip(spread: &Distribution, axis: &Log, line: u32, is_below: bool, path: Path, at: &str) -> Markup {
    let most = spread
        .buckets
        .iter()
        .map(|bucket| bucket.count)
        .max()
        .unwrap_or(1)
        .max(1);
    let top = |height: u32| if is_below { line } else { line - height };
    let (p50, p99, max) = (spread.p50_ns, spread.p99_ns, spread.max_ns);
    let [at50, at99] = [p50, p99].map(|ns| axis.place(ns.get()));
    let whose = if is_below { "with fastpath" } else { "now" };
    let middle = top(STRIP) + STRIP / 2;
    html! {
        g.{ "strip path-" (path.word()) } {
            @for bucket in spread.buckets.iter().filter(|bucket| bucket.count > 0 && axis.has(bucket.from_ns.get())) {
                @let height = ((bucket.count as f64 / most as f64).sqrt() * f64::from(STRIP)).ceil().max(2.0) as u32;
                @let (from, to) = (axis.place(bucket.from_ns.get()), axis.place(bucket.up_to_ns.get()));
                rect x=(percent(from)) width=(percent((to - from).max(0.3))) y=(top(height)) height=(height) {
                    title {
                        (in_words(bucket.from_ns)) " to " (in_words(bucket.up_to_ns)) ": "
                        (crate::words::plural(bucket.count, "sample")) ", " (whose)
                    }
                }
            }
        }
        line.p99 x1=(percent(at99)) x2=(percent(at99)) y1=(top(STRIP)) y2=(top(STRIP) + STRIP) data-json={ (at) "/p99_ns" } {
            title { "p99 " (in_words(p99)) ", " (whose) }
        }
        line.p50 x1=(percent(at50)) x2=(percent(at50)) y1=(top(STRIP)) y2=(top(STRIP) + STRIP) data-json={ (at) "/p50_ns" } {
            title { "p50 " (in_words(p50)) ", " (whose) }
        }
        @if axis.has(max.get()) {
            svg.max x=(percent(axis.place(max.get()))) y=(middle) data-json={ (at) "/max_ns" } {
                path d="M-4-4 4 4M-4 4 4-4" { title { "most expensive " (in_words(max)) ", " (whose) } }
            }
        } @else {
            text.beyond x="100%" y=(middle + 4) text-anchor="end" { "✕ " (round_figure(max.get())) " →" }
        }
    }
}

fn path_of(host: &Host, clock: &str) -> Path {
    let probed = host.probe.clocks.iter().find(|probed| probed.clock == clock);
    probed.map_or(Path::Unknown, |probed| probed.path)
}
