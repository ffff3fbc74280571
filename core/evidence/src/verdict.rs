//! The evidence about the counter, and the verdict on it.

use fastpath_isa::Isa;
use serde::{Deserialize, Serialize};

use crate::counter::Features;
use crate::drift::Drift;
use crate::kernels_clock::KernelsClock;
use crate::offsets;
use crate::residuals::Residuals;
use crate::warp::Warp;

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
    /// use it even with [`crate::Offsets`]. A host of guests, whose pages have none, goes by [`Evidence::verdict`].
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
    pub(crate) fn may_have_offsets(&self, trust: Trust) -> bool {
        let cpus = self.warp.as_ref().map_or(0, |warp| warp.cpus.len());
        trust == Trust::AllowNonInvariant
            || self
                .features
                .is_some_and(|features| features.invariant && !features.virtual_cpu)
                && cpus <= offsets::MOST_CPUS_BY_DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Pair;

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
