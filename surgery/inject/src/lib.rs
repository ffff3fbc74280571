//! Process surgery: puts a program on a synthetic vDSO as it starts, and its descendants as they start.
//!
//! | room | holds | may use |
//! |---|---|---|
//! | `target` | what is seen of a process: its status, mappings, memory, code, filters | |
//! | `plan` | what will change, as a function of that: the region and its journal, redirections, thunks | `target` |
//! | `remote` | system calls in a stopped thread that leave a correct process behind even if this one dies | `target`, `plan` |
//! | `exec` | programs that start: the mailbox, the attendant, the installation at an exec | all of these |
//! | `attach` | programs that run: the hold, all threads stopped, the way back | all of these but `exec` |
//!
//! `abi` has what differs between instruction sets. `hook/` is the code that stays in the program.
#![cfg_attr(all(clippy, not(test)), warn(unused_crate_dependencies))]

mod abi;
pub mod attach;
mod error;
mod exec;
mod in_process;
#[cfg(test)]
#[path = "../../../fuzz/mutations.rs"]
mod mutations;
mod plan;
mod remote;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
pub mod target;

pub use error::{Error, Result};
pub use exec::lease::{MAILBOX_MAPPED_NAME, MAILBOX_NAME};
pub use exec::mailbox::Shared;
pub use exec::{InjectionConfig, Installed, attendant, lease, unserved};
pub use in_process::InProcess;
pub use plan::rescued_calls::{NotRescued, Rescued};
pub use plan::{redirection, region};
pub use target::permissions::Permissions;
pub use target::sites::Cache;
