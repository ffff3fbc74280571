//! Who makes system calls to read clocks: how often, at what price, from where, and why.
//!
//! Calls are counted in the kernel by BPF programs (`bpf/`); what processes are comes from perf's side-band records
//! (`sideband.rs`). Without the privilege for that, a command can be watched by ptrace (`ptrace.rs`). Either way sites are added
//! up by `tally.rs`, which the report is made from. Nothing here prints, and no process but the command's is stopped.

mod arch;
mod bpf;
mod call;
mod command;
mod process;
mod ptrace;
mod report;
mod session;
mod sideband;
mod symbols;
mod tally;
mod why;

pub use command::{NOT_EXECUTABLE, NOT_FOUND};
pub use report::{Caller, Lost, Method, Report, Row};
pub use session::{End, Observer, Options, Outcome, Running, Whom, run};
pub use symbols::Frame;
pub use why::Why;
