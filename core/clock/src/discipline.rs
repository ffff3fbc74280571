//! The discipline of one host's clocks: takes samples and makes anchors.

use fastpath_page::anchor::UtcError;
use fastpath_page::layout::BASES;
use fastpath_page::{Anchor, Base, ClockSet, Rate};

use crate::bracket::{Bracket, Sample};
use crate::line::{Line, cycles_between, ns_between};
use crate::ntp::{LATEST_NS, Ntp, SLEWS_ON_NS};
use crate::offset::{Change, Measured, Offset};
use crate::steer::{Shown, Times, ahead_of_ns, is_behind, rate_of, steer, visible_ns};
use crate::track::{RateLimits, Seen, Track};
use crate::utc::MaxError;
use crate::widths::Widths;
use fastpath_page::Reason;

pub(crate) const REALTIME: usize = 0;
pub(crate) const MONOTONIC: usize = 1;
const BOOTTIME: usize = 2;
const TAI: usize = 3;
/// Index of the raw clock in its own latch.
const RAW: usize = 0;
/// The clocks of the `hres` latch and their indices there.
const CLOCKS: [(usize, ClockSet); BASES] = [
    (REALTIME, ClockSet::REALTIME),
    (MONOTONIC, ClockSet::MONOTONIC),
    (BOOTTIME, ClockSet::BOOTTIME),
    (TAI, ClockSet::TAI),
];

/// Limits where MONOTONIC_RAW is not available: NTP may change the kernel's frequency from -500 to +500 ppm at once;
/// the rest allows for the counter's own wander.
const NTP_LIMITS: RateLimits = RateLimits {
    change: 1_100e-6,
    total: 2_200e-6,
};
/// Limits where MONOTONIC_RAW distinguishes a slew from a counter that changes: `adjtimex` can set the tick 10 % off
/// (chrony slews with it).
const TICK_LIMITS: RateLimits = RateLimits {
    change: 0.22,
    total: 0.22,
};
/// Limits of MONOTONIC_RAW, which is never slewed: two oscillators differ by at most this much over all temperatures.
const RAW_LIMITS: RateLimits = RateLimits {
    change: 100e-6,
    total: 200e-6,
};

/// Window while the kernel's rate changes or a visible error is worked off.
const UNSETTLED_WINDOW_NS: u64 = 10_000_000;
/// Relative error of the line's rate above which the kernel was slewed between two samples: 25 ns in the time that an
/// anchor may take to reach the page.
const SLEWED_UNSEEN: f64 = 50e-6;
/// Longest time from a sample to the base of its anchor, by the counter: several times what the slowest host needs. A
/// publisher that was stopped for longer takes another sample.
const LONGEST_EXTRAPOLATION_NS: f64 = 10e6;
/// Time until the next try after a sample that was interrupted.
const RETRY_WINDOW_NS: u64 = 2_000_000;
/// A served error beyond this, and beyond noise, indicates a rate that is changing.
const SETTLED_NS: f64 = 20.0;
/// Most by which an offset between two clocks may come out smaller when it is measured anew without being a different
/// offset.
const REMEASURED_NS: u64 = 2_000;
/// A smaller advance of BOOTTIME over MONOTONIC is not a suspend; it may be a counter that stopped between the two
/// reads.
const SHORTEST_SUSPEND_NS: f64 = 1e6;

/// Time for which a counter that was withdrawn must predict the kernel's clock before it is served again. It doubles
/// with each further strike.
const PROBATION_NS: u64 = 1_000_000_000;
/// Most strikes that are counted: the probation is at most 2^6 times [`PROBATION_NS`].
const MAX_STRIKES: u32 = 7;
/// Time without a fault after which the strikes are forgotten.
const FORGIVEN_AFTER_NS: u64 = 600_000_000_000;

/// Max age of anchors on a counter whose invariance is not established: it limits the time for which a wrong value is
/// read. A busy machine delays a publisher for some milliseconds, rarely for more than 20; with a lower limit, readers
/// would fall back to the kernel without need.
const WATCHED_CAP_NS: u64 = 40_000_000;

