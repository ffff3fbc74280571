//! The command line, defined once: parsing, `--help`, completions and man pages come from it.

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use fastpath_observe::Clock;

/// Finds, fixes and guards slow clock reads on Linux
#[derive(Parser)]
#[command(
    name = "fastpath",
    version,
    about,
    max_term_width = 100,
    after_help = "\
Reading a clock should cost 10 to 20 ns. When the kernel's vDSO is lost it costs 200 to 2,000 ns, silently.

  fastpath probe                 which path each clock takes here, and what a call costs
  fastpath run -- python3 x.py   start a program on a synthetic vDSO"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Probe(Probe),
    Run(Run),
    Bench(Bench),
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man {
        /// Where to
        directory: std::path::PathBuf,
    },
    /// Write a shell's completions to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Show which path every clock takes here, and what a call costs
#[derive(clap::Args)]
#[command(after_help = "\
Paths: `vdso` (the kernel's), `fastpath` (ours), `syscall`, `unsupported` (the kernel has no such clock), `unknown` (could not
be established; the verdict says why). The path is established, not guessed from the cost: a child calls libc under a
seccomp filter that refuses the system call.

Units are nanoseconds per call. Exit status: 0; 74 if the output cannot be written; 2 on a usage error.")]
pub struct Probe {
    /// One line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Compare the paths side by side: counter, our vDSO, the kernel's vDSO, system call
#[derive(clap::Args)]
#[command(after_help = "\
Rounds are interleaved and ratios are taken within a round, so that a noisy machine disturbs both sides alike.

Exit status: 0; 1 if a clock was seen to go backwards; 74 if the output cannot be written; 2 on a usage error.

  fastpath bench --accuracy 60 --reads 1000000000")]
pub struct Bench {
    /// One line of JSON
    #[arg(long)]
    pub json: bool,

    /// Rounds per call
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: Option<u32>,

    /// Also compare our clocks with the kernel's for so many seconds, on all CPUs
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub accuracy: u64,

    /// Also read so many times, on all CPUs, and count backward steps
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub reads: u64,
}

/// Start a program on a synthetic vDSO
#[derive(clap::Args)]
#[command(after_help = "\
The program keeps this process: its PID, parent, terminal, environment, descriptors, and exit status. Descendants are served
too; setuid programs and debuggees run as always.

Exit status: the program's; 125 if --require was given and the program could not be served; 126 if it cannot be executed;
127 if it was not found; 2 on a usage error.

  fastpath run -- redis-server                    only where clocks are slow on this host
  fastpath run --without-vdso -- ./app            what a lost fast path would cost ./app
  fastpath run --without-vdso --clocks all -- ./app   fastpath giving it back")]
pub struct Run {
    /// Clocks to take over: `auto` (those whose present path is slow), `all`, or a comma-separated list of REALTIME,
    /// MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI
    #[arg(long, value_name = "auto|all|LIST", value_parser = Clocks::parse)]
    pub clocks: Option<Clocks>,

    /// Exit with 125 instead of running the program untouched
    #[arg(long)]
    pub require: bool,

    /// Start the program as on a host with vdso=0
    #[arg(long)]
    pub without_vdso: bool,

    /// Show what each step of the start cost, on standard error
    #[arg(long, short)]
    pub verbose: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Which clocks to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clocks {
    Auto,
    Set(fastpath_page::ClockSet),
}

impl Clocks {
    fn parse(text: &str) -> Result<Clocks, String> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => return Ok(Clocks::Auto),
            "all" => return Ok(Clocks::Set(fastpath_page::ClockSet::ALL)),
            _ => {}
        }
        let mut set = fastpath_page::ClockSet::NONE;
        for word in text.split(',') {
            let clock = word.parse::<Clock>().ok().filter(|clock| Clock::SERVED.contains(clock));
            let clock = clock.ok_or_else(|| {
                let names: Vec<_> = Clock::SERVED.iter().map(|clock| clock.name()).collect();
                format!(
                    "`{word}` is not a clock that can be taken over; valid: auto, all, {}",
                    names.join(", ")
                )
            })?;
            set = set.union(fastpath_page::ClockSet::of_id(clock.id() as u32));
        }
        Ok(Clocks::Set(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use fastpath_page::ClockSet;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn clock_names_are_taken_as_people_write_them() {
        let both = ClockSet::MONOTONIC.union(ClockSet::REALTIME);
        assert_eq!(Clocks::parse("monotonic,CLOCK_REALTIME"), Ok(Clocks::Set(both)));
        assert_eq!(Clocks::parse("monotonic-raw"), Ok(Clocks::Set(ClockSet::MONOTONIC_RAW)));
        assert_eq!(Clocks::parse("ALL"), Ok(Clocks::Set(ClockSet::ALL)));
        assert_eq!(Clocks::parse("auto"), Ok(Clocks::Auto));
    }

    #[test]
    fn an_unknown_clock_is_answered_with_the_valid_names() {
        let error = Clocks::parse("monotonic,wall").unwrap_err();
        assert!(
            error.contains("`wall`") && error.contains("MONOTONIC_RAW") && error.contains("TAI"),
            "{error}"
        );
        assert!(Clocks::parse("").is_err());
        assert!(Clocks::parse("PROCESS_CPUTIME_ID").is_err());
    }
}
