//! The command line, defined once: parsing, `--help`, completions and man pages come from it.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use fastpath_measure::Clocks;

use crate::output;
use crate::processes::Named;
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
`fastpath COMMAND --help` says more, `fastpath --help` lists exit statuses.";

/// Help without the list of commands that clap would make.
const TEMPLATE: &str = "{about}\n\n{usage-heading} {usage}{after-help}";

/// Statuses of crate::exit.
const EXIT_STATUSES: &str = "\
Exit status, for all commands except the status of a program that `run` or `trace` started:
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
    after_long_help = format!("{OVERVIEW}\n\n{EXIT_STATUSES}")
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
        Args::try_parse_from(args).unwrap_or_else(|error| end(&with_suggestion(error, args)))
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
                "stop" | "unfix" => "detach",
                _ => return error,
            };
            error.insert(
                ContextKind::SuggestedSubcommand,
                ContextValue::Strings(vec![meant.into()]),
            );
        }
        ErrorKind::UnknownArgument => {
            let number = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(number)) if number.parse::<u32>().is_ok() => number,
                _ => return error,
            };
            let tip = match command {
                "trace" => format!("`fastpath trace -p {number}` counts the calls of process {number}"),
                "probe" => format!("`fastpath doctor {number}` judges process {number}"),
                "status" => format!("`fastpath status --watch={number}` repeats every {number} seconds"),
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
    #[command(hide = true)]
    Schema {
        /// The command
        #[arg(value_parser = crate::document::COMMANDS)]
        command: String,
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
Paths: `vdso` (the kernel's), `fastpath`, `syscall`, `unsupported` (the kernel has no such clock), `unknown` (not determined; the \
verdict gives the reason). The path is determined by a test, not guessed from the cost: a child calls libc under a seccomp filter \
that refuses the system call.

Costs are in nanoseconds per call.

Exit status: 0; 2 usage error; 74 the output cannot be written.")]
pub struct Probe {
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Explain why clocks are slow here, or are not, and what to do about it
#[derive(clap::Args)]
#[command(after_help = "\
Examines within a second: the kernel's clocksource, and why it is not the CPU's counter (log, command line, hypervisor, CPU flags); \
the counter (what the CPU guarantees, its rate, all CPUs against each other); path and cost of every clock; vDSO, vsyscall page, \
seccomp, time namespace, cost of a system call. With PID, also that process: libc, Go or Java, its vDSO, whether fastpath serves it, \
how much of its CPU time clock reads take, who makes them, of which clocks, and the gain. --verbose prints all facts, each with the file or the measurement it comes from.

Needs no privileges, and changes nothing. Facts that it is not permitted to read are listed with the privilege that they need.

Every remedy states its cost. One remedy can make time wrong; its text warns of that.

Exit status: 0 healthy: every clock that can be fast is fast; 1 a clock or a function is slow, or a clock is wrong, or the counter that clocks are \
read from is not sound; 2 usage error; 3 no such process; 66 the file of --replay cannot be read; 69 not determined; 74 the output cannot be written. With PID, \
the verdict is about that process, with NAME the most severe of all; --json then prints a line for each.

  fastpath doctor            this host, as programs that start here see it
  fastpath doctor 1234       the process 1234
  fastpath doctor postgres   all of that name; those alike are described once
  fastpath doctor --json     the same as data (docs/json.md describes it)
  fastpath doctor --rate 10  and whether the clock runs at the right rate, to a thousandth
  fastpath doctor --evidence host.json   and writes what it measured
  fastpath doctor --replay host.json     the same verdict, elsewhere

The file of --evidence is for others, who judge it by --replay on any machine with the same kind of CPU. It has: version and clock parameters of the kernel, its clocksources, its log's lines about clocks, and its mitigations; \
the machine's maker and model, hypervisor, CPU and flags; the comparison of all CPUs' counters and their rates; path and cost of each clock; \
this fastpath's libc, seccomp mode and time namespace; and what doctor says about all that. It has no names of hosts, users or processes, no \
paths of yours, no addresses, no serial numbers, and no other process.")]
pub struct Doctor {
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,

    /// Also print the evidence: each fact with its source
    #[arg(long, short, conflicts_with = "json")]
    pub verbose: bool,

    /// Compare the kernel's clocks with the machine's RTC, HPET and PTP clocks for this many seconds; without it, with those that take no second to read
    #[arg(long, value_name = "SECONDS", conflicts_with = "replay", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub rate: Option<u16>,

    /// Also write what was measured to this file, without names, to be judged elsewhere; `-` is standard output, which then gets nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "process")]
    pub evidence: Option<PathBuf>,

    /// Judge what another doctor has written (--evidence or --json), not this host; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["process", "evidence"])]
    pub replay: Option<PathBuf>,

    /// Also examine this process, or all processes of this name
    #[arg(value_name = "PID|NAME")]
    pub process: Option<Named>,
}

/// Compare the paths side by side: counter, fastpath's vDSO, the kernel's vDSO, system call
#[derive(clap::Args)]
#[command(after_help = "\
Rounds are interleaved and ratios are taken within a round, so that a noisy machine disturbs both sides alike. Below the medians are mean, \
standard deviation, minimum and maximum of each, and the number of outliers: rounds whose distance from the median is more than 22 times the \
median distance, as hyperfine counts. If it takes more than two seconds, progress is shown on standard error, if that is a terminal.

Exit status: 0; 1 a clock went backwards; 2 usage error; 74 the output cannot be written.

  fastpath bench --accuracy 60 --reads 1000000000")]
pub struct Bench {
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,

    /// Rounds per call
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: Option<u32>,

    /// Also compare fastpath's clocks with the kernel's on all CPUs, for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub accuracy: u64,

    /// Also read the clocks this many times on all CPUs, and count backward steps
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub reads: u64,
}

/// Check that clock reads take the fast path, for CI, init containers and start-up probes
#[derive(clap::Args)]
#[command(after_help = "\
Prints one line: the result, or what is broken. The path decides; it is determined under a seccomp filter, not guessed from the cost. \
Costs are compared as ratios: every call is measured in turns with reads of the CPU's counter and with a system call, and scaled to \
the counter's lowest cost, so that a busy machine raises no alarm. A call that seems broken is measured again, up to six times within \
a second, and the best result counts.

Broken are: a path that is not in --path; a clock read that costs more than --max-ns nanoseconds, or more than half a system call \
and 2.5 counter reads; a clock that goes backward.

Exit status: 0 nothing is broken; 1 broken; 2 usage error; 66 the baseline cannot be read; 69 not determined; 74 the output, \
or the baseline, cannot be written.

  fastpath guard        MONOTONIC and REALTIME: by a vDSO, below 100 ns
  fastpath guard --clocks boottime,tai --max-ns 60
  fastpath guard --write-baseline b.json
  fastpath guard --versus-baseline b.json")]
pub struct Guard {
    /// Highest cost of a clock read, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "100", value_parser = positive)]
    pub max_ns: f64,

    #[arg(long, value_name = "auto|all|LIST", default_value = "auto", help = Clocks::HELP)]
    pub clocks: Clocks,

    /// Allowed paths, separated by commas: vdso (the kernel's), fastpath, syscall; or any
    #[arg(long, value_name = "LIST", default_value = "vdso,fastpath", value_parser = Paths::parse)]
    pub path: Paths,

    /// Compare with a file from --write-baseline or --json: no path may be lost, and no call may cost more than
    /// --tolerance times as many counter reads as then
    #[arg(long, value_name = "FILE")]
    pub versus_baseline: Option<PathBuf>,

    /// Highest cost of a call, in counter reads, relative to the baseline
    #[arg(long, value_name = "TIMES", default_value = "1.5", value_parser = positive)]
    pub tolerance: f64,

    /// Write the result as a baseline, if nothing is broken; `-` is standard output, which then gets nothing else
    #[arg(long, value_name = "FILE")]
    pub write_baseline: Option<PathBuf>,

    /// Print one line of JSON; docs/json.md describes it
    #[arg(long)]
    pub json: bool,
}

/// Export the path and the cost of every clock to Prometheus
#[derive(clap::Args)]
#[command(after_help = "\
Serves http://ADDR:PORT/metrics, in OpenMetrics or Prometheus text as the client accepts, until SIGTERM or SIGINT. With \
--textfile, writes the metrics once to a file for node_exporter's textfile collector, and replaces the file atomically.

A scrape probes every clock, which takes about 10 ms of CPU time. Scrapes within --at-least seconds get the same result. The counter \
is examined as by doctor every ten minutes. A client has five seconds; the 17th connection closes the oldest.

Mappings of other users' processes are read with CAP_SYS_PTRACE; without it, fastpath_processes_unreadable counts these processes. \
Nothing else needs a privilege. Units are seconds. deploy/ has a systemd unit, a Helm chart, alert rules (with \
fastpath_clock_gettime_path_ns as a recording rule) and a dashboard.

Exit status: 0 ended by a signal, or the file was written; 2 usage error; 69 cannot listen on the address; 74 the file \
cannot be written.

  fastpath export --listen 127.0.0.1:9812
  fastpath export --textfile /var/lib/node_exporter/fastpath.prom")]
pub struct Export {
    /// Address or host name to listen on; without one (:9812), all addresses. With port 0, a free port, which is
    /// printed on standard error
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9812", value_parser = listen_at)]
    pub listen: std::net::SocketAddr,

    /// Write the metrics once to a file instead; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,

    /// Shortest time between two probes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub at_least: u64,
}

/// Write one page about the clocks of this host, or of many hosts, to read, send and print
#[derive(clap::Args)]
#[command(after_help = "\
Without FILE, this host is measured for a few seconds: every clock's path and cost, the distribution of the costs, now and with \
fastpath (measured in turns, in this process), doctor's findings, and the processes that make system calls to read clocks meanwhile \
(root; or CAP_BPF and CAP_PERFMON). Parts that are not available are listed with the reason.

With FILE, nothing is measured. A FILE is the output of `probe --json` or `report --json` on a host, or several of these, \
concatenated. Many hosts become a table, the worst first, followed by each host's details.

The page is one HTML file. It loads nothing, and its only script sorts the table. It follows the reader's light or dark colours, and \
can be printed. An existing page is replaced atomically.

Exit status: 0, also if clocks are slow; 2 usage error; 66 a FILE cannot be read, or has another format; 69 this host cannot \
be measured; 74 the output cannot be written.

  fastpath report -o clocks.html
  fastpath report web1.json web2.json db1.json -o fleet.html
  ssh web1 fastpath probe --json | fastpath report - -o web1.html
  fastpath report --json         the page's content as data; see docs/json.md")]
pub struct Report {
    /// File to write, or `-` for standard output; without it, standard output, unless that is a terminal
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print one line of JSON instead of the page
    #[arg(long)]
    pub json: bool,

    /// Seconds for which system calls are counted; 0 disables that
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds_or_none, conflicts_with = "files")]
    pub trace: std::time::Duration,

    /// Files from other hosts; `-` is standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Copy libfastpath-preload.so to a directory that containers mount
#[derive(clap::Args)]
#[command(after_help = "\
An image without a shell puts the library on its node in this way: the Helm chart's init container runs it, with the node's directory mounted.

The directory is created if it does not exist. An existing library is replaced atomically; a file with the same content is kept. Processes that \
have loaded the previous one keep it. Every user can read the library, whatever the umask is.

Exit status: 0; 2 usage error; 66 the library cannot be read; 74 it cannot be written.

  fastpath install-library /var/lib/fastpath")]
pub struct InstallLibrary {
    /// Directory to copy to
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,

    /// Library to copy, instead of the libfastpath-preload.so beside this program
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
}

/// Allowed paths; empty: any.
#[derive(Clone, Debug, PartialEq)]
pub struct Paths(pub Vec<fastpath_measure::Path>);

impl Paths {
    fn parse(text: &str) -> Result<Paths, String> {
        use fastpath_measure::Path;
        if text == "any" {
            return Ok(Paths(Vec::new()));
        }
        let path = |word: &str| match word {
            "vdso" => Ok(Path::Vdso),
            "fastpath" => Ok(Path::Fastpath),
            "syscall" => Ok(Path::Syscall),
            _ => Err(format!(
                "`{word}` is not a path; valid: vdso, fastpath, syscall, or any alone"
            )),
        };
        text.split(',').map(path).collect::<Result<_, _>>().map(Paths)
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if f64::is_finite(number) && number > 0.0 {
        Ok(number)
    } else {
        Err(format!("`{text}` is not a number above 0"))
    }
}

/// Show which programs make system calls to read clocks, how often, at what cost, and why
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("which").args(["pid", "all", "command"])),
    after_help = "\
Counts the system calls clock_gettime, clock_getres, gettimeofday, time and getcpu, also of 32-bit programs, and jumps to the vsyscall \
page. Reads that a vDSO answers are not system calls and are not counted; neither are fastpath's own calls.

Each row has the calls of one program for one clock, for one reason: `calls/s` on average, `ns`, the cost of such a call on this host, and \
`CPU`, their product, in percent of one CPU.

Ends after -d, on Ctrl-C, or when CMD or PID ends. With CMD, the table goes to standard error, or to FILE, because standard output is CMD's \
own. On a terminal the table is shown while it grows, except with CMD. After -d, CMD continues, and trace waits for its end.

Calls are counted in the kernel by BPF, which needs root, or CAP_BPF and CAP_PERFMON, and Linux 5.8. Without that, only -- CMD works: the \
program is stopped at each call, which takes about 10 us; set-user-ID programs that it starts gain no privileges; and trace waits for all \
of its descendants. A program that a process executes in place of another has its own rows.

In a PID namespace, trace shows the processes of that namespace with its PIDs, but not those of nested namespaces.

Exit status: 0; with CMD, its own (a signal that ends CMD ends fastpath too); 2 usage error; 3 no such process; 69 nothing can be counted here; \
74 the output cannot be written; 126 and 127 CMD cannot be executed or found.

  fastpath trace -d 10                    all processes, for ten seconds
  fastpath trace -p 1234 --stacks         a process, with the calling functions
  fastpath trace --json -o t.json -- ./app   as data; see docs/json.md"
)]
pub struct Trace {
    /// A process, and the processes that it starts from now on
    #[arg(short, long, value_name = "PID|NAME")]
    pub pid: Option<Named>,

    /// All processes; the default
    #[arg(short, long)]
    pub all: bool,

    /// End after this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<std::time::Duration>,

    /// Also show the calling functions, from one call in 64 and the first 64 of each place
    #[arg(long)]
    pub stacks: bool,

    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,

    /// File for the result; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<std::path::PathBuf>,

    /// Most places (process, clock, instruction) that are counted at once. Further calls are counted as lost
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub places: u32,

    /// Method of counting; by default `bpf` if permitted, else `ptrace`
    #[arg(long, value_name = "HOW", value_parser = ["bpf", "ptrace"])]
    pub by: Option<String>,

    /// A program to start and count, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Parses `2`, `0`.
fn seconds_or_none(text: &str) -> Result<std::time::Duration, String> {
    let number = text.parse::<f64>().ok();
    let duration = number.and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    let at_most = |duration: &std::time::Duration| duration.as_secs() <= 86_400;
    duration
        .filter(at_most)
        .ok_or_else(|| "seconds, at most a day, are needed".to_owned())
}

/// Parses `10`, `0.5`.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let number = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = number.and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "seconds, more than 0, are needed".to_owned())
}

/// Parses `1`, `0.5`: the time between two looks.
fn interval(text: &str) -> Result<std::time::Duration, String> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds));
    let number = number.ok_or_else(|| "seconds, 0.1 to 86400, are needed".to_owned())?;
    Ok(std::time::Duration::from_secs_f64(number))
}

