//! The exported data about pages and their publishers.

use std::collections::HashMap;
use std::time::Duration;

use fastpath_doctor::{PageFacts, Served, ServedPage};
use fastpath_evidence::STALE;

use super::metrics::Family;

/// State of a page, as its readers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Serving,
    /// Published for no clock, as under `run --without-vdso` without `--clocks`.
    Idle,
    /// Without an anchor yet.
    Starting,
    /// Without an anchor for so long that readers fall back to the kernel.
    Stale,
    Withdrawn,
    /// This process may not read the page, or not the counter.
    Unknown,
}

impl PageState {
    const ALL: [(PageState, &str); 6] = [
        (PageState::Serving, "serving"),
        (PageState::Idle, "idle"),
        (PageState::Starting, "starting"),
        (PageState::Stale, "stale"),
        (PageState::Withdrawn, "withdrawn"),
        (PageState::Unknown, "unknown"),
    ];

    fn from_page(page: &PageFacts) -> PageState {
        if page.withdrawn.is_some() {
            return PageState::Withdrawn;
        }
        let is_idle = page.clocks.as_ref().is_some_and(Vec::is_empty);
        match (page.refreshes, &page.serves, page.age_ns) {
            (None, ..) | (_, None, _) => PageState::Unknown,
            _ if is_idle => PageState::Idle,
            (.., None) => PageState::Starting,
            (.., Some(ns)) if Duration::from_nanos(ns) > STALE => PageState::Stale,
            _ => PageState::Serving,
        }
    }
}

/// Anchors published on all pages seen since the start, those that are gone included: a counter must not go down.
#[derive(Default)]
pub struct Refreshes {
    total: u64,
    /// Those of the pages of the last look, by inode.
    by_page: HashMap<u64, u64>,
}

impl Refreshes {
    /// Adds the anchors since the last look; returns the total.
    pub fn add(&mut self, pages: &[ServedPage]) -> u64 {
        let mut by_page = HashMap::new();
        for page in pages {
            let before = self.by_page.get(&page.inode).copied();
            let Some(now) = page.facts.refreshes.or(before) else {
                continue;
            };
            // Another page can get the inode of one that is gone.
            self.total += now.checked_sub(before.unwrap_or(0)).unwrap_or(now);
            by_page.insert(page.inode, now);
        }
        self.by_page = by_page;
        self.total
    }
}

