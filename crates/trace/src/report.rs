//! The report's data, which serialises.

use crate::symbols::Frame;
use crate::why::Why;
use serde::Serialize;

/// How calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By BPF programs at the kernel's tracepoints.
    Bpf,
    /// By stopping the program at each call.
    Ptrace,
}

/// Who made system calls to read clocks.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// How they were counted.
    pub method: Method,
    /// How long.
    pub seconds: f64,
    /// All of them.
    pub calls: u64,
    /// What is missing.
    pub lost: Lost,
    /// The calls of a process, a clock and a reason; the most expensive first.
    pub rows: Vec<Row>,
}

/// What could not be kept for lack of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Lost {
    /// Calls that are in no row. They may be of processes that were not asked about.
    pub calls: u64,
    /// Stacks.
    pub stacks: u64,
    /// What processes did: a row may have a wrong name, or none.
    pub process_events: u64,
}

impl Lost {
    /// Returns whether anything is missing.
    pub fn is_anything(&self) -> bool {
        *self != Lost::default()
    }
}

/// One program's calls for one clock, for one reason.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its name when it was first seen.
    pub comm: String,
    /// The program's file.
    pub program: Option<String>,
    /// Whether it ended while it was watched.
    pub has_ended: bool,
    /// The system call.
    pub call: &'static str,
    /// The clock, where the call takes one: its name, `dynamic`, or a number that is none.
    pub clock: Option<String>,
    /// The door: `x86_64`, `i386`, `vsyscall`, ...
    pub abi: &'static str,
    /// How many.
    pub calls: u64,
    /// Over the whole time.
    pub calls_per_second: f64,
    /// What one costs here, measured.
    pub price_ns: Option<f64>,
    /// Both multiplied: of one CPU.
    pub cpu_percent: Option<f64>,
    /// Why it entered the kernel.
    pub why: Why,
    /// The same in a sentence.
    pub says: &'static str,
    /// Who called, where stacks were asked for: the most frequent first. Estimated from samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Caller>,
}

/// Where calls came from.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Caller {
    /// The innermost function that is not of the C library or a vDSO.
    pub function: Option<String>,
    /// The file that it is in.
    pub library: Option<String>,
    /// How many calls, estimated.
    pub calls: u64,
    /// All that was seen, from the inside out.
    pub stack: Vec<Frame>,
}
