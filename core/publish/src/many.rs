//! The pages that one publisher writes. A page that is shown to a time namespace gets the anchor with that namespace's
//! offsets; each page has its own clocks. The contents of a page decide nothing here: the anchor in force is remembered,
//! so a client that managed to write to its page affects only itself.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fastpath_clock::{Bracket, VISIBLE_NS, is_behind};
use fastpath_evidence::offsets;
use fastpath_page::clock::base_index;
use fastpath_page::{Anchor, ClockSet, PageChange, PublishError, Stats, Watch, Withdrawal, Writer, publish_changes};

use crate::SharedPage;
use crate::host::{Pages, Reason, ThisHost, counter, init, sample};

/// Offsets of the clocks of a time namespace (time_namespaces(7)) from those here, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offsets {
    /// MONOTONIC and MONOTONIC_RAW.
    pub monotonic_ns: i64,
    /// BOOTTIME.
    pub boottime_ns: i64,
}

impl Offsets {
    /// Returns the anchor as that namespace sees it.
    fn applied_to(self, anchor: Anchor, is_raw: bool) -> Anchor {
        if self == Offsets::default() {
            return anchor;
        }
        let index = |clock: libc::clockid_t| base_index(clock as u32).unwrap_or(0);
        if is_raw {
            return anchor.offset_by(index(libc::CLOCK_MONOTONIC_RAW), self.monotonic_ns);
        }
        anchor
            .offset_by(index(libc::CLOCK_MONOTONIC), self.monotonic_ns)
            .offset_by(index(libc::CLOCK_BOOTTIME), self.boottime_ns)
    }
}

/// A page among many.
pub struct Member {
    /// The page itself, with its header written.
    pub page: SharedPage,
    /// The clocks that it answers.
    pub clocks: ClockSet,
    /// The time namespace of its readers.
    pub offsets: Offsets,
}

impl Member {
    /// Writes a new page's header. Returns also the descriptor for its readers.
    pub fn new(page: SharedPage, clocks: ClockSet, offsets: Offsets) -> io::Result<(Member, OwnedFd)> {
        page.writer().init(&init::of_this_host());
        let reader = page.reader()?;
        Ok((Member { page, clocks, offsets }, reader))
    }
}

/// The anchors of the pages of one namespace.
#[derive(Clone, Copy)]
struct Anchors {
    hres: Anchor,
    raw: Anchor,
}

/// No clock.
const NOTHING: Anchor = Anchor {
    clocks: ClockSet::NONE,
    base_cycles: 0,
    rate: fastpath_page::Rate { mult: 1, shift: 0 },
    cap_cycles: 0,
    base: [fastpath_page::Base {
        sec: 0,
        nsec_shifted: 0,
    }; fastpath_page::layout::BASES],
    utc_error: fastpath_page::anchor::UtcError { ns: 0, mult: 0 },
};

impl Anchors {
    const NOTHING: Anchors = Anchors {
        hres: NOTHING,
        raw: NOTHING,
    };

    fn seen_with(self, offsets: Offsets) -> Anchors {
        Anchors {
            hres: offsets.applied_to(self.hres, false),
            raw: offsets.applied_to(self.raw, true),
        }
    }
}

/// A page, and whether it holds the anchor in force.
struct Entry {
    id: u64,
    member: Arc<Member>,
    follows: bool,
    /// Why it does not; `None`: its first anchor is not due yet.
    reason: Option<Reason>,
}

impl Entry {
    /// Stores the statistics of all pages. A page that answers nothing gets 0 refreshes of this publisher, and the
    /// reason.
    fn set_stats(&self, stats: &Stats) {
        let stats = match self.follows {
            true => *stats,
            false => Stats {
                refreshes: 0,
                withdrawn_reason: stats.withdrawn_reason.or(self.reason),
                ..*stats
            },
        };
        self.member.page.writer().set_stats(&stats);
    }
}

