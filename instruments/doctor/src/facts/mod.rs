//! The facts about a host and a process, as plain data without judgement.

mod process;

use super::{arch, messages};
use fastpath_evidence::{Distrust, Drift, Evidence, KernelsClock, Trust};
use fastpath_measure::probe::{ClockReport, FunctionReport};
use fastpath_measure::vsyscall::Vsyscall;
use fastpath_measure::{ClockRate, Monotonicity};
pub use fastpath_tools::trace::{ReadCaller, ReadClock, Reads};
pub use process::*;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The parameters by which the kernel gives programs no vDSO, and 32-bit programs none.
pub(crate) const HIDES_VDSO: &str = "vdso=0";
pub(crate) const HIDES_VDSO_32: &str = "vdso32=0";
/// The parameter with which no process writes memory that is not writable (admin-guide/kernel-parameters.txt).
pub(crate) const NEVER_WRITES_CODE: &str = "proc_mem.force_override=never";

/// All facts.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Facts {
    /// The kernel and its parameters.
    pub kernel: KernelFacts,
    /// The machine that the kernel runs on.
    pub machine: MachineFacts,
    /// The kernel's clocksource.
    pub clocksource: Clocksource,
    /// The kernel's messages about clocks; nothing if its log could not be read.
    pub log: Option<KernelLog>,
    /// The CPU's counter.
    pub counter: CounterFacts,
    /// Every clock id, with path and cost of a call here.
    pub clocks: Vec<ClockReport>,
    /// Rates of the kernel's clocks against the machine's other clocks, as far as these could be read.
    #[serde(default)]
    pub rates: Vec<ClockRate>,
    /// Whether the kernel's clock is synchronized (adjtimex(2), no STA_UNSYNC); nothing if unknown.
    #[serde(default)]
    pub is_synchronized: Option<bool>,
    /// Whether the clocks go backwards, as libc reads them on all CPUs at once; nothing where a read could not be tried.
    pub monotonicity: Option<Monotonicity>,
    /// The other functions of a vDSO.
    pub functions: Vec<FunctionReport>,
    /// Cost of the cheapest system call measured, which is that of entering the kernel.
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
    /// The running programs that read the counter as a clock; looked for where the CPUs' counters differ or may change
    /// their rate, unless a process was asked about.
    #[serde(default)]
    pub counter_programs: Option<CounterPrograms>,
}

impl Facts {
    /// Returns the facts about the host alone, without names, paths and addresses: others may read them.
    pub(crate) fn without_names(mut self) -> Facts {
        self.process = None;
        self.counter_programs = None;
        self.here.pid = 0;
        self.here.name = None;
        self.here.program = None;
        if let Some(libc) = &mut self.here.libc {
            libc.path = None;
        }
        if let Some(log) = &mut self.log {
            log.lines.retain(|line| has_no_names(line));
        }
        self
    }
}

/// The kernel.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// `uname -m`.
    pub machine: String,
    /// The parameters that affect clocks; nothing if the command line could not be read.
    pub parameters: Option<Vec<String>>,
}

impl KernelFacts {
    /// Returns whether its command line has this parameter, which is one that affects clocks.
    pub(super) fn has_parameter(&self, wanted: &str) -> bool {
        self.parameters.iter().flatten().any(|parameter| parameter == wanted)
    }

    /// Returns whether the kernel lets a tracer write the code of a program, as far as its command line says (Linux 6.12).
    pub(super) fn lets_write_code(&self) -> bool {
        let parameters = self.parameters.iter().flatten().rev();
        let mut set = parameters.filter(|parameter| parameter.starts_with("proc_mem.force_override="));
        set.next().is_none_or(|last| last != NEVER_WRITES_CODE)
    }
}

/// The machine that the kernel runs on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineFacts {
    /// The CPU's name.
    pub cpu: Option<String>,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// The hypervisor, if it identifies itself.
    pub hypervisor: Option<String>,
    /// The program that acts as the kernel, if there is one: User Mode Linux, gVisor.
    pub stand_in: Option<Cow<'static, str>>,
    /// The machine's manufacturer and model (DMI).
    pub product: Option<String>,
    /// The CPU's manufacturer, as the CPU states it (x86).
    pub vendor: Option<String>,
    /// Sockets; 0 if unknown.
    pub packages: usize,
}

impl MachineFacts {
    /// Returns whether its instructions are emulated: then code costs many times as much as a counter read.
    pub(crate) fn is_emulated(&self) -> bool {
        self.hypervisor.as_deref() == Some("QEMU (TCG)")
    }
}

/// `/sys/devices/system/clocksource/clocksource0`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Clocksource {
    /// The clocksource in use.
    pub current: Option<String>,
    /// The clocksources that could be used.
    pub available: Vec<String>,
}

impl Clocksource {
    /// Returns the clocksource in use, if no vDSO can read it.
    pub(crate) fn unreadable(&self) -> Option<&str> {
        let current = self.current.as_deref();
        current.filter(|name| !arch::COUNTER_CLOCKSOURCES.contains(name))
    }

    /// Returns whether the kernel's clocksource is its own timer ticks. Its clocks then advance by milliseconds, and no
    /// page can follow them within the promised error.
    pub(crate) fn is_too_coarse(&self) -> bool {
        let current = self.current.as_deref();
        current.map(KernelsClock::of_clocksource) == Some(KernelsClock::Ticks)
    }
}

