//! The command line, defined once: parsing, `--help`, completions and man pages come from it.

mod observing;
mod serving;

use std::ffi::OsString;
use std::io::Write;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

pub use observing::{Audit, Bench, Doctor, Export, FailOn, Guard, Probe, Report, Trace};
pub use serving::{Attach, Detach, InstallLibrary, Processes, Quiet, Run, Status};

use crate::output;
use crate::version;

/// All commands, those first that find a slow clock and fix it. With the lines above it, it fits on a terminal of 24.
const OVERVIEW: &str = "  doctor [PID|NAME]   why clocks are slow, here or in a process, and what to do
  run -- CMD          start a program on fast clocks
  attach PID|NAME     put running processes on fast clocks
  detach PID|NAME     revert that
  status              list the processes on fast clocks
Look closer
  probe               which path each clock takes, and what a call costs
  trace               which programs make system calls to read clocks
  bench               compare the paths
  audit PATH          which programs will never take the fast path
Keep watch
  guard               fail in CI if the fast path was lost
  export              metrics for Prometheus
  report -o FILE      all of it on one page, of this host or of many
Set up
  install-library     copy libfastpath-preload.so to where containers find it
  completions SHELL   what a shell completes
  schema COMMAND      the JSON Schema of a command's --json
`fastpath COMMAND --help` says more, `fastpath --help` lists exit statuses.";

/// Help without the list of commands that clap would make.
const TEMPLATE: &str = "{about}\n\n{usage-heading} {usage}{after-help}";

/// Statuses of crate::exit.
const EXIT_STATUSES: &str = "\
Exit status: of all commands, except that of a program that `run` or `trace` started:
   0  done; nothing is slow, broken or found
   1  something is slow, broken or found
   2  usage error
   3  no such process
   4 to 18  why attach or detach refused a process: fastpath attach --help
  66  input cannot be read, or has another format
  69  not determined, or not possible here
  70  another error
  74  the output cannot be written
  125 to 127  run: not served (--require); not executable; not found";

const EXAMPLES: &str = "  fastpath doctor           are clocks slow here, and why
  fastpath run -- ./app     start a program on fast clocks
  fastpath attach 1234      put a running process on fast clocks
  fastpath detach 1234      revert that";

/// Finds, fixes and guards slow clock reads on Linux
#[derive(Parser)]
#[command(
    name = "fastpath",
    version,
    long_version = version::LONG.as_str(),
    about,
    max_term_width = 100,
    help_template = TEMPLATE,
    after_help = OVERVIEW,
    after_long_help = format!("{OVERVIEW}\n\n{EXIT_STATUSES}\n\n{EXAMPLES}")
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// The arguments of `run` alone.
#[derive(Parser)]
struct OnlyRun {
    #[command(flatten)]
    run: Run,
}

/// Returns the arguments without `-p` and `--pid`, where a process needs no option.
fn without_pid_option(args: &[OsString]) -> Vec<OsString> {
    let takes_process = |command: &OsString| command == "doctor" || command == "attach" || command == "detach";
    if !args.get(1).is_some_and(takes_process) {
        return args.to_vec();
    }
    let plain = args.iter().filter(|arg| *arg != "-p" && *arg != "--pid");
    let plain = plain.map(|arg| match arg.to_str().and_then(|arg| arg.strip_prefix("--pid=")) {
        Some(named) => named.into(),
        None => arg.clone(),
    });
    plain.collect()
}

impl Args {
    /// Parses the command line; ends this process with a message if it is wrong, or asks for help.
    pub fn parse(args: &[OsString]) -> Args {
        // The other commands are left out, because building their definitions would delay the start of the program. A
        // message comes from all of them.
        if args.get(1).is_some_and(|command| command == "run")
            && let Ok(OnlyRun { run }) = OnlyRun::try_parse_from(&args[1..])
        {
            return Args {
                command: Command::Run(run),
            };
        }
        Args::try_parse_from(without_pid_option(args)).unwrap_or_else(|error| end(&with_suggestion(error, args)))
    }
}