/// Start a program on fast clocks, a synthetic vDSO
#[derive(clap::Args)]
#[command(after_help = "\
The program runs in this process: it keeps the PID, parent, terminal, environment, descriptors, and exit status. Descendants are served \
too; setuid programs and debugged programs run unchanged.

Exit status: the program's; 125 the program could not be served, with --require; 126 it cannot be executed; \
127 it was not found; 2 usage error.

  fastpath run -- redis-server           only clocks that are slow on this host
  fastpath run --clocks all -- ./app     all of its clocks
  fastpath run --without-vdso -- ./app   ./app as on a host without fast clocks")]
pub struct Run {
    #[arg(long, value_name = "auto|all|LIST", help = Clocks::HELP)]
    pub clocks: Option<Clocks>,

    /// Exit with 125 if the program cannot be served, instead of running it untouched. It starts some milliseconds later, when its clocks are
    /// served; without this option they are served from about a millisecond after its start
    #[arg(long)]
    pub require: bool,

    /// Use a counter (TSC) for which the CPU does not guarantee a constant rate; without this option it is refused. The
    /// counter is sampled 100 times a second instead of 10, and the CPUs are compared up to 100 times a second: 1 to 2
    /// % of one CPU in all. If the machine is too busy for that, reads are slow. A counter that goes wrong is read
    /// wrong until the error is detected: by up to 40 ms, for up to 20 ms on two CPUs and longer on more
    /// (docs/counter.md)
    #[arg(long)]
    pub trust_counter: bool,

