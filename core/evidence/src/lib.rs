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
pub mod offsets;
mod page_copy;
mod pause;
mod residuals;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod warp;

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counter::Features;
use fastpath_isa::Isa;

pub use drift::Drift;
pub use offsets::{Offsets, Unsolvable};
pub use page_copy::PageCopy;
pub use pause::pause;
pub use residuals::{Residuals, Withdrawal};
pub use warp::{LeftOut, Missed, Pair, Patrol, Timeouts, Warp};

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

/// Requirements that a counter must meet before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// The CPU must state one rate.
    #[default]
    Invariant,
    /// `--trust-counter`: the CPU need not state one rate. All other requirements remain, and the counter is watched
    /// more closely (`fastpath_clock::Config::watched`).
    #[serde(rename = "anyway")]
    AllowNonInvariant,
}

impl Trust {
    /// Returns the level of a command with or without `--trust-counter`.
    pub fn from_option(trust_counter: bool) -> Trust {
        match trust_counter {
            true => Trust::AllowNonInvariant,
            false => Trust::Invariant,
        }
    }
}

/// Reason why the counter is not believed.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Distrust {
    /// The CPU does not state that the counter has one rate.
    #[error("{}", Isa::HOST.facts().counter.not_invariant)]
    NotInvariant,
    /// The CPU does not state that it has the counter.
    #[error("CPUID does not state that there is a TSC, so its reads may end in SIGILL at any time, or be emulated")]
    NotStated,
    /// The process may not read the counter (PR_SET_TSC).
    #[error("this process may not read the counter (prctl PR_GET_TSC)")]
    NotReadable,
    /// The kernel or the firmware emulates reads of it.
    #[error("{}", Isa::HOST.facts().counter.trapped.unwrap_or("reading the counter traps"))]
    Trapped,
    /// The counters of two CPUs disagree.
    #[error("the counters of CPUs {cpu} and {other} disagree by {cycles} counts or more")]
    Warp {
        /// One of the two CPUs with the largest distance.
        cpu: usize,
        /// The other CPU.
        other: usize,
        /// Least distance of the two, in counts.
        cycles: u64,
    },
    /// The counters of two CPUs tick at different rates.
    #[error("{0}")]
    Drift(Drift),
    /// The CPU does not state one rate, and no pair of CPUs could be compared.
    #[error("the counters of this host's CPUs could not be compared with each other")]
    NotCompared,
    /// The kernel's clock advances by its timer ticks (clocksource jiffies).
    #[error("the kernel's clock advances with its timer ticks only (clocksource jiffies), and no page can follow that")]
    CoarseClock,
    /// A publisher's anchors on this counter are withdrawn at present.
    #[error("{reason}")]
    Withdrawn {
        /// The reason of the withdrawal.
        reason: String,
    },
}

impl Distrust {
    /// Returns a message with the reason why the counter is not used, and what to do about it.
    pub fn refusal(&self) -> String {
        let advice = match self {
            Distrust::NotInvariant => "; --trust-counter reads it all the same, and watches it closely",
            Distrust::Warp { .. } if offsets::would_help() => {
                "; with --trust-counter, fastpath measures how far each is ahead, subtracts that, and watches it"
            }
            _ => "",
        };
        format!("the counter cannot be trusted: {self}{advice}")
    }
}