/// Prints a message or the help, and ends this process.
fn end(message: &clap::Error) -> ! {
    let printed = message.print().and_then(|()| std::io::stdout().flush());
    std::process::exit(match printed {
        _ if message.use_stderr() => message.exit_code(),
        printed => output::status_of(printed),
    })
}

/// Adds what was probably meant, where other tools have that word or argument.
fn with_suggestion(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let command = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let meant = match command {
                "check" | "diagnose" => "doctor",
                "list" | "ls" | "ps" => "status",
                "fix" => "attach",
                "exec" | "start" => "run",
                "stop" | "unfix" | "undo" | "revert" | "remove" => "detach",
                _ => return error,
            };
            error.insert(
                ContextKind::SuggestedSubcommand,
                ContextValue::Strings(vec![meant.into()]),
            );
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
                return error;
            };
            let is_number = word.parse::<u32>().is_ok();
            let is_watched = args.iter().any(|arg| arg == "--watch" || arg == "-w");
            let tip = match (command, &**word) {
                ("trace", number) if is_number => {
                    format!("`fastpath trace -p {number}` counts the calls of process {number}")
                }
                ("trace", name) if !name.starts_with('-') => format!(
                    "`fastpath trace -- {name}` starts {name} and counts its calls; `fastpath trace -p {name}` counts those of a process that runs"
                ),
                ("status", number) if is_number && is_watched => {
                    format!("`fastpath status --watch={number}` repeats every {number} seconds")
                }
                ("probe" | "status", number) if is_number => {
                    format!("`fastpath doctor {number}` judges process {number}")
                }
                ("probe" | "status", "-p" | "--pid") => "`fastpath doctor PID` judges a process".to_owned(),
                _ => return error,
            };
            error.insert(
                ContextKind::Suggested,
                ContextValue::StyledStrs(vec![StyledStr::from(tip)]),
            );
        }
        _ => {}
    }
    error
}

#[derive(Subcommand)]
pub enum Command {
    Probe(Probe),
    Doctor(Doctor),
    Run(Run),
    Attach(Attach),
    Detach(Detach),
    Status(Status),
    Bench(Bench),
    Guard(Guard),
    Audit(Audit),
    Trace(Trace),
    Export(Export),
    Report(Report),
    InstallLibrary(InstallLibrary),
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man {
        /// Directory to write to
        directory: std::path::PathBuf,
    },
    /// Print the JSON Schema of a command's --json
    #[command(after_help = "Exit status: 0; 2 usage error; 74 the output cannot be written.")]
    Schema {
        /// The command
        command: Document,
    },
    /// Write a shell's completions to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The results for scripts, as `fastpath schema` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Document {
    Probe,
    Doctor,
    Trace,
    Audit,
    AuditRescue,
    Bench,
    Guard,
    Status,
    Report,
    Record,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_fits_on_a_screen_and_names_every_command() {
        let mut command = Args::command().term_width(80);
        let help = |words: &[&str]| {
            let words = ["fastpath"].iter().chain(words);
            let shown = Args::command().term_width(80).try_get_matches_from(words);
            shown.expect_err("help").to_string()
        };
        let short = help(&[]);
        assert!(short.lines().count() < 24, "{short}");
        command.build();
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            if name != "help" {
                assert!(short.contains(&format!("\n  {name} ")), "{name}: {short}");
                assert!(help(&[name, "--help"]).lines().count() <= 60, "{name}");
                // A row of a table or an example that is wrapped has lost its form.
                let whole = Args::command()
                    .term_width(1000)
                    .try_get_matches_from(["fastpath", name, "--help"]);
                let whole = whole.expect_err("help").to_string();
                let is_row =
                    |line: &&str| line.starts_with("  ") && line[2..].starts_with(|c: char| c.is_ascii_lowercase());
                let wide: Vec<_> = whole.lines().filter(is_row).filter(|line| line.len() > 80).collect();
                assert!(wide.is_empty(), "{name}: {wide:#?}");
            }
        }
    }
}