/// Pages that change together, by their readers' time namespace.
pub(crate) struct Many {
    groups: HashMap<Offsets, Vec<Entry>>,
    in_force: Anchors,
    stats: Stats,
    watch: Watch,
    telling_cycles: u64,
}

/// One page's part in a change.
struct Row<'a> {
    writer: Writer<'a>,
    clocks: ClockSet,
    old: &'a Anchors,
    new: &'a Anchors,
    with_raw: bool,
}

impl Row<'_> {
    fn changes(&self) -> impl Iterator<Item = PageChange<'_>> + Clone {
        let Row {
            writer,
            clocks,
            old,
            new,
            with_raw,
        } = self;
        let hres = PageChange::hres(writer, *clocks, Some(&old.hres), &new.hres);
        let raw = (*with_raw && clocks.contains(ClockSet::MONOTONIC_RAW))
            .then(|| PageChange::raw(writer, *clocks, Some(&old.raw), &new.raw));
        std::iter::once(hres).chain(raw)
    }
}

impl Many {
    pub(crate) fn new() -> Many {
        Many {
            groups: HashMap::new(),
            in_force: Anchors::NOTHING,
            stats: Stats::default(),
            watch: Watch::default(),
            telling_cycles: 0,
        }
    }

    /// Stores the offsets in force of the CPUs' counters on all pages, of which no anchor is in force.
    pub(crate) fn store_offsets(&self) {
        let table = offsets::in_force().map(|offsets| offsets.table());
        self.each().for_each(|writer| writer.set_offsets(table.as_deref()));
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = Writer<'_>> {
        self.groups.values().flatten().map(|entry| entry.member.page.writer())
    }

    /// Adds a page. A page of an earlier publisher is withdrawn, and answers again after the next refresh: its last
    /// anchor came from other samples.
    pub(crate) fn add(&mut self, id: u64, member: Arc<Member>) {
        let writer = member.page.writer();
        let is_taken_over = writer.are_in_force();
        if is_taken_over {
            writer.withdraw(Reason::NewPublisher, counter::read);
        }
        writer.set_offsets(offsets::in_force().map(|offsets| offsets.table()).as_deref());
        writer.set_clocks(member.clocks);
        writer.set_watch(&self.watch);
        let entry = Entry {
            id,
            follows: !is_taken_over && self.seed(&member),
            reason: is_taken_over.then_some(Reason::NewPublisher),
            member,
        };
        entry.set_stats(&self.stats);
        self.groups.entry(entry.member.offsets).or_default().push(entry);
    }

    /// Puts the anchor in force on a page that answers nothing.
    fn seed(&self, member: &Member) -> bool {
        let row = Row {
            writer: member.page.writer(),
            clocks: member.clocks,
            old: &Anchors::NOTHING,
            new: &self.in_force.seen_with(member.offsets),
            with_raw: true,
        };
        // The page's readers use the kernel, and our clocks can be behind it while it is slewed.
        let is_behind_kernel = || {
            look().is_some_and(|kernel| {
                let hres = &self.in_force.hres;
                !hres.clocks.is_empty() && is_behind(hres, &kernel, VISIBLE_NS)
            })
        };
        publish_changes(row.changes(), 0, counter::read, is_behind_kernel).is_ok()
    }