/// Findings about the counter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// Whether this process may read the counter (PR_GET_TSC). If not, nothing else was examined.
    pub is_readable: bool,
    /// The CPU's statement about the counter.
    pub features: Option<Features>,
    /// Whether reads trap to the kernel.
    pub is_trapped: bool,
    /// The comparison of the CPUs' counters, if it was made.
    pub warp: Option<Warp>,
    /// How well the counter predicted the kernel's clock, if a publisher runs.
    pub residuals: Option<Residuals>,
}

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

    /// Returns whether the counter is believed; the error is the first reason not to.
    pub fn verdict(&self, trust: Trust) -> Result<(), Distrust> {
        if !self.is_readable {
            return Err(Distrust::NotReadable);
        }
        if self.features.is_some_and(|features| !features.exists) {
            return Err(Distrust::NotStated);
        }
        let invariant = self.features.is_some_and(|features| features.invariant);
        if !invariant && trust == Trust::Invariant {
            return Err(Distrust::NotInvariant);
        }
        if self.is_trapped {
            return Err(Distrust::Trapped);
        }
        if let Some(warp) = &self.warp {
            if let Some(pair) = warp.furthest_apart() {
                return Err(Distrust::Warp {
                    cpu: pair.cpu,
                    other: pair.other,
                    cycles: pair.apart_cycles(),
                });
            }
            if !invariant && warp.cpus.len() > 1 && warp.pairs.is_empty() {
                return Err(Distrust::NotCompared);
            }
        }
        match self
            .residuals
            .as_ref()
            .and_then(|residuals| residuals.withdrawn.as_ref())
        {
            Some(reason) => Err(Distrust::Withdrawn { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Returns the verdict on a counter whose CPUs may differ by constant offsets: the error is the first reason not to
    /// use it even with [`Offsets`]. A host of guests, whose pages have none, goes by [`Evidence::verdict`].
    pub fn verdict_with_offsets(&self, trust: Trust, kernels: KernelsClock) -> Result<(), Distrust> {
        let verdict = self.verdict(trust);
        if self.is_readable && kernels == KernelsClock::Ticks {
            return Err(Distrust::CoarseClock);
        }
        let is_explained = || self.warp.as_ref().is_some_and(|warp| warp.offsets().is_ok());
        match verdict {
            Err(Distrust::Warp { .. })
                if self.may_have_offsets(trust)
                    && kernels == KernelsClock::Other
                    && self.features.is_some_and(|features| features.rdtscp)
                    && is_explained() =>
            {
                Ok(())
            }
            verdict => verdict,
        }
    }

    /// Returns whether offsets may be used at all: if the user vouches for the counter, or if the CPU itself states that all
    /// counters have one rate. The statement of a hypervisor is about the CPUs below, from one to another of which it may
    /// move a virtual one. On hosts of more CPUs, a comparison of all takes longer than a CPU may be off.
    fn may_have_offsets(&self, trust: Trust) -> bool {
        let cpus = self.warp.as_ref().map_or(0, |warp| warp.cpus.len());
        trust == Trust::AllowNonInvariant
            || self
                .features
                .is_some_and(|features| features.invariant && !features.virtual_cpu)
                && cpus <= offsets::MOST_CPUS_BY_DEFAULT
    }
}

/// What the kernel reads its own clock from. Where that is the counter, and the CPUs' counters differ, that clock is no
/// reference by which offsets could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelsClock {
    /// From the counter.
    Counter,
    /// From its own timer ticks, which are milliseconds apart.
    Ticks,
    /// From another source, such as the HPET.
    Other,
}

/// Returns the name of the clocksource in use, as the kernel's file has it, and zeros behind; `None` if this process cannot
/// read it. Keeps no file open, and does not allocate.
pub fn clocksource() -> Option<[u8; 64]> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let mut name = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read(&mut name));
    read.ok().map(|_| name)
}

impl KernelsClock {
    /// Returns the clock of the kernel whose current clocksource has this name.
    pub fn of_clocksource(name: &str) -> KernelsClock {
        match name {
            // x86's and Arm's counter that fastpath reads.
            "tsc" | "arch_sys_counter" => KernelsClock::Counter,
            "jiffies" | "refined-jiffies" => KernelsClock::Ticks,
            _ => KernelsClock::Other,
        }
    }

    fn of_this_host() -> KernelsClock {
        let name = clocksource().unwrap_or([0; 64]);
        let name = str::from_utf8(&name).unwrap_or_default();
        KernelsClock::of_clocksource(name.trim_end_matches(['\0', '\n']))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Evidence {
        Evidence {
            is_readable: true,
            features: Some(Features {
                invariant: true,
                ..Features::of_this_cpu()
            }),
            is_trapped: false,
            warp: Some(Warp {
                cpus: vec![0, 1],
                pairs: vec![pair(-90, 80)],
                ..Warp::default()
            }),
            residuals: None,
        }
    }

    fn pair(least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            cpu: 0,
            other: 1,
            least_cycles,
            most_cycles,
        }
    }

    fn not_invariant(mut evidence: Evidence) -> Evidence {
        if let Some(features) = &mut evidence.features {
            features.invariant = false;
        }
        evidence
    }

    const BOTH: [Trust; 2] = [Trust::Invariant, Trust::AllowNonInvariant];

    #[test]
    fn a_healthy_counter_is_believed() {
        for trust in BOTH {
            assert_eq!(healthy().verdict(trust), Ok(()));
        }
    }

    #[test]
    fn a_counter_that_no_cpu_states_is_refused_whoever_vouches_for_it() {
        let mut evidence = healthy();
        if let Some(features) = &mut evidence.features {
            features.exists = false;
        }
        for trust in BOTH {
            assert_eq!(evidence.verdict(trust), Err(Distrust::NotStated));
        }
    }

    #[test]
    fn a_counter_without_invariance_is_refused_unless_the_user_vouches_for_it() {
        let evidence = not_invariant(healthy());
        assert_eq!(evidence.verdict(Trust::Invariant), Err(Distrust::NotInvariant));
        assert_eq!(evidence.verdict(Trust::AllowNonInvariant), Ok(()));
    }

    #[test]
    fn trust_does_not_help_a_counter_that_is_forbidden_trapped_or_apart() {
        let unreadable = Evidence::default();
        let trapped = Evidence {
            is_trapped: true,
            ..healthy()
        };
        let mut apart = healthy();
        if let Some(warp) = &mut apart.warp {
            warp.pairs.push(Pair {
                other: 2,
                ..pair(-900, -700)
            });
        }
        for trust in BOTH {
            assert_eq!(unreadable.verdict(trust), Err(Distrust::NotReadable));
            assert_eq!(trapped.verdict(trust), Err(Distrust::Trapped));
            assert_eq!(
                apart.verdict(trust),
                Err(Distrust::Warp {
                    cpu: 0,
                    other: 2,
                    cycles: 700
                })
            );
        }
    }

