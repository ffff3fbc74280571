//! Finds programs that will never take the fast path to a clock, without running them: `fastpath audit`.
//!
//! [`judge()`] examines one ELF file; [`audit()`] examines files, directories and container images. The audit reads files
//! and never maps or unpacks them. It trusts nothing in them: every table, every stream and every list has a limit
//! ([`Limits`]).

mod archive;
mod facts;
mod families;
mod judge;
mod layers;
mod manifests;
mod open;
mod options;
mod report;
mod rules;
mod sarif;
mod walk;

pub use facts::{Lookups, Runtime};
pub use families::Family;
pub use fastpath_code::calls::CounterRead;
pub use fastpath_code::elf::Kind;
pub use fastpath_code::{Bytes, CallKind, OnDisk, TimeCall};
pub use judge::judge;
pub use layers::of_bytes;
pub use options::{AuditOptions, Limits, Progress};
pub use report::{AuditFinding, AuditReport, AuditSummary, AuditedProgram, CodePlace, Judged, Means, Unjudged};
pub use rules::{AuditRule, Level};
pub use sarif::sarif;
pub use walk::audit;