    /// Also answer the system calls for time in the code of the program and of those that it starts, as static, old and
    /// raw-calling programs make them: their instructions are redirected where that is proven to change nothing else
    /// (docs/rescue.md). All clocks are served unless --clocks names others
    #[arg(long)]
    pub rescue: bool,

    /// Start the program as on a host with vdso=0
    #[arg(long)]
    pub without_vdso: bool,

    /// Print the time of each step of the start, or that nothing needs fixing, on standard error
    #[arg(long, short)]
    pub verbose: bool,

    /// Print no warning if the program runs untouched because it cannot be served
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Put running processes on fast clocks, a synthetic vDSO
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").args(["named", "cgroup", "unit"]).required(true).multiple(true)), after_help = "\
The process is not restarted: its threads are stopped for a few milliseconds, and calls that wait go on waiting. A helper process, or \
fastpathd, refreshes the clocks from then on; if that ends, reads fall back to the kernel. `fastpath detach` works at any time.

Needs permission to trace the process: the same user where Yama permits it, root, or CAP_SYS_PTRACE. Children that a process forks stay \
attached.

Exit status: 0; else that of the first process refused, which is left untouched:
   2  usage error                  11  a seccomp filter that cannot be suspended
   3  no such process              12  its vDSO's code cannot be written
   4  a kernel thread              13  it may not read the counter (PR_SET_TSC)
   5  it has ended (a zombie)      14  a thread does not stop, a stack cannot be
   6  it is being traced               read, or it shares memory or files
   7  no permission                16  the counter is not trusted, or no page
   8  attached, or under `run`     17  another tool changed its code (--children
   9  no 64-bit program here           may have served its own clocks)
  10  it has no vDSO               18  fastpathd's policy says never
                                   70  another error

