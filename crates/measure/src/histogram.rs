//! Nanoseconds counted one by one, cheap enough to stand in a measuring loop.

use serde::Serialize;

/// Counts exactly below this, beyond it only how many and the largest. Errors of interest are below a microsecond.
const EXACT_NS: usize = 4096;

/// Counts of values.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    beyond: u64,
    max: u64,
}

/// What a report shows of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Distribution {
    /// How many values there are.
    pub samples: u64,
    /// Half of them are at or below this.
    pub p50_ns: u64,
    /// 99% of them are.
    pub p99_ns: u64,
    /// 99.9% of them are.
    #[serde(rename = "p99.9_ns")]
    pub p99_9_ns: u64,
    /// The largest.
    pub max_ns: u64,
    /// How many lie in each range.
    pub buckets: Vec<Bucket>,
}

/// Values from the one before to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Bucket {
    /// The largest value that counts here; nothing in the last one, which is open.
    pub up_to_ns: Option<u64>,
    /// How many there are.
    pub count: u64,
}

const BOUNDS_NS: [u64; 11] = [0, 1, 2, 5, 10, 20, 30, 50, 100, 200, 1000];

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram {
            counts: vec![0; EXACT_NS],
            beyond: 0,
            max: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, ns: u64) {
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

    pub(crate) fn distribution(&self) -> Distribution {
        let samples = self.counts.iter().sum::<u64>() + self.beyond;
        Distribution {
            samples,
            p50_ns: self.quantile(samples, 500),
            p99_ns: self.quantile(samples, 990),
            p99_9_ns: self.quantile(samples, 999),
            max_ns: self.max,
            buckets: self.buckets(samples),
        }
    }

    /// The least value that at least `per_mille` of the samples do not exceed. Beyond the exact range, the largest one.
    fn quantile(&self, samples: u64, per_mille: u64) -> u64 {
        let rank = (u128::from(samples) * u128::from(per_mille)).div_ceil(1000) as u64;
        let mut below = 0;
        let reached = self.counts.iter().position(|count| {
            below += count;
            below >= rank.max(1)
        });
        reached.map_or(self.max, |ns| ns as u64)
    }

    fn buckets(&self, samples: u64) -> Vec<Bucket> {
        let mut from = 0;
        let mut counted = 0;
        let mut buckets = Vec::new();
        for up_to_ns in BOUNDS_NS {
            let count = self.counts[from..=up_to_ns as usize].iter().sum();
            buckets.push(Bucket {
                up_to_ns: Some(up_to_ns),
                count,
            });
            from = up_to_ns as usize + 1;
            counted += count;
        }
        buckets.push(Bucket {
            up_to_ns: None,
            count: samples - counted,
        });
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let mut histogram = Histogram::new();
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
        let mut histogram = Histogram::new();
        histogram.add(7);
        let mut other = Histogram::new();
        other.add(u64::MAX);
        other.add(4096);
        histogram.merge(&other);
        let distribution = histogram.distribution();
        assert_eq!((distribution.samples, distribution.max_ns), (3, u64::MAX));
        assert_eq!(
            distribution.p50_ns,
            u64::MAX,
            "all that is known of it is that it is beyond"
        );
        let counts: Vec<u64> = distribution.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        let distribution = Histogram::new().distribution();
        assert_eq!(
            (distribution.samples, distribution.max_ns, distribution.p99_9_ns),
            (0, 0, 0)
        );
    }
}
