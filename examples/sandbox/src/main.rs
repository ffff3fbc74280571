//! A tracing sandbox: every system call of its guest stops and is checked, which costs microseconds; its clocks are
//! read from a page, which costs nanoseconds.
//!
//! It is an example of a host on the crate `fastpath-publish`, complete but small: it refuses few calls, and only
//! programs of this machine's own instruction set run in it.

mod answers;
mod arch;
mod arguments;
mod auxv;
mod call;
mod change;
mod guest;
mod memory;
mod policy;
mod ptrace;
mod remote;
mod report;
mod sites;
mod tracer;
mod vdso;

use std::process::ExitCode;

use clap::Parser;

/// Exit status as of env(1) and nohup(1).
const SANDBOX_FAILED: u8 = 125;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    match run(&arguments) {
        Ok(outcome) => outcome.leave(),
        Err(error) => {
            eprintln!("sandbox: {error}");
            ExitCode::from(SANDBOX_FAILED)
        }
    }
}

fn run(arguments: &arguments::Arguments) -> Result<guest::Outcome, Box<dyn std::error::Error>> {
    let vdso = if arguments.no_vdso {
        None
    } else {
        Some(vdso::HostedVdso::new()?)
    };
    let first = guest::start(&arguments.command)?;
    let mut tracer = tracer::Tracer::new(first, vdso, arguments.log);
    let outcome = tracer.run()?;
    if arguments.log {
        eprint!("{}", tracer.report());
    }
    Ok(outcome)
}
