//! The data that a page shows, which `fastpath report --json` prints and reads again.
//!
//! The parts `probe`, `doctor` and `trace` are named after the commands whose JSON they are read from. What they
//! consist of has the commands' own types where a page shows all of it. Where it shows only some fields, or where
//! another version's names must not make a file unreadable (of clocks, ISAs, system calls), the types are here, with the
//! same names of fields.

use crate::distribution::Distribution;
use crate::nanoseconds::Nanoseconds;
use fastpath_doctor::{Finding, Line, Remedy, Unseen, Verdict};
use fastpath_measure::Path;
use fastpath_measure::Verdict as CallVerdict;
use serde::{Deserialize, Serialize};

/// Version of the schema. It changes when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// A page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Report {
    /// The version of fastpath that wrote this. As JSON it stands before what is in here.
    #[serde(default, skip_serializing)]
    pub fastpath: String,
    /// One, or a fleet.
    pub hosts: Vec<Host>,
}

/// What is known of a host. Only a probe is always there.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Host {
    /// `uname -n`; of a probe that does not tell it, the file's name.
    pub name: String,
    /// The file that this was read from.
    #[serde(skip)]
    pub file: Option<String>,
    /// Seconds since 1970.
    #[serde(default)]
    pub measured_unix: Option<u64>,
    /// `fastpath probe --json`.
    pub probe: Probe,
    /// Prices one by one.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// `fastpath doctor --json`.
    #[serde(default)]
    pub doctor: Option<Doctor>,
    /// `fastpath trace --json`, for a moment.
    #[serde(default)]
    pub trace: Option<Trace>,
    /// What could not be had.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// What a host may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The distributions under fastpath.
    Fastpath,
    /// Doctor's examination.
    Doctor,
    /// Who calls.
    Trace,
}

/// Something that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Missing {
    /// What.
    pub what: Part,
    /// Why not.
    pub why: String,
}

/// Which path every clock takes.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Probe {
    /// Whose programs these are the paths of.
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
    pub host: Facts,
}

// The fields of both are written out, because an error in a flattened struct could not name the field.

/// A clock's path and price.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Clock {
    /// Its name.
    pub clock: String,
    /// The path that libc takes.
    pub path: Path,
    /// A call by libc.
    pub ns: Option<Nanoseconds>,
    /// The bare system call.
    pub syscall_ns: Option<Nanoseconds>,
    /// What that means.
    pub verdict: CallVerdict,
    /// What is strange about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A function's path and price.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Function {
    /// Its name.
    pub function: String,
    /// The path that libc takes.
    pub path: Path,
    /// A call by libc.
    pub ns: Option<Nanoseconds>,
    /// The bare system call.
    pub syscall_ns: Option<Nanoseconds>,
    /// What that means.
    pub verdict: CallVerdict,
    /// What is strange about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The vsyscall page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Vsyscall {
    /// `none`, `xonly`, `emulate`.
    pub mode: String,
    /// Its functions.
    pub entries: Vec<Entry>,
}

/// A function of the vsyscall page.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Entry {
    /// Its name.
    pub function: String,
    /// A call.
    pub ns: Option<Nanoseconds>,
}

/// What a price depends on.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Facts {
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
    /// CPUs that could be used.
    pub ncpu: u64,
    /// In use.
    #[serde(default)]
    pub clocksource: Option<String>,
    /// Could be used.
    #[serde(default)]
    pub clocksources_available: Vec<String>,
    /// The instructions of a read of the counter.
    #[serde(default)]
    pub counter: Option<String>,
    /// What such a read costs.
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

/// Prices one by one, taken in turns.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Prices {
    /// A sample is the mean of so many calls in a row.
    pub calls_per_sample: u32,
    /// Each clock that can be fast.
    pub clocks: Vec<ClockPrices>,
}

/// A clock's prices.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClockPrices {
    /// Its name.
    pub clock: String,
    /// By libc, as programs read it here.
    pub now: Distribution,
    /// By fastpath's vDSO.
    #[serde(default)]
    pub fastpath: Option<Distribution>,
}

/// What doctor says.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Doctor {
    /// What it comes to.
    pub verdict: Verdict,
    /// The same in a sentence.
    pub summary: String,
    /// What is the matter.
    pub findings: Vec<Finding>,
    /// What to do.
    pub remedies: Vec<Remedy>,
    /// What was not allowed to be seen.
    pub unseen: Vec<Unseen>,
    /// Every fact, a line each.
    pub evidence: Vec<Line>,
}

/// Who made system calls to read clocks.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trace {
    /// For how long they were counted.
    pub seconds: f64,
    /// All of them.
    pub calls: u64,
    /// What is missing.
    pub lost: Lost,
    /// The most expensive calls, first.
    pub rows: Vec<Row>,
    /// Rows beyond those.
    #[serde(default)]
    pub rows_left_out: u64,
}

/// What there was no room for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Lost {
    /// Calls.
    pub calls: u64,
    /// What processes did.
    pub process_events: u64,
}

/// A program's calls for a clock.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its file.
    pub program: Option<String>,
    /// The system call.
    pub call: String,
    /// The clock.
    pub clock: Option<String>,
    /// How many.
    pub calls: u64,
    /// Over the whole time.
    pub calls_per_second: f64,
    /// What one costs.
    pub price_ns: Option<Nanoseconds>,
    /// Both multiplied.
    pub cpu_percent: Option<f64>,
    /// Why it entered the kernel.
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
