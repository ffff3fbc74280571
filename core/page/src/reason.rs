//! Reasons to withdraw the anchors and leave the clocks to the kernel.

use std::ffi::CStr;
use std::fmt;

/// Reason why the anchors in force must be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The kernel's clock advanced and the counter did not, or hardly.
    CounterStopped,
    /// The counter went backwards, or far ahead of the kernel's clock.
    CounterJumped,
    /// The counter's rate against the kernel's clock changed by more than NTP can explain.
    RateImplausible,
    /// The machine was suspended, and the counter must be measured anew.
    Suspended,
    /// The kernel's clocks run on another clocksource.
    ClocksourceChanged,
    /// The counters of two CPUs disagree.
    Warp,
    /// The page had another publisher, and this one has published nothing yet.
    NewPublisher,
    /// REALTIME was set, and the publisher was preempted each time that it had the new time ready.
    StepMissed,
    /// A reason of the host of a guest, by its own number.
    Host(u32),
    /// A reason of another version.
    Unknown(u32),
}

/// The reasons of fastpath itself, with the codes that a page holds for them. 4 belonged to a version that withdrew its
/// anchors when they were far ahead of the kernel's clock.
const OWN: [(Reason, u32, &CStr); 8] = [
    (
        Reason::CounterStopped,
        1,
        c"the counter stopped while the kernel's clock went on",
    ),
    (
        Reason::CounterJumped,
        2,
        c"the counter jumped against the kernel's clock",
    ),
    (
        Reason::RateImplausible,
        3,
        c"the counter's rate against the kernel's clock changed by more than NTP can explain",
    ),
    (
        Reason::Suspended,
        5,
        c"the machine was suspended; the counter is being measured anew",
    ),
    (Reason::Warp, 6, c"the counters of two CPUs disagree"),
    (
        Reason::ClocksourceChanged,
        7,
        c"the kernel has changed its clocksource; the counter is being measured anew",
    ),
    (
        Reason::NewPublisher,
        1000,
        c"a new publisher took over, and has to measure the counter first",
    ),
    (
        Reason::StepMissed,
        1001,
        c"CLOCK_REALTIME was set, and the publisher was kept from running each time that it had the new time ready",
    ),
];

impl Reason {
    /// Code of the first of a host's own reasons.
    pub const FIRST_OF_HOST: u32 = 0x1_0000;

    /// Returns the reason as the page holds it. Never 0, which means that the anchors are in force.
    pub fn code(self) -> u32 {
        match (self.own(), self) {
            (Some((_, code, _)), _) => code,
            (None, Reason::Host(number)) => Reason::FIRST_OF_HOST.saturating_add(number),
            (None, Reason::Unknown(code)) => code.max(1),
            (None, _) => unreachable!("a reason of fastpath without a code"),
        }
    }

    /// Returns the reason of a code; `None` for 0.
    pub fn from_code(code: u32) -> Option<Reason> {
        let own = OWN.iter().find(|(_, of, _)| *of == code);
        match (own, code) {
            (Some((reason, ..)), _) => Some(*reason),
            (None, 0) => None,
            (None, Reason::FIRST_OF_HOST..) => Some(Reason::Host(code - Reason::FIRST_OF_HOST)),
            (None, _) => Some(Reason::Unknown(code)),
        }
    }

    /// Returns the description, without the number of a reason that is not fastpath's own.
    pub fn description(self) -> &'static CStr {
        match (self.own(), self) {
            (Some((_, _, text)), _) => text,
            (None, Reason::Host(_)) => c"withdrawn by the host",
            (None, _) => c"a reason that this version does not know",
        }
    }

    fn own(self) -> Option<(Reason, u32, &'static CStr)> {
        OWN.into_iter().find(|(reason, ..)| *reason == self)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description().to_string_lossy())?;
        match self {
            Reason::Host(number) | Reason::Unknown(number) => write!(f, " ({number:#x})"),
            _ => Ok(()),
        }
    }
}
