//! Converts values to positions in percent of a chart's width, so that a chart takes the available width and its text
//! keeps its size.

use crate::nanoseconds::round_figure;
use maud::{Markup, html};

/// Formats a position on an axis for SVG.
pub(crate) fn percent(place: f64) -> String {
    format!("{:.2}%", place)
}

/// Least distance of two labels, in percent. Closer ones would touch on a phone: 320 pixels wide, six characters a
/// label.
const APART: f64 = 16.0;

/// A logarithmic axis.
pub(crate) struct Log {
    low: f64,
    high: f64,
}

impl Log {
    /// Returns an axis for all these values that covers at least a ratio of four.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Log {
        let (low, high) = values.fold((f64::INFINITY, 0.1), |(low, high), value| {
            (value.max(0.1).min(low), value.max(high))
        });
        let low = low.min(high) * 0.85;
        Log {
            low: low.log10(),
            high: (high * 1.15).max(low * 4.0).log10(),
        }
    }

    /// Returns the position of a value, in percent.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let place = (value.max(0.1).log10() - self.low) / (self.high - self.low) * 100.0;
        place.clamp(0.0, 100.0)
    }

    /// Returns whether a value is within the axis.
    pub(crate) fn has(&self, value: f64) -> bool {
        value.max(0.1).log10() <= self.high
    }

    /// Returns round values that are far enough apart for labels.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let within = |steps: &[f64], every: i32| {
            let decades = (self.low.floor() as i32)..=(self.high.ceil() as i32);
            let decades = decades.filter(|decade| decade.rem_euclid(every) == 0);
            let ticks = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
            let inside = |tick: &f64| (self.low..=self.high).contains(&tick.log10());
            ticks.filter(inside).collect::<Vec<f64>>()
        };
        let choices: [(&[f64], i32); 6] = [
            (&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0], 1),
            (&[1.0, 2.0, 3.0, 5.0], 1),
            (&[1.0, 2.0, 5.0], 1),
            (&[1.0, 3.0], 1),
            (&[1.0], 1),
            (&[1.0], 3),
        ];
        let far_enough = |ticks: &Vec<f64>| {
            ticks
                .windows(2)
                .all(|pair| self.place(pair[1]) - self.place(pair[0]) >= APART)
        };
        let mut ticks = choices.iter().map(|(steps, every)| within(steps, *every));
        ticks.find(far_enough).unwrap_or_default()
    }
}

/// A linear axis from zero.
pub(crate) struct Linear {
    high: f64,
}

impl Linear {
    /// Returns an axis for all these values.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Linear {
        let high = values.fold(0.0, f64::max);
        Linear {
            high: if high > 0.0 { high * 1.05 } else { 1.0 },
        }
    }

    /// Returns the position of a value, in percent.
    pub(crate) fn place(&self, value: f64) -> f64 {
        (value / self.high * 100.0).clamp(0.0, 100.0)
    }

    /// Returns round values that are far enough apart for labels.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let least = self.high * APART / 100.0;
        let decade = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = step.into_iter().find(|step| *step >= least).unwrap_or(least);
        (0..)
            .map(|n| f64::from(n) * step)
            .take_while(|tick| *tick <= self.high)
            .collect()
    }
}

/// The rows of a chart: each is a line of text with a drawing below it. Vertical lines cross the drawings and not the
/// text.
pub(crate) struct Rows {
    pub(crate) count: usize,
    pub(crate) text: u32,
    pub(crate) drawing: u32,
    pub(crate) gap: u32,
    /// Extra height of the last row's drawing, in pixels.
    pub(crate) last_higher: u32,
}

impl Rows {
    /// Returns the upper edge of a row.
    pub(crate) fn top(&self, index: usize) -> u32 {
        (self.text + self.drawing + self.gap) * index as u32
    }

    pub(crate) fn height(&self) -> u32 {
        self.top(self.count) + self.last_higher
    }

    /// Draws a vertical line at `at` percent of the width, with a gap at each line of text.
    pub(crate) fn line(&self, class: &str, at: f64, title: Option<&str>) -> Markup {
        let at = percent(at);
        html! {
            @for row in 0..self.count {
                @let top = self.top(row) + self.text;
                @let higher = if row + 1 == self.count { self.last_higher } else { 0 };
                line.(class) x1=(at) x2=(at) y1=(top) y2=(top + self.drawing + higher) { @if let Some(title) = title { title { (title) } } }
            }
        }
    }

    /// Draws a line at each tick, and the ticks' labels at the bottom.
    pub(crate) fn grid(&self, ticks: &[f64], place: impl Fn(f64) -> f64, label: impl Fn(f64) -> String) -> Markup {
        html! {
            @for tick in ticks {
                @let at = place(*tick);
                (self.line("grid", at, None))
                text.axis x=(percent(at)) y=(self.height() + 15) text-anchor=(anchor(at)) { (label(*tick)) }
            }
        }
    }
}

/// Returns the alignment of a label, so that none extends beyond the chart's ends.
fn anchor(at: f64) -> &'static str {
    match at {
        ..7.0 => "start",
        93.0.. => "end",
        _ => "middle",
    }
}

/// Height in pixels that [`Rows::grid`] needs below a chart.
pub(crate) const AXIS: u32 = 20;

/// Formats a tick in nanoseconds.
pub(crate) fn of_time(ns: f64) -> String {
    round_figure(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_decade_is_as_wide_as_another() {
        let axis = Log::over([10.0, 10_000.0].into_iter());
        let decade = axis.place(100.0) - axis.place(10.0);
        assert!((axis.place(10_000.0) - axis.place(1000.0) - decade).abs() < 1e-9);
        assert_eq!(axis.ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        let narrow = Log::over([20.0, 22.0].into_iter());
        assert!(narrow.ticks().len() >= 3, "{:?}", narrow.ticks());
    }

    #[test]
    fn a_bar_begins_at_zero() {
        let axis = Linear::over([800.0, 60.0].into_iter());
        assert_eq!((axis.place(0.0), axis.ticks()[0]), (0.0, 0.0));
        assert!((axis.place(800.0) / axis.place(60.0) - 800.0 / 60.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_to_show_is_no_reason_to_fail() {
        assert!(Log::over(std::iter::empty()).place(1.0).is_finite());
        assert!(Linear::over(std::iter::empty()).place(1.0).is_finite());
        assert!(Linear::over([0.0].into_iter()).ticks().len() > 1);
    }

    proptest! {
        #[test]
        fn ticks_are_few_apart_and_on_the_axis(a in 0.0..1e12f64, b in 0.0..1e12f64) {
            let (log, linear) = (Log::over([a, b].into_iter()), Linear::over([a, b].into_iter()));
            for ticks in [
                log.ticks().iter().map(|tick| log.place(*tick)).collect::<Vec<f64>>(),
                linear.ticks().iter().map(|tick| linear.place(*tick)).collect(),
            ] {
                prop_assert!(ticks.len() <= 8, "{ticks:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[1] - pair[0] >= APART - 1e-6), "{ticks:?}");
                prop_assert!(ticks.iter().all(|place| (0.0..=100.0).contains(place)));
            }
        }
    }
}