/// The publishers in as many series as there are states: each program of `run` has a page of its own, and a host may
/// have thousands.
pub fn publishers(served: &Served, anchors: u64) -> Vec<Family> {
    let mut pages = Family::gauge(
        "fastpath_publisher_pages",
        "Pages by state; each has a publisher of its own. Only those that serve are read, else the kernel's clock is.",
    );
    let mut processes = Family::gauge(
        "fastpath_served_processes",
        "Processes on fastpath that can be seen, by the state of their page.",
    );
    let states: Vec<PageState> = served
        .pages
        .iter()
        .map(|page| PageState::from_page(&page.facts))
        .collect();
    for (state, name) in PageState::ALL {
        let in_state = || {
            let both = states.iter().zip(&served.pages);
            both.filter(|(of, _)| **of == state).map(|(_, page)| page)
        };
        pages.add(&[("state", name)], in_state().count() as f64);
        let count: u64 = in_state().map(|page| page.processes).sum();
        processes.add(&[("state", name)], count as f64);
    }
    let of_states = |wanted: &'static [PageState]| {
        let both = states.iter().zip(&served.pages);
        both.filter(|(state, _)| wanted.contains(state))
            .map(|(_, page)| &page.facts)
    };
    let errors = of_states(&[PageState::Serving]).filter_map(|facts| facts.residual_ns);
    let ages = of_states(&[PageState::Serving, PageState::Stale]).filter_map(|facts| facts.age_ns);
    vec![
        pages,
        processes,
        Family::counter("fastpath_publisher_refreshes", "Anchors published, on all pages.").with(anchors as f64),
        Family::gauge(
            "fastpath_publisher_residual_max_seconds",
            "Largest error of a serving page against the kernel's clock before its last refresh.",
        )
        .with(errors.map(i64::unsigned_abs).max().map(|ns| ns as f64 / 1e9)),
        Family::gauge(
            "fastpath_publisher_page_age_max_seconds",
            "Age of the newest anchor on the page where that is oldest; withdrawn pages do not count.",
        )
        .with(ages.max().map(|ns| ns as f64 / 1e9)),
        Family::gauge(
            "fastpath_processes_unreadable",
            "Processes whose mappings cannot be read.",
        )
        .with(served.unreadable as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Format, text};
    use super::*;

    fn page(inode: u64, facts: PageFacts) -> ServedPage {
        ServedPage {
            inode,
            processes: 2,
            facts,
        }
    }

    fn serving() -> PageFacts {
        PageFacts {
            serves: Some(vec!["MONOTONIC".into()]),
            clocks: Some(vec!["MONOTONIC".into()]),
            age_ns: Some(50_000_000),
            refreshes: Some(10),
            residual_ns: Some(-30),
            publisher_pid: Some(7),
            ..PageFacts::default()
        }
    }

    fn in_each_state() -> [(PageState, PageFacts); 6] {
        let expired = || Some(vec![]);
        [
            (PageState::Serving, serving()),
            (
                PageState::Idle,
                PageFacts {
                    serves: Some(vec![]),
                    clocks: Some(vec![]),
                    ..serving()
                },
            ),
            (
                PageState::Starting,
                PageFacts {
                    serves: expired(),
                    age_ns: None,
                    ..serving()
                },
            ),
            (
                PageState::Stale,
                PageFacts {
                    serves: expired(),
                    age_ns: Some(60_000_000_000),
                    residual_ns: Some(9_000),
                    ..serving()
                },
            ),
            (
                PageState::Withdrawn,
                PageFacts {
                    serves: expired(),
                    age_ns: Some(3_600_000_000_000),
                    withdrawn: Some("the counter stopped".to_owned()),
                    ..serving()
                },
            ),
            (PageState::Unknown, PageFacts::default()),
        ]
    }

    /// Returns the lines with values, of this many pages in each state.
    fn lines(pages: u64) -> Vec<String> {
        let states = in_each_state();
        let pages = (0..pages).flat_map(|number| {
            let with_inode =
                |(at, (_, facts)): (usize, &(PageState, PageFacts))| page(number * 6 + at as u64, facts.clone());
            states.iter().enumerate().map(with_inode).collect::<Vec<_>>()
        });
        let served = Served {
            pages: pages.collect(),
            unreadable: 3,
        };
        let anchors = Refreshes::default().add(&served.pages);
        let text = text(&publishers(&served, anchors), Format::Prometheus);
        let is_value = |line: &&str| !line.starts_with('#');
        text.lines().filter(is_value).map(str::to_owned).collect()
    }

    #[test]
    fn the_state_of_a_page_is_what_its_readers_see() {
        for (state, facts) in in_each_state() {
            assert_eq!(PageState::from_page(&facts), state, "{facts:?}");
        }
    }

    #[test]
    fn thousands_of_pages_make_no_more_series_than_one() {
        let (few, many) = (lines(1), lines(2000));
        let series = |lines: &[String]| -> Vec<String> {
            let names = lines.iter().map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
            names.collect()
        };
        assert_eq!(series(&few), series(&many));
        assert_eq!(many.len(), 16);
        for line in [
            "fastpath_publisher_pages{state=\"serving\"} 2000",
            "fastpath_publisher_pages{state=\"unknown\"} 2000",
            "fastpath_served_processes{state=\"withdrawn\"} 4000",
            "fastpath_publisher_refreshes_total 100000",
            "fastpath_publisher_residual_max_seconds 0.00000003",
            "fastpath_publisher_page_age_max_seconds 60",
            "fastpath_processes_unreadable 3",
        ] {
            assert!(many.iter().any(|seen| seen == line), "{line}: {many:#?}");
        }
    }

    #[test]
    fn anchors_of_pages_that_are_gone_stay_counted() {
        let mut refreshes = Refreshes::default();
        let with = |inode, refreshes| {
            let facts = PageFacts { refreshes, ..serving() };
            page(inode, facts)
        };
        assert_eq!(refreshes.add(&[with(1, Some(10)), with(2, Some(5))]), 15);
        assert_eq!(refreshes.add(&[with(1, None), with(3, Some(4))]), 19);
        assert_eq!(refreshes.add(&[with(1, Some(12)), with(3, Some(1))]), 22);
        assert_eq!(refreshes.add(&[]), 22);
    }
}
