//! What is known of a host and of a process, as plain data. Nothing here is a judgement.

use fastpath_evidence::{Evidence, Residuals};
use fastpath_measure::host::TimensOffset;
use fastpath_measure::probe::{ClockReport, FunctionReport};
use fastpath_measure::vsyscall::Vsyscall;
use serde::Serialize;

/// Everything that was found out.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Facts {
    /// The kernel and how it was started.
    pub kernel: Kernel,
    /// What it runs on.
    pub machine: Machine,
    /// The kernel's choice of a clock.
    pub clocksource: Clocksource,
    /// What the kernel said about clocks; nothing if its log could not be read.
    pub log: Option<KernelLog>,
    /// The CPU's counter.
    pub counter: Counter,
    /// Every clock id: path and price of a call here.
    pub clocks: Vec<ClockReport>,
    /// The other functions of a vDSO.
    pub functions: Vec<FunctionReport>,
    /// The cheapest system call measured: what entering the kernel costs.
    pub syscall_ns: Option<f64>,
    /// The vsyscall page (x86-64).
    pub vsyscall: Option<Vsyscall>,
    /// The kernel's vDSO, read in this process.
    pub vdso: KernelVdso,
    /// /sys/devices/system/cpu/vulnerabilities; empty if it cannot be read.
    pub mitigations: Vec<Mitigation>,
    /// This process.
    pub here: Process,
    /// The process that was asked about.
    pub process: Option<Process>,
    /// Every clock id as programs of that process's ISA get it, where that is another one than this process's and could be
    /// measured.
    pub process_clocks: Option<Vec<ClockReport>>,
}

/// The kernel.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -m`.
    pub machine: String,
    /// The parameters that have to do with clocks; nothing if the command line could not be read.
    pub parameters: Option<Vec<String>>,
    /// Bytes of a memory page; 0 if it was not told.
    pub page_size: u64,
}

impl Kernel {
    /// Whether `fastpath run` can map what it needs: not in parts of a page.
    pub(super) fn has_small_pages(&self) -> bool {
        self.page_size <= fastpath_page::PAGE_SIZE as u64
    }
}

/// What the kernel runs on.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: Option<String>,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// The hypervisor, where it says that it is one.
    pub hypervisor: Option<String>,
    /// What acts as the kernel, where that is a program of another one: User Mode Linux, gVisor.
    pub stand_in: Option<&'static str>,
    /// Who made the machine, and what he calls it (DMI).
    pub product: Option<String>,
}

impl Machine {
    /// Whether its instructions are emulated: then code costs many times what a counter read does.
    pub(crate) fn is_emulated(&self) -> bool {
        self.hypervisor.as_deref() == Some("QEMU (TCG)")
    }
}

/// `/sys/devices/system/clocksource/clocksource0`.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Clocksource {
    /// In use.
    pub current: Option<String>,
    /// Could be used.
    pub available: Vec<String>,
}

impl Clocksource {
    /// Whether the kernel found none but its own timer ticks: its clocks move by milliseconds, and no page can follow them to within what
    /// is promised.
    pub(crate) fn is_too_coarse(&self) -> bool {
        matches!(self.current.as_deref(), Some("jiffies" | "refined-jiffies"))
    }
}

/// Lines of the kernel's log.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct KernelLog {
    /// Where it was read.
    pub source: String,
    /// Whether it reaches back to the boot.
    pub is_complete: bool,
    /// The lines about clocks, at most 40, without time stamps.
    pub lines: Vec<String>,
}

/// The counter that a vDSO reads.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Counter {
    /// The instructions of an ordered read.
    pub name: &'static str,
    /// What an ordered read costs.
    pub read_ns: Option<f64>,
    /// What the verdict on it is made of, as `fastpath run` takes it too: whether it may be read, what CPUID says, every pair of
    /// CPUs with its bounds or with the reason why it was left out.
    pub evidence: Evidence,
    /// The CPU's flags about it that are set; nothing if /proc/cpuinfo could not be read.
    pub flags: Option<Vec<String>>,
    /// Those that a kernel would like to see and does not.
    pub flags_missing: Vec<&'static str>,
    /// Its rate as the CPU and the kernel state it.
    pub stated: Vec<Stated>,
    /// Its rate against a clock of the kernel's.
    pub measured: Option<Rate>,
}

/// Who states a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StatedBy {
    /// The CPU or the hypervisor, of the counter.
    Cpu,
    /// The CPU, of itself: usually the counter's too.
    CpuNominal,
    /// The kernel, of the counter.
    Kernel,
}

/// A rate that somebody states.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Stated {
    /// Where.
    pub source: String,
    /// Who.
    pub by: StatedBy,
    /// Counts per second.
    pub hz: f64,
}

/// A rate that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Rate {
    /// Counts per second of the kernel's clock.
    pub hz: f64,
    /// It lies within so much of it: half of the two brackets' widths over the time between them.
    pub error_hz: f64,
    /// The kernel's clock.
    pub against: &'static str,
    /// How long it was watched.
    pub over_ms: f64,
}

