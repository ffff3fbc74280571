//! Programs that start: each is served at its exec.

mod asker;
pub mod attendant;
mod install;
pub mod lease;
pub mod mailbox;
mod robust;
pub mod unserved;
mod visit;

pub use install::InjectionConfig;
