//! Impossible samples: an error of a host must not end its process. What readers then get: core/clock/tests/limits.rs.

mod simulated;

use std::cell::Cell;

use fastpath_publish::host::{Bracket, Page, Publisher, PublisherConfig, Reason, Relation, Sample, Source};
use simulated::host::Random;

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

fn wild(random: &mut Random) -> u64 {
    match random.next() % 6 {
        0 => random.next(),
        1 => 0,
        2 => u64::MAX,
        3 => 1 << 63,
        4 => random.next() % 5_000_000_000,
        _ => (1 << 40) + random.next() % 5_000_000_000,
    }
}

fn bracket(random: &mut Random) -> Bracket {
    let before = wild(random);
    let width = if random.chance(0.5) {
        wild(random)
    } else {
        random.next() % 1_000
    };
    Bracket {
        before,
        time_ns: wild(random),
        after: before.wrapping_add(width),
    }
}

fn sample(random: &mut Random) -> Sample {
    let mut maybe = || random.chance(0.5).then(|| bracket(random));
    let (raw, boot, tai) = (maybe(), maybe(), maybe());
    Sample {
        mono: bracket(random),
        real: bracket(random),
        raw,
        boot,
        tai,
        ntp: None,
    }
}

#[test]
fn no_sample_whatever_panics() {
    let mut random = Random::seeded();
    for _ in 0..20_000 {
        let page = Box::new(Page::zeroed());
        let multiplier = 1 + random.next() % (u64::MAX - 1);
        let relation = Relation::new(multiplier, (random.next() % 64) as u32, random.next()).expect("a relation");
        let options = PublisherConfig {
            on_demand: random.chance(0.5),
            relation,
            ..PublisherConfig::default()
        };
        let publisher = Publisher::new(&page, Following(Cell::new(0)), options);
        for index in 0..1 + random.next() % 11 {
            let sample = sample(&mut random);
            publisher.source().0.set(sample.mono.after);
            let _ = if index % 3 == 2 {
                publisher.publish_step_sample(&sample)
            } else {
                publisher.publish_sample(&sample)
            };
            publisher.state();
        }
        let _ = publisher.withdraw(Reason::Host(0));
    }
}
