//! A histogram of nanoseconds, cheap enough for a measuring loop.

use serde::Serialize;

/// Values below this are counted exactly; of the others only their number and the largest are known. Errors of interest
/// are below a microsecond, and the exporter's last bound is 5 µs.
const EXACT_NS: usize = 5001;

/// Counts of values.
#[derive(Clone)]
pub struct Histogram {
    /// Number of occurrences of each value.
    counts: Vec<u64>,
    beyond: u64,
    max: u64,
}

/// A histogram's summary in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorDistribution {
    /// Number of values.
    pub samples: u64,
    /// Half of the values are at or below this.
    pub p50_ns: u64,
    /// 99% of the values are at or below this.
    pub p99_ns: u64,
    /// 99.9% of the values are at or below this.
    #[serde(rename = "p99.9_ns")]
    pub p99_9_ns: u64,
    /// The largest value.
    pub max_ns: u64,
    /// Number of values in each range.
    pub buckets: Vec<ErrorBucket>,
}

/// A range of values, which begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBucket {
    /// Largest value of the range; `null` in the last one, which is open.
    pub up_to_ns: Option<u64>,
    /// Number of values in the range.
    pub count: u64,
}

const BOUNDS_NS: [u64; 11] = [0, 1, 2, 5, 10, 20, 30, 50, 100, 200, 1000];

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; EXACT_NS],
            beyond: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts a value.
    #[inline(always)]
    pub fn add(&mut self, ns: u64) {
        match self.counts.get_mut(ns as usize) {
            Some(count) => *count += 1,
            None => self.beyond += 1,
        }
        self.max = self.max.max(ns);
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts
            .iter_mut()
            .zip(&other.counts)
            .for_each(|(count, more)| *count += more);
        self.beyond += other.beyond;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of values.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.beyond
    }

    /// Returns how many values are at most `ns`, which is below the limit of exact counts.
    pub fn at_most(&self, ns: u64) -> u64 {
        self.counts[..=ns as usize].iter().sum()
    }

    pub(crate) fn distribution(&self) -> ErrorDistribution {
        let samples = self.samples();
        ErrorDistribution {
            samples,
            p50_ns: self.quantile(samples, 500),
            p99_ns: self.quantile(samples, 990),
            p99_9_ns: self.quantile(samples, 999),
            max_ns: self.max,
            buckets: self.buckets(samples),
        }
    }

    /// Returns the least value that at least `per_mille` of the samples do not exceed; beyond the exact range, the
    /// largest one.
    fn quantile(&self, samples: u64, per_mille: u64) -> u64 {
        let rank = (u128::from(samples) * u128::from(per_mille)).div_ceil(1000) as u64;
        let mut below = 0;
        let reached = self.counts.iter().position(|count| {
            below += count;
            below >= rank.max(1)
        });
        reached.map_or(self.max, |ns| ns as u64)
    }

    fn buckets(&self, samples: u64) -> Vec<ErrorBucket> {
        let bounds = BOUNDS_NS.into_iter().map(Some).chain([None]);
        let mut counted = 0;
        let bucket = |up_to_ns: Option<u64>| {
            let below = counted;
            counted = up_to_ns.map_or(samples, |ns| self.at_most(ns));
            ErrorBucket {
                up_to_ns,
                count: counted - below,
            }
        };
        bounds.map(bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|ns| histogram.add(ns));
        let distribution = histogram.distribution();
        assert_eq!((distribution.samples, distribution.max_ns), (1000, 1000));
        assert_eq!(
            (distribution.p50_ns, distribution.p99_ns, distribution.p99_9_ns),
            (500, 990, 999)
        );
    }

    #[test]
    fn a_value_of_any_size_is_counted_and_the_largest_is_kept() {
        let mut histogram = Histogram::default();
        histogram.add(7);
        let mut other = Histogram::default();
        other.add(u64::MAX);
        other.add(EXACT_NS as u64);
        histogram.merge(&other);
        let distribution = histogram.distribution();
        assert_eq!((distribution.samples, distribution.max_ns), (3, u64::MAX));
        assert_eq!(distribution.p50_ns, u64::MAX, "only known to be beyond the exact range");
        let counts: Vec<u64> = distribution.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        let distribution = Histogram::default().distribution();
        assert_eq!(
            (distribution.samples, distribution.max_ns, distribution.p99_9_ns),
            (0, 0, 0)
        );
    }
}
