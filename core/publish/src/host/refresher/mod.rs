//! Carries out the result of each sample on the page, and retries if an anchor was too late.

use std::fmt;

use fastpath_clock::{AnchorDecision, Bracket, Config, Discipline, Ntp, Reason, Sample};
use fastpath_evidence::Warp;
use fastpath_page::writer::{LOOK_AHEAD_NS, PublishError, Stats, Watch, Withdrawal};
use fastpath_page::{Anchor, ClockSet, Rate};

use crate::host::pages::Pages;

/// Lead of a new anchor: how far ahead of the counter it takes effect, in nanoseconds: long enough to write it before
/// (some 100 ns), short enough that the prediction it was computed from holds.
pub const LEAD_NS: u64 = 50_000;
/// Longest lead, in nanoseconds. It doubles up to this on a host that misses it repeatedly. Readers use the previous
/// anchor until an anchor's base, so a long lead only delays a step of REALTIME.
const LONGEST_LEAD_NS: u64 = 2_000_000;
/// Attempts to publish one anchor. Only a publisher that is preempted within [`LEAD_NS`] each time needs more than one.
const ATTEMPTS: u32 = 5;

/// Largest number of reads of the kernel's clock right before a change. More than one is needed only when a read is
/// interrupted.
const LOOKS: u32 = 3;

/// What a refresh is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A sample is due.
    Due,
    /// The kernel reports that REALTIME was set: REALTIME and TAI follow at once.
    Step,
}

/// Result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// Nothing to publish yet: anchors in force stay in force.
    Waiting,
    /// New anchors are on the page.
    Published,
    /// The anchors no longer show the kernel's time, and were withdrawn.
    Withdrawn(Reason),
    /// The counter, or the kernel's clock, passed the new anchor's base before it could be published: another sample is
    /// due at once.
    Missed,
    /// A clock could not be read.
    NoSample,
}

/// An event for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Anchors were taken off the page: from now on readers fall back to the kernel.
    Withdrawn(Withdrawal),
    /// The page answers again.
    ServedAgain,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Withdrawn(withdrawal) => {
                f.write_str("clocks are left to the kernel")?;
                if let Some(ns) = withdrawal.ahead_ns {
                    write!(f, " (they were off by {ns} ns at the last sample)")?;
                }
                write!(f, ": {}", withdrawal.reason)
            }
            News::ServedAgain => f.write_str("clocks are served again"),
        }
    }
}

/// Follows the host's clocks and keeps a page up to date. It does not sleep or wake threads: its caller does.
#[derive(Clone, Debug)]
pub struct Refresher {
    discipline: Discipline,
    rate: Option<Rate>,
    lead_ns: u64,
    stats: Stats,
    watch: Watch,
    last: Option<Sample>,
    news: Option<News>,
}

impl Refresher {
    /// Returns a refresher without any samples. `publisher_pid` is for statistics; 0: none.
    pub fn new(config: Config, publisher_pid: u32) -> Refresher {
        Refresher {
            discipline: Discipline::new(config),
            rate: None,
            lead_ns: LEAD_NS,
            stats: Stats {
                publisher_pid,
                ..Stats::default()
            },
            watch: Watch::default(),
            last: None,
            news: None,
        }
    }

    /// Starts with a page: stores the statistics of the counter there, and withdraws what another publisher left.
    ///
    /// `boottime_ns` is the host's CLOCK_BOOTTIME; `allows_non_invariant` says that the counter may be used although
    /// its rate is not stated to be constant.
    pub fn begin(
        &mut self,
        pages: &mut impl Pages,
        boottime_ns: u64,
        allows_non_invariant: bool,
        counter: impl Fn() -> u64,
    ) {
        self.watch.allows_non_invariant = allows_non_invariant;
        pages.set_watch(&self.watch);
        if pages.are_in_force() {
            self.take_off(pages, Reason::NewPublisher, None, boottime_ns, counter);
        }
        pages.set_stats(&self.stats);
    }

    /// Returns the last event for a log that was not taken yet.
    pub fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// Takes a comparison of the CPUs' counters. While two are apart, nothing is published.
    pub fn compared(&mut self, pages: &mut impl Pages, warp: &Warp, counter: impl Fn() -> u64) -> Refreshed {
        self.watch.warp_tests = self.watch.warp_tests.wrapping_add(1);
        self.watch.warp_within_cycles = warp.within_cycles();
        pages.set_watch(&self.watch);
        let decision = self.discipline.compared(warp.furthest_apart().is_some());
        self.withdraw_if(pages, decision, counter)
    }

    /// Withdraws the anchors because the kernel's clocks run on another clocksource: the counter is measured anew.
    pub fn clocksource_changed(&mut self, pages: &mut impl Pages, counter: impl Fn() -> u64) {
        let decision = self.discipline.clocksource_changed();
        self.withdraw_if(pages, decision, counter);
    }

