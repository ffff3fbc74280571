//! Programs that start: each is served at its exec.

mod answer;
mod asker;
pub mod attendant;
mod install;
pub mod lease;
pub mod mailbox;
mod robust;
pub mod unserved;

pub use install::{InjectionConfig, Installed};
