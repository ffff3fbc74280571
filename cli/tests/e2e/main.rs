//! What a user of `fastpath run` is promised, shown on the real binary and real programs.
//!
//! A test that cannot do its work on this machine says so in the file that FASTPATH_SKIPS names, and passes.

mod common;

mod children;
mod debuggers;
mod exit_status;
mod helper_life;
mod helper_loss;
mod job_control;
mod namespaces;
mod pipeline;
mod refusals;
mod runtimes;
mod seccomp;
mod setuid;
mod surroundings;
mod time;
mod usage;