    /// Withdraws the anchors because the machine was suspended a moment ago, which may be why they are withdrawn already.
    pub fn suspended(&mut self, pages: &mut impl Pages, counter: impl Fn() -> u64) {
        let decision = self.discipline.suspended();
        self.withdraw_if(pages, decision, counter);
    }

    /// Withdraws the anchors if it is so decided. `ahead_ns` of such a withdrawal is not known.
    fn withdraw_if(
        &mut self,
        pages: &mut impl Pages,
        decision: AnchorDecision,
        counter: impl Fn() -> u64,
    ) -> Refreshed {
        let AnchorDecision::Withdraw(reason) = decision else {
            return Refreshed::Waiting;
        };
        self.withdraw(pages, reason, counter);
        Refreshed::Withdrawn(reason)
    }

    /// Returns whether the anchors are withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.stats.withdrawn_reason.is_some()
    }

    /// Stores on the page, at the next refresh, that this process keeps it.
    pub fn set_publisher_pid(&mut self, pid: u32) {
        self.stats.publisher_pid = pid;
    }

    /// Returns whether the kernel's state, by adjtimex(2), makes a sample due at once.
    pub fn is_news(&self, ntp: &Ntp) -> bool {
        self.discipline.is_news(ntp)
    }

    /// Returns the time from the last sample to the next, in nanoseconds.
    pub fn next_window_ns(&self) -> u64 {
        self.discipline.next_window_ns()
    }

    /// Takes one sample and carries out its result. If the anchor was too late, pauses and takes another sample, a few
    /// times. If it is too late each time after a step, readers fall back to the kernel until the next refresh.
    ///
    /// `counter` and the samples are in the counts that the readers of the page read. `look` reads the kernel's
    /// MONOTONIC once, in the same counts.
    pub fn refresh(
        &mut self,
        occasion: Occasion,
        pages: &mut impl Pages,
        counter: impl Fn() -> u64,
        look: impl Fn() -> Option<Bracket>,
        mut sample: impl FnMut() -> Option<Sample>,
        mut pause: impl FnMut(),
    ) -> Refreshed {
        let is_step = occasion == Occasion::Step;
        if is_step {
            // The page's time of these clocks is known to be wrong until there is a new anchor.
            pages.forget(ClockSet::REALTIME | ClockSet::TAI);
        }
        let mut refreshed = Refreshed::NoSample;
        for _ in 0..ATTEMPTS {
            let Some(sample) = sample() else { break };
            let lead_cycles = self.lead_cycles(pages, counter());
            let base = || counter().wrapping_add(lead_cycles);
            let decision = if is_step {
                self.discipline.step(&sample, base)
            } else if self.last == Some(sample) {
                // The same sample twice would look like a counter that stopped.
                return Refreshed::Waiting;
            } else {
                self.last = Some(sample);
                self.discipline.observe(&sample, base)
            };
            refreshed = self.carry_out(pages, decision, &counter, || undisturbed(&look, &sample));
            // Waiting after a step: no clock was stepped after all, or the step fell into the sample.
            if refreshed != Refreshed::Missed && !(is_step && refreshed == Refreshed::Waiting) {
                break;
            }
            pause();
        }
        if is_step && refreshed == Refreshed::Missed {
            self.withdraw(pages, Reason::StepMissed, counter);
        }
        refreshed
    }

    /// Withdraws all clocks from the page; `status` shows `reason`. The next anchors continue from those that were in
    /// force.
    pub fn withdraw(&mut self, pages: &mut impl Pages, reason: Reason, counter: impl Fn() -> u64) {
        self.take_off(pages, reason, None, self.sampled_boottime_ns(), counter);
    }

    /// Returns how far ahead of the counter an anchor takes effect.
    fn lead_cycles(&self, pages: &impl Pages, now: u64) -> u64 {
        let may_answer = |anchor: Option<Anchor>| anchor.is_some_and(|anchor| anchor.may_answer_from(now));
        // Without readers of the previous anchor, the next may begin in the present.
        if !may_answer(self.discipline.hres()) && !may_answer(self.discipline.raw()) {
            return 0;
        }
        self.rate.map_or(0, |rate| {
            // Doubled, because caches may be colder the next time, and limited, because an interrupted attempt is not
            // representative.
            let telling_cycles = (2 * pages.telling_cycles()).min(rate.cycles_for_ns(LONGEST_LEAD_NS));
            rate.cycles_for_ns(self.lead_ns) + telling_cycles
        })
    }

    fn carry_out(
        &mut self,
        pages: &mut impl Pages,
        decision: AnchorDecision,
        counter: impl Fn() -> u64,
        look: impl Fn() -> Option<Bracket>,
    ) -> Refreshed {
        match decision {
            AnchorDecision::Wait => Refreshed::Waiting,
            AnchorDecision::Withdraw(reason) => {
                let ahead_ns = self.discipline.ahead_ns();
                self.take_off(pages, reason, ahead_ns, self.sampled_boottime_ns(), counter);
                Refreshed::Withdrawn(reason)
            }
            AnchorDecision::Publish { hres, raw, residual_ns } => {
                self.publish(pages, &hres, raw.as_ref(), residual_ns, counter, look)
            }
        }
    }

    fn take_off(
        &mut self,
        pages: &mut impl Pages,
        reason: Reason,
        ahead_ns: Option<i64>,
        boottime_ns: u64,
        counter: impl Fn() -> u64,
    ) {
        pages.withdraw(reason, &counter);
        self.ended(counter());
        // A further withdrawal before the clocks were served again is not reported.
        if self.stats.withdrawn_reason != Some(reason) {
            let withdrawal = Withdrawal {
                boottime_ns,
                reason,
                ahead_ns,
            };
            pages.note_withdrawal(&withdrawal);
            self.news = Some(News::Withdrawn(withdrawal));
        }
        self.stats.withdrawn_reason = Some(reason);
    }

    /// Continues after the anchors on the page have ended, before the counter showed `now`.
    fn ended(&mut self, now: u64) {
        // From here on no reader uses the anchors, except one that looks ahead of its counter read by a little.
        let spare_cycles = self.rate.map_or(0, |rate| rate.cycles_for_ns(LOOK_AHEAD_NS));
        self.discipline.end_at(now.wrapping_add(spare_cycles));
    }

    /// Returns CLOCK_BOOTTIME at the last sample; 0 if unknown.
    fn sampled_boottime_ns(&self) -> u64 {
        self.last.and_then(|sample| sample.boot).map_or(0, |boot| boot.time_ns)
    }

    fn publish(
        &mut self,
        pages: &mut impl Pages,
        hres: &Anchor,
        raw: Option<&Anchor>,
        residual_ns: i64,
        counter: impl Fn() -> u64,
        look: impl Fn() -> Option<Bracket>,
    ) -> Refreshed {
        if self.discipline.is_late(counter()) {
            self.discipline.retract();
            return Refreshed::Missed;
        }
        // By the kernel's rate, because an anchor may run much slower.
        let rate = self.discipline.rate().unwrap_or(hres.rate);
        let spare_cycles = rate.cycles_for_ns(LOOK_AHEAD_NS);
        let discipline = &self.discipline;
        let is_behind_kernel = || look().is_some_and(|kernel| discipline.is_behind(&kernel));
        match pages.publish(hres, raw, spare_cycles, &counter, is_behind_kernel) {
            Ok(()) => {
                self.rate = Some(rate);
                self.lead_ns = (self.lead_ns - self.lead_ns / 16).max(LEAD_NS);
                self.stats.refreshes += 1;
                self.stats.residual_ns = residual_ns;
                if self.stats.withdrawn_reason.is_some() {
                    self.news = Some(News::ServedAgain);
                }
                self.stats.withdrawn_reason = None;
                pages.set_stats(&self.stats);
                Refreshed::Published
            }
            Err(error @ (PublishError::TooLate { .. } | PublishError::Ended { .. })) => {
                self.lead_ns = (2 * self.lead_ns).min(LONGEST_LEAD_NS);
                self.discipline.retract();
                if matches!(error, PublishError::Ended { .. }) {
                    // Those that were not to change, too: the clocks continue together.
                    pages.end(&counter);
                    self.ended(counter());
                }
                Refreshed::Missed
            }
            Err(PublishError::TooEarly { .. } | PublishError::BehindKernel) => {
                self.discipline.retract();
                Refreshed::Missed
            }
            // Readers fall back to the kernel until its clock is past what the page showed them.
            Err(PublishError::OutOfLimits(_) | PublishError::BelowFloor) => {
                self.discipline.retract();
                Refreshed::Waiting
            }
        }
    }
}

/// Reads the kernel's clock, and again if the read was interrupted, which its bracket shows: it is much wider than the
/// sample's.
fn undisturbed(look: impl Fn() -> Option<Bracket>, sample: &Sample) -> Option<Bracket> {
    let widest_cycles = sample.mono.width_cycles().saturating_add(1).saturating_mul(4);
    let mut best: Option<Bracket> = None;
    for _ in 0..LOOKS {
        let next = look()?;
        if best.is_none_or(|best| next.width_cycles() < best.width_cycles()) {
            best = Some(next);
        }
        if next.width_cycles() <= widest_cycles {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests;
