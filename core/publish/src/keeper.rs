//! The loop that keeps pages up to date: it sleeps until the next refresh, or until an event that cannot wait for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::host::{News, Occasion, Refresher, Source, ThisHost, sample};
use fastpath_clock::{Config, Ntp, Sample};
use fastpath_evidence::{CLOCKSOURCE, SUSPENDS, Trust, counter, offsets};
use fastpath_page::{ClockSet, Reason};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::kernel_file::KernelFile;
use crate::many::{Many, look};
use crate::ntp::NtpWatch;
use crate::patrol::{PatrolThread, Rhythm};
use crate::settings::SettingsWatch;
use crate::steps::StepWatch;

/// Time to wait after a refresh that missed its moment: by then the anchor before it is in force.
const LEAD_NS: u64 = crate::host::LEAD_NS;
/// Time between questions for changed kernel settings, where the clocks are being steered and [`SettingsWatch`] is not
/// available. A slew of 500 ppm, or one from one end to the other, makes 5 or 10 us of this. Asking takes two system
/// calls; on a host whose clocks are not steered, the question at each refresh is enough.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Time between questions for a while after a change: a slew by 8 %, as chronyd does it, ends soon, and 2 ms of it are
/// 170 us.
const ASK_OFTEN: Duration = Duration::from_millis(2);
/// Length of that while.
const OFTEN_FOR: Duration = Duration::from_secs(5);
/// Time from the kernel's check of CAP_SYS_TIME to the change of the clock: some microseconds, unless the caller is
/// interrupted.
const CHECK_TO_CHANGE: Duration = Duration::from_micros(20);
/// Time within which an interrupted caller continues; the next refresh finds later changes.
const CHANGED_WITHIN: Duration = Duration::from_millis(20);
/// Time before a [`SettingsWatch`] is made, which takes a part of a millisecond: programs that end sooner do without.
const WATCH_SETTINGS_AFTER: Duration = Duration::from_secs(1);
/// Time for which the kernel's state is taken for unchanged while a [`SettingsWatch`] reports nothing: less than a
/// window by default, ten windows on a counter that is watched closely. The two calls cost as much as a sample.
const ASKED_WITHIN: Duration = Duration::from_millis(90);
/// Time until the next try after a step of CLOCK_REALTIME in the middle of a sample.
const RETRY: Duration = Duration::from_micros(100);

/// Time between questions whether offsets have been measured.
const WAIT_FOR_OFFSETS: Duration = Duration::from_millis(100);

/// How far BOOTTIME is ahead of MONOTONIC, between two bounds, in nanoseconds: it grows at a suspend only.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asleep {
    least_ns: i64,
    most_ns: i64,
}

impl Asleep {
    fn look() -> Option<Asleep> {
        let read = |clock| Some(ThisHost.clock(clock)?.cast_signed());
        let before = read(libc::CLOCK_MONOTONIC)?;
        let boottime = read(libc::CLOCK_BOOTTIME)?;
        let after = read(libc::CLOCK_MONOTONIC)?;
        Some(Asleep {
            least_ns: boottime - after,
            most_ns: boottime - before,
        })
    }

    /// Returns whether both can be of the same suspended time. Clocks are rounded to nanoseconds, and no suspend is as short as
    /// a microsecond.
    fn agrees(self, other: Asleep) -> bool {
        const ROUNDED_NS: i64 = 1_000;
        self.least_ns <= other.most_ns + ROUNDED_NS && other.least_ns <= self.most_ns + ROUNDED_NS
    }

    fn narrowed_by(self, other: Asleep) -> Asleep {
        Asleep {
            least_ns: self.least_ns.max(other.least_ns),
            most_ns: self.most_ns.min(other.most_ns),
        }
    }
}

/// The events that ended a sleep early.
#[derive(Default)]
struct Woken {
    /// CLOCK_REALTIME was stepped.
    by_step: bool,
    /// The counters of two CPUs disagree.
    by_patrol: bool,
    /// A process is about to change the clocks.
    by_settings: bool,
}