/// The kernel's vDSO.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct KernelVdso {
    /// Whether it is mapped here.
    pub is_mapped: bool,
    /// What it exports, of what a newest one would.
    pub functions: Vec<&'static str>,
    /// What it lacks, and since which Linux there is such a thing.
    pub lacks: Vec<(&'static str, &'static str)>,
}

/// One file of /sys/devices/system/cpu/vulnerabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Mitigation {
    /// The file's name.
    pub name: String,
    /// What it says.
    pub status: String,
    /// Whether it is paid for at every system call.
    pub taxes_system_calls: bool,
}

/// A process, as /proc shows it. What could not be seen is missing.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: Option<String>,
    /// The program's file.
    pub program: Option<String>,
    /// R, S, D, T, t, Z, as in /proc/PID/stat.
    pub state: Option<char>,
    /// It has no program: the kernel's own.
    pub is_kernel_thread: bool,
    /// 32 or 64.
    pub word_bits: Option<u8>,
    /// `x86_64`, `i386`, `aarch64`, `arm`.
    pub isa: Option<String>,
    /// Whether it has an interpreter (ld.so).
    pub is_static: Option<bool>,
    /// Its libc.
    pub libc: Option<Library>,
    /// The Go that it was built with.
    pub go: Option<String>,
    /// The Java that runs it.
    pub java: Option<String>,
    /// Whether a static program contains the name of a vDSO's clock_gettime; one that does not enters the kernel always.
    pub asks_for_vdso: Option<bool>,
    /// The files that it executes whose own code reads clocks by system call, whatever the vDSO is like: the program first.
    pub own_calls: Vec<OwnCalls>,
    /// What AT_SYSINFO_EHDR names.
    pub vdso: Option<VdsoKind>,
    /// Whether `[vdso]` is mapped.
    pub has_kernel_vdso: Option<bool>,
    /// Whether `[vvar]` is mapped.
    pub has_vvar: Option<bool>,
    /// fastpath's page, where it is mapped.
    pub page: Option<PageFacts>,
    /// Its time namespace.
    pub time_namespace: Option<TimeNamespace>,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u32>,
    /// Filters that are in force.
    pub seccomp_filters: Option<u32>,
    /// Whether it may gain privileges at an exec.
    pub no_new_privs: Option<bool>,
    /// The PID of its tracer; 0: it has none.
    pub tracer_pid: Option<u32>,
}

/// A file whose own code reads clocks by system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct OwnCalls {
    /// Its name, as the process has it mapped.
    pub file: String,
    /// Whether it is the program; else it is a library.
    pub is_program: bool,
    /// The rule of `fastpath audit` that found it: `own-system-call`, `vsyscall-page`, `libc-without-vdso`.
    pub rule: &'static str,
    /// The system calls, among the first places.
    pub calls: Vec<&'static str>,
    /// How many places in its code make them.
    pub places: usize,
    /// The number of these places that `--rescue` can redirect; nothing: it was not examined.
    pub rescuable: Option<usize>,
    /// The number of these places that are redirected in this process.
    pub rescued: usize,
}

/// A library and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Library {
    /// `glibc` or `musl`.
    pub name: &'static str,
    /// Such as `2.36`.
    pub version: Option<String>,
    /// Its file; nothing if it is part of the program.
    pub path: Option<String>,
}

/// Which vDSO a process was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VdsoKind {
    /// None.
    None,
    /// The kernel's.
    Kernel,
    /// fastpath's.
    Fastpath,
    /// Somebody else's.
    Other,
}

/// fastpath's page in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PageFacts {
    /// The clocks that it answers at this moment; nothing if the page could not be read.
    pub serves: Option<Vec<&'static str>>,
    /// The clocks that it is kept for: none under `run --without-vdso` without `--clocks`.
    pub clocks: Option<Vec<&'static str>>,
    /// Whether what it does not answer becomes a system call, there being no vDSO of the kernel's behind it.
    pub is_without_vdso: Option<bool>,
    /// How long ago the newest anchor's base was; 0 where it is ahead.
    pub age_ns: Option<u64>,
    /// Anchors published since it was made.
    pub refreshes: Option<u64>,
    /// The last error against the kernel's clock before a refresh.
    pub residual_ns: Option<i64>,
    /// The publisher, by its own number.
    pub publisher_pid: Option<u32>,
    /// Why the anchors were withdrawn, where they are.
    pub withdrawn: Option<String>,
    /// How its publisher watches the counter, and the last withdrawals.
    pub experience: Option<Residuals>,
}

/// A time namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct TimeNamespace {
    /// `time:[4026531834]`.
    pub id: Option<String>,
    /// Whether it is that of this process; nothing if that cannot be told.
    pub is_ours: Option<bool>,
    /// How far its clocks are off.
    pub offsets: Vec<TimensOffset>,
}