  fastpath attach postgres            all processes of that name
  fastpath attach --unit redis        all processes of a service
  fastpath attach 1234 --clocks all   also clocks that are fast here")]
pub struct Attach {
    #[arg(long, value_name = "auto|all|LIST", help = Clocks::HELP)]
    pub clocks: Option<Clocks>,

    /// Also serve the programs that the processes execute
    #[arg(long)]
    pub children: bool,

    /// Use a counter (TSC) for which the CPU does not guarantee a constant rate; see `fastpath run --help`
    #[arg(long)]
    pub trust_counter: bool,

    /// Also answer the system calls for time in the program's own code, as static, old and raw-calling programs make
    /// them: their instructions are redirected where that is proven to change nothing else (docs/rescue.md)
    #[arg(long)]
    pub rescue: bool,

    /// Print how long each process was stopped, on standard error
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub processes: Processes,

    #[command(flatten)]
    pub quiet: Quiet,
}

/// Leaves out the list of changes, which `attach` and `detach` print on standard error
#[derive(clap::Args)]
pub struct Quiet {
    /// Print no line for each process that was changed
    #[arg(long, short)]
    pub quiet: bool,
}

/// Selects processes
#[derive(clap::Args)]
#[group(skip)]
pub struct Processes {
    /// PIDs, or names of programs: all processes with that name
    #[arg(value_name = "PID|NAME")]
    pub named: Vec<Named>,

