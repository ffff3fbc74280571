//! Charts, as SVG inside the page. Widths are in percent and heights in pixels: a chart takes the available width, and
//! its text stays readable on a phone. A table beside each chart has the same data.

pub(crate) mod fleet;
pub(crate) mod pairs;
pub(crate) mod scale;
pub(crate) mod spenders;
pub(crate) mod spread;

use crate::nanoseconds::{Nanoseconds, in_words};
use fastpath_measure::Path;
use maud::{Markup, html};

/// Returns the shape of a path's mark, because colour alone does not suffice.
pub(crate) fn shape(path: Path) -> &'static str {
    match path {
        Path::Vdso => "●",
        Path::Fastpath => "◆",
        Path::Syscall => "▲",
        Path::Unsupported => "–",
        Path::Unknown => "?",
    }
}

/// Returns the label of the line at the cost of a counter read.
pub(crate) fn of_counter(ns: Nanoseconds) -> String {
    format!("the counter's own read {}", in_words(ns))
}

/// Wraps a chart with a name and a description for screen readers. `id` is unique on the page.
pub(crate) fn figure(
    id: &str,
    height: u32,
    title: &str,
    description: &str,
    caption: Markup,
    drawing: Markup,
) -> Markup {
    html! {
        figure {
            svg id=(id) role="img" width="100%" height=(height) aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { (title) }
                desc id={ (id) "-d" } { (description) }
                (drawing)
            }
            figcaption { (caption) }
        }
    }
}
