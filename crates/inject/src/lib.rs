//! Process surgery: puts a program on a synthetic vDSO as it starts, and its descendants as they start.
//!
//! [`attendant`] meets a program at its exec, [`install`] maps the region and leads the start through it, by way of
//! [`remote`] system calls that leave a correct process behind even if we die. `hook/` is the code that stays in the program.

pub mod attendant;
mod error;
mod handover;
mod in_process;
mod install;
mod mailbox;
#[allow(dead_code)] // the build script uses the rest
mod mailbox_layout;
mod maps;
mod program;
mod region;
mod remote;
mod sites;
mod stack;
mod surgery;
pub mod target;
mod tracee;

pub use error::{Error, Result};
pub use in_process::InProcess;
pub use install::Kit;
pub use mailbox::Shared;
pub use sites::Cache;
