//! Every withdrawal is reported once, with its reason, in the log and on the page.

use std::cell::Cell;

use fastpath_page::Writer;
use fastpath_publish::host::evidence::{Pair, Residuals, Warp};
use fastpath_publish::host::{News, Page, Publisher, PublisherConfig, Reason, Refreshed, Source, init};

/// A counter that ticks twice a nanosecond, and clocks that follow it exactly until it is moved.
struct Simple {
    now_ns: Cell<u64>,
    moved_cycles: Cell<u64>,
}

impl Source for &Simple {
    fn counter(&self) -> u64 {
        self.now_ns.set(self.now_ns.get() + 20);
        2 * self.now_ns.get() + self.moved_cycles.get()
    }

    fn clock(&self, _: libc::clockid_t) -> Option<u64> {
        Some(self.now_ns.get())
    }
}

impl Simple {
    fn new() -> Simple {
        Simple {
            now_ns: Cell::new(SECOND_NS),
            moved_cycles: Cell::new(0),
        }
    }

    /// Publishes for so long, at the wanted times, and returns the last result.
    fn publish_for(&self, publisher: &Publisher<'_, &Simple>, ns: u64) -> Refreshed {
        let until_ns = self.now_ns.get() + ns;
        let mut refreshed = Refreshed::Waiting;
        while self.now_ns.get() < until_ns {
            refreshed = publisher.publish().expect("a sample");
            let window_ns = publisher.state().next_window_ns;
            self.now_ns.set(self.now_ns.get() + window_ns);
        }
        refreshed
    }
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn a_withdrawal_is_reported_once_with_its_reason_and_the_clocks_error() {
    let host = Simple::new();
    let page = Page::zeroed();
    Writer::new(&page).init(&init::of_this_host());
    let publisher = Publisher::new(&page, &host, PublisherConfig::default());
    host.publish_for(&publisher, 2 * SECOND_NS);
    assert_eq!(publisher.take_news(), Ok(None));

    host.moved_cycles.set(2_000_000);
    let at_ns = host.now_ns.get();
    let refreshed = publisher.publish().expect("a sample");
    assert_eq!(refreshed, Refreshed::Withdrawn(Reason::RateImplausible));
    let Ok(Some(News::Withdrawn(reported))) = publisher.take_news() else {
        panic!("the withdrawal was not reported");
    };
    assert_eq!(reported.reason, Reason::RateImplausible);
    assert!(
        reported.ahead_ns.is_some_and(|ns| (990_000..=1_010_000).contains(&ns)),
        "{reported:?}"
    );
    assert!(
        (at_ns..at_ns + 1_000_000).contains(&reported.boottime_ns),
        "{reported:?}"
    );
    let seen = Residuals::of_page(&page);
    assert_eq!((seen.withdrawals, seen.history.len()), (1, 1));
    assert_eq!(seen.withdrawn.as_deref(), Some(reported.reason.to_string().as_str()));
    assert_eq!(seen.history[0].ahead_ns, reported.ahead_ns);

    host.publish_for(&publisher, 2 * SECOND_NS);
    assert_eq!(publisher.take_news(), Ok(Some(News::ServedAgain)));
    let seen = Residuals::of_page(&page);
    assert_eq!((seen.withdrawals, seen.withdrawn), (1, None));
}

#[test]
fn cpus_that_are_apart_withdraw_and_stay_withdrawn_and_are_reported_once() {
    let host = Simple::new();
    let page = Page::zeroed();
    Writer::new(&page).init(&init::of_this_host());
    let publisher = Publisher::new(&page, &host, PublisherConfig::default());
    host.publish_for(&publisher, 2 * SECOND_NS);
    let compared = |least_cycles, most_cycles| Warp {
        cpus: vec![0, 1],
        pairs: vec![Pair {
            cpu: 0,
            other: 1,
            least_cycles,
            most_cycles,
        }],
        ..Warp::default()
    };
    for _ in 0..3 {
        let refreshed = publisher.compared(&compared(500, 900)).expect("not busy");
        assert_eq!(refreshed, Refreshed::Withdrawn(Reason::Warp));
        assert_eq!(host.publish_for(&publisher, 3 * SECOND_NS), Refreshed::Waiting);
        assert_eq!(publisher.read(1), None);
    }
    let seen = Residuals::of_page(&page);
    assert_eq!(
        (seen.withdrawals, seen.warp_tests, seen.warp_within_cycles),
        (1, 3, Some(900))
    );
    assert!(matches!(publisher.take_news(), Ok(Some(News::Withdrawn(_)))));

    assert_eq!(publisher.compared(&compared(-80, 90)), Ok(Refreshed::Waiting));
    assert_eq!(host.publish_for(&publisher, 5 * SECOND_NS), Refreshed::Published);
    assert_eq!(publisher.take_news(), Ok(Some(News::ServedAgain)));
    assert!(publisher.read(1).is_some());
}
