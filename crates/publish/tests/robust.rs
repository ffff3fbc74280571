//! Impossible samples: an error of a host must not end its process, nor put a wrong time on the page.

use std::cell::Cell;

use fastpath_publish::host::{
    Bracket, NotPublished, Options, Page, Publisher, Reason, Refreshed, Relation, Sample, Source,
};
use proptest::prelude::*;

/// A counter that stays where the last sample was taken, and no clocks.
struct Following(Cell<u64>);

impl Source for Following {
    fn counter(&self) -> u64 {
        // Advances a little, as counters do.
        self.0.set(self.0.get().wrapping_add(50));
        self.0.get()
    }

    fn clock(&self, _: libc::clockid_t) -> Option<u64> {
        None
    }
}

fn wild() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        0..5_000_000_000_u64,
        (1_u64 << 40)..(1 << 40) + 5_000_000_000,
    ]
}

fn bracket() -> impl Strategy<Value = Bracket> {
    (wild(), wild(), prop_oneof![wild(), 0..1_000_u64]).prop_map(|(before, time_ns, width)| Bracket {
        before,
        time_ns,
        after: before.wrapping_add(width),
    })
}

fn sample() -> impl Strategy<Value = Sample> {
    let maybe = || proptest::option::of(bracket());
    (bracket(), bracket(), maybe(), maybe(), maybe()).prop_map(|(mono, real, raw, boot, tai)| Sample {
        mono,
        real,
        raw,
        boot,
        tai,
        ntp: None,
    })
}

/// Makes samples of consistent clocks, so that anchors come, with an inconsistent one now and then.
fn plausible(steps: Vec<(u64, Option<Sample>)>) -> Vec<Sample> {
    let mut now = 1 << 40;
    let mut samples = Vec::new();
    for (step_ns, odd) in steps {
        now += step_ns;
        let at = |time_ns| Bracket {
            before: now,
            time_ns,
            after: now + 80,
        };
        samples.push(odd.unwrap_or(Sample {
            mono: at(now / 2),
            real: at(now / 2 + (1 << 60)),
            raw: Some(at(now / 2 + 5)),
            boot: Some(at(now / 2)),
            tai: Some(at(now / 2 + (1 << 60) + 37_000_000_000)),
            ntp: None,
        }));
    }
    samples
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn no_sample_whatever_panics(
        samples in proptest::collection::vec(sample(), 1..12),
        on_demand in any::<bool>(),
        offset in any::<u64>(),
        multiplier in 1..u64::MAX,
        bits in 0..64_u32,
    ) {
        let page = Box::new(Page::zeroed());
        let relation = Relation::new(multiplier, bits, offset).expect("a relation");
        let publisher = Publisher::new(&page, Following(Cell::new(0)), Options { on_demand, relation, ..Options::default() });
        for (index, sample) in samples.iter().enumerate() {
            publisher.source().0.set(sample.mono.after);
            let _ = if index % 3 == 2 {
                publisher.publish_step_sample(sample)
            } else {
                publisher.publish_sample(sample)
            };
            publisher.state();
        }
        let _ = publisher.withdraw(Reason::Host(0));
    }

    #[test]
    fn one_wild_sample_among_good_ones_panics_nobody_and_is_withdrawn_or_passed_over(
        steps in proptest::collection::vec((1_000_000..3_000_000_000_u64, proptest::option::weighted(0.1, sample())), 4..40),
        on_demand in any::<bool>(),
    ) {
        let page = Box::new(Page::zeroed());
        let publisher = Publisher::new(&page, Following(Cell::new(0)), Options { on_demand, ..Options::default() });
        let all_good = steps.iter().all(|(_, odd)| odd.is_none());
        let mut published = 0;
        for sample in plausible(steps) {
            publisher.source().0.set(sample.mono.after);
            match publisher.publish_sample(&sample) {
                Ok(Refreshed::Withdrawn(reason)) => prop_assert_eq!(Reason::from_code(reason.code()), Some(reason)),
                Ok(Refreshed::Published) => published += 1,
                Ok(Refreshed::Waiting | Refreshed::Missed) | Err(NotPublished::Impossible) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert!(published > 0 || !all_good);
    }
}
