//! The page: one file that loads nothing, with no library or font of its own.

mod clocks;
mod evidence;
mod fleet;
mod host;
mod missing;
mod number;
mod trace;

use crate::data::{FleetReport, Host};
use crate::words::{ended, labels, sentence};
use base64::Engine;
use fastpath_doctor::Verdict;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("style.css");
/// Sorts the fleet's table; everything else works without it.
const SCRIPT: &str = include_str!("sort.js");

/// Returns the whole document.
pub fn page(report: &FleetReport) -> String {
    let labels = labels(&report.hosts);
    let title = match labels.as_slice() {
        [only] => format!("{only}: clocks"),
        _ => format!("{} hosts: clocks", labels.len()),
    };
    let body = match report.hosts.as_slice() {
        [only] => single(only, &labels[0]),
        hosts => fleet::body(hosts, &labels),
    };
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the findings" }
                main id="main" { (body) }
                footer {
                    p {
                        "Made by fastpath " (crate::words::shown(&report.fastpath)) ". Costs are in nanoseconds per call. A path is determined "
                        "by forbidding the system call, not inferred from the cost. This page loads nothing and sends nothing."
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    document.into_string()
}

/// Returns the page's content security policy, which allows only this style and this script.
fn policy() -> String {
    let hash = |text: &str| base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

fn single(host: &Host, label: &str) -> Markup {
    html! {
        header {
            h1 { "Clocks of " (label) }
            (banner(host.verdict(), &host.summary()))
        }
        section aria-labelledby="next" {
            h2 id="next" { "What to do next" }
            ol.steps { @for step in host.steps() { (host::step(&step, None)) } }
        }
        (host::sections(host, 0, 2))
    }
}

/// Renders the verdict in one sentence.
fn banner(verdict: Verdict, summary: &str) -> Markup {
    html! {
        p.banner.{ "verdict-" (verdict.word()) } data-verdict=(verdict.word()) {
            strong { (badge(verdict)) ":" } " " (sentence(&ended(summary)))
        }
    }
}

/// Renders the verdict's word, with a shape for readers who cannot tell the colours apart.
fn badge(verdict: Verdict) -> Markup {
    let shape = match verdict {
        Verdict::Healthy => "✓",
        Verdict::Slow => "▲",
        Verdict::Wrong => "✕",
        Verdict::Unknown => "?",
    };
    html! { span.badge.{ "verdict-" (verdict.word()) } { span aria-hidden="true" { (shape) " " } (verdict.word()) } }
}

/// Renders a table that scrolls by itself if it is wider than the screen. `name` is its accessible name.
fn scrolling(name: &str, table: Markup) -> Markup {
    html! { div.scroll role="region" tabindex="0" aria-label=(name) { (table) } }
}

/// Renders a heading of this level.
fn heading(level: u8, id: &str, text: &str) -> Markup {
    html! {
        @match level {
            2 => h2 id=(id) { (text) },
            3 => h3 id=(id) { (text) },
            _ => h4 id=(id) { (text) },
        }
    }
}

#[cfg(test)]
mod tests;
