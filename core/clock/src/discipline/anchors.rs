//! The next anchors, from a sample that was accepted.

use fastpath_page::layout::BASES;
use fastpath_page::{Anchor, Base, ClockSet, Reason};

use super::{AnchorDecision, Discipline};
use crate::bracket::Sample;
use crate::clocks::{CLOCKS, MONOTONIC, RAW, REALTIME};
use crate::in_force::{InForce, shown_offset_ns};
use crate::line::{Line, cycles_between};
use crate::ntp::Ntp;
use crate::steer::{Shown, Times, steer, visible_ns};
use crate::track::Track;

/// Longest time from a sample to the base of its anchor, by the counter: several times what the slowest host needs. A
/// publisher that was stopped for longer takes another sample.
const LONGEST_EXTRAPOLATION_NS: f64 = 10e6;
/// Most by which an offset between two clocks may come out smaller when it is measured anew without being a different
/// offset.
const REMEASURED_NS: u64 = 2_000;
impl Discipline {
    /// Returns the anchor with its bases at a time of MONOTONIC, and the clocks that it can answer.
    pub(super) fn with_bases(
        &self,
        mut anchor: Anchor,
        mono_ns_shifted: u128,
        offsets_ns: [Option<i64>; BASES],
    ) -> Anchor {
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

    /// Returns the anchor with its distance from UTC.
    pub(super) fn with_utc_error(&self, mut anchor: Anchor, sample: &Sample, line: &Line) -> Anchor {
        // MONOTONIC_RAW is not adjusted; without it, adjtimex(2) says by how much MONOTONIC is, but for a slew.
        let unadjusted = self.raw.line().map(|raw| line.ns_per_cycle / raw.ns_per_cycle);
        let slew = unadjusted.or(self.kernel.ntp.map(Ntp::rate)).unwrap_or(1.0) - 1.0;
        if let Some(max_error) = self.kernel.max_error
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
                let back_ns = shown_offset_ns(hres, index)?.wrapping_sub(self.offsets.offset_ns(index)?);
                u64::try_from(back_ns).ok().filter(|back_ns| *back_ns <= most_ns)
            })
            .max()
            .unwrap_or(0)
    }

    /// Returns how long anchors that begin at a time of REALTIME may be read, in nanoseconds; `None` while the kernel
    /// is about to make a leap second, because REALTIME is unknown until then.
    fn cap_before_leap_ns(&self, real_ns: u64) -> Option<u64> {
        let cap_ns = self.cap_ns();
        let to_leap_ns = self.kernel.ntp.and_then(|ntp| ntp.to_leap_ns(real_ns));
        match to_leap_ns.map(u64::try_from) {
            None => Some(cap_ns),
            Some(Ok(to_leap_ns)) if to_leap_ns > 0 => Some(cap_ns.min(to_leap_ns)),
            Some(_) => None,
        }
    }

    pub(super) fn publish(
        &mut self,
        sample: &Sample,
        line: &Line,
        effective_at: u64,
        residual_ns: i64,
    ) -> AnchorDecision {
        let previous = self.in_force.hres.as_ref();
        // Before the base of the anchor in force, readers still use the previous one.
        if previous.is_some_and(|previous| cycles_between(previous.base_cycles, effective_at) <= 0) {
            return AnchorDecision::Wait;
        }
        // The counts of one second of a counter beyond 4.3 GHz do not fit an anchor: anchors and windows are shorter.
        let longest_cap_ns = (f64::from(u32::MAX) * line.ns_per_cycle) as u64;
        let longest_window_ns = longest_cap_ns / self.config.cap_windows.max(1);
        self.window_ns = self.window_ns.min(longest_window_ns.max(1));
        let effective_mono_ns = line
            .origin_ns
            .wrapping_add_signed(line.above_origin_ns(effective_at) as i64);
        let effective_real_ns = effective_mono_ns.wrapping_add_signed(self.offsets.offset_ns(REALTIME).unwrap_or(0));
        // The machine may have slept since the sample, while the counter went on.
        let since_cycles = cycles_between(line.origin_cycles, effective_at);
        if (since_cycles as f64 * line.ns_per_cycle).abs() > LONGEST_EXTRAPOLATION_NS {
            self.retry = true;
            return AnchorDecision::Wait;
        }
        let InForce { hres, floor_hres, .. } = self.in_force;
        let shown = Shown::by(hres, floor_hres, MONOTONIC, effective_at);
        let readers_ask_kernel = shown.is_none_or(|shown| shown.expired);
        // While readers use an anchor, even a rate that is hardly known is better than the former one.
        let known_cap_ns = if readers_ask_kernel {
            self.known_cap_ns(&self.mono, effective_at)
        } else {
            Some(self.cap_ns())
        };
        let (Some(known_cap_ns), Some(leap_cap_ns)) = (known_cap_ns, self.cap_before_leap_ns(effective_real_ns)) else {
            return AnchorDecision::Wait;
        };
        let times = Times {
            window_ns: self.window_ns,
            cap_ns: known_cap_ns.min(leap_cap_ns),
        };
        let is_far_ahead = |shown: Shown| shown.ahead_ns(line, effective_at) > visible_ns(self.mono.noise_ns());
        if hres.is_none() && shown.is_some_and(is_far_ahead) {
            // Readers of MONOTONIC keep the floor until the kernel is past it. An anchor from there would take the other
            // clocks ahead as well.
            self.retry = true;
            return AnchorDecision::Wait;
        }
        // Readers that fall back to the kernel have seen its time since the sample, at a rate that the line does not
        // know if it has just changed.
        let may_change = |ntp: Ntp| ntp.may_change_at(effective_real_ns, self.kernel.slews_on());
        if readers_ask_kernel && self.kernel.ntp.is_some_and(may_change) {
            return AnchorDecision::Wait;
        }
        let Some(course) = steer(shown, line, effective_at, times, self.mono.noise_ns()) else {
            return self.start_over(Reason::RateImplausible);
        };
        let lift_ns_shifted = u128::from(self.lift_ns()) << course.rate.shift;
        let hres = self.with_bases(
            course.anchor_at(effective_at),
            course.start_ns_shifted + lift_ns_shifted,
            std::array::from_fn(|index| self.offsets.offset_ns(index)),
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
        AnchorDecision::Publish { hres, raw, residual_ns }
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
        // Its rate hardly ever changes, so a line that seems to have another is not better than the anchor in force.
        let Some(known_cap_ns) = self.known_cap_ns(&self.raw, effective_at) else {
            return Ok(None);
        };
        let times = Times {
            cap_ns: times.cap_ns.min(known_cap_ns),
            ..times
        };
        let shown = Shown::by(self.in_force.raw, self.in_force.floor_raw, RAW, effective_at);
        let is_far_ahead = |shown: Shown| shown.ahead_ns(line, effective_at) > visible_ns(self.raw.noise_ns());
        if self.in_force.raw.is_none() && shown.is_some_and(is_far_ahead) {
            return Ok(None);
        }
        let course = steer(shown, line, effective_at, times, self.raw.noise_ns()).ok_or(Reason::RateImplausible)?;
        let mut base = [Base::default(); BASES];
        base[RAW] = Base::from_ns_shifted(course.start_ns_shifted, course.rate.shift);
        Ok(Some(Anchor {
            clocks: ClockSet::MONOTONIC_RAW,
            cap_cycles: course.cap_cycles.min(most_cycles),
            base,
            ..course.anchor_at(effective_at)
        }))
    }

    /// Returns how long an anchor may be read from `effective_at`: while its clock is known to within the promised error.
    /// The line extrapolates from the sample, and a preempted publisher gets here long after it. `None` if too little of
    /// that time is left, as after a change of rate until the points are far enough apart.
    fn known_cap_ns(&self, track: &Track, effective_at: u64) -> Option<u64> {
        let cap_ns = self.cap_ns();
        let line = track.line()?;
        let since_ns = cycles_between(line.origin_cycles, effective_at) as f64 * line.ns_per_cycle;
        let known_for_ns = track.known_for_ns();
        // The conversion of a negative float saturates at 0.
        let left_ns = (known_for_ns - since_ns) as u64;
        (known_for_ns >= cap_ns as f64 && left_ns >= cap_ns / 2).then_some(left_ns.min(cap_ns))
    }
}
