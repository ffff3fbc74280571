//! Figures that carry their path in the data, so that the page can be checked against the data.

use crate::nanoseconds::{Nanoseconds, figure, grouped};
use maud::{Markup, html};

/// Renders a figure of the data in its readable form.
pub(super) fn value(at: &str, value: f64, text: &str) -> Markup {
    html! { data value=(value) data-json=(at) { (text) } }
}

/// Renders a cost without its unit; a dash if it is missing.
pub(super) fn cost(at: &str, ns: Option<Nanoseconds>) -> Markup {
    match ns {
        Some(ns) => value(at, ns.get(), &figure(ns.get())),
        None => html! { span.none { "–" } },
    }
}

/// Renders a count.
pub(super) fn count(at: &str, number: u64) -> Markup {
    value(at, number as f64, &grouped(number))
}

/// Renders a table cell with a cost.
pub(super) fn cost_cell(at: &str, ns: Option<Nanoseconds>) -> Markup {
    html! { td.number data-sort=(ns.map_or(String::new(), |ns| ns.get().to_string())) { (cost(at, ns)) } }
}
