//! Figures that say where in the data they stand: the page can be checked against it.

use crate::nanoseconds::{Nanoseconds, figure, grouped};
use maud::{Markup, html};

/// A figure of the data, as it is written for people.
pub(super) fn value(at: &str, value: f64, text: &str) -> Markup {
    html! { data value=(value) data-json=(at) { (text) } }
}

/// A price, without its unit; a dash for one that could not be had.
pub(super) fn price(at: &str, ns: Option<Nanoseconds>) -> Markup {
    match ns {
        Some(ns) => value(at, ns.get(), &figure(ns.get())),
        None => html! { span.none { "–" } },
    }
}

/// A count.
pub(super) fn count(at: &str, number: u64) -> Markup {
    value(at, number as f64, &grouped(number))
}

/// A cell of a table with a price in it.
pub(super) fn price_cell(at: &str, ns: Option<Nanoseconds>) -> Markup {
    html! { td.number data-sort=(ns.map_or(String::new(), |ns| ns.get().to_string())) { (price(at, ns)) } }
}
