//! The calls that are counted.

use fastpath_code::TimeCall;
use fastpath_measure::Clock;

use crate::trace::arch;

/// The ABI by which the kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum CallAbi {
    Native = 0,
    Compat = 1,
    Vsyscall = 2,
}

impl CallAbi {
    pub(crate) const ALL: [CallAbi; 3] = [CallAbi::Native, CallAbi::Compat, CallAbi::Vsyscall];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CallAbi::Native => std::env::consts::ARCH,
            CallAbi::Compat => arch::COMPAT.name(),
            CallAbi::Vsyscall => "vsyscall",
        }
    }
}

/// A call site in one process and for one clock. Its calls are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallSite {
    /// The process, as numbered in the PID namespace of the tracer.
    pub pid: u32,
    pub function: TimeCall,
    pub abi: CallAbi,
    /// 0 if the function takes none.
    pub clock: i32,
    /// Address behind the instruction that entered the kernel; 0 if unknown.
    pub ip: u64,
}

impl CallSite {
    /// Returns the name of the clock: MONOTONIC; `dynamic` for that of a file or of another process; `None` if the
    /// function takes no clock.
    pub(crate) fn clock_name(&self) -> Option<String> {
        self.function.takes_a_clock().then(|| match Clock::from_id(self.clock) {
            Some(clock) => clock.name().to_owned(),
            None if self.clock < 0 => "dynamic".to_owned(),
            None => self.clock.to_string(),
        })
    }
}

/// Origin of a call: the registers, and the top of the stack.
#[derive(Clone, Debug)]
pub(crate) struct CallSample {
    pub site: CallSite,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Number of calls that it represents.
    pub calls: u64,
    pub sp: u64,
    pub frame: u64,
    /// Bytes from `sp` upwards.
    pub stack: Vec<u8>,
}
