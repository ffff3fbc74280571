//! The calls that are counted.

use fastpath_measure::Clock;

/// A system call by which a program reads a clock, or asks for its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Function {
    ClockGettime = 0,
    Gettimeofday = 1,
    Time = 2,
    ClockGetres = 3,
    Getcpu = 4,
    /// 32-bit ABIs have separate calls with 64-bit time.
    ClockGettime64 = 5,
    ClockGetresTime64 = 6,
}

impl Function {
    pub(crate) const ALL: [Function; 7] = [
        Function::ClockGettime,
        Function::Gettimeofday,
        Function::Time,
        Function::ClockGetres,
        Function::Getcpu,
        Function::ClockGettime64,
        Function::ClockGetresTime64,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Function::ClockGettime => "clock_gettime",
            Function::Gettimeofday => "gettimeofday",
            Function::Time => "time",
            Function::ClockGetres => "clock_getres",
            Function::Getcpu => "getcpu",
            Function::ClockGettime64 => "clock_gettime64",
            Function::ClockGetresTime64 => "clock_getres_time64",
        }
    }

    pub(crate) fn takes_a_clock(self) -> bool {
        !matches!(self, Function::Gettimeofday | Function::Time | Function::Getcpu)
    }
}

/// The ABI by which the kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Abi {
    Native = 0,
    Compat = 1,
    Vsyscall = 2,
}

impl Abi {
    pub(crate) const ALL: [Abi; 3] = [Abi::Native, Abi::Compat, Abi::Vsyscall];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Abi::Native => std::env::consts::ARCH,
            Abi::Compat => crate::trace::arch::COMPAT_NAME,
            Abi::Vsyscall => "vsyscall",
        }
    }
}

/// A call site in one process and for one clock. Its calls are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    /// The process, as numbered in the PID namespace of the tracer.
    pub pid: u32,
    pub function: Function,
    pub abi: Abi,
    /// 0 if the function takes none.
    pub clock: i32,
    /// Address behind the instruction that entered the kernel; 0 if unknown.
    pub ip: u64,
}

impl Site {
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
pub(crate) struct Sample {
    pub site: Site,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Number of calls that it represents.
    pub calls: u64,
    pub sp: u64,
    pub frame: u64,
    /// Bytes from `sp` upwards.
    pub stack: Vec<u8>,
}
