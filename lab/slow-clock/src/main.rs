//! `slow-clock`: runs a command as on a host whose clocksource is the HPET, for the figures of native programs beside a
//! clock that is slow. It is a model, not such a host.
//!
//! - [`vdso`] makes the kernel's vDSO of each program take the path that it takes there: a system call.
//! - [`cost`] makes that system call take as long as it takes there.
//! - [`cgroup`] limits both to the command and its descendants.
//! - [`execs`] changes each program that these execute.

mod cgroup;
mod command;
mod cost;
mod execs;
mod vdso;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use cgroup::Cgroup;
use command::End;
use vdso::SlowVdso;

/// Longest time that the BPF program can spin, in nanoseconds: the verifier follows every turn of its loop, and refuses
/// more than 8,192 branches in a row (BPF_COMPLEXITY_LIMIT_JMP_SEQ, kernel/bpf/verifier.c).
const MOST_NS: i64 = 50_000;

/// Runs a command as on a host whose clocksource is the HPET: its reads of clocks are system calls, and each takes
/// longer. A model, for measurements: state that beside its figures. Meanwhile, every system call of the host takes
/// some 85 ns longer: do not measure a healthy host beside it.
///
/// The command and its descendants are in a cgroup of their own. When the command ends, what is left of them is killed.
/// slow-clock exits as the command does, or with 125 if it fails itself, 126 if the command cannot be executed, 127 if
/// there is no such command. Needs root, cgroup2, and x86-64 with clocksource tsc.
#[derive(Parser)]
#[command(name = "slow-clock", version, max_term_width = 100)]
struct Arguments {
    /// What a read takes in the kernel beyond the system call, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=MOST_NS))]
    ns: u32,
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(end) => end.repeat(),
        Err(why) => {
            eprintln!("slow-clock: {why}");
            ExitCode::from(125)
        }
    }
}

fn run(arguments: &Arguments) -> Result<End, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("run it as root: it loads BPF programs and makes a cgroup".into());
    }
    let vdso = SlowVdso::of_this_kernel()?;
    let cgroup = Cgroup::create()?;
    let cost = cost::charge(&cgroup, arguments.ns);
    let _cost = cost.map_err(|e| format!("a BPF program at system calls: {e}"))?;
    // Before the threads, which inherit it.
    let signals = command::block_signals()?;
    let _execs = execs::follow(&cgroup, vdso).map_err(|e| format!("a BPF program at execs: {e}"))?;
    eprintln!(
        "slow-clock: a model of a host on hpet: clock reads take {} ns more",
        arguments.ns
    );
    command::run(&arguments.command, &cgroup, signals)
}
