//! Names, which can be any text, and figures.

use crate::data::Host;
use maud::{Markup, html};

/// Longest name that is shown in full; no meaningful one is longer.
const LONGEST: usize = 2000;

/// Returns the part of an untrusted text (from a process, a host or a file) that is shown.
pub(crate) fn shown(text: &str) -> String {
    let clean = |c: char| match c == '\n' || fastpath_os::is_printable(c) {
        true => c,
        false => char::REPLACEMENT_CHARACTER,
    };
    let mut shown: String = text.chars().take(LONGEST).map(clean).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Renders a name that a narrow column breaks between its words, not within one.
pub(crate) fn breakable(name: &str) -> Markup {
    let name = shown(name);
    html! {
        @for (index, part) in name.split_inclusive(['_', '/', '.', ':', '=']).enumerate() {
            @if index > 0 { wbr; }
            (part)
        }
    }
}

/// Renders a command, so that no browser breaks the line after the hyphens of an option.
fn command(text: &str) -> Markup {
    html! {
        @for (index, word) in text.split(' ').enumerate() {
            @if index > 0 { " " }
            @if word.starts_with('-') { span.option { (word) } } @else { (breakable(word)) }
        }
    }
}

/// Renders a sentence with commands between backquotes.
pub(crate) fn sentence(text: &str) -> Markup {
    let text = shown(text);
    // An unpaired one at the end is an ordinary character.
    let pairs = text.matches('`').count() / 2;
    html! {
        @for (index, part) in text.splitn(2 * pairs + 1, '`').enumerate() {
            @if index % 2 == 1 { code { (command(part)) } } @else { (part) }
        }
    }
}

/// Returns another program's sentence with its full stop. The first letter keeps its case, because it may begin a
/// command.
pub(crate) fn ended(text: &str) -> String {
    let mut ended = text.trim().to_owned();
    if !ended.ends_with(['.', '!', '?', '…']) {
        ended.push('.');
    }
    ended
}

/// Returns the word with an `s`, unless `count` is one.
pub(crate) fn plural(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {what}{s}", crate::nanoseconds::grouped(count))
}

/// Returns a unique label for each host.
pub(crate) fn labels(hosts: &[Host]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for host in hosts {
        let mut label = shown(&host.name);
        let is_common = hosts.iter().filter(|other| other.name == host.name).count() > 1;
        if let Some(file) = host.file.as_deref().filter(|_| is_common) {
            label = format!("{label} ({})", shown(file));
        }
        let mut number = 2;
        let base = label.clone();
        while labels.contains(&label) {
            label = format!("{base} #{number}");
            number += 1;
        }
        labels.push(label);
    }
    labels
}

/// Formats a date: `2026-11-21 12:40 UTC`.
pub(crate) fn date(unix: u64) -> String {
    let (days, seconds) = ((unix / 86_400).min(10_000_000), unix % 86_400);
    // The civil calendar in eras of 400 years that begin on 1 March, so that leap days come last.
    let since_march = days + 719_468;
    let (era, of_era) = (since_march / 146_097, since_march % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn names_cannot_turn_a_line_or_hide_in_it() {
        assert_eq!(shown("a\u{1b}[31m\u{202e}b"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!(shown(&"x".repeat(5000)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn commands_in_sentences_are_code_and_nothing_else_is() {
        assert_eq!(
            sentence("run `a <b>` or `c`, it`s").into_string(),
            "run <code>a &lt;b&gt;</code> or <code>c</code>, it`s"
        );
        assert_eq!(
            sentence("`a --b /c/d`").into_string(),
            "<code>a <span class=\"option\">--b</span> /<wbr>c/<wbr>d</code>"
        );
        assert_eq!(sentence("plain").into_string(), "plain");
    }

    #[test]
    fn two_hosts_of_one_name_are_told_apart() {
        let mut hosts = vec![samples::healthy("web"), samples::healthy("web"), samples::healthy("db")];
        assert_eq!(labels(&hosts), ["web", "web #2", "db"]);
        hosts[0].file = Some("a.json".to_owned());
        hosts[1].file = Some("b.json".to_owned());
        assert_eq!(labels(&hosts), ["web (a.json)", "web (b.json)", "db"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_795_264_695, "2026-11-21 12:38 UTC"),
        ] {
            assert_eq!(date(unix), text);
        }
        assert!(date(u64::MAX).ends_with("UTC"));
    }
}
