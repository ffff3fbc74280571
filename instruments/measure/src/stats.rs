//! Statistics that are robust against a preempted sample.

use serde::Serialize;

/// Rounds a number of nanoseconds to one decimal digit, as a report shows it.
pub fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Rounds a ratio to three decimal digits, as a report shows it.
pub fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn sort(values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
}

/// Returns the value below which `fraction` of the sorted values lie (nearest rank); `None` without values.
pub fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    Some(sorted[rank.saturating_sub(1).min(last)])
}

/// Returns the middle value, or the mean of the two middle ones of an even number.
pub fn median(values: &mut [f64]) -> Option<f64> {
    sort(values);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// Median and spread of a measurement in many rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    pub fn from_samples(mut values: Vec<f64>) -> Option<Spread> {
        let median = median(&mut values)?;
        Some(Spread {
            p5: quantile(&values, 0.05)?,
            median,
            p95: quantile(&values, 0.95)?,
        })
    }

    pub fn map(self, f: impl Fn(f64) -> f64) -> Spread {
        Spread {
            p5: f(self.p5),
            median: f(self.median),
            p95: f(self.p95),
        }
    }
}

/// Statistics of a cost that was measured in many rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CostSummary {
    /// 5% of the rounds were at or below this.
    pub p5: f64,
    /// Half of the rounds were at or below this.
    pub median: f64,
    /// 95% of the rounds were at or below this.
    pub p95: f64,
    /// The mean of all rounds.
    pub mean: f64,
    /// The standard deviation of the rounds; `null` for a single round.
    pub stddev: Option<f64>,
    /// The least value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Number of outliers: rounds with a modified z-score (0.6745 times the distance from the median, divided by the
    /// median absolute deviation) above 14.826.
    pub outliers: usize,
}

impl CostSummary {
    /// `None` without values.
    pub fn from_samples(mut values: Vec<f64>) -> Option<CostSummary> {
        let median = median(&mut values)?;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(CostSummary {
            p5: quantile(&values, 0.05)?,
            median,
            p95: quantile(&values, 0.95)?,
            mean,
            stddev: (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            min: *values.first()?,
            max: *values.last()?,
            outliers: outliers(&values, median)?,
        })
    }

    /// Returns the same statistics in another unit.
    pub fn map(self, f: impl Fn(f64) -> f64) -> CostSummary {
        CostSummary {
            p5: f(self.p5),
            median: f(self.median),
            p95: f(self.p95),
            mean: f(self.mean),
            stddev: self.stddev.map(&f),
            min: f(self.min),
            max: f(self.max),
            outliers: self.outliers,
        }
    }
}

/// Counts the values far from the others, as hyperfine does (Iglewicz and Hoaglin, How to Detect and Handle Outliers).
/// Returns `None` if more than half of all values are the same, because the score is then undefined.
fn outliers(values: &[f64], median: f64) -> Option<usize> {
    const MOST: f64 = 14.826;
    let mut distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    let deviation = self::median(&mut distances)?;
    let is_far = |distance: &&f64| deviation > 0.0 && 0.6745 * **distance / deviation > MOST;
    Some(distances.iter().filter(is_far).count())
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
            Spread::from_samples(rounds),
            Some(Spread {
                p5: 20.0,
                median: 20.0,
                p95: 20.0
            })
        );
    }

    #[test]
    fn a_summary_has_mean_deviation_range_and_outliers() {
        let summary = CostSummary::from_samples(vec![4.0, 2.0, 8.0, 6.0, 5.0]).unwrap();
        assert_eq!(
            (summary.mean, summary.median, summary.min, summary.max),
            (5.0, 5.0, 2.0, 8.0)
        );
        assert_eq!(summary.stddev, Some(5f64.sqrt()));
        assert_eq!(summary.outliers, 0);
        let doubled = summary.map(|value| value * 2.0);
        assert_eq!((doubled.mean, doubled.stddev), (10.0, Some(2.0 * 5f64.sqrt())));
        // An interrupted round among ordinary ones.
        let mut rounds: Vec<f64> = (0..100).map(|round| 20.0 + f64::from(round % 10) / 10.0).collect();
        rounds.extend([24.0, 500.0, 500.0]);
        assert_eq!(CostSummary::from_samples(rounds).unwrap().outliers, 2);
        assert_eq!(CostSummary::from_samples(vec![7.0]).unwrap().stddev, None);
        assert_eq!(CostSummary::from_samples(vec![7.0, 7.0, 7.0, 9.0]).unwrap().outliers, 0);
        assert_eq!(CostSummary::from_samples(Vec::new()), None);
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
            let summary = CostSummary::from_samples(values.clone()).unwrap();
            prop_assert!(summary.min == low && summary.max == high && summary.outliers <= values.len());
            prop_assert!(low <= summary.mean + 1e-3 && summary.mean <= high + 1e-3);
            let spread = Spread::from_samples(values).unwrap();
            prop_assert!(low <= spread.p5 && spread.p5 <= spread.median);
            prop_assert!(spread.median <= spread.p95 && spread.p95 <= high);
        }
    }
}
