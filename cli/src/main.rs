//! `fastpath`: a thin front on the crates below it.
#![cfg_attr(not(test), no_main)]
// `main` is C's, not Rust's: Rust's runtime would change the handling of SIGPIPE and open descriptors 0 to 2 if they
// are closed, and the program that `run` becomes inherits both.

mod args;
mod attach;
mod audit;
mod bench;
mod doctor;
mod document;
mod exit;
mod export;
mod file;
mod groups;
mod guard;
mod install_library;
mod limits;
mod live;
mod man;
#[cfg(test)]
#[path = "../../fuzz/mutations.rs"]
mod mutations;
mod ours;
mod output;
mod probe;
mod processes;
mod progress;
mod report;
mod rescue_hint;
mod run;
mod schema;
mod shell;
mod trace;
mod unserved;
mod version;

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;

use args::{Args, Command};
use fastpath_measure::{CounterUse, make_clocks_readable};

/// Entry point, called by the C runtime.
///
/// # Safety
/// `argv` must hold `argc` C strings, as the C standard promises.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    limits::with_enough_stack(argc, argv, begin)
}

/// `argv` must hold `argc` C strings.
extern "C" fn begin(argc: c_int, argv: *const *const c_char) -> ! {
    output::keep_standard_descriptors_apart();
    // SAFETY: the C runtime passes `argc` C strings in `argv`.
    let args =
        (0..argc as usize).map(|i| unsafe { OsString::from_vec(CStr::from_ptr(*argv.add(i)).to_bytes().to_vec()) });
    let args: Vec<_> = args.collect();
    let args = Args::parse(&args);
    if let Some(status) = unreadable_clocks(&args.command) {
        std::process::exit(status);
    }
    if !matches!(args.command, Command::Run(_)) {
        limits::exit_without_memory();
    }
    let status = match args.command {
        Command::Probe(options) => probe::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Guard(options) => guard::run(&options),
        Command::Audit(options) => audit::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Export(options) => export::run(&options),
        Command::Report(options) => report::run(&options),
        Command::InstallLibrary(options) => install_library::run(&options),
        Command::Man { directory } => shell::man_pages(&directory),
        Command::Schema { command } => schema::print(command),
        Command::Completions { shell } => shell::completions(shell),
        Command::Attach(options) => attach::attach(&options),
        Command::Detach(options) => attach::detach(&options),
        Command::Status(options) => attach::status(&options),
        Command::Run(options) => run::run(&options),
    };
    std::process::exit(status)
}

/// Returns the exit status if no clock can be read, so that a measuring command cannot run. This is determined before
/// the first read, which could kill this process. `guard` is left out, because this is part of its own check.
fn unreadable_clocks(command: &Command) -> Option<i32> {
    let name = match command {
        Command::Probe(_) => "probe",
        Command::Doctor(_) => "doctor",
        Command::Bench(_) => "bench",
        Command::Audit(_) => "audit",
        Command::Trace(_) => "trace",
        Command::Export(_) => "export",
        Command::Report(_) => "report",
        _ => return None,
    };
    match make_clocks_readable() {
        Ok(CounterUse::Allowed) => None,
        Ok(CounterUse::WasForbidden) => {
            // doctor reports it as a finding.
            if name != "doctor" {
                output::warn(format_args!(
                    "{name}: this process was forbidden to read the CPU's counter (PR_SET_TSC), and has allowed itself to; programs \
                     that are started here and read a clock by the vDSO are killed by SIGSEGV"
                ));
            }
            None
        }
        Err(why) => {
            output::note(format_args!("{name}: {why}"));
            Some(exit::CANNOT_TELL)
        }
    }
}