/// Settings of a discipline: the clocks to serve, and the intervals of samples and comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The clocks to serve.
    pub clocks: ClockSet,
    /// Time from the first sample to the second, in nanoseconds. Windows double from there.
    pub first_window_ns: u64,
    /// Time between samples once the rate is known, in nanoseconds.
    pub longest_window_ns: u64,
    /// Windows for which an anchor may be used. An error is worked off until the anchor's end, over so many windows, so
    /// this is 1 where refreshes only come when the anchor has ended.
    pub cap_windows: u64,
    /// Time between comparisons of the CPUs' counters, in nanoseconds: the longest time for which readers see an error
    /// of one CPU's counter.
    pub compare_every_ns: u64,
    /// Rest after a comparison, in multiples of the CPU time that it took: comparisons are rarer on hosts with many
    /// CPUs.
    pub compare_rests: u32,
}

impl Config {
    /// Returns the settings of a publisher that has no timer and refreshes when a reader found the anchor too old.
    /// Anchors live for one window, and windows stretch to 0.4 s: a machine that sleeps while its counter goes on takes
    /// readers ahead by so much, and the floor holds only for less than [`fastpath_page::layout::FLOOR_LIMIT_NS`].
    pub fn on_demand(clocks: ClockSet) -> Config {
        Config {
            clocks,
            // A reader is not served before the second sample, so it comes soon. Where brackets are wide the rate is
            // not known by then, and the windows go on doubling.
            first_window_ns: 100_000,
            longest_window_ns: 400_000_000,
            cap_windows: 1,
            ..Config::default()
        }
    }

    /// Returns the same settings for a counter whose rate is not guaranteed (`--trust-counter`): anchors live for 40
    /// ms, a tenth of the usual, and the CPUs are compared twenty times as often. This costs the comparisons, ten times
    /// as many samples, and reads that fall back to the kernel where a busy machine delays the publisher for longer
    /// than that.
    pub fn watched(self) -> Config {
        let usual = Config::default();
        Config {
            longest_window_ns: self.longest_window_ns.min(WATCHED_CAP_NS / self.cap_windows.max(1)),
            compare_every_ns: usual.compare_every_ns / 20,
            compare_rests: usual.compare_rests / 20,
            ..self
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clocks: ClockSet::ALL,
            first_window_ns: 1_000_000,
            longest_window_ns: 100_000_000,
            // One or two late refreshes must not slow readers down.
            cap_windows: 4,
            compare_every_ns: 300_000_000,
            compare_rests: 2_000,
        }
    }
}

