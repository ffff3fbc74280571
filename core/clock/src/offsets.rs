//! How far the other clocks are ahead of MONOTONIC.

use fastpath_page::layout::BASES;

use crate::bracket::{Bracket, Sample};
use crate::clocks::{BOOTTIME, MONOTONIC, REALTIME, TAI};
use crate::line::{Line, cycles_between, ns_between};
use crate::offset::{Measured, Offset, OffsetChange};
use crate::track::{NTP_LIMITS, Track};
use crate::widths::Widths;

/// A smaller advance of BOOTTIME over MONOTONIC is not a suspend; it may be a counter that stopped between the two
/// reads.
const SHORTEST_SUSPEND_NS: f64 = 1e6;

/// The offsets, indexed by clock; MONOTONIC has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    widths: [Widths; BASES],
    held: [Option<Offset>; BASES],
}

impl Offsets {
    /// Records how long a sample's reads took.
    pub(crate) fn see(&mut self, sample: &Sample) {
        for (index, bracket) in others(sample) {
            self.widths[index].see(&bracket);
        }
    }

    /// Forgets the offsets, but not how long reads take.
    pub(crate) fn restart(&mut self) {
        self.held = [None; BASES];
    }

    /// Returns whether BOOTTIME advanced more than MONOTONIC, which only a suspend causes.
    pub(crate) fn was_suspended(&self, sample: &Sample, mono: &Track) -> bool {
        let (Some(boot), Some(offset)) = (&sample.boot, &self.held[BOOTTIME]) else {
            return false;
        };
        let Some(line) = mono.line() else { return false };
        let measured = measure(mono, &sample.mono, boot, line, NTP_LIMITS.change);
        offset.is_step(&measured) && offset.above_held_ns(&measured) > SHORTEST_SUSPEND_NS
    }

    /// Measures the offsets of the other clocks from MONOTONIC, which `mono` follows, and notes those that were stepped.
    /// Returns false where a step fell into the sample, or next to an interrupted read: take another sample.
    pub(crate) fn measure(
        &mut self,
        sample: &Sample,
        mono: &Track,
        rate_limit: f64,
        stepped: &mut [bool; BASES],
    ) -> bool {
        let Some(line) = mono.line() else { return true };
        if let Some(tai) = &sample.tai {
            let apart = measure(mono, &sample.real, tai, line, rate_limit);
            let ns = apart.whole_ns as f64 + apart.rest_ns;
            // TAI is whole seconds from REALTIME, unless one was set between the two reads.
            if (ns - (ns / 1e9).round() * 1e9).abs() > apart.bound_ns {
                return false;
            }
        }
        for (index, bracket) in others(sample) {
            let measured = measure(mono, &sample.mono, &bracket, line, rate_limit);
            let is_good = self.widths[index].is_good(&bracket) && is_precise(mono, &sample.mono, &bracket);
            match &mut self.held[index] {
                Some(offset) if is_good => {
                    stepped[index] |= offset.observe(&measured) == OffsetChange::Stepped;
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
    pub(crate) fn offset_ns(&self, index: usize) -> Option<i64> {
        let held_ns = self.held[index].map(|offset| offset.held_ns());
        match (index, self.held[REALTIME]) {
            (MONOTONIC, _) => Some(0),
            // REALTIME and TAI have separate averages, but differ by whole seconds.
            (TAI, Some(real)) => held_ns.map(|tai_ns| {
                let seconds = ((tai_ns.wrapping_sub(real.held_ns())) as f64 / 1e9).round() as i64;
                real.held_ns().wrapping_add(seconds.wrapping_mul(1_000_000_000))
            }),
            _ => held_ns,
        }
    }
}

/// Measures the offset of a clock from MONOTONIC, valid if the kernel's rate changed by at most `rate_limit`,
/// relative, since the line.
fn measure(track: &Track, mono: &Bracket, other: &Bracket, line: &Line, rate_limit: f64) -> Measured {
    let apart_cycles = cycles_between(mono.middle_cycles(), other.middle_cycles());
    // As in a `Point`, each width may be one count more.
    let width_ns = (mono.width_cycles() as f64 + other.width_cycles() as f64 + 2.0) * line.ns_per_cycle;
    let apart_ns = apart_cycles as f64 * line.ns_per_cycle;
    let rate_error = rate_limit + track.rate_uncertainty();
    let noise_ns = track.noise_ns();
    Measured {
        whole_ns: ns_between(mono.time_ns, other.time_ns),
        rest_ns: -apart_ns,
        bound_ns: width_ns / 2.0 + apart_ns.abs() * rate_error + 4.0 * noise_ns + 2.0,
        noise_ns: noise_ns * std::f64::consts::SQRT_2,
    }
}

/// Returns whether the time between the two reads adds little to the error of their brackets. A preemption of 10 ms
/// between them adds hundreds of nanoseconds if the line is only a millisecond long.
fn is_precise(track: &Track, mono: &Bracket, other: &Bracket) -> bool {
    let apart_cycles = cycles_between(mono.middle_cycles(), other.middle_cycles()).unsigned_abs() as f64;
    let width_cycles = mono.width_cycles() as f64 + other.width_cycles() as f64 + 2.0;
    apart_cycles * track.rate_uncertainty() <= width_cycles / 8.0
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
