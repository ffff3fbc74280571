//! Process surgery: puts a program on a synthetic vDSO as it starts, and its descendants as they start.
//!
//! [`attendant`] injects into a program at its exec; `install` maps the region and redirects the start of the program to it,
//! through `remote` system calls that leave a correct process behind even if this process dies. `hook/` is the code
//! that stays in the program.
#![cfg_attr(all(clippy, not(test)), warn(unused_crate_dependencies))]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "`attach`, which is for x86-64 only, uses the rest")
)]

mod abi;
#[cfg(target_arch = "x86_64")]
pub mod attach;
pub mod attendant;
mod calls;
mod credentials;
mod error;
mod in_process;
mod install;
pub mod lease;
mod mailbox;
#[allow(dead_code)] // the build script uses the rest
mod mailbox_layout;
mod maps;
mod memory;
#[cfg(test)]
#[path = "../../../fuzz/mutations.rs"]
mod mutations;
mod own_calls;
mod plan;
mod program;
pub mod redirection;
pub mod region;
mod remote;
mod rescued_calls;
mod robust;
mod seccomp_filter;
mod sites;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod stack;
mod surgery;
pub mod target;
mod tracee;
pub mod unserved;
mod view;

pub use error::{Error, Result};
pub use in_process::InProcess;
pub use install::InjectionConfig;
pub use lease::{MAILBOX_MAPPED_NAME, MAILBOX_NAME};
pub use mailbox::Shared;
pub use own_calls::Permissions;
pub use rescued_calls::{NotRescued, Rescued};
pub use sites::Cache;
