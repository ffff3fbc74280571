//! The discipline of one host's clocks: takes samples and makes anchors.

mod anchors;

use fastpath_page::layout::BASES;
use fastpath_page::{Anchor, Rate, Reason};

use crate::bracket::{Bracket, Sample};
use crate::clocks::MONOTONIC;
use crate::config::Config;
use crate::in_force::{InForce, shown_offset_ns};
use crate::kernel::Kernel;
use crate::line::{cycles_between, ns_between};
use crate::ntp::{LATEST_NS, Ntp};
use crate::offsets::Offsets;
use crate::probation::Probation;
use crate::steer::{ahead_of_ns, is_behind, rate_of, visible_ns};
use crate::track::{NTP_LIMITS, RAW_LIMITS, Seen, TICK_LIMITS, Track};

/// Window while the kernel's rate changes or a visible error is worked off.
const UNSETTLED_WINDOW_NS: u64 = 10_000_000;
/// Relative error of the line's rate above which the kernel was slewed between two samples: 25 ns in the time that an
/// anchor may take to reach the page.
const SLEWED_UNSEEN: f64 = 50e-6;
/// Time until the next try after a sample that was interrupted.
const RETRY_WINDOW_NS: u64 = 2_000_000;
/// A served error beyond this, and beyond noise, indicates a rate that is changing.
const SETTLED_NS: f64 = 20.0;
/// The result of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a publisher does not allocate")]
pub enum AnchorDecision {
    /// Nothing to publish: not enough samples yet, or this one was interrupted. The anchors in force stay in force.
    Wait,
    /// New anchors, in force from the `effective_at` of the call. If they cannot be published, call
    /// [`Discipline::retract`].
    Publish {
        /// REALTIME, MONOTONIC, BOOTTIME, TAI, as far as they are configured and sampled.
        hres: Anchor,
        /// MONOTONIC_RAW, if it is configured and sampled. `None` leaves the raw latch as it is.
        raw: Option<Anchor>,
        /// How far the anchor in force was ahead of the kernel's MONOTONIC at this sample, in nanoseconds; 0 with none
        /// in force.
        residual_ns: i64,
    },
    /// Withdraw the anchors in force: they no longer show the kernel's time. Continue to sample.
    Withdraw(Reason),
}

/// Follows the kernel's clocks by a counter.
#[derive(Clone, Debug)]
pub struct Discipline {
    config: Config,
    mono: Track,
    raw: Track,
    offsets: Offsets,
    in_force: InForce,
    /// What [`Discipline::retract`] restores.
    before: InForce,
    window_ns: u64,
    retry: bool,
    /// Whether the line's rate is an average of two rates, neither of which is the kernel's present one.
    line_is_average: bool,
    probation: Probation,
    /// Whether the last comparison of the CPUs' counters found two that are apart.
    apart: bool,
    kernel: Kernel,
    /// See [`Discipline::ahead_ns`].
    ahead_ns: Option<i64>,
}

impl Discipline {
    /// Returns a discipline without any samples.
    pub fn new(config: Config) -> Discipline {
        Discipline {
            config,
            mono: Track::default(),
            raw: Track::default(),
            offsets: Offsets::default(),
            in_force: InForce::default(),
            before: InForce::default(),
            window_ns: config.first_window_ns,
            retry: false,
            line_is_average: false,
            probation: Probation::default(),
            apart: false,
            kernel: Kernel::default(),
            ahead_ns: None,
        }
    }

    /// Returns when to take the next sample, in nanoseconds from the last.
    pub fn next_window_ns(&self) -> u64 {
        let window_ns = if self.retry {
            RETRY_WINDOW_NS.min(self.window_ns)
        } else {
            self.window_ns
        };
        self.kernel.ntp.map_or(window_ns, |ntp| {
            ntp.next_look_ns(self.kernel.sampled_real_ns, window_ns, self.kernel.slews_on())
        })
    }

    /// Returns whether `ntp` makes a sample due at once: the kernel's clocks were adjusted by adjtimex(2) since the
    /// last sample.
    pub fn is_news(&self, ntp: &Ntp) -> bool {
        self.kernel.is_news(ntp)
    }

    /// Returns the anchor in force for REALTIME, MONOTONIC, BOOTTIME and TAI, for a page that joins.
    pub fn hres(&self) -> Option<Anchor> {
        self.in_force.hres
    }

    /// Returns the anchor in force for MONOTONIC_RAW, for a page that joins.
    pub fn raw(&self) -> Option<Anchor> {
        self.in_force.raw
    }

    /// Returns the kernel's rate by the last samples; `None` before the second.
    pub fn rate(&self) -> Option<Rate> {
        self.mono.line().and_then(|line| rate_of(line.ns_per_cycle))
    }