/// The result of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a publisher does not allocate")]
pub enum Outcome {
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

/// The state that [`Discipline::retract`] restores.
#[derive(Clone, Copy, Debug, Default)]
struct InForce {
    hres: Option<Anchor>,
    raw: Option<Anchor>,
    /// The withdrawn anchor, cut short at the withdrawal, while nothing is in force. No later anchor begins at an
    /// earlier time.
    floor_hres: Option<Anchor>,
    floor_raw: Option<Anchor>,
    /// Clocks that the kernel stepped since `hres` was made; these may go back.
    stepped: [bool; BASES],
}

impl InForce {
    fn withdrawn(self) -> InForce {
        InForce {
            hres: None,
            raw: None,
            floor_hres: self.hres.or(self.floor_hres),
            floor_raw: self.raw.or(self.floor_raw),
            stepped: [false; BASES],
        }
    }
}

/// Follows the kernel's clocks by a counter.
#[derive(Clone, Debug)]
pub struct Discipline {
    config: Config,
    mono: Track,
    raw: Track,
    /// Indexed by clock. MONOTONIC's widths are in its track.
    widths: [Widths; BASES],
    offsets: [Option<Offset>; BASES],
    in_force: InForce,
    before: InForce,
    window_ns: u64,
    retry: bool,
    /// Whether the line's rate is an average of two rates, neither of which is the kernel's present one.
    line_is_average: bool,
    strikes: u32,
    /// Time of the last strike on the kernel's MONOTONIC; meaningful only while there are strikes.
    caught_at_ns: u64,
    /// Whether the last comparison of the CPUs' counters found two that are apart.
    apart: bool,
    /// Time of the last sample on the kernel's MONOTONIC.
    sampled_at_ns: u64,
    /// The kernel's REALTIME at the same sample.
    sampled_real_ns: u64,
    /// The kernel's settings to which the line's rate belongs.
    ntp: Option<Ntp>,
    /// Time at which a slew that changes the rate each second was last seen pending.
    pending_at_ns: Option<u64>,
    /// Bound on the error of the kernel's REALTIME at the last sample; `None`: unknown.
    max_error: Option<MaxError>,
    ahead_ns: Option<i64>,
}

impl Discipline {
    /// Returns a discipline without any samples.
    pub fn new(config: Config) -> Discipline {
        Discipline {
            config,
            mono: Track::default(),
            raw: Track::default(),
            widths: Default::default(),
            offsets: [None; BASES],
            in_force: InForce::default(),
            before: InForce::default(),
            window_ns: config.first_window_ns,
            retry: false,
            line_is_average: false,
            strikes: 0,
            caught_at_ns: 0,
            apart: false,
            sampled_at_ns: 0,
            sampled_real_ns: 0,
            ntp: None,
            pending_at_ns: None,
            max_error: None,
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
        self.ntp.map_or(window_ns, |ntp| {
            ntp.next_look_ns(self.sampled_real_ns, window_ns, self.slews_on())
        })
    }

    /// Returns whether `ntp` makes a sample due at once: the kernel's clocks were adjusted by adjtimex(2) since the
    /// last sample.
    pub fn is_news(&self, ntp: &Ntp) -> bool {
        let same = |known: Ntp| {
            (known.freq, known.tick_us, known.tai_s, known.leap) == (ntp.freq, ntp.tick_us, ntp.tai_s, ntp.leap)
                && known.is_synchronized == ntp.is_synchronized
                && (known.is_slewing() || !ntp.is_slewing())
        };
        !self.ntp.is_some_and(same)
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

    /// Returns whether the last [`Outcome::Publish`] is too late to be published when the counter shows `now`: readers
    /// that fall back to the kernel have seen its time since the sample.
    pub fn is_late(&self, now: u64) -> bool {
        let is_late = |hres: Anchor| {
            let since_cycles = now.wrapping_sub(hres.base_cycles) as i64;
            since_cycles > hres.rate.cycles_for_ns(LATEST_NS) as i64
        };
        self.in_force.hres.is_some_and(is_late)
    }

    /// Returns whether the last [`Outcome::Publish`] is visibly behind the kernel's MONOTONIC. `kernel` is a reading of
    /// it from just now.
    pub fn is_behind(&self, kernel: &Bracket) -> bool {
        let tolerance_ns = visible_ns(self.mono.noise_ns());
        self.in_force
            .hres
            .is_some_and(|hres| is_behind(&hres, kernel, tolerance_ns))
    }

    /// Reports that the last [`Outcome::Publish`] was not published, so that the previous anchors are still in force.
    ///
    /// The next sample is due soon, because the anchors in force lack the information of this one.
    pub fn retract(&mut self) {
        self.in_force = self.before;
        self.retry = true;
    }

    /// Reports that readers fall back to the kernel, at the latest since the counter showed `counter`. The next anchors
    /// continue from the last time that was shown, with the known rate.
    pub fn end_at(&mut self, counter: u64) {
        let InForce {
            hres,
            raw,
            floor_hres,
            floor_raw,
            ..
        } = &mut self.in_force;
        for anchor in [hres, raw, floor_hres, floor_raw].into_iter().flatten() {
            *anchor = anchor.ended_at(counter);
        }
    }

    /// Reports the result of a comparison of the CPUs' counters. While two are apart nothing is in force, whatever
    /// samples say: samples are taken on one CPU, and readers run on all.
    pub fn compared(&mut self, apart: bool) -> Outcome {
        self.apart = apart;
        if apart {
            self.distrust(Reason::Warp, self.sampled_at_ns)
        } else {
            Outcome::Wait
        }
    }

    /// Reports that the kernel's clocks run on another clocksource: at slightly other rates, and it takes another time to
    /// read them.
    pub fn clocksource_changed(&mut self) -> Outcome {
        self.mono = Track::default();
        self.raw = Track::default();
        self.widths = Default::default();
        self.start_over(Reason::ClocksourceChanged)
    }

    fn cap_ns(&self) -> u64 {
        self.config.cap_windows.saturating_mul(self.window_ns)
    }

    /// Takes a sample. Its result takes effect when the counter reaches `effective_at`, a little in the future.
    ///
    /// `effective_at` is called after the sample has been judged: a hundred points take time where floating point is
    /// slow (an emulated CPU needs half a millisecond), and the moment must not be past before the anchor is made.
    pub fn observe(&mut self, sample: &Sample, effective_at: impl FnOnce() -> u64) -> Outcome {
        if self.is_too_soon(sample) {
            return Outcome::Wait;
        }
        self.retry = false;
        self.sampled_at_ns = sample.mono.time_ns;
        self.sampled_real_ns = sample.real.time_ns;
        self.follow_max_error(sample);
        for (index, bracket) in others(sample) {
            self.widths[index].see(&bracket);
        }
        let counter = sample.mono.middle_cycles();
        let shown = self.in_force.hres.filter(|hres| hres.covers(counter));
        self.ahead_ns = shown.map(|hres| ahead_of_ns(&hres, MONOTONIC, counter, sample.mono.time_ns).round() as i64);
        let raw_seen = sample.raw.map(|raw| self.raw.see(&raw, RAW_LIMITS));
        let limits = if raw_seen.is_some() { TICK_LIMITS } else { NTP_LIMITS };
        let suspended = self.was_suspended(sample);
        // A change of rate by adjtimex(2) does not explain the residual of an average.
        let was_turned = self.turned_by(sample).is_some_and(|factor| factor != 1.0);
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
                return Outcome::Wait;
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
            return Outcome::Wait;
        };
        // While the rate is changing, the line's is an average.
        let is_average = rate_changed || after_gap;
        let is_slewing = self.slews_on() || self.ntp.is_some_and(|ntp| ntp.is_slewing());
        let rate_limit = if is_average || is_slewing {
            limits.change
        } else {
            NTP_LIMITS.change
        };
        let was_interrupted = was_interrupted(sample);
        // Offsets between clocks that were not read at the same time depend on the rate.
        let measures_offsets = !(was_slewed_unseen && was_interrupted);
        if (is_slewing && was_interrupted) || (measures_offsets && !self.measure_offsets(sample, &line, rate_limit)) {
            self.retry = true;
            return Outcome::Wait;
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
        if self.apart || self.is_on_probation(sample.mono.time_ns) {
            return Outcome::Wait;
        }
        // Readers have seen the kernel's time; until the new rate is known, the page would show them an earlier one.
        if (rate_changed || was_slewed_unseen) && shown.is_none() && self.in_force.hres.is_some() {
            self.retry = true;
            return Outcome::Wait;
        }
        self.publish(sample, &line, effective_at(), residual_ns.unwrap_or(0.0).round() as i64)
    }

    /// Takes a sample that was taken because the kernel reported that REALTIME was set (a timerfd was cancelled).
    ///
    /// MONOTONIC continues exactly as before. Returns [`Outcome::Wait`] if no clock was stepped after all, or no anchor
    /// is in force.
    pub fn step(&mut self, sample: &Sample, effective_at: impl FnOnce() -> u64) -> Outcome {
        let (Some(line), Some(hres)) = (self.mono.line().copied(), self.in_force.hres) else {
            return Outcome::Wait;
        };
        if !self.measure_offsets(sample, &line, NTP_LIMITS.change) {
            self.retry = true;
            return Outcome::Wait;
        }
        self.follow_max_error(sample);
        let stepped = self.in_force.stepped;
        let effective_at = effective_at();
        if stepped == [false; BASES] || effective_at == hres.base_cycles || !hres.covers(effective_at) {
            return Outcome::Wait;
        }
        let mut next = hres.rebase(effective_at);
        // The end stays the same: a step says nothing about the rate.
        next.cap_cycles = hres.cap_cycles - effective_at.wrapping_sub(hres.base_cycles) as u32;
        // The clocks that were not stepped continue exactly, even where the average would now refine their offset.
        let offsets_ns = std::array::from_fn(|index| {
            if stepped[index] {
                self.offset_ns(index)
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
        Outcome::Publish {
            hres: next,
            raw: None,
            residual_ns: 0,
        }
    }

    /// Returns whether a sample follows the last one so closely that the line's rate would come from points that lie
    /// too near to each other. A sample that is due is never too soon.
    fn is_too_soon(&self, sample: &Sample) -> bool {
        let since_ns = ns_between(self.sampled_at_ns, sample.mono.time_ns);
        let is_due = since_ns < 0 || since_ns as u64 >= self.next_window_ns() / 4;
        let is_news = sample.ntp.is_some_and(|ntp| self.is_news(&ntp));
        self.sampled_at_ns != 0 && !self.retry && !is_due && !is_news
    }

    /// Returns the kernel's rate by adjtimex(2), relative to that at the last sample.
    fn turned_by(&self, sample: &Sample) -> Option<f64> {
        Some(sample.ntp?.rate() / self.ntp?.rate())
    }

    /// Applies the change of the kernel's rate by adjtimex(2) since the last sample.
    fn turn(&mut self, sample: &Sample) {
        let Some(ntp) = sample.ntp else { return };
        if ntp.changes_each_second() {
            self.pending_at_ns = Some(sample.mono.time_ns);
        }
        let factor = self.turned_by(sample).unwrap_or(1.0);
        // The line keeps the former rate until a sample determines precisely when it ended.
        if factor == 1.0 || self.mono.turn(&sample.mono, factor) {
            self.ntp = Some(ntp);
        }
    }

    /// Returns whether the kernel was slewed between the last two samples and no longer is, so that the line and
    /// adjtimex(2) do not explain its time. The line is then an average of both rates.
    fn was_slewed_unseen(&self, sample: &Sample) -> bool {
        let Some(line) = self.mono.line() else { return false };
        let elapsed_ns = line.above_origin_ns(sample.mono.middle_cycles());
        let off_ns = ns_between(line.origin_ns, sample.mono.time_ns) as f64 - elapsed_ns;
        // The kernel changed to its present rate at an unknown time between the last sample and this one.
        let explained_ns = self.turned_by(sample).map_or(0.0, |factor| (factor - 1.0) * elapsed_ns);
        let unexplained_ns = off_ns - off_ns.clamp(explained_ns.min(0.0), explained_ns.max(0.0));
        unexplained_ns.abs() > SLEWED_UNSEEN * elapsed_ns.abs() + 4.0 * self.mono.noise_ns()
    }

    /// Returns whether the kernel may still apply a slew that was pending and is not any more.
    fn slews_on(&self) -> bool {
        let since_ns = self.pending_at_ns.map(|at_ns| self.sampled_at_ns.saturating_sub(at_ns));
        since_ns.is_some_and(|since_ns| since_ns < SLEWS_ON_NS)
    }

    /// Returns whether BOOTTIME advanced more than MONOTONIC, which only a suspend causes.
    fn was_suspended(&self, sample: &Sample) -> bool {
        let (Some(boot), Some(offset)) = (&sample.boot, &self.offsets[BOOTTIME]) else {
            return false;
        };
        let Some(line) = self.mono.line() else { return false };
        let measured = self.measure(&sample.mono, boot, line, NTP_LIMITS.change);
        offset.is_step(&measured) && offset.above_held_ns(&measured) > SHORTEST_SUSPEND_NS
    }

    /// Measures the offset of a clock from MONOTONIC, valid if the kernel's rate changed by at most `rate_limit`,
    /// relative, since the line.
    fn measure(&self, mono: &Bracket, other: &Bracket, line: &Line, rate_limit: f64) -> Measured {
        let apart_cycles = cycles_between(mono.middle_cycles(), other.middle_cycles());
        // As in a `Point`, each width may be one count more.
        let width_ns = (mono.width_cycles() as f64 + other.width_cycles() as f64 + 2.0) * line.ns_per_cycle;
        let apart_ns = apart_cycles as f64 * line.ns_per_cycle;
        let rate_error = rate_limit + self.mono.rate_uncertainty();
        let noise_ns = self.mono.noise_ns();
        Measured {
            whole_ns: ns_between(mono.time_ns, other.time_ns),
            rest_ns: -apart_ns,
            bound_ns: width_ns / 2.0 + apart_ns.abs() * rate_error + 4.0 * noise_ns + 2.0,
            noise_ns: noise_ns * std::f64::consts::SQRT_2,
        }
    }

    /// Returns whether the time between the two reads adds little to the error of their brackets. A preemption of 10 ms
    /// between them adds hundreds of nanoseconds if the line is only a millisecond long.
    fn is_precise(&self, mono: &Bracket, other: &Bracket) -> bool {
        let apart_cycles = cycles_between(mono.middle_cycles(), other.middle_cycles()).unsigned_abs() as f64;
        let width_cycles = mono.width_cycles() as f64 + other.width_cycles() as f64 + 2.0;
        apart_cycles * self.mono.rate_uncertainty() <= width_cycles / 8.0
    }

    /// Measures the offsets of the other clocks from MONOTONIC. Returns false where a step fell into the sample, or
    /// next to an interrupted read: take another sample.
    fn measure_offsets(&mut self, sample: &Sample, line: &Line, rate_limit: f64) -> bool {
        if let Some(tai) = &sample.tai {
            let apart = self.measure(&sample.real, tai, line, rate_limit);
            let ns = apart.whole_ns as f64 + apart.rest_ns;
            // TAI is whole seconds from REALTIME, unless one was set between the two reads.
            if (ns - (ns / 1e9).round() * 1e9).abs() > apart.bound_ns {
                return false;
            }
        }
        for (index, bracket) in others(sample) {
            let measured = self.measure(&sample.mono, &bracket, line, rate_limit);
            let is_good = self.widths[index].is_good(&bracket) && self.is_precise(&sample.mono, &bracket);
            match &mut self.offsets[index] {
                Some(offset) if is_good => {
                    self.in_force.stepped[index] |= offset.observe(&measured) == Change::Stepped;
                }
                // The clock was certainly stepped, but an interrupted read does not show its new value exactly.
                Some(offset) if offset.is_step(&measured) => return false,
                Some(_) => {}
                none => *none = is_good.then(|| Offset::new(&measured)),
            }
        }
        true
    }

    /// Returns the offset of a clock from MONOTONIC in whole nanoseconds, where it is known.
    fn offset_ns(&self, index: usize) -> Option<i64> {
        let held_ns = self.offsets[index].map(|offset| offset.held_ns());
        match (index, self.offsets[REALTIME]) {
            (MONOTONIC, _) => Some(0),
            // REALTIME and TAI have separate averages, but differ by whole seconds.
            (TAI, Some(real)) => held_ns.map(|tai_ns| {
                let seconds = ((tai_ns.wrapping_sub(real.held_ns())) as f64 / 1e9).round() as i64;
                real.held_ns().wrapping_add(seconds.wrapping_mul(1_000_000_000))
            }),
            _ => held_ns,
        }
    }

    /// Returns the anchor with its bases at a time of MONOTONIC, and the clocks that it can answer.
    fn with_bases(&self, mut anchor: Anchor, mono_ns_shifted: u128, offsets_ns: [Option<i64>; BASES]) -> Anchor {
        let shift = anchor.rate.shift;
        anchor.clocks = ClockSet::NONE;
        for (index, clock) in CLOCKS {
            let Some(offset_ns) = offsets_ns[index] else {
                continue;
            };
            // No clock of the kernel shows a time before its epoch; if one did, reads of it would fall back to the
            // kernel.
            let Some(ns_shifted) = mono_ns_shifted.checked_add_signed(i128::from(offset_ns) << shift) else {
                continue;
            };
            anchor.base[index] = Base::from_ns_shifted(ns_shifted, shift);
            // The next anchor starts from MONOTONIC's base, so it is set even if MONOTONIC is not served.
            anchor.clocks = anchor.clocks.union(clock.intersection(self.config.clocks));
        }
        anchor
    }

    fn follow_max_error(&mut self, sample: &Sample) {
        let follow = |ntp: Ntp| MaxError::follow(self.max_error, &ntp, sample.mono.time_ns);
        self.max_error = sample.ntp.and_then(follow);
    }

    /// Returns the anchor with its distance from UTC.
    fn with_utc_error(&self, mut anchor: Anchor, sample: &Sample, line: &Line) -> Anchor {
        // MONOTONIC_RAW is not adjusted; without it, adjtimex(2) says by how much MONOTONIC is, but for a slew.
        let unadjusted = self.raw.line().map(|raw| line.ns_per_cycle / raw.ns_per_cycle);
        let slew = unadjusted.or(self.ntp.map(Ntp::rate)).unwrap_or(1.0) - 1.0;
        if let Some(max_error) = self.max_error
            && anchor.clocks.contains(ClockSet::REALTIME)
        {
            anchor.utc_error = max_error.of_anchor(&anchor, &sample.real, line, slew);
        }
        anchor
    }

    /// Returns how far MONOTONIC must be put forward so that no clock goes back when the offsets are refined.
    fn lift_ns(&self) -> u64 {
        // A withdrawn anchor binds as well, but a clock may have been stepped since without notice.
        let (hres, most_ns) = match (&self.in_force.hres, &self.in_force.floor_hres) {
            (Some(hres), _) => (hres, u64::MAX),
            (None, Some(floor)) => (floor, REMEASURED_NS),
            (None, None) => return 0,
        };
        CLOCKS
            .into_iter()
            .filter(|(index, _)| !self.in_force.stepped[*index])
            .filter_map(|(index, _)| {
                let back_ns = shown_offset_ns(hres, index)?.wrapping_sub(self.offset_ns(index)?);
                u64::try_from(back_ns).ok().filter(|back_ns| *back_ns <= most_ns)
            })
            .max()
            .unwrap_or(0)
    }

    /// Returns how long anchors that begin at a time of REALTIME may be read, in nanoseconds; `None` while the kernel
    /// is about to make a leap second, because REALTIME is unknown until then.
    fn cap_before_leap_ns(&self, real_ns: u64) -> Option<u64> {
        let cap_ns = self.cap_ns();
        let to_leap_ns = self.ntp.and_then(|ntp| ntp.to_leap_ns(real_ns));
        match to_leap_ns.map(u64::try_from) {
            None => Some(cap_ns),
            Some(Ok(to_leap_ns)) if to_leap_ns > 0 => Some(cap_ns.min(to_leap_ns)),
            Some(_) => None,
        }
    }

    fn publish(&mut self, sample: &Sample, line: &Line, effective_at: u64, residual_ns: i64) -> Outcome {
        let previous = self.in_force.hres.as_ref();
        // Before the base of the anchor in force, readers still use the previous one.
        if previous.is_some_and(|previous| cycles_between(previous.base_cycles, effective_at) <= 0) {
            return Outcome::Wait;
        }
        // The counts of one second of a counter beyond 4.3 GHz do not fit an anchor: anchors and windows are shorter.
        let longest_cap_ns = (f64::from(u32::MAX) * line.ns_per_cycle) as u64;
        let longest_window_ns = longest_cap_ns / self.config.cap_windows.max(1);
        self.window_ns = self.window_ns.min(longest_window_ns.max(1));
        let effective_mono_ns = line
            .origin_ns
            .wrapping_add_signed(line.above_origin_ns(effective_at) as i64);
        let effective_real_ns = effective_mono_ns.wrapping_add_signed(self.offset_ns(REALTIME).unwrap_or(0));
        // The machine may have slept since the sample, while the counter went on.
        let since_cycles = cycles_between(line.origin_cycles, effective_at);
        if (since_cycles as f64 * line.ns_per_cycle).abs() > LONGEST_EXTRAPOLATION_NS {
            self.retry = true;
            return Outcome::Wait;
        }
        let known_cap_ns = self.known_cap_ns(&self.mono, previous, effective_at);
        let (Some(known_cap_ns), Some(leap_cap_ns)) = (known_cap_ns, self.cap_before_leap_ns(effective_real_ns)) else {
            return Outcome::Wait;
        };
        let times = Times {
            window_ns: self.window_ns,
            cap_ns: known_cap_ns.min(leap_cap_ns),
        };
        let InForce { hres, floor_hres, .. } = self.in_force;
        let shown = Shown::by(hres, floor_hres, MONOTONIC, effective_at);
        let is_far_ahead = |shown: Shown| shown.ahead_ns(line, effective_at) > visible_ns(self.mono.noise_ns());
        if hres.is_none() && shown.is_some_and(is_far_ahead) {
            // Readers of MONOTONIC keep the floor until the kernel is past it. An anchor from there would take the other
            // clocks ahead as well.
            self.retry = true;
            return Outcome::Wait;
        }
        // Readers that fall back to the kernel have seen its time since the sample, at a rate that the line does not
        // know if it has just changed.
        let readers_ask_kernel = shown.is_none_or(|shown| shown.expired);
        let may_change = |ntp: Ntp| ntp.may_change_at(effective_real_ns, self.slews_on());
        if readers_ask_kernel && self.ntp.is_some_and(may_change) {
            return Outcome::Wait;
        }
        let Some(course) = steer(shown, line, effective_at, times, self.mono.noise_ns()) else {
            return self.start_over(Reason::RateImplausible);
        };
        let lift_ns_shifted = u128::from(self.lift_ns()) << course.rate.shift;
        let empty = Anchor {
            clocks: ClockSet::NONE,
            base_cycles: effective_at,
            rate: course.rate,
            cap_cycles: course.cap_cycles,
            base: [Base::default(); BASES],
            utc_error: UtcError::default(),
        };
        let hres = self.with_bases(
            empty,
            course.start_ns_shifted + lift_ns_shifted,
            std::array::from_fn(|index| self.offset_ns(index)),
        );
        let hres = self.with_utc_error(hres, sample, line);
        let raw = match self.next_raw(effective_at, times, hres.cap_cycles) {
            Ok(raw) => raw,
            Err(reason) => return self.start_over(reason),
        };
        self.before = self.in_force;
        self.in_force = InForce {
            hres: Some(hres),
            raw: raw.or(self.in_force.raw),
            floor_hres: None,
            floor_raw: self.in_force.floor_raw.filter(|_| raw.is_none()),
            stepped: [false; BASES],
        };
        Outcome::Publish { hres, raw, residual_ns }
    }

    /// Returns the next anchor of MONOTONIC_RAW. It ends no later than the other, after `most_cycles`: where readers use
    /// the kernel, an anchor begins at once, which it cannot while another one of its page is read.
    fn next_raw(&self, effective_at: u64, times: Times, most_cycles: u32) -> Result<Option<Anchor>, Reason> {
        let Some(line) = self
            .raw
            .line()
            .filter(|_| self.config.clocks.contains(ClockSet::MONOTONIC_RAW))
        else {
            return Ok(None);
        };
        let previous = self.in_force.raw.as_ref();
        let Some(known_cap_ns) = self.known_cap_ns(&self.raw, previous, effective_at) else {
            return Ok(None);
        };
        let times = Times {
            cap_ns: times.cap_ns.min(known_cap_ns),
            ..times
        };
        let shown = Shown::by(self.in_force.raw, self.in_force.floor_raw, RAW, effective_at);
        let is_far_ahead = |shown: Shown| shown.ahead_ns(line, effective_at) > visible_ns(self.raw.noise_ns());
        if previous.is_none() && shown.is_some_and(is_far_ahead) {
            return Ok(None);
        }
        let course = steer(shown, line, effective_at, times, self.raw.noise_ns()).ok_or(Reason::RateImplausible)?;
        let mut base = [Base::default(); BASES];
        base[RAW] = Base::from_ns_shifted(course.start_ns_shifted, course.rate.shift);
        Ok(Some(Anchor {
            clocks: ClockSet::MONOTONIC_RAW,
            base_cycles: effective_at,
            rate: course.rate,
            cap_cycles: course.cap_cycles.min(most_cycles),
            base,
            utc_error: UtcError::default(),
        }))
    }

    /// Returns how long an anchor may be read from `effective_at`. The first anchor is limited to the time for which
    /// the clock is known to within the promised error: the line extrapolates from the sample, and a preempted
    /// publisher gets here long after it. `None` if too little of that time is left.
    fn known_cap_ns(&self, track: &Track, previous: Option<&Anchor>, effective_at: u64) -> Option<u64> {
        let cap_ns = self.cap_ns();
        if previous.is_some() {
            return Some(cap_ns);
        }
        let line = track.line()?;
        let since_ns = cycles_between(line.origin_cycles, effective_at) as f64 * line.ns_per_cycle;
        let known_for_ns = track.known_for_ns();
        // The conversion of a negative float saturates at 0.
        let left_ns = (known_for_ns - since_ns) as u64;
        (known_for_ns >= cap_ns as f64 && left_ns >= cap_ns / 2).then_some(left_ns.min(cap_ns))
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

    fn is_on_probation(&mut self, mono_ns: u64) -> bool {
        if self.strikes == 0 {
            return false;
        }
        let good_for_ns = u64::try_from(ns_between(self.caught_at_ns, mono_ns)).unwrap_or(0);
        if good_for_ns >= FORGIVEN_AFTER_NS {
            self.strikes = 0;
        }
        self.strikes > 0 && good_for_ns < PROBATION_NS << (self.strikes - 1)
    }

    fn distrust(&mut self, reason: Reason, mono_ns: u64) -> Outcome {
        self.strikes = (self.strikes + 1).min(MAX_STRIKES);
        self.caught_at_ns = mono_ns;
        self.start_over(reason)
    }

    fn start_over(&mut self, reason: Reason) -> Outcome {
        self.mono.restart();
        self.raw.restart();
        self.offsets = [None; BASES];
        self.in_force = self.in_force.withdrawn();
        self.before = self.in_force;
        self.ntp = None;
        self.pending_at_ns = None;
        self.max_error = None;
        self.line_is_average = false;
        self.window_ns = self.config.first_window_ns;
        Outcome::Withdraw(reason)
    }
}

/// Returns the brackets of the clocks that are kept as offsets from MONOTONIC, with their indices.
fn others(sample: &Sample) -> impl Iterator<Item = (usize, Bracket)> {
    [
        (REALTIME, Some(sample.real)),
        (BOOTTIME, sample.boot),
        (TAI, sample.tai),
    ]
    .into_iter()
    .filter_map(|(index, bracket)| Some((index, bracket?)))
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

/// Returns the offset from MONOTONIC at which an anchor shows a clock, in whole nanoseconds; `None` if it does not
/// answer that clock.
fn shown_offset_ns(hres: &Anchor, index: usize) -> Option<i64> {
    let shift = hres.rate.shift;
    let (_, clock) = CLOCKS[index];
    let mono = hres.base[MONOTONIC].ns_shifted(shift) as i128;
    hres.clocks
        .contains(clock)
        .then(|| ((hres.base[index].ns_shifted(shift) as i128 - mono) >> shift) as i64)
}
