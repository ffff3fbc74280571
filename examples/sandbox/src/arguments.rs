//! The command line.

use std::ffi::OsString;

use clap::Parser;

/// Run CMD, and all programs that it starts, in a sandbox that decides about every system call.
#[derive(Debug, Parser)]
#[command(name = "sandbox")]
pub struct Arguments {
    /// Give the guest no vDSO at all: each clock read is a system call, and stops
    #[arg(long)]
    pub no_vdso: bool,
    /// Report on stderr the refused calls, and how the guest's clocks were read
    #[arg(long)]
    pub log: bool,
    /// The guest
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