    /// Returns nanoseconds per count by the last samples; `None` before the second.
    pub fn ns_per_cycle(&self) -> Option<f64> {
        self.mono.line().map(|line| line.ns_per_cycle)
    }

    /// Returns how far the anchor in force was ahead of the kernel's MONOTONIC at the last sample, in nanoseconds;
    /// `None` if no anchor was in force at that value of the counter.
    pub fn ahead_ns(&self) -> Option<i64> {
        self.ahead_ns
    }

    /// Returns whether the last [`AnchorDecision::Publish`] is too late to be published when the counter shows `now`: readers
    /// that fall back to the kernel have seen its time since the sample.
    pub fn is_late(&self, now: u64) -> bool {
        let is_late = |hres: Anchor| {
            let since_cycles = now.wrapping_sub(hres.base_cycles) as i64;
            since_cycles > hres.rate.cycles_for_ns(LATEST_NS) as i64
        };
        self.in_force.hres.is_some_and(is_late)
    }

    /// Returns whether the last [`AnchorDecision::Publish`] is visibly behind the kernel's MONOTONIC. `kernel` is a reading of
    /// it from just now.
    pub fn is_behind(&self, kernel: &Bracket) -> bool {
        let tolerance_ns = visible_ns(self.mono.noise_ns());
        self.in_force
            .hres
            .is_some_and(|hres| is_behind(&hres, kernel, tolerance_ns))
    }

    /// Reports that the last [`AnchorDecision::Publish`] was not published, so that the previous anchors are still in force.
    ///
    /// The next sample is due soon, because the anchors in force lack the information of this one.
    pub fn retract(&mut self) {
        self.in_force = self.before;
        self.retry = true;
    }

    /// Reports that readers fall back to the kernel, at the latest since the counter showed `counter`. The next anchors
    /// continue from the last time that was shown, with the known rate.
    pub fn end_at(&mut self, counter: u64) {
        self.in_force.end_at(counter);
    }

    /// Reports the result of a comparison of the CPUs' counters. While two are apart nothing is in force, whatever
    /// samples say: samples are taken on one CPU, and readers run on all.
    pub fn compared(&mut self, apart: bool) -> AnchorDecision {
        self.apart = apart;
        if apart {
            self.distrust(Reason::Warp, self.kernel.sampled_at_ns)
        } else {
            AnchorDecision::Wait
        }
    }

    /// Reports that the kernel's clocks run on another clocksource: at slightly other rates, and it takes another time to
    /// read them.
    pub fn clocksource_changed(&mut self) -> AnchorDecision {
        self.mono = Track::default();
        self.raw = Track::default();
        self.offsets = Offsets::default();
        self.start_over(Reason::ClocksourceChanged)
    }

    /// Reports that the machine was suspended, at most a moment ago. BOOTTIME does not always show that: a fault that was seen
    /// since then is not the counter's.
    pub fn suspended(&mut self) -> AnchorDecision {
        self.probation.pardon(self.kernel.sampled_at_ns);
        self.start_over(Reason::Suspended)
    }

    fn cap_ns(&self) -> u64 {
        self.config.cap_windows.saturating_mul(self.window_ns)
    }