    /// All processes of a control group and of the groups below it: /system.slice/app.service, or its directory
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    pub cgroup: Option<PathBuf>,

    /// All processes of a systemd unit
    #[arg(long, value_name = "NAME")]
    pub unit: Option<String>,
}

/// Remove fastpath from attached processes
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").args(["named", "cgroup", "unit", "all"]).required(true).multiple(true)), after_help = "\
Restores the kernel's bytes at the entry points, and unmaps fastpath's memory once no thread executes in it. If a thread does not leave it, \
the memory stays mapped and unused, and another `detach` or the next `attach` removes it.

Exit status: 0; 15 a process is not attached; 8 it was started by `fastpath run`; else as in `fastpath attach --help`.

  fastpath detach postgres       all processes of that name
  fastpath detach --all          all that `fastpath status` lists as attached")]
pub struct Detach {
    #[command(flatten)]
    pub processes: Processes,

    /// All attached processes
    #[arg(long, conflicts_with_all = ["named", "cgroup", "unit"])]
    pub all: bool,

    /// Do not ask before --all, as it is done for root on a terminal
    #[arg(long, short, requires = "all")]
    pub yes: bool,

    #[command(flatten)]
    pub quiet: Quiet,
}

/// List the processes that fastpath serves
#[derive(clap::Args)]
#[command(after_help = "\
AGE is the age of the last refresh, normally at most 100 ms. RESIDUAL is the error against the kernel's clock that the refresh measured. \
FALLBACKS counts how often clocks were withdrawn from the page, so that reads fell back to the kernel. If fastpathd runs, status also asks it \
which rule of its policy attached each process, and for its own state.

With --watch, a line with the time precedes each table. On a terminal the table is redrawn in place, cut to the terminal's size; elsewhere, or \
if TERM is dumb, the tables follow each other.

Exit status: 0, also after SIGINT (Ctrl-C), SIGTERM and SIGHUP; 2 usage error; 69 processes cannot be listed (no /proc); 74 the output \
cannot be written, or its reader is gone.

