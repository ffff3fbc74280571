//! An instance and its page in this process: published, read by address, compared with the kernel.

#[allow(dead_code)]
mod mapped;
mod region;

mod clock_lock;

use std::time::Duration;

use fastpath_page::Reader;
use fastpath_publish::host::{ClockSet, Options, Publisher, Refreshed, Relation, Source, State, ThisHost, counter};
use mapped::{Mapped, read};

/// A busy machine may miss many of the first anchors, which live for milliseconds.
const ATTEMPTS: u32 = 10_000;

/// Publishes until the rate is known: two samples, and more for brackets that are interrupted.
fn seed<S: Source>(publisher: &Publisher<'_, S>) {
    for _ in 0..ATTEMPTS {
        std::thread::sleep(Duration::from_millis(1));
        if publisher.publish() == Ok(Refreshed::Published) {
            return;
        }
    }
    panic!("no anchor: {:?}", publisher.state());
}

/// Returns the state right after a publication.
fn served<S: Source>(publisher: &Publisher<'_, S>) -> State {
    for _ in 0..ATTEMPTS {
        publisher.publish().expect("alone");
        let state = publisher.state();
        if state.clocks == ClockSet::ALL {
            return state;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never served: {:?}", publisher.state());
}

#[test]
fn the_image_answers_as_the_kernel_does_at_any_address() {
    let _clock = clock_lock::ClockLock::shared();
    for page_below in [true, false] {
        let mapped = Mapped::new(page_below, true);
        let publisher = Publisher::new(mapped.page(), ThisHost, Options::default());
        let ours = mapped.clock_gettime();
        read(ours, libc::CLOCK_MONOTONIC);
        seed(&publisher);
        for round in 0..200 {
            for id in ClockSet::ALL.iter() {
                let id = id as libc::clockid_t;
                let before = read(libc::clock_gettime, id);
                let now = read(ours, id);
                let after = read(libc::clock_gettime, id);
                // The bracket of the kernel's two answers, plus the page's permitted error.
                assert!(
                    now + 1_000 >= before && now <= after + 1_000,
                    "clock {id}, round {round}: {before} {now} {after}"
                );
            }
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_nanos(publisher.state().next_window_ns));
                publisher.publish().expect("alone");
            }
        }
        let state = served(&publisher);
        assert!(state.refreshes > 1 && state.drift_ns.abs() < 1_000, "{state:?}");
        assert!(
            state.age_ns <= state.cap_ns as i64 && state.ns_per_cycle > 0.0,
            "{state:?}"
        );
    }
}

#[test]
fn an_image_that_is_not_to_serve_clocks_never_looks_at_the_page() {
    let image = fastpath_publish::host::image::Image::host();
    let options = fastpath_publish::host::image::Options {
        serve_clocks: false,
        ..fastpath_publish::host::image::Options::at(fastpath_publish::host::image::Placement::at(0))
    };
    let mut bytes = vec![0; image.size()];
    image.instantiate_into(&options, &mut bytes).expect("an instance");
    let vdso = fastpath_publish::host::image::Vdso::parse(&bytes).expect("a vDSO");
    assert!(
        vdso.exports()
            .iter()
            .all(|export| !export.name.contains("clock_gettime")),
        "libc would take a detour"
    );
}

/// Guests with counters of their own, checked by the reader in Rust: an x86 process cannot have its TSC scaled.
#[test]
fn a_guest_reads_its_own_scaled_counter_and_gets_the_hosts_time() {
    let _clock = clock_lock::ClockLock::shared();
    let relations = [
        (1, 0, 0_u64.wrapping_sub(1 << 50)),
        ((3 << 48) / 4, 48, 0_u64.wrapping_sub(1 << 40)),
        ((5 << 32) / 4, 32, 777),
    ];
    for (multiplier, fraction_bits, offset) in relations {
        let mapped = Mapped::new(true, true);
        let relation = Relation::new(multiplier, fraction_bits, offset).expect("a relation");
        let options = Options {
            relation,
            ..Options::default()
        };
        let publisher = Publisher::new(mapped.page(), ThisHost, options);
        seed(&publisher);
        publisher.publish().expect("alone");
        let reader = Reader::new(mapped.page());
        for _ in 0..100 {
            let before = read(libc::clock_gettime, libc::CLOCK_MONOTONIC);
            let Some((sec, nsec)) = reader.read(1, || relation.guest(counter::read())) else {
                publisher.publish().expect("alone");
                continue;
            };
            let after = read(libc::clock_gettime, libc::CLOCK_MONOTONIC);
            let now = sec * 1_000_000_000 + u64::from(nsec);
            assert!(now + 1_000 >= before && now <= after + 1_000, "{before} {now} {after}");
        }
        assert!(publisher.state().refreshes > 0);
    }
}

#[test]
fn a_host_may_bring_samples_of_its_own() {
    let mapped = Mapped::new(true, true);
    let publisher = Publisher::new(mapped.page(), ThisHost, Options::default());
    let mut published = 0;
    for _ in 0..ATTEMPTS {
        if published == 10 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        let sample = fastpath_publish::host::sample::sample(&ThisHost).expect("this host has clocks");
        match publisher.publish_sample(&sample).expect("alone") {
            Refreshed::Published => published += 1,
            Refreshed::Waiting | Refreshed::Missed => {}
            other => panic!("{other:?}"),
        }
        // The same sample a second time has no effect.
        assert_eq!(publisher.publish_sample(&sample), Ok(Refreshed::Waiting));
    }
    assert_eq!(published, 10);
    let state = served(&publisher);
    assert!(state.drift_ns.abs() < 1_000, "{state:?}");
}

#[test]
fn a_new_publisher_on_an_old_page_begins_with_the_kernels_path() {
    let mapped = Mapped::new(true, true);
    let publisher = Publisher::new(mapped.page(), ThisHost, Options::default());
    seed(&publisher);
    let next = Publisher::new(mapped.page(), ThisHost, Options::default());
    let state = next.state();
    assert_eq!(
        (state.clocks, state.withdrawn_reason),
        (ClockSet::NONE, Some(fastpath_publish::host::Reason::NewPublisher))
    );
    seed(&next);
    served(&next);
}
