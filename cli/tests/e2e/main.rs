//! The guarantees of `fastpath run` and the other commands, tested with the real binary and real programs.
//!
//! A test that cannot run on this machine writes the reason to the file that FASTPATH_SKIPS names, and passes.

/// Unwraps what a test needs, or returns: the function that found it missing has skipped the test.
macro_rules! needed {
    ($($wanted:expr),+) => {
        ($(match $wanted {
            Some(found) => found,
            None => return,
        }),+)
    };
}

mod common;

mod attach;
mod attach_torture;
mod audit;
mod awkward;
#[cfg(target_arch = "x86_64")]
mod call_frames;
mod children;
mod completions;
mod daemon;
mod debuggers;
mod doctor;
mod evidence;
mod exit_status;
mod export;
mod guard;
mod helper_life;
mod helper_loss;
#[cfg(target_arch = "x86_64")]
mod i386;
mod install_library;
mod instruments;
mod job_control;
mod json;
mod kernels;
mod misuse;
mod names;
mod namespaces;
mod pipeline;
mod preload;
#[cfg(target_arch = "x86_64")]
mod probes;
mod refusals;
mod report;
mod runtimes;
mod seccomp;
mod setuid;
mod surroundings;
mod time;
mod trace;
mod usage;
