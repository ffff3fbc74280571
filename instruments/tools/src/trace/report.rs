//! The data of the report, which can be serialised.

use crate::trace::symbols::Frame;
use crate::trace::why::Why;
use serde::Serialize;

/// Method of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// BPF programs at the kernel's tracepoints count.
    Bpf,
    /// The program is stopped at each call.
    Ptrace,
}

/// The processes that made system calls to read clocks.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct TraceReport {
    /// Method by which the calls were counted.
    pub method: Method,
    /// Duration of the counting.
    pub seconds: f64,
    /// Number of all calls.
    pub calls: u64,
    /// Data that was lost.
    pub lost: LostRecords,
    /// Calls by process, clock and reason; the most expensive first.
    pub rows: Vec<TraceRow>,
}

/// Numbers of records that were lost for lack of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LostRecords {
    /// Calls that are in no row. They may be of processes that were not asked about.
    pub calls: u64,
    /// Samples of stacks.
    pub stacks: u64,
    /// Process events. A row may therefore have a wrong name, or none.
    pub process_events: u64,
}

impl LostRecords {
    /// Returns whether anything was lost.
    pub fn is_anything(&self) -> bool {
        *self != LostRecords::default()
    }
}

/// One program's calls for one clock, for one reason.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct TraceRow {
    /// Process ID.
    pub pid: u32,
    /// Name of the process when it was first seen.
    pub comm: String,
    /// The program's file.
    pub program: Option<String>,
    /// Whether the process ended while it was watched.
    pub has_ended: bool,
    /// The system call.
    pub call: &'static str,
    /// The clock, if the call takes one: its name, `dynamic`, or the number of a clock that does not exist.
    pub clock: Option<String>,
    /// ABI by which the kernel was entered: `x86_64`, `i386`, `vsyscall`, ...
    pub abi: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Mean rate over the whole duration.
    pub calls_per_second: f64,
    /// Measured cost of such a call on this host.
    pub cost_ns: Option<f64>,
    /// Cost of all these calls, as a share of one CPU.
    pub cpu_percent: Option<f64>,
    /// Reason why the calls entered the kernel.
    pub why: Why,
    /// The reason in a sentence.
    pub says: &'static str,
    /// Callers, if stacks were recorded, the most frequent first. Their numbers are estimated from samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Caller>,
}

/// A caller.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Caller {
    /// The innermost function that does not belong to the C library or a vDSO.
    pub function: Option<String>,
    /// The file that contains it.
    pub library: Option<String>,
    /// Estimated number of calls.
    pub calls: u64,
    /// All known frames, innermost first.
    pub stack: Vec<Frame>,
}
