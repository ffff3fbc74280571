//! Serves the containers whose pods have the annotation `fastpath.io/clocks`: an NRI plugin (containerd, CRI-O) and an
//! OCI hook. Both ask fastpathd to attach a container's first process, with its descendants; the plugin can instead
//! have libfastpath-preload.so loaded into the container.
//!
//! A container always starts: whatever goes wrong is logged, and the container stays on the kernel's path.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod annotation;
mod attaching;
mod connection;
pub mod hook;
pub mod log;
mod messages;
#[cfg(test)]
#[path = "../../../fuzz/mutations.rs"]
mod mutations;
mod options;
mod plugin;
mod preload;

pub use options::{Method, PluginOptions};
pub use plugin::{RuntimeSocket, run};
