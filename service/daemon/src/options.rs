//! The options of a daemon.

use std::path::PathBuf;

use fastpath_page::ClockSet;
use fastpath_publish::evidence::Trust;

/// Options of a daemon.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Clocks for clients that leave the choice to the daemon; `None`: those that are slow by the kernel's own path.
    pub clocks: Option<ClockSet>,
    /// Evidence that is required of the counter.
    pub trust: Trust,
    /// Path of the policy file, which may be missing.
    pub policy: PathBuf,
    /// Number of pages that one user may have; root may have as many as there is room for.
    pub pages_per_user: usize,
}
