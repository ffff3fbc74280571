//! Establishes whether the counter can be believed, by the CPU's statement, the kernel's permission, a comparison of
//! the CPUs' counters, and the counter's predictions of the kernel's clock.
//!
//! [`Evidence`] is plain data, and [`Evidence::verdict`] a function of it and of nothing else: the same for `fastpath
//! run`, which obeys it, for `doctor`, which prints it, and for hosts of guests, which log it.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod counter;
pub mod cpus;
mod drift;
mod exchange;
mod first_sight;
mod kernels_clock;
pub mod offsets;
mod page_copy;
mod pair;
mod patrol;
mod pause;
mod residuals;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod verdict;
mod warp;

use std::time::Duration;

use crate::counter::Features;

pub use drift::Drift;
pub use first_sight::trapped_cpus;
pub use kernels_clock::{CLOCKSOURCE, KernelsClock, SUSPENDS, kernel_file};
pub use offsets::{Offsets, Unsolvable};
pub use page_copy::{PageCopy, STALE, age_of};
pub use pair::Pair;
pub use patrol::Patrol;
pub use pause::pause;
pub use residuals::{Residuals, Withdrawal};
pub use verdict::{Distrust, Evidence, Trust};
pub use warp::{LeftOut, Missed, Timeouts, Warp};

/// Timeouts at a start.
const TIMEOUTS: Timeouts = Timeouts {
    in_all: Duration::from_millis(40),
    for_a_pair: Duration::from_millis(20),
    for_an_answer: Duration::from_millis(4),
};
/// Timeouts at a start where the kernel itself runs on the counter: it compared all CPUs at boot and has watched them
/// since.
const WHERE_KERNEL_TRUSTS: Timeouts = Timeouts {
    in_all: Duration::from_millis(8),
    for_a_pair: Duration::from_millis(4),
    ..TIMEOUTS
};
/// Timeouts where the user gave `--trust-counter` and no two CPUs were compared: virtual CPUs of a busy host may not
/// run at once for a long time.
const WHERE_ALLOWED: Timeouts = Timeouts {
    in_all: Duration::from_millis(500),
    for_a_pair: Duration::from_millis(250),
    for_an_answer: Duration::from_millis(50),
};

impl Evidence {
    /// Gathers the evidence that is available at once, without threads and without reading the counter where that would
    /// be fatal.
    pub fn at_first_sight() -> Evidence {
        first_sight::look()
    }

    /// Gathers all evidence about a host: [`Evidence::at_first_sight`], and every pair of CPUs compared. Starts
    /// threads.
    pub fn gather(timeouts: Timeouts) -> Evidence {
        let mut evidence = Evidence::at_first_sight();
        if evidence.is_readable {
            evidence.is_trapped = first_sight::is_trapped();
            evidence.warp = Some(warp::of_every_pair(timeouts, warp::MOST_ROUNDS));
        }
        evidence
    }

    /// Gathers the evidence that `fastpath run` uses: all of it, in about a tenth of a millisecond per CPU where they
    /// are idle; less where the first sight suffices. Starts threads.
    pub fn of_this_host(trust: Trust) -> Evidence {
        let evidence = Evidence::at_first_sight();
        // The counter may be read, and is worth comparing, only if the rest is in order.
        if evidence.verdict(trust).is_err() {
            return evidence;
        }
        let timeouts = if KernelsClock::of_this_host() == KernelsClock::Counter {
            WHERE_KERNEL_TRUSTS
        } else {
            TIMEOUTS
        };
        let evidence = Evidence::gather(timeouts);
        if evidence.verdict(trust) == Err(Distrust::NotCompared) {
            return Evidence::gather(WHERE_ALLOWED);
        }
        evidence
    }
}

/// Returns the counter's features if it may be read and its rate satisfies `trust`. Must be called before the counter
/// is read for any purpose.
pub fn is_promising(trust: Trust) -> Result<Features, Distrust> {
    let evidence = Evidence::at_first_sight();
    evidence.verdict_with_offsets(trust, KernelsClock::of_this_host())?;
    evidence.features.ok_or(Distrust::NotReadable)
}

/// Examines this host's counter for a publisher whose pages have no offsets, by [`Evidence::of_this_host`].
///
/// # Errors
/// The reason not to use the counter, and what to do about it.
pub fn examine(trust: Trust) -> Result<Evidence, String> {
    is_promising(trust).map_err(|distrust| distrust.refusal())?;
    let evidence = Evidence::of_this_host(trust);
    match evidence.verdict(trust) {
        Ok(()) => Ok(evidence),
        Err(distrust) => Err(distrust.refusal()),
    }
}

/// Does the same for a publisher whose pages have offsets. If the CPUs' counters differ, and the CPU states that they have
/// one rate, or the user vouches for them, measures their offsets, which takes a second, and puts those in force
/// ([`offsets::in_force`]).
///
/// # Errors
/// The reason not to use the counter, and what to do about it.
pub fn examine_with_offsets(trust: Trust) -> Result<(), String> {
    is_promising(trust).map_err(|distrust| distrust.refusal())?;
    let evidence = Evidence::of_this_host(trust);
    match evidence.verdict(trust) {
        Ok(()) => Ok(()),
        Err(Distrust::Warp { .. }) if evidence.may_have_offsets(trust) && offsets::would_help() => {
            let measured = Offsets::measure_steady().map_err(|why| {
                format!("the counters of this host's CPUs differ, and cannot be made to agree: {why}")
            })?;
            offsets::put_in_force(measured);
            Ok(())
        }
        Err(distrust) => Err(distrust.refusal()),
    }
}
