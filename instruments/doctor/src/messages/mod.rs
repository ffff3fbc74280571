//! The kernel's messages about a counter that it rejects, and their meanings: kernel/time/clocksource.c, arch/x86/kernel/tsc.c
//! and tsc_sync.c, drivers/clocksource/arm_arch_timer.c of Linux 4.19 to 7.2.

/// CauseKind of reason for choosing or rejecting a clocksource. It decides which remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CauseKind {
    /// A parameter on the kernel's command line.
    CommandLine,
    /// The kernel's watchdog, which compared it with another clock and found a difference.
    Watchdog,
    /// The CPUs' counters differ.
    Unsynchronized,
    /// The counter stops or changes its rate.
    NotInvariant,
    /// The kernel could not determine its rate.
    NotCalibrated,
    /// The hypervisor has a clock of its own, or does not guarantee the counter.
    Hypervisor,
    /// The counter could be used, but another clocksource was chosen.
    Choice,
    /// Reads from user space are trapped.
    Trapped,
    /// The kernel is a program that runs on another kernel.
    StandIn,
}

/// A message of the kernel.
pub(super) struct Message {
    /// The words by which a line is recognized.
    words: &'static str,
    /// The first Linux that has it, and the first one without it.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documentation, and checked against kernels' images")
    )]
    kernels: (Version, Version),
    /// The kind of reason.
    pub(super) kind: CauseKind,
    /// What the kernel found.
    pub(super) meaning: &'static str,
    /// Whether it can be a [`FALSE_ALARM`].
    pub(super) can_be_false: bool,
    /// Whether it only says that the counter was rejected. Another line says why.
    pub(super) is_general: bool,
}

/// What is added to the meaning of a message if the kernel may be wrong.
pub(super) const FALSE_ALARM: &str = "under load, or with a virtual hpet, that can be a false alarm";

type Version = (u32, u32);
/// Before all kernels, and after all.
const FIRST: Version = (0, 0);
const LAST: Version = (u32::MAX, 0);
/// The Linux that has another watchdog, which reads again instead of judging by a slow read.
const NEW_WATCHDOG: Version = (7, 2);

const fn message(words: &'static str, kind: CauseKind, meaning: &'static str) -> Message {
    Message {
        words,
        kernels: (FIRST, LAST),
        kind,
        meaning,
        can_be_false: false,
        is_general: false,
    }
}

impl Message {
    const fn of_kernels(self, kernels: (Version, Version)) -> Message {
        Message { kernels, ..self }
    }

    const fn or_false_alarm(self) -> Message {
        Message {
            can_be_false: true,
            ..self
        }
    }

    const fn general(self) -> Message {
        Message {
            is_general: true,
            ..self
        }
    }
}

/// The first message whose words a line contains explains it.
const MESSAGES: &[Message] = &[
    message(
        "unstable due to inter CPU skew",
        CauseKind::Unsynchronized,
        "the kernel's watchdog read the TSC on two CPUs in turn, and it went back: their TSCs differ",
    )
    .of_kernels((NEW_WATCHDOG, LAST)),
    message(
        "unstable due to frequency skew",
        CauseKind::Watchdog,
        "the kernel's watchdog found that the TSC and another clock run at different rates: one of them is wrong, or a virtual machine \
         was stopped meanwhile",
    )
    .of_kernels((NEW_WATCHDOG, LAST)),
    message(
        "as unstable because the skew is too large",
        CauseKind::Watchdog,
        "the kernel's watchdog compared the TSC with another clock, and found a difference",
    )
    .of_kernels((FIRST, NEW_WATCHDOG))
    .or_false_alarm(),
    message(
        "read-back delay",
        CauseKind::Watchdog,
        "the kernel's watchdog rejected the TSC because reads of the clocks took too long for a comparison",
    )
    .of_kernels(((5, 10), NEW_WATCHDOG))
    .or_false_alarm(),
    message(
        "due to check_tsc_sync_source failed",
        CauseKind::Unsynchronized,
        "when a CPU was started, the kernel found that its TSC differs from the others'",
    ),
    message(
        "TSC warp between CPUs",
        CauseKind::Unsynchronized,
        "when a CPU was started, the kernel found that its TSC differs from the others'",
    ),
    message(
        "TSC warped randomly between CPUs",
        CauseKind::Unsynchronized,
        "the CPUs' TSCs differ, now in one direction, now in the other",
    ),
    message(
        "due to TSCs unsynchronized",
        CauseKind::Unsynchronized,
        "the CPU does not guarantee that its several TSCs agree",
    ),
    message(
        "due to KVM discovered backwards TSC",
        CauseKind::Unsynchronized,
        "KVM found that a CPU's TSC had gone back, as after a suspend",
    ),
    message(
        "due to TSC halts in idle",
        CauseKind::NotInvariant,
        "the CPU stops its TSC in deep idle states (no nonstop_tsc)",
    ),
    message(
        "due to TSC halt in AMD C1E",
        CauseKind::NotInvariant,
        "the CPU stops its TSC in the idle state C1E (no nonstop_tsc)",
    ),
    message(
        "due to cpufreq changes",
        CauseKind::NotInvariant,
        "the TSC changes its rate with the CPU's frequency (no constant_tsc)",
    ),
    message(
        "due to boot parameter",
        CauseKind::CommandLine,
        "it was declared unstable on the kernel's command line",
    ),
    message(
        "due to running on Hyper-V",
        CauseKind::Hypervisor,
        "Hyper-V does not guarantee the TSC of this virtual machine",
    ),
    message(
        "could not calculate TSC khz",
        CauseKind::NotCalibrated,
        "the kernel could not calibrate the TSC, and disabled it",
    ),
    message(
        "Fast TSC calibration failed",
        CauseKind::NotCalibrated,
        "the kernel could not calibrate the TSC quickly",
    ),
    message(
        "Unable to calibrate against PIT",
        CauseKind::NotCalibrated,
        "the kernel could not calibrate the TSC against the PIT",
    ),
    message(
        "TSC ADJUST",
        CauseKind::Unsynchronized,
        "firmware has changed a CPU's TSC, and the kernel corrected it",
    ),
    message(
        "due to clocksource watchdog",
        CauseKind::Watchdog,
        "the kernel's watchdog rejected the TSC after a comparison with another clock",
    )
    .general(),
    message(
        "TSC found unstable after boot",
        CauseKind::Watchdog,
        "the kernel rejected the TSC when all CPUs ran already; that firmware is to blame is its guess",
    )
    .general(),
    message(
        "Marking TSC unstable",
        CauseKind::Watchdog,
        "the kernel marked the TSC unstable",
    )
    .general(),
    message(
        "Trapping CNTVCT access",
        CauseKind::Trapped,
        "because of an erratum, the kernel traps reads of the counter and removes it from the vDSO",
    ),
    message(
        "workaround for",
        CauseKind::Trapped,
        "the counter of this CPU has an erratum that the kernel works around",
    ),
];

/// Returns the message of a line of the kernel's log, if it is about a counter that was rejected.
pub(super) fn explain(line: &str) -> Option<&'static Message> {
    let is_meant = |message: &&Message| {
        line.contains(message.words)
            && match message.words {
                // Common phrases: only the timer's workarounds and the watchdog's delays count.
                "workaround for" => line.contains("arch_timer"),
                "read-back delay" => line.contains(", marking "),
                _ => true,
            }
    };
    MESSAGES.iter().find(is_meant)
}

#[cfg(test)]
mod tests;