    /// Puts the anchor in force on the pages that answer nothing yet.
    fn seed_waiting(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        for entry in groups.values_mut().flatten().filter(|entry| !entry.follows) {
            entry.follows = self.seed(&entry.member);
        }
        self.groups = groups;
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Arc<Member>> {
        for group in self.groups.values_mut() {
            if let Some(at) = group.iter().position(|entry| entry.id == id) {
                return Some(group.swap_remove(at).member);
            }
        }
        None
    }
}

impl Pages for Many {
    fn are_in_force(&self) -> bool {
        false
    }

    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
        is_behind_kernel: impl Fn() -> bool,
    ) -> Result<(), PublishError> {
        let new = Anchors {
            hres: *hres,
            raw: raw.copied().unwrap_or(self.in_force.raw),
        };
        let now = counter();
        let begins_later = (hres.base_cycles.wrapping_sub(now) as i64) > 0;
        if begins_later {
            self.seed_waiting();
        }
        let seen = |offsets: &Offsets| (self.in_force.seen_with(*offsets), new.seen_with(*offsets));
        let groups: Vec<_> = self.groups.iter().map(|(offsets, all)| (all, seen(offsets))).collect();
        let mut rows = Vec::with_capacity(self.groups.values().map(Vec::len).sum());
        // These pages wait, and delay no other page: those that were taken over, until the kernel's clock is past what
        // their readers saw; and those whose readers use the kernel, while our clocks are behind it or the new anchor
        // begins later.
        let mut waiting = Vec::new();
        let behind = std::cell::OnceCell::new();
        let is_behind = || *behind.get_or_init(&is_behind_kernel);
        for (entries, (old, new)) in &groups {
            for entry in *entries {
                let row = Row {
                    writer: entry.member.page.writer(),
                    clocks: entry.member.clocks,
                    old: if entry.follows { old } else { &Anchors::NOTHING },
                    new,
                    with_raw: raw.is_some() || !entry.follows,
                };
                let asks_kernel = !row.old.hres.may_answer_from(now);
                let must_wait = |change: PageChange<'_>| {
                    change.is_below_floor() || (!entry.follows && begins_later && change.leaves_gap())
                };
                if row.changes().any(must_wait) || (asks_kernel && is_behind()) {
                    waiting.push(entry.id);
                } else {
                    rows.push(row);
                }
            }
        }
        // Read at the beginning, and last when all readers have been redirected.
        let asked = Cell::new(None);
        let clocked = || {
            let now = counter();
            let (begun, _) = asked.get().unwrap_or((now, now));
            asked.set(Some((begun, now)));
            now
        };
        let published = match behind.get() {
            Some(true) if rows.is_empty() => Err(PublishError::BehindKernel),
            _ => publish_changes(
                rows.iter().flat_map(Row::changes),
                spare_cycles,
                clocked,
                &is_behind_kernel,
            ),
        };
        self.telling_cycles = asked.get().map_or(0, |(begun, told)| told.saturating_sub(begun));
        published?;
        self.in_force = new;
        for entry in self.groups.values_mut().flatten() {
            entry.follows = !waiting.contains(&entry.id);
        }
        Ok(())
    }

    fn telling_cycles(&self) -> u64 {
        self.telling_cycles
    }

    fn withdraw(&mut self, reason: Reason, counter: impl Fn() -> u64) {
        self.in_force = Anchors::NOTHING;
        self.stats.withdrawn_reason = Some(reason);
        self.each().for_each(|writer| writer.withdraw(reason, &counter));
    }

    fn end(&mut self, counter: impl Fn() -> u64) {
        self.in_force = Anchors::NOTHING;
        self.each().for_each(|writer| writer.end(&counter));
    }

    fn forget(&mut self, clocks: ClockSet) {
        // The remembered anchors stand for the pages: the next change begins with what they answer now.
        for anchor in [&mut self.in_force.hres, &mut self.in_force.raw] {
            anchor.clocks = anchor.clocks.difference(clocks);
        }
        self.each().for_each(|writer| writer.forget(clocks));
    }

    fn note_withdrawal(&mut self, withdrawal: &Withdrawal) {
        self.each().for_each(|writer| writer.note_withdrawal(withdrawal));
    }

    fn set_stats(&mut self, stats: &Stats) {
        self.stats = *stats;
        self.groups.values().flatten().for_each(|entry| entry.set_stats(stats));
    }

    fn set_watch(&mut self, watch: &Watch) {
        self.watch = *watch;
        self.each().for_each(|writer| writer.set_watch(watch));
    }
}

/// Reads the kernel's MONOTONIC once.
pub(crate) fn look() -> Option<Bracket> {
    sample::bracket(&ThisHost, libc::CLOCK_MONOTONIC)
}