    /// Takes a sample. Its result takes effect when the counter reaches `effective_at`, a little in the future.
    ///
    /// `effective_at` is called after the sample has been judged: a hundred points take time where floating point is
    /// slow (an emulated CPU needs half a millisecond), and the moment must not be past before the anchor is made.
    pub fn observe(&mut self, sample: &Sample, effective_at: impl FnOnce() -> u64) -> AnchorDecision {
        if self.is_too_soon(sample) {
            return AnchorDecision::Wait;
        }
        self.retry = false;
        self.kernel.sampled_at_ns = sample.mono.time_ns;
        self.kernel.sampled_real_ns = sample.real.time_ns;
        self.kernel.follow_max_error(sample);
        self.offsets.see(sample);
        let counter = sample.mono.middle_cycles();
        let shown = self.in_force.hres.filter(|hres| hres.covers(counter));
        self.ahead_ns = shown.map(|hres| ahead_of_ns(&hres, MONOTONIC, counter, sample.mono.time_ns).round() as i64);
        let raw_seen = sample.raw.map(|raw| self.raw.see(&raw, RAW_LIMITS));
        let limits = if raw_seen.is_some() { TICK_LIMITS } else { NTP_LIMITS };
        let suspended = self.offsets.was_suspended(sample, &self.mono);
        // A change of rate by adjtimex(2) does not explain the residual of an average.
        let was_turned = self.kernel.turned_by(sample).is_some_and(|factor| factor != 1.0);
        let was_slewed_unseen = self.was_slewed_unseen(sample) || (self.line_is_average && was_turned);
        self.line_is_average = was_slewed_unseen;
        self.turn(sample);
        let mono_seen = self.mono.see(&sample.mono, limits);
        if suspended {
            // The two need not have stopped and started at the same moments, so earlier samples are void.
            return self.start_over(Reason::Suspended);
        }
        let (rate_changed, after_gap) = match mono_seen {
            Seen::Broken(reason) => return self.distrust(reason, sample.mono.time_ns),
            Seen::Poor => {
                self.retry = true;
                return AnchorDecision::Wait;
            }
            Seen::Fits {
                rate_changed,
                after_gap,
            } => (rate_changed, after_gap),
        };
        if let Some(Seen::Broken(reason)) = raw_seen {
            return self.distrust(reason, sample.mono.time_ns);
        }
        let Some(line) = self.mono.line().copied() else {
            return AnchorDecision::Wait;
        };
        // While the rate is changing, the line's is an average.
        let is_average = rate_changed || after_gap;
        let is_slewing = self.kernel.slews_on() || self.kernel.ntp.is_some_and(|ntp| ntp.is_slewing());
        let rate_limit = if is_average || is_slewing {
            limits.change
        } else {
            NTP_LIMITS.change
        };
        let was_interrupted = was_interrupted(sample);
        // Offsets between clocks that were not read at the same time depend on the rate.
        let measures_offsets = !(was_slewed_unseen && was_interrupted);
        if (is_slewing && was_interrupted) || (measures_offsets && !self.measure_offsets(sample, rate_limit)) {
            self.retry = true;
            return AnchorDecision::Wait;
        }

        let residual_ns = self
            .in_force
            .hres
            .filter(|hres| was_in_force(hres, sample.mono.middle_cycles()))
            .map(|hres| ahead_of_ns(&hres, MONOTONIC, sample.mono.middle_cycles(), sample.mono.time_ns));
        let settled_ns = SETTLED_NS + 4.0 * self.mono.noise_ns();
        let unsettled = is_average
            || was_turned
            || is_slewing
            || residual_ns.is_some_and(|residual_ns| residual_ns.abs() > settled_ns);
        self.stretch_window(unsettled);
        if self.apart || self.probation.is_on(sample.mono.time_ns) {
            return AnchorDecision::Wait;
        }
        // Readers have seen the kernel's time; until the new rate is known, the page would show them an earlier one.
        if (rate_changed || was_slewed_unseen) && shown.is_none() && self.in_force.hres.is_some() {
            self.retry = true;
            return AnchorDecision::Wait;
        }
        self.publish(sample, &line, effective_at(), residual_ns.unwrap_or(0.0).round() as i64)
    }

    /// Takes a sample that was taken because the kernel reported that REALTIME was set (a timerfd was cancelled).
    ///
    /// MONOTONIC continues exactly as before. Returns [`AnchorDecision::Wait`] if no clock was stepped after all, or no anchor
    /// is in force.
    pub fn step(&mut self, sample: &Sample, effective_at: impl FnOnce() -> u64) -> AnchorDecision {
        let (Some(line), Some(hres)) = (self.mono.line().copied(), self.in_force.hres) else {
            return AnchorDecision::Wait;
        };
        if !self.measure_offsets(sample, NTP_LIMITS.change) {
            self.retry = true;
            return AnchorDecision::Wait;
        }
        self.kernel.follow_max_error(sample);
        let stepped = self.in_force.stepped;
        let effective_at = effective_at();
        if stepped == [false; BASES] || effective_at == hres.base_cycles || !hres.covers(effective_at) {
            return AnchorDecision::Wait;
        }
        let mut next = hres.rebase(effective_at);
        // The end stays the same: a step says nothing about the rate.
        next.cap_cycles = hres.cap_cycles - effective_at.wrapping_sub(hres.base_cycles) as u32;
        // The clocks that were not stepped continue exactly, even where the average would now refine their offset.
        let offsets_ns = std::array::from_fn(|index| {
            if stepped[index] {
                self.offsets.offset_ns(index)
            } else {
                shown_offset_ns(&hres, index)
            }
        });
        let mono_ns_shifted = next.base[MONOTONIC].ns_shifted(next.rate.shift);
        let next = self.with_utc_error(self.with_bases(next, mono_ns_shifted, offsets_ns), sample, &line);
        self.before = self.in_force;
        self.in_force = InForce {
            hres: Some(next),
            stepped: [false; BASES],
            ..self.in_force
        };
        AnchorDecision::Publish {
            hres: next,
            raw: None,
            residual_ns: 0,
        }
    }

    /// Returns whether a sample follows the last one so closely that the line's rate would come from points that lie
    /// too near to each other. A sample that is due is never too soon.
    fn is_too_soon(&self, sample: &Sample) -> bool {
        let since_ns = ns_between(self.kernel.sampled_at_ns, sample.mono.time_ns);
        let is_due = since_ns < 0 || since_ns as u64 >= self.next_window_ns() / 4;
        let is_news = sample.ntp.is_some_and(|ntp| self.is_news(&ntp));
        self.kernel.sampled_at_ns != 0 && !self.retry && !is_due && !is_news
    }

