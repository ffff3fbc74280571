//! The data that a page shows, which `fastpath report --json` prints and reads again.
//!
//! The parts `probe`, `doctor` and `trace` are named after the commands whose JSON they are read from. Their fields
//! have the commands' own types where a page shows all of a value. The types are here, with the same names of fields,
//! where a page shows only some fields, or where another version's names (of clocks, ISAs, system calls) must not make
//! a file unreadable.

use crate::distribution::Distribution;
use crate::nanoseconds::Nanoseconds;
use fastpath_doctor::{Finding, Line, Remedy, Unseen, Verdict};
use fastpath_measure::CallVerdict;
use fastpath_measure::Path;
use serde::{Deserialize, Serialize};

/// Version of the schema. It changes when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The data of a page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FleetReport {
    /// Version of fastpath that wrote this data. In JSON it comes first.
    #[serde(default, skip_serializing)]
    pub fastpath: String,
    /// The hosts: one, or a fleet.
    pub hosts: Vec<Host>,
}

/// The data of a host. Only the probe is always present.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Host {
    /// Name of the host, `uname -n`; the file's name if the probe does not contain it.
    pub name: String,
    /// The file that this was read from.
    #[serde(skip)]
    pub file: Option<String>,
    /// Time of the measurement, in seconds since 1970.
    #[serde(default)]
    pub measured_unix: Option<u64>,
    /// Output of `fastpath probe --json`.
    pub probe: Probe,
    /// Distributions of costs.
    #[serde(default)]
    pub costs: Option<Costs>,
    /// Output of `fastpath doctor --json`.
    #[serde(default)]
    pub doctor: Option<Doctor>,
    /// Output of `fastpath trace --json`, over a short time.
    #[serde(default)]
    pub trace: Option<Trace>,
    /// Parts that are missing.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// A part that a host may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The distributions of costs under fastpath.
    Fastpath,
    /// Doctor's examination.
    Doctor,
    /// The processes that read clocks by system call.
    Trace,
}

/// A part that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Missing {
    /// The part.
    pub what: Part,
    /// The reason.
    pub why: String,
}

/// The path of every clock.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Probe {
    /// ISA of the programs that take these paths.
    pub isa: String,
    /// Every clock id.
    pub clocks: Vec<Clock>,
    /// The other functions that a vDSO answers.
    #[serde(default)]
    pub functions: Vec<Function>,
    /// The vsyscall page.
    #[serde(default)]
    pub vsyscall: Option<Vsyscall>,
    /// The host.
    pub host: HostFacts,
}

// The fields of both are written out, because an error in a flattened struct could not name the field.

/// A clock's path and cost.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Clock {
    /// Name of the clock.
    pub clock: String,
    /// The path that libc takes.
    pub path: Path,
    /// Cost of a call by libc.
    pub ns: Option<Nanoseconds>,
    /// Cost of the bare system call.
    pub syscall_ns: Option<Nanoseconds>,
    /// Verdict on the path and cost.
    pub verdict: CallVerdict,
    /// Remark on an unusual path or cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A function's path and cost.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Function {
    /// Name of the function.
    pub function: String,
    /// The path that libc takes.
    pub path: Path,
    /// Cost of a call by libc.
    pub ns: Option<Nanoseconds>,
    /// Cost of the bare system call.
    pub syscall_ns: Option<Nanoseconds>,
    /// Verdict on the path and cost.
    pub verdict: CallVerdict,
    /// Remark on an unusual path or cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The vsyscall page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Vsyscall {
    /// Mode of the page: `none`, `xonly`, `emulate`.
    pub mode: String,
    /// The functions on it.
    pub entries: Vec<Entry>,
}

/// A function of the vsyscall page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Entry {
    /// Name of the function.
    pub function: String,
    /// Cost of a call.
    pub ns: Option<Nanoseconds>,
}

/// Properties of a host that costs depend on.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostFacts {
    /// `uname -n`.
    #[serde(default)]
    pub name: Option<String>,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub machine: String,
    /// The CPU's name.
    #[serde(default)]
    pub cpu: Option<String>,
    /// Number of CPUs that the process could use.
    pub ncpu: u64,
    /// The clocksource in use.
    #[serde(default)]
    pub clocksource: Option<String>,
    /// The clocksources that could be used.
    #[serde(default)]
    pub clocksources_available: Vec<String>,
    /// The instructions of a read of the counter.
    #[serde(default)]
    pub counter: Option<String>,
    /// Cost of such a read.
    #[serde(default)]
    pub counter_ns: Option<Nanoseconds>,
    /// The vDSO that programs get.
    #[serde(default)]
    pub vdso: Option<Vdso>,
    /// The hypervisor.
    #[serde(default)]
    pub hypervisor: Option<String>,
}

/// A vDSO.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Vdso {
    /// Whether it is fastpath's.
    pub is_fastpath: bool,
}

/// Distributions of costs, from calls to each clock in turns.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Costs {
    /// Number of calls in a row per sample; a sample is their mean.
    pub calls_per_sample: u32,
    /// All clocks that can be fast.
    pub clocks: Vec<ClockCosts>,
}

/// Distributions of a clock's cost.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClockCosts {
    /// Name of the clock.
    pub clock: String,
    /// Cost by libc, as programs read the clock here.
    pub now: Distribution,
    /// Cost by fastpath's vDSO.
    #[serde(default)]
    pub fastpath: Option<Distribution>,
}

/// Doctor's examination.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Doctor {
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict in a sentence.
    pub summary: String,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The remedies.
    pub remedies: Vec<Remedy>,
    /// Evidence that could not be read.
    pub unseen: Vec<Unseen>,
    /// All facts, one per line.
    pub evidence: Vec<Line>,
}

/// The processes that made system calls to read clocks.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trace {
    /// Duration of the counting, in seconds.
    pub seconds: f64,
    /// Number of all calls.
    pub calls: u64,
    /// Numbers of records that were lost.
    pub lost: Lost,
    /// The rows with the most expensive calls, the most expensive first.
    pub rows: Vec<Row>,
    /// Number of other rows.
    #[serde(default)]
    pub rows_left_out: u64,
}

/// Numbers of records that were lost for lack of room.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Lost {
    /// Number of calls.
    pub calls: u64,
    /// Number of process events.
    pub process_events: u64,
}

/// A program's calls for a clock.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Row {
    /// Process ID.
    pub pid: u32,
    /// Name of the process.
    pub comm: String,
    /// The program's file.
    pub program: Option<String>,
    /// The system call.
    pub call: String,
    /// The clock.
    pub clock: Option<String>,
    /// Number of calls.
    pub calls: u64,
    /// Mean rate over the whole duration.
    pub calls_per_second: f64,
    /// Cost of such a call.
    pub cost_ns: Option<Nanoseconds>,
    /// Cost of all these calls, as a share of one CPU.
    pub cpu_percent: Option<f64>,
    /// Reason why the calls entered the kernel.
    pub says: String,
}

impl Trace {
    /// Most rows that a page shows.
    const ROWS: usize = 20;

    /// Removes the cheapest rows.
    pub fn shorten(&mut self) {
        self.rows_left_out += self.rows.len().saturating_sub(Self::ROWS) as u64;
        self.rows.truncate(Self::ROWS);
    }
}
