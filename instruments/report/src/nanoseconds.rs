//! Costs, and their formats.

use serde::{Deserialize, Deserializer, Serialize, de};

/// A cost in nanoseconds. A value read from a file is checked to be a possible cost.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, schemars::JsonSchema)]
pub struct Nanoseconds(f64);

/// Largest cost, in nanoseconds: a quarter of an hour per call.
const MOST: f64 = 1e12;

impl Nanoseconds {
    /// Returns the valid cost nearest to a number.
    pub fn new(ns: f64) -> Nanoseconds {
        Nanoseconds(if ns.is_nan() { 0.0 } else { ns.clamp(0.0, MOST) })
    }

    /// Returns it rounded to the precision of a report.
    pub(crate) fn tenths(ns: f64) -> Nanoseconds {
        Nanoseconds::new((ns * 10.0).round() / 10.0)
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Nanoseconds, D::Error> {
        let ns = f64::deserialize(deserializer)?;
        if (0.0..=MOST).contains(&ns) {
            Ok(Nanoseconds(ns))
        } else {
            Err(de::Error::custom(format_args!("{ns} nanoseconds cannot be a cost")))
        }
    }
}

/// Formats a cost for a column: `18.9`, `812`, `1,040`.
pub(crate) fn figure(ns: f64) -> String {
    if ns < 99.95 {
        format!("{ns:.1}")
    } else {
        grouped(ns.round() as u64)
    }
}

/// Formats a cost for a sentence: `18.9 ns`, `1,040 ns`.
pub(crate) fn in_words(ns: Nanoseconds) -> String {
    figure(ns.get()) + " ns"
}

/// Formats a cost for an axis: `10 ns`, `2 µs`, `1 ms`.
pub(crate) fn round_figure(ns: f64) -> String {
    for (unit, name) in [(1e9, "s"), (1e6, "ms"), (1e3, "µs")] {
        // A round figure may be slightly smaller after a division.
        if ns >= unit * 0.999 {
            return format!("{} {name}", (ns / unit * 10.0).round() / 10.0);
        }
    }
    format!("{} ns", (ns * 10.0).round() / 10.0)
}

/// Formats a number like `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_matter() {
        for (ns, text) in [
            (0.0, "0.0"),
            (18.94, "18.9"),
            (99.94, "99.9"),
            (99.96, "100"),
            (812.4, "812"),
            (1_040.0, "1,040"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(figure(ns), text);
        }
        for (ns, text) in [
            (0.5, "0.5 ns"),
            (200.0, "200 ns"),
            (1000.0, "1 µs"),
            (5e6, "5 ms"),
            (2e9, "2 s"),
        ] {
            assert_eq!(round_figure(ns), text);
        }
    }

    #[test]
    fn what_cannot_be_a_cost_is_refused() {
        for text in ["-1", "1e300", "\"x\""] {
            assert!(serde_json::from_str::<Nanoseconds>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Nanoseconds>("20").unwrap().get(), 20.0);
    }
}