/// State of the [`SettingsWatch`].
enum Settings {
    /// To be made at this time.
    Later(Instant),
    Watched(SettingsWatch),
    /// Not available here.
    Unknown,
}

/// Follows this host's clocks and keeps `pages` up to date.
pub(crate) struct Keeper {
    pub pages: Many,
    refresher: Refresher,
    steps: Option<StepWatch>,
    ntp: Option<NtpWatch>,
    clocksource: Option<KernelFile>,
    suspends: Option<KernelFile>,
    settings: Settings,
    patrol: Option<PatrolThread>,
    trust: Trust,
    may_measure_offsets: bool,
    /// Where offsets are in force: how long the machine was suspended.
    asleep: Option<Asleep>,
    /// Whether the offsets in force may be wrong. Others are being measured, and nothing is published until then.
    awaits_offsets: bool,
    config: Config,
    report: Box<dyn FnMut(&News) + Send>,
    next: Instant,
    /// When to ask for the kernel's state, besides at each refresh.
    ask_next: Option<Instant>,
    ask_often_until: Instant,
    has_asked: bool,
    /// The kernel's state at the last question, and when that was.
    asked: Option<(Ntp, Instant)>,
}

impl Keeper {
    /// Starts with pages that no other publisher writes any more. `clocks` are those that any of them answers.
    pub(crate) fn new(mut pages: Many, clocks: ClockSet, trust: Trust) -> Keeper {
        let config = Config {
            clocks,
            ..Config::default()
        };
        let allows_non_invariant = trust == Trust::AllowNonInvariant;
        let config = if allows_non_invariant { config.watched() } else { config };
        let mut refresher = Refresher::new(config, 0);
        let boottime_ns = ThisHost.clock(libc::CLOCK_BOOTTIME).unwrap_or(0);
        // Anchors in force were made by another publisher, from samples that are not available here.
        refresher.begin(&mut pages, boottime_ns, allows_non_invariant, counter::read);
        Keeper {
            pages,
            refresher,
            steps: None,
            ntp: None,
            clocksource: None,
            suspends: None,
            settings: Settings::Unknown,
            patrol: None,
            trust,
            may_measure_offsets: allows_non_invariant && offsets::would_help(),
            asleep: None,
            awaits_offsets: false,
            config,
            report: Box::new(|_| {}),
            next: Instant::now(),
            ask_next: None,
            ask_often_until: Instant::now(),
            has_asked: false,
            asked: None,
        }
    }

    pub(crate) fn watch_for_steps(&mut self) {
        self.steps = StepWatch::new().ok();
        self.ntp = NtpWatch::new();
        self.clocksource = KernelFile::new(CLOCKSOURCE);
        self.suspends = KernelFile::new(SUSPENDS);
        if self.ntp.is_some() {
            self.settings = Settings::Later(Instant::now() + WATCH_SETTINGS_AFTER);
        }
        self.refresher.set_publisher_pid(std::process::id());
    }

    /// Starts the comparisons, once the counter was examined. Counters that have offsets are watched closely.
    pub(crate) fn compare_cpus(&mut self) -> io::Result<()> {
        if offsets::in_force().is_some() && self.trust == Trust::Invariant {
            self.config = self.config.watched();
            self.refresher = Refresher::new(self.config, 0);
            self.refresher.set_publisher_pid(std::process::id());
            self.may_measure_offsets = true;
        }
        self.asleep = Asleep::look();
        self.patrol = Some(PatrolThread::start(
            Rhythm::from_config(&self.config),
            self.may_measure_offsets,
        )?);
        Ok(())
    }

    pub(crate) fn on_news(&mut self, report: impl FnMut(&News) + Send + 'static) {
        self.report = Box::new(report);
    }

