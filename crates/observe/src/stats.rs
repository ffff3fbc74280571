//! Statistics that one preempted sample cannot spoil.

use serde::Serialize;

/// A number as a report shows it: one digit behind the point for nanoseconds.
pub(crate) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A ratio as a report shows it: three digits behind the point.
pub(crate) fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn sort(values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
}

/// The value below which `fraction` of the sorted values lie (nearest rank). `None` without values.
pub(crate) fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    Some(sorted[rank.saturating_sub(1).min(last)])
}

/// The middle value; the mean of the two middle ones of an even number.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    sort(values);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// Median and spread of what was measured in many rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Spread {
    /// 5% of the rounds were at or below this.
    pub p5: f64,
    /// Half of the rounds were at or below this.
    pub median: f64,
    /// 95% of the rounds were at or below this.
    pub p95: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Spread> {
        let median = median(&mut values)?;
        Some(Spread {
            p5: quantile(&values, 0.05)?,
            median,
            p95: quantile(&values, 0.95)?,
        })
    }

    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Spread {
        Spread {
            p5: f(self.p5),
            median: f(self.median),
            p95: f(self.p95),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [7.0]), Some(7.0));
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&mut [9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

    #[test]
    fn one_preempted_round_moves_no_median_and_no_p95() {
        let mut rounds = vec![20.0; 99];
        rounds.push(4_000_000.0);
        assert_eq!(
            Spread::of(rounds),
            Some(Spread {
                p5: 20.0,
                median: 20.0,
                p95: 20.0
            })
        );
    }

    #[test]
    fn quantiles_of_one_to_a_hundred_are_their_own_ranks() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.05), Some(5.0));
        assert_eq!(quantile(&values, 0.999), Some(100.0));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    proptest! {
        #[test]
        fn a_spread_is_in_order_and_within_its_values(values in prop::collection::vec(0.0..1e9f64, 1..200)) {
            let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let spread = Spread::of(values).unwrap();
            prop_assert!(low <= spread.p5 && spread.p5 <= spread.median);
            prop_assert!(spread.median <= spread.p95 && spread.p95 <= high);
        }
    }
}