    #[test]
    fn constant_offsets_are_used_unless_the_kernels_clock_has_them_too() {
        let mut apart = healthy();
        if let Some(warp) = &mut apart.warp {
            warp.pairs = vec![pair(7_000_000_000, 7_000_000_200)];
        }
        let verdict = |evidence: &Evidence, trust, kernels| evidence.verdict_with_offsets(trust, kernels).is_ok();
        let is_served = apart.features.is_some_and(|features| features.rdtscp);
        assert_eq!(
            verdict(&apart, Trust::AllowNonInvariant, KernelsClock::Other),
            is_served
        );
        assert!(!verdict(&apart, Trust::AllowNonInvariant, KernelsClock::Counter));
        // The bounds contradict each other.
        if let Some(warp) = &mut apart.warp {
            warp.pairs.push(pair(7_000_001_000, 7_000_001_200));
        }
        assert!(!verdict(&apart, Trust::AllowNonInvariant, KernelsClock::Other));
        let refused = apart.verdict(Trust::AllowNonInvariant);
        assert!(
            matches!(refused, Err(Distrust::Warp { .. })),
            "a host's pages have no offsets"
        );
    }

    #[test]
    fn offsets_need_no_flag_where_few_cpus_state_one_rate() {
        let apart = |change: fn(&mut Features), cpus: usize| {
            let mut evidence = healthy();
            let features = evidence.features.as_mut().expect("features");
            (features.rdtscp, features.virtual_cpu) = (true, false);
            change(features);
            let pairs = (1..cpus).map(|other| Pair {
                other,
                ..pair(7_000_000_000, 7_000_000_200)
            });
            evidence.warp = Some(Warp {
                cpus: (0..cpus).collect(),
                pairs: pairs.collect(),
                ..Warp::default()
            });
            evidence
        };
        let is_served = |evidence: &Evidence, trust| evidence.verdict_with_offsets(trust, KernelsClock::Other).is_ok();
        let laptop = apart(|_| {}, 16);
        assert!(is_served(&laptop, Trust::Invariant));
        assert!(
            laptop
                .verdict_with_offsets(Trust::Invariant, KernelsClock::Counter)
                .is_err()
        );
        let refused = [
            apart(|features| features.invariant = false, 16),
            apart(|features| features.virtual_cpu = true, 16),
            apart(|_| {}, 64),
        ];
        for evidence in &refused {
            assert!(!is_served(evidence, Trust::Invariant), "{evidence:?}");
            assert!(is_served(evidence, Trust::AllowNonInvariant), "{evidence:?}");
        }
    }

    #[test]
    fn timer_ticks_cannot_be_followed_by_any_counter() {
        assert_eq!(KernelsClock::of_clocksource("refined-jiffies"), KernelsClock::Ticks);
        for trust in BOTH {
            let refused = healthy().verdict_with_offsets(trust, KernelsClock::of_clocksource("jiffies"));
            assert_eq!(refused, Err(Distrust::CoarseClock));
        }
    }

    #[test]
    fn a_counter_without_invariance_must_have_been_compared() {
        let mut evidence = healthy();
        if let Some(warp) = &mut evidence.warp {
            warp.pairs.clear();
        }
        // Busy CPUs are no reason to refuse a counter that the CPU states to be invariant and the kernel uses.
        assert_eq!(evidence.verdict(Trust::Invariant), Ok(()));
        assert_eq!(
            not_invariant(evidence.clone()).verdict(Trust::AllowNonInvariant),
            Err(Distrust::NotCompared)
        );
        // A single CPU has no other to be compared with.
        evidence.warp = Some(Warp {
            cpus: vec![0],
            ..Warp::default()
        });
        assert_eq!(not_invariant(evidence).verdict(Trust::AllowNonInvariant), Ok(()));
    }

    #[test]
    fn anchors_that_are_withdrawn_speak_against_it() {
        let mut evidence = healthy();
        evidence.residuals = Some(Residuals {
            withdrawn: Some("the counter stopped".into()),
            ..Residuals::default()
        });
        let refused = evidence.verdict(Trust::AllowNonInvariant).expect_err("withdrawn");
        assert_eq!(refused.to_string(), "the counter stopped");
    }

    #[test]
    fn a_counter_is_refused_with_reason_and_advice() {
        let refusal = Distrust::NotInvariant.refusal();
        assert!(
            refusal.contains("cannot be trusted") && refusal.contains("--trust-counter"),
            "{refusal}"
        );
        // The option does not help against these.
        let warp = Distrust::Warp {
            cpu: 0,
            other: 3,
            cycles: 700,
        };
        // Against this, it helps where the kernel reads its clock from another source.
        assert_eq!(
            warp.refusal().contains("--trust-counter"),
            Features::of_this_cpu().rdtscp && KernelsClock::of_this_host() != KernelsClock::Counter
        );
        for why in [Distrust::NotReadable, Distrust::NotCompared] {
            assert!(!why.refusal().contains("--trust-counter"), "{}", why.refusal());
        }
    }
}
