//! Impossible samples: an error of a host must not end its process, nor put a wrong time on the page.

use std::cell::Cell;

use fastpath_publish::host::{
    Bracket, NotPublished, Options, Page, Publisher, Reason, Refreshed, Relation, Sample, Source,
};

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

/// Each test makes so many attempts.
const CASES: u32 = 20_000;

/// xorshift64*, by Marsaglia and Vigna.
struct Random(u64);

impl Random {
    /// Prints the seed: another one each time, or that of FASTPATH_MUTATION_SEED, as the parsers' tests do.
    fn seeded() -> Random {
        let given = std::env::var("FASTPATH_MUTATION_SEED").ok();
        let now = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
        let seed = given.map_or_else(now, |seed| seed.parse().expect("a number")) | 1;
        println!("FASTPATH_MUTATION_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn wild(&mut self) -> u64 {
        match self.below(6) {
            0 => self.next(),
            1 => 0,
            2 => u64::MAX,
            3 => 1 << 63,
            4 => self.below(5_000_000_000),
            _ => (1 << 40) + self.below(5_000_000_000),
        }
    }

    fn bracket(&mut self) -> Bracket {
        let before = self.wild();
        let width = if self.below(2) == 0 {
            self.wild()
        } else {
            self.below(1_000)
        };
        Bracket {
            before,
            time_ns: self.wild(),
            after: before.wrapping_add(width),
        }
    }

    fn sample(&mut self) -> Sample {
        let mut maybe = || (self.below(2) == 0).then(|| self.bracket());
        let (raw, boot, tai) = (maybe(), maybe(), maybe());
        Sample {
            mono: self.bracket(),
            real: self.bracket(),
            raw,
            boot,
            tai,
            ntp: None,
        }
    }
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

#[test]
fn no_sample_whatever_panics() {
    let mut random = Random::seeded();
    for _ in 0..CASES {
        let page = Box::new(Page::zeroed());
        let multiplier = 1 + random.below(u64::MAX - 1);
        let relation = Relation::new(multiplier, random.below(64) as u32, random.next()).expect("a relation");
        let options = Options {
            on_demand: random.below(2) == 0,
            relation,
            ..Options::default()
        };
        let publisher = Publisher::new(&page, Following(Cell::new(0)), options);
        for index in 0..1 + random.below(11) {
            let sample = random.sample();
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

#[test]
fn one_wild_sample_among_good_ones_panics_nobody_and_is_withdrawn_or_passed_over() {
    let mut random = Random::seeded();
    for _ in 0..CASES {
        let page = Box::new(Page::zeroed());
        let options = Options {
            on_demand: random.below(2) == 0,
            ..Options::default()
        };
        let publisher = Publisher::new(&page, Following(Cell::new(0)), options);
        let steps: Vec<_> = (0..4 + random.below(36))
            .map(|_| {
                let step_ns = 1_000_000 + random.below(2_999_000_000);
                (step_ns, (random.below(10) == 0).then(|| random.sample()))
            })
            .collect();
        let all_good = steps.iter().all(|(_, odd)| odd.is_none());
        let mut published = 0;
        for sample in plausible(steps) {
            publisher.source().0.set(sample.mono.after);
            match publisher.publish_sample(&sample) {
                Ok(Refreshed::Withdrawn(reason)) => assert_eq!(Reason::from_code(reason.code()), Some(reason)),
                Ok(Refreshed::Published) => published += 1,
                Ok(Refreshed::Waiting | Refreshed::Missed) | Err(NotPublished::Impossible) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(published > 0 || !all_good);
    }
}
