//! Finds the processes that make system calls to read clocks: how often, at what cost, from where, and why.
//!
//! BPF programs (`bpf/`) count the calls in the kernel; perf's side-band records (`sideband.rs`) show which programs
//! the processes run. Without the privilege for that, ptrace can watch a command (`ptrace.rs`). Either way `tally.rs`
//! adds up the sites for the report. Reads that make no system call are found by samples (`reads.rs`). Nothing here
//! prints, and no process but the command's is stopped.

mod arch;
mod bpf;
mod call;
mod clock_ids;
mod command;
mod process;
mod ptrace;
mod reads;
mod report;
mod run;
mod session;
mod sideband;
mod symbols;
mod tally;
mod why;

pub use command::{NOT_EXECUTABLE, NOT_FOUND};
pub use reads::{ReadCaller, ReadClock, Reads, reads};
pub use report::{Caller, LostRecords, Method, TraceReport, TraceRow};
pub use run::run;
pub use session::{CommandEnd, Observer, TraceOptions, TraceOutcome, UnwatchedCommand, Whom};
pub use symbols::Frame;
pub use why::Why;