  fastpath status --watch           redrawn every second
  fastpath status --watch=0.2       five times a second
  fastpath status --json --watch=60 >>log   a line of JSON every minute")]
pub struct Status {
    /// Print one line of JSON; docs/json.md describes it
    #[arg(long)]
    pub json: bool,

    /// Repeat until Ctrl-C, every second or at this interval in seconds, 0.1 to 86400
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = interval)]
    pub watch: Option<std::time::Duration>,
}

/// Find programs that will never take the fast path, without running them
#[derive(clap::Args)]
#[command(after_help = "\
Examines ELF programs and libraries of x86-64, i386, AArch64 and Arm. A PATH is a file, a directory (recursively; symbolic links are not \
followed, a file with several names is examined once, and virtual file systems such as /proc are skipped), or an image: an OCI layout, the \
output of `docker save`, or a layer (tar, plain or with gzip or zstd). An archive is examined if it is a PATH, not if it is found in a \
directory. Files that a later layer removes or replaces are not reported.

Rules, with their levels:
  static-glibc-without-vdso  error    static, glibc before 2.31 (note: no reads)
  static-musl-without-vdso   error    static, a musl that looks for no vDSO
  go-without-vdso            error    Go before 1.11, except on amd64
  static-without-vdso        error    static, with system calls of its own
  libc-without-vdso          error    a C library that looks for no vDSO
  own-system-call            warning  such calls beside those of the C library
  vsyscall-page              error    it calls addresses in the vsyscall page
