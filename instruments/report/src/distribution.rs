//! Distributions of costs.

use crate::nanoseconds::Nanoseconds;
use serde::{Deserialize, Serialize};

/// Distribution of costs of one kind, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Distribution {
    /// Number of samples.
    pub samples: u64,
    /// The least sample.
    pub min_ns: Nanoseconds,
    /// Median: half of the samples are at or below it.
    pub p50_ns: Nanoseconds,
    /// 99% of the samples are at or below it.
    pub p99_ns: Nanoseconds,
    /// The largest sample.
    pub max_ns: Nanoseconds,
    /// Numbers of samples by cost, in order; empty buckets are left out.
    pub buckets: Vec<Bucket>,
}

/// Samples within a range of costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Bucket {
    /// Lower edge, included.
    pub from_ns: Nanoseconds,
    /// Upper edge, not included.
    pub up_to_ns: Nanoseconds,
    /// Number of samples.
    pub count: u64,
}

/// Buckets per decade. A bucket is 6% wide: an additional counter read is visible, and the noise of one cost is not.
const PER_DECADE: i32 = 40;
/// Index of the lowest bucket, at a tenth of a nanosecond; nothing is cheaper.
const LEAST: i32 = -PER_DECADE;

impl Distribution {
    /// Returns the distribution, or `None` without samples.
    pub fn from_samples(mut samples: Vec<f64>) -> Option<Distribution> {
        samples.sort_unstable_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        // The least value that so many samples do not exceed (nearest rank).
        let quantile = |per_cent: usize| {
            let rank = (samples.len() * per_cent).div_ceil(100);
            Nanoseconds::tenths(samples[rank.saturating_sub(1)])
        };
        let mut buckets: Vec<Bucket> = Vec::new();
        for ns in &samples {
            let index = bucket(*ns);
            let (from_ns, up_to_ns) = (Nanoseconds::new(edge(index)), Nanoseconds::new(edge(index + 1)));
            match buckets.last_mut() {
                Some(bucket) if bucket.from_ns == from_ns => bucket.count += 1,
                _ => buckets.push(Bucket {
                    from_ns,
                    up_to_ns,
                    count: 1,
                }),
            }
        }
        Some(Distribution {
            samples: samples.len() as u64,
            min_ns: Nanoseconds::tenths(samples[0]),
            p50_ns: quantile(50),
            p99_ns: quantile(99),
            max_ns: Nanoseconds::tenths(samples[last]),
            buckets,
        })
    }
}

/// Returns the lower edge of a bucket, rounded to three digits, so that the written edge is the one that was used.
fn edge(index: i32) -> f64 {
    let exact = 10f64.powf(f64::from(index) / f64::from(PER_DECADE));
    let unit = 10f64.powf(exact.log10().floor() - 2.0);
    // Divide by a whole number where possible: 0.1 is no binary fraction, and 10.6 must not become 10.600000000000001.
    if unit < 1.0 {
        (exact / unit).round() / (1.0 / unit).round()
    } else {
        (exact / unit).round() * unit
    }
}

fn bucket(ns: f64) -> i32 {
    let mut index = ((ns.max(0.1).log10() * f64::from(PER_DECADE)).floor() as i32).max(LEAST);
    while index > LEAST && ns < edge(index) {
        index -= 1;
    }
    while ns >= edge(index + 1) {
        index += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let distribution = Distribution::from_samples((1..=1000).rev().map(f64::from).collect()).unwrap();
        let ns = |ns: f64| Nanoseconds::new(ns);
        assert_eq!(distribution.samples, 1000);
        assert_eq!((distribution.min_ns, distribution.p50_ns), (ns(1.0), ns(500.0)));
        assert_eq!((distribution.p99_ns, distribution.max_ns), (ns(990.0), ns(1000.0)));
        assert_eq!(Distribution::from_samples(Vec::new()), None);
    }

    #[test]
    fn edges_are_three_digits_and_follow_each_other() {
        assert_eq!((edge(0), edge(40), edge(1), edge(41)), (1.0, 10.0, 1.06, 10.6));
        for index in LEAST..400 {
            assert!(edge(index) < edge(index + 1), "{index}");
            assert!(edge(index).to_string().len() <= 11, "{}", edge(index));
        }
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_bucket_that_contains_it(samples in prop::collection::vec(0.0..1e9f64, 1..300)) {
            let distribution = Distribution::from_samples(samples.clone()).unwrap();
            prop_assert_eq!(distribution.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), samples.len() as u64);
            for bucket in &distribution.buckets {
                let (from, to) = (bucket.from_ns.get(), bucket.up_to_ns.get());
                let inside = samples.iter().filter(|ns| (from..to).contains(&ns.max(0.1))).count();
                prop_assert_eq!(bucket.count, inside as u64);
            }
        }
    }
}