/// Lines of the kernel's log.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KernelLog {
    /// The source of the lines: a file or a command.
    pub source: String,
    /// Whether they reach back to the boot.
    pub is_complete: bool,
    /// The lines about clocks, at most 40, without time stamps.
    pub lines: Vec<String>,
}

/// The CPU's counter, which a vDSO reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CounterFacts {
    /// The instructions of an ordered read.
    pub name: Cow<'static, str>,
    /// Cost of an ordered read.
    pub read_ns: Option<f64>,
    /// The evidence for the verdict on it, the same as that of `fastpath run`: whether it may be read, the features
    /// that CPUID reports, and every pair of CPUs with its bounds or the reason why it was left out.
    pub evidence: Evidence,
    /// The CPUs on which the kernel answers reads of it (Arm).
    #[serde(default)]
    pub trapped_cpus: Vec<usize>,
    /// The CPU's flags about the counter that are set; nothing if /proc/cpuinfo could not be read.
    pub flags: Option<Vec<String>>,
    /// The flags that a kernel looks for and that are not set.
    pub flags_missing: Vec<Cow<'static, str>>,
    /// Its rates as the CPU and the kernel state them.
    pub stated: Vec<Stated>,
    /// Its rate measured against one of the kernel's clocks.
    pub measured: Option<MeasuredRate>,
    /// How much faster each CPU's counter is than that of the first; measured where they are apart.
    pub drifts: Vec<Drift>,
}

impl CounterFacts {
    /// Returns whether a time that a program makes of it is wrong, or may be: the CPUs' counters differ, or may change
    /// their rate.
    pub(crate) fn is_wrong_or_may_be(&self) -> bool {
        let verdict = self.evidence.verdict(Trust::Invariant);
        matches!(verdict, Err(Distrust::NotInvariant | Distrust::Warp { .. }))
    }

    /// Returns the CPUs on which reads cost more than on others.
    pub(crate) fn slow_cpus(&self) -> &[usize] {
        let examined = self.evidence.warp.as_ref().map_or(0, |warp| warp.cpus.len());
        match self.trapped_cpus.len() < examined {
            true => &self.trapped_cpus,
            false => &[],
        }
    }

    /// Returns how far the counters of two CPUs are apart at least, in ns.
    pub(crate) fn apart_ns(&self) -> Option<f64> {
        let pair = self.evidence.warp.as_ref()?.furthest_apart()?;
        let measured = self.measured.as_ref().map(|rate| rate.hz);
        let hz = measured.or_else(|| Some(self.stated.first()?.hz))?;
        Some(pair.apart_cycles() as f64 / hz * 1e9)
    }

    /// Returns the largest drift that is certain.
    pub(crate) fn fastest_drift(&self) -> Option<&Drift> {
        Drift::largest(&self.drifts)
    }
}

/// Source of a stated rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StatedBy {
    /// The CPU or the hypervisor, which states the counter's rate.
    Cpu,
    /// The CPU, which states its own rate; usually the counter has the same.
    CpuNominal,
    /// The kernel, which states the counter's rate.
    Kernel,
    /// The kernel at its start. It corrects the rate later, by up to a hundredth (`tsc_refine_calibration_work` in
    /// arch/x86/kernel/tsc.c).
    KernelEarly,
}

impl StatedBy {
    /// Returns the largest difference from the true rate, as a share of it, that is no fault; `None` if any is none.
    pub(crate) fn tolerance(self) -> Option<f64> {
        match self {
            StatedBy::CpuNominal => None,
            StatedBy::KernelEarly => Some(0.01),
            // At this difference the kernel itself warns when it calibrates again (tsc=recalibrate).
            StatedBy::Cpu | StatedBy::Kernel => Some(500e-6),
        }
    }
}

/// A stated rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Stated {
    /// The file, the instruction or the log.
    pub source: String,
    /// The part of the system that states it.
    pub by: StatedBy,
    /// Counts per second.
    pub hz: f64,
}

/// A measured rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MeasuredRate {
    /// Counts per second of the kernel's clock.
    pub hz: f64,
    /// Largest error of the rate: half of the two brackets' widths over the time between them.
    pub error_hz: f64,
    /// The kernel's clock.
    pub against: Cow<'static, str>,
    /// Duration of the measurement.
    pub over_ms: f64,
}

/// The kernel's vDSO.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KernelVdso {
    /// Whether it is mapped here.
    pub is_mapped: bool,
    /// The functions that it exports, of those that the newest one has.
    pub functions: Vec<Cow<'static, str>>,
    /// The functions that it lacks, with the Linux version that added each.
    pub lacks: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

/// One file of /sys/devices/system/cpu/vulnerabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Mitigation {
    /// The file's name.
    pub name: String,
    /// The kernel's text in it.
    pub status: String,
    /// Whether it adds to the cost of every system call.
    pub taxes_system_calls: bool,
}

/// Returns whether a line about clocks is one of those that name no device and no address, and so no serial number either.
pub(super) fn has_no_names(line: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "clocksource: ",
        "tsc: ",
        "TSC ",
        "arch_timer: ",
        "Hypervisor detected: ",
    ];
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)) || messages::explain(line).is_some()
}
