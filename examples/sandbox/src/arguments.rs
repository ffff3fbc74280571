//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use syscalls::Sysno;

/// Run CMD, and all programs that it starts, in a sandbox that decides about every system call.
#[derive(Debug, Parser)]
#[command(name = "sandbox")]
pub struct Arguments {
    /// Refuse this system call with EPERM (by name; may be given several times)
    #[arg(long, value_name = "SYSCALL", value_parser = system_call)]
    pub deny: Vec<Sysno>,
    /// Refuse to change anything below PATH with EROFS (may be given several times)
    #[arg(long, value_name = "PATH")]
    pub read_only: Vec<PathBuf>,
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

fn system_call(name: &str) -> Result<Sysno, String> {
    name.parse()
        .map_err(|()| format!("no system call of this machine has the name {name}"))
}