    /// Sleeps until something is due, and does it. Returns true if any of `others` is readable.
    pub(crate) fn turn(&mut self, others: &[BorrowedFd<'_>]) -> bool {
        let wake = self.ask_next.map_or(self.next, |ask| ask.min(self.next));
        let timeout = wake.saturating_duration_since(Instant::now());
        let (woken, by_other) = self.sleep(timeout, others);
        if self.was_suspended() {
            self.measure_offsets_anew();
        }
        if woken.by_patrol {
            self.take_in_comparison(true);
        }
        if woken.by_step {
            self.follow_step();
        }
        let now = Instant::now();
        if woken.by_settings
            && let Settings::Watched(settings) = &mut self.settings
        {
            settings.take();
            self.ask_often_until = now + CHANGED_WITHIN;
            self.ask_next = Some(now + CHECK_TO_CHANGE);
        }
        let is_due = now >= self.next;
        if self.awaits_offsets {
            self.ask_next = None;
            self.next = now + WAIT_FOR_OFFSETS;
            self.take_in_comparison(false);
        } else if is_due || self.ask_next.is_some_and(|ask| now >= ask) {
            self.handle_settings(now);
            let ntp = self.kernel_state(now);
            let is_news = ntp.is_some_and(|ntp| self.refresher.is_news(&ntp));
            self.ask_next = ntp.and_then(|ntp| self.next_question(now, &ntp, is_news));
            if is_due || is_news {
                self.refresh(ntp);
                self.take_in_comparison(false);
            }
        }
        if let Some(news) = self.refresher.take_news() {
            (self.report)(&news);
        }
        by_other
    }

    /// Returns the kernel's state by adjtimex(2), or what it was a moment ago if nothing can have changed it since.
    fn kernel_state(&mut self, now: Instant) -> Option<Ntp> {
        let is_watched = matches!(self.settings, Settings::Watched(_)) && now >= self.ask_often_until;
        if let Some((ntp, at)) = self.asked
            && is_watched
            && ntp.is_steady()
            && now.duration_since(at) < ASKED_WITHIN
        {
            return Some(ntp);
        }
        let ntp = self.ntp.as_ref().and_then(NtpWatch::read);
        self.asked = ntp.map(|ntp| (ntp, now));
        ntp
    }

    fn handle_settings(&mut self, now: Instant) {
        if let Settings::Later(at) = self.settings
            && now >= at
        {
            self.settings = SettingsWatch::new().map_or(Settings::Unknown, Settings::Watched);
        }
    }

    /// Returns when to ask for the kernel's state again, if not at the next refresh. `ntp` is the present state.
    fn next_question(&mut self, now: Instant, ntp: &Ntp, is_news: bool) -> Option<Instant> {
        let is_watched = matches!(self.settings, Settings::Watched(_));
        // The first state that is read may be as old as the host.
        if is_news && !is_watched && std::mem::replace(&mut self.has_asked, true) {
            self.ask_often_until = now + OFTEN_FOR;
        }
        if now < self.ask_often_until {
            Some(now + ASK_OFTEN)
        } else {
            (ntp.is_synchronized && !is_watched).then(|| now + ASK_EVERY)
        }
    }

    fn sleep(&self, timeout: Duration, others: &[BorrowedFd<'_>]) -> (Woken, bool) {
        let steps = self.steps.as_ref().map(AsFd::as_fd);
        let patrol = self.patrol.as_ref().map(AsFd::as_fd);
        let settings = match &self.settings {
            Settings::Watched(watch) => Some(watch.as_fd()),
            _ => None,
        };
        let own = [steps, patrol, settings].into_iter().flatten();
        let mut fds: Vec<_> = own
            .chain(others.iter().copied())
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let ready = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None).is_ok();
        let mut woken = fds.iter().map(|fd| ready && fd.any().unwrap_or(false));
        let mut by = |fd: Option<BorrowedFd<'_>>| fd.is_some() && woken.next() == Some(true);
        let woken = Woken {
            by_step: by(steps),
            by_patrol: by(patrol),
            by_settings: by(settings),
        };
        let by_other = others.iter().filter(|other| by(Some(**other))).count() > 0;
        (woken, by_other)
    }

    /// Returns whether the machine was suspended since the last call, where offsets are in force.
    fn was_suspended(&mut self) -> bool {
        if offsets::in_force().is_none() || self.patrol.is_none() {
            return false;
        }
        let Some(now) = Asleep::look() else { return false };
        let known = self.asleep.get_or_insert(now);
        let has_changed = !known.agrees(now);
        *known = if has_changed { now } else { known.narrowed_by(now) };
        has_changed
    }

    /// Withdraws all clocks until the offsets are measured anew: firmware may have changed the counters.
    fn measure_offsets_anew(&mut self) {
        self.refresher
            .withdraw(&mut self.pages, Reason::Suspended, counter::read);
        if let Some(patrol) = &self.patrol {
            patrol.measure_anew();
            self.awaits_offsets = true;
        }
    }

    fn take_in_comparison(&mut self, was_woken: bool) {
        if let Some(warp) = self.patrol.as_ref().and_then(|patrol| patrol.take(was_woken))
            && !self.awaits_offsets
        {
            self.refresher.compared(&mut self.pages, &warp, counter::read);
        }
        if let Some(measured) = self.patrol.as_ref().and_then(PatrolThread::take_offsets) {
            self.refresher.withdraw(&mut self.pages, Reason::Warp, counter::read);
            offsets::put_in_force(measured);
            self.pages.store_offsets();
            self.awaits_offsets = false;
        }
    }

    fn follow_step(&mut self) {
        if let Some(steps) = &mut self.steps {
            steps.rearm();
        }
        if self.awaits_offsets {
            return;
        }
        // What the kernel said before does not hold for the new time.
        self.asked = None;
        self.refresher.refresh(
            Occasion::Step,
            &mut self.pages,
            counter::read,
            look,
            || {
                let ntp = self.ntp.as_ref().and_then(NtpWatch::read);
                let sample = sample::careful_sample(&ThisHost)?;
                Some(Sample { ntp, ..sample })
            },
            || std::thread::sleep(RETRY),
        );
    }

    /// Takes one sample and carries out its result. `ntp` is the kernel's state, read just before.
    pub(crate) fn refresh(&mut self, ntp: Option<Ntp>) {
        if self.clocksource.as_mut().is_some_and(KernelFile::has_changed) {
            self.refresher.clocksource_changed(&mut self.pages, counter::read);
        }
        // The kernel counts a suspend a moment after programs run again. What a counter did meanwhile is no fault.
        if self.refresher.is_withdrawn() && self.suspends.as_mut().is_some_and(KernelFile::has_changed) {
            self.refresher.suspended(&mut self.pages, counter::read);
        }
        self.refresher.refresh(
            Occasion::Due,
            &mut self.pages,
            counter::read,
            look,
            || {
                let sample = sample::sample(&ThisHost)?;
                Some(Sample { ntp, ..sample })
            },
            || std::thread::sleep(Duration::from_nanos(LEAD_NS)),
        );
        self.next = Instant::now() + Duration::from_nanos(self.refresher.next_window_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspend_is_noticed_and_slow_reads_are_none() {
        let asleep = |least_ns, most_ns| Asleep { least_ns, most_ns };
        // Reads that took 2 us, then one that was interrupted for 20 ms.
        let known = asleep(5_000_000_000, 5_000_002_000).narrowed_by(asleep(4_999_999_500, 5_000_001_500));
        assert!(known.agrees(asleep(4_980_000_000, 5_000_000_900)));
        assert!(known.narrowed_by(asleep(4_980_000_000, 5_000_000_900)).agrees(known));
        // A second later, and ten milliseconds.
        assert!(!known.agrees(asleep(6_000_000_000, 6_000_002_000)));
        assert!(!known.agrees(asleep(5_010_000_000, 5_010_002_000)));
        let now = Asleep::look().expect("both clocks");
        assert!(now.least_ns <= now.most_ns && Asleep::look().is_some_and(|later| later.agrees(now)));
    }
}