    /// Applies the change of the kernel's rate by adjtimex(2) since the last sample.
    fn turn(&mut self, sample: &Sample) {
        let Some(ntp) = sample.ntp else { return };
        if ntp.changes_each_second() {
            self.kernel.pending_at_ns = Some(sample.mono.time_ns);
        }
        let factor = self.kernel.turned_by(sample).unwrap_or(1.0);
        // The line keeps the former rate until a sample determines precisely when it ended.
        if factor == 1.0 || self.mono.turn(&sample.mono, factor) {
            self.kernel.ntp = Some(ntp);
        }
    }

    /// Returns whether the kernel was slewed between the last two samples and no longer is, so that the line and
    /// adjtimex(2) do not explain its time. The line is then an average of both rates.
    fn was_slewed_unseen(&self, sample: &Sample) -> bool {
        let Some(line) = self.mono.line() else { return false };
        let elapsed_ns = line.above_origin_ns(sample.mono.middle_cycles());
        let off_ns = ns_between(line.origin_ns, sample.mono.time_ns) as f64 - elapsed_ns;
        // The kernel changed to its present rate at an unknown time between the last sample and this one.
        let explained_ns = self
            .kernel
            .turned_by(sample)
            .map_or(0.0, |factor| (factor - 1.0) * elapsed_ns);
        let unexplained_ns = off_ns - off_ns.clamp(explained_ns.min(0.0), explained_ns.max(0.0));
        unexplained_ns.abs() > SLEWED_UNSEEN * elapsed_ns.abs() + 4.0 * self.mono.noise_ns()
    }

    fn measure_offsets(&mut self, sample: &Sample, rate_limit: f64) -> bool {
        let stepped = &mut self.in_force.stepped;
        self.offsets.measure(sample, &self.mono, rate_limit, stepped)
    }

    /// Doubles the window, but not beyond the time for which the lines are known: until an anchor's end, however late
    /// the next one comes.
    fn stretch_window(&mut self, unsettled: bool) {
        let wanted_ns = if unsettled {
            self.window_ns.min(UNSETTLED_WINDOW_NS)
        } else {
            2 * self.window_ns
        };
        let known_for_ns = [&self.mono, &self.raw]
            .into_iter()
            .filter(|track| track.line().is_some())
            .map(Track::known_for_ns)
            .fold(f64::INFINITY, f64::min);
        let known_window_ns = (known_for_ns / self.config.cap_windows.max(1) as f64) as u64;
        // Over a shorter time, noise would look like a rate that no counter has. And when anchors end sooner, readers
        // fall back to the kernel, which exposes an error that is being worked off.
        let least_ns = self.window_ns.min(UNSETTLED_WINDOW_NS);
        self.window_ns = wanted_ns
            .min(known_window_ns.max(least_ns))
            .min(self.config.longest_window_ns);
    }

    fn distrust(&mut self, reason: Reason, mono_ns: u64) -> AnchorDecision {
        self.probation.strike(mono_ns);
        self.start_over(reason)
    }

    fn start_over(&mut self, reason: Reason) -> AnchorDecision {
        self.mono.restart();
        self.raw.restart();
        self.offsets.restart();
        self.in_force = self.in_force.withdrawn();
        self.before = self.in_force;
        self.kernel.restart();
        self.line_is_average = false;
        self.window_ns = self.config.first_window_ns;
        AnchorDecision::Withdraw(reason)
    }
}

/// Returns whether so much time passed within a sample that clocks read one after the other do not determine their
/// distance, if the kernel's rate is not known well.
fn was_interrupted(sample: &Sample) -> bool {
    // Time for twenty-five attempts for each of five clocks, doubled.
    const LONGEST_WIDTHS: u64 = 256;
    let last = [sample.tai, sample.boot, sample.raw].into_iter().flatten().next();
    let took_cycles = cycles_between(sample.mono.before, last.unwrap_or(sample.real).after);
    let longest_cycles = sample
        .mono
        .width_cycles()
        .saturating_add(1)
        .saturating_mul(LONGEST_WIDTHS);
    took_cycles > i64::try_from(longest_cycles).unwrap_or(i64::MAX)
}

/// Returns whether a sample at this counter shows how good an anchor was: while it is in force, and for the same time
/// again, because where refreshes only come when it has ended, none comes sooner.
fn was_in_force(anchor: &Anchor, counter: u64) -> bool {
    counter.wrapping_sub(anchor.base_cycles) <= 2 * u64::from(anchor.cap_cycles)
}
