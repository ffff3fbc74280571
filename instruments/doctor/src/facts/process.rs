//! Facts about a process.

use std::borrow::Cow;

use fastpath_evidence::Residuals;
use fastpath_measure::host::TimensOffset;
use fastpath_tools::audit::CounterRead;
use fastpath_tools::program::Library;
use serde::{Deserialize, Serialize};

use super::Reads;

/// A process, as /proc shows it. Facts that could not be seen are missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Process {
    /// The process ID.
    pub pid: u32,
    /// Its name.
    pub name: Option<String>,
    /// The program's file.
    pub program: Option<String>,
    /// R, S, D, T, t, Z, as in /proc/PID/stat.
    pub state: Option<char>,
    /// Whether its first thread has ended, and others run.
    #[serde(default)]
    pub first_thread_ended: bool,
    /// Whether it is a kernel thread, which has no program.
    pub is_kernel_thread: bool,
    /// Word size of the program: 32 or 64.
    pub word_bits: Option<u8>,
    /// ISA of the program: `x86_64`, `i386`, `aarch64`, `arm`.
    pub isa: Option<String>,
    /// Whether the program is static: it has no interpreter (ld.so).
    pub is_static: Option<bool>,
    /// The libc that it uses.
    pub libc: Option<Library>,
    /// Version of Go that built it.
    pub go: Option<String>,
    /// The Java version that runs it.
    pub java: Option<String>,
    /// Whether a static program contains the name of a vDSO's clock_gettime; one that does not always enters the
    /// kernel.
    pub asks_for_vdso: Option<bool>,
    /// The files that it executes whose own code reads clocks by system call, even if the vDSO is fast; the program is
    /// first.
    pub own_calls: Vec<OwnCalls>,
    /// The files that it executes whose own code reads the CPU's counter; the program is first.
    #[serde(default)]
    pub counter_reads: Vec<CounterReads>,
    /// For each thread, the CPU on which it ran last; only where the kernel may answer reads of the counter (Arm).
    #[serde(default)]
    pub cpus_of_threads: Vec<usize>,
    /// The vDSO that AT_SYSINFO_EHDR names.
    pub vdso: Option<VdsoKind>,
    /// Whether `[vdso]` is mapped.
    pub has_kernel_vdso: Option<bool>,
    /// Whether `[vvar]` is mapped.
    pub has_vvar: Option<bool>,
    /// fastpath's page, where it is mapped.
    pub page: Option<PageFacts>,
    /// The time namespace of the process.
    pub time_namespace: Option<TimeNamespace>,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u32>,
    /// Number of seccomp filters in force.
    pub seccomp_filters: Option<u32>,
    /// Whether it cannot gain privileges at an exec.
    pub no_new_privs: Option<bool>,
    /// PID of its tracer; 0 if it has none.
    pub tracer_pid: Option<u32>,
    /// Its clock reads through a vDSO; nothing if they were not sampled.
    pub reads: Option<Reads>,
}

impl Process {
    /// Returns whether it is a program of another ISA than this one.
    pub(crate) fn is_of_other_isa(&self) -> bool {
        self.isa.as_deref().is_some_and(|isa| isa != std::env::consts::ARCH)
    }
}

/// A file whose own code reads clocks by system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OwnCalls {
    /// Name of the file, as the process has it mapped.
    pub file: String,
    /// Whether it is the program; otherwise it is a library.
    pub is_program: bool,
    /// The rule of `fastpath audit` that found it: `own-system-call`, `vsyscall-page`, `libc-without-vdso`.
    pub rule: Cow<'static, str>,
    /// The system calls at the first places.
    pub calls: Vec<Cow<'static, str>>,
    /// Number of places in its code that make them.
    pub places: usize,
    /// The number of these places that `--rescue` can redirect; nothing: it was not examined.
    pub rescuable: Option<usize>,
    /// The number of these places that are redirected in this process.
    pub rescued: usize,
}

/// A file whose own code reads the CPU's counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CounterReads {
    /// Name of the file, as the process has it mapped.
    pub file: String,
    /// Whether it is the program; otherwise it is a library.
    pub is_program: bool,
    /// The known code in it that reads the counter, such as `quanta`.
    pub families: Vec<Cow<'static, str>>,
    /// Whether that code tests the counter all the time, as fastpath's does.
    pub is_checked: bool,
    /// Number of places in its code that read the counter.
    pub places: usize,
    /// Number of those behind which the whole counter is scaled, as for a clock.
    pub clocks: usize,
    /// The places at which samples of the process's CPU time were, the most frequent first.
    pub executed: Vec<ExecutedRead>,
    /// All places, by their addresses in the process.
    #[serde(skip)]
    pub(crate) mapped: Vec<(u64, CounterRead)>,
}

impl CounterReads {
    /// Returns whether its code reads the counter as a clock: by what follows a read, or because it is known.
    pub(crate) fn is_clock(&self) -> bool {
        self.clocks > 0 || !self.families.is_empty()
    }

    /// Returns the number of samples at its reads.
    pub(crate) fn samples(&self) -> u64 {
        self.executed.iter().map(|read| read.samples).sum()
    }
}

/// A place that reads the counter, and was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExecutedRead {
    /// Its address as the file states it, before relocation.
    pub address: u64,
    /// Whether the whole counter is scaled behind it, as for a clock.
    pub is_scaled: bool,
    /// Number of samples whose instruction pointer was at it, or at most 8 bytes behind.
    pub samples: u64,
}

/// Running programs that read the counter as a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CounterPrograms {
    /// The programs, those first that have used most CPU time.
    pub programs: Vec<CounterProgram>,
    /// Number of processes that could not be examined, or not in time.
    pub unexamined: usize,
}

/// A running program that reads the counter as a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CounterProgram {
    /// The process ID.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The file that reads the counter: the program, or a library.
    pub file: String,
    /// The known code in it that reads the counter, such as `quanta`.
    pub families: Vec<Cow<'static, str>>,
}

/// Kind of the vDSO that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VdsoKind {
    /// No vDSO.
    None,
    /// The kernel's vDSO.
    Kernel,
    /// fastpath's vDSO.
    Fastpath,
    /// Another program's vDSO.
    Other,
}

/// fastpath's page in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PageFacts {
    /// The clocks that it answers at this moment; nothing if the page could not be read.
    pub serves: Option<Vec<Cow<'static, str>>>,
    /// The clocks that it is published for: none under `run --without-vdso` without `--clocks`.
    pub clocks: Option<Vec<Cow<'static, str>>>,
    /// Whether a clock that it does not answer becomes a system call, because there is no kernel's vDSO behind it.
    pub is_without_vdso: Option<bool>,
    /// Age of the newest anchor's base; 0 if the base is ahead.
    pub age_ns: Option<u64>,
    /// Number of anchors published since the page was made.
    pub refreshes: Option<u64>,
    /// Error against the kernel's clock just before the last refresh.
    pub residual_ns: Option<i64>,
    /// Process ID of the publisher, in its own PID namespace.
    pub publisher_pid: Option<u32>,
    /// Reason why the anchors are withdrawn, if they are.
    pub withdrawn: Option<String>,
    /// Results of its publisher's checks of the counter, and the last withdrawals.
    pub experience: Option<Residuals>,
}

/// A time namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TimeNamespace {
    /// Identifier of the namespace: `time:[4026531834]`.
    pub id: Option<String>,
    /// Whether it is this process's namespace; nothing if unknown.
    pub is_ours: Option<bool>,
    /// Offsets of its clocks.
    pub offsets: Vec<TimensOffset>,
}