The system calls to which a C library falls back without a vDSO are not findings. Not detected are calls through a common function that gets the number as an argument (libc's syscall(), klibc's and dietlibc's on some \
ISAs), and code that is packed or generated.

A broken file gives one warning. Limits: 64 GiB and 10 minutes per archive, 2,000 bytes from each byte of it, 2 GiB \
of code per file; memory stays below 512 MiB.

Exit status: 0; 1 a finding at --fail-on or above; 2 usage error; 66 a PATH cannot be read; 74 the output cannot be \
written.

  fastpath audit /usr/bin /opt
  docker save app >app.tar; fastpath audit --fail-on warning app.tar
  fastpath audit --sarif build/ >audit.sarif")]
pub struct Audit {
    /// Print one line of JSON; docs/json.md describes it
    #[arg(long, conflicts_with = "sarif")]
    pub json: bool,

    /// SARIF 2.1.0, for code scanning
    #[arg(long)]
    pub sarif: bool,

    /// Lowest level of a finding that makes the exit status 1
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = FailOn::Error)]
    pub fail_on: FailOn,

    /// Also list the programs and libraries without findings
    #[arg(long)]
    pub all: bool,

    /// List instead which system calls for time `attach --rescue` would redirect, and the reason why not for the
    /// others. x86-64 only
    #[arg(long, conflicts_with_all = ["sarif", "fail_on", "all"])]
    pub rescue: bool,

    /// Files, directories, images
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<std::path::PathBuf>,
}

/// Lowest level of a finding on which an audit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    Note,
    Warning,
    Error,
    Never,
}

/// Parses the address that `export` listens on.
fn listen_at(text: &str) -> Result<std::net::SocketAddr, String> {
    use std::net::ToSocketAddrs;
    let all = text.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
    let text = all.as_deref().unwrap_or(text);
    let addresses = text.to_socket_addrs().map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => {
            "an address and a port are needed, such as 127.0.0.1:9812, localhost:9812 or :9812".to_owned()
        }
        _ => format!("the host's name could not be looked up: {error}"),
    })?;
    // Clients of localhost try 127.0.0.1.
    let addresses: Vec<_> = addresses.collect();
    let found = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    found
        .copied()
        .ok_or_else(|| "the host's name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_host_but_not_its_port() {
        let at = |text: &str| listen_at(text).map(|address| address.to_string());
        assert_eq!(at("127.0.0.1:9812").as_deref(), Ok("127.0.0.1:9812"));
        assert_eq!(at(":9812").as_deref(), Ok("0.0.0.0:9812"));
        // A chroot may have no /etc/hosts.
        if std::net::ToSocketAddrs::to_socket_addrs("localhost:0").is_ok() {
            assert_eq!(at("localhost:0").as_deref(), Ok("127.0.0.1:0"));
        }
        assert_eq!(at("[::1]:1").as_deref(), Ok("[::1]:1"));
        for wrong in ["9812", "", "localhost", "localhost:port", ":"] {
            assert!(listen_at(wrong).is_err(), "{wrong}");
        }
    }
    #[test]
    fn an_interval_is_a_tenth_of_a_second_to_a_day() {
        for right in ["0.1", "1", "86400"] {
            assert!(interval(right).is_ok(), "{right}");
        }
        for wrong in ["0", "0.09", "-1", "86401", "inf", "NaN", "1s", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    use clap::CommandFactory;

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

    #[test]
    fn paths_and_limits_are_taken_as_documented() {
        use fastpath_measure::Path;
        assert_eq!(
            Paths::parse("vdso,fastpath"),
            Ok(Paths(vec![Path::Vdso, Path::Fastpath]))
        );
        assert_eq!(Paths::parse("any"), Ok(Paths(Vec::new())));
        assert!(Paths::parse("any,vdso").is_err() && Paths::parse("").is_err());
        assert_eq!(positive("0.5"), Ok(0.5));
        for text in ["0", "-1", "inf", "NaN", "x", ""] {
            assert!(positive(text).is_err(), "{text}");
        }
    }
}
