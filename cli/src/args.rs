//! The command line, defined once: parsing, `--help`, completions and man pages come from it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use fastpath_measure::Clocks;

use crate::complete;
use crate::processes::{Named, offered};
use crate::programs;

const OVERVIEW: &str = "\
Reading a clock should cost 10 to 20 ns. When the kernel's vDSO is lost it costs 200 to 2,000 ns, silently.

  fastpath probe                 which path each clock takes here, and what a call costs
  fastpath doctor                why it costs that, and what to do about it
  fastpath run -- python3 x.py   start a program on a synthetic vDSO
  fastpath attach 1234           put a running process on it; `detach` takes it off, `status` lists them
  fastpath guard                 fail, in CI, where the fast path was lost
  fastpath audit /usr image.tar  which programs will never take the fast path
  fastpath trace -a              who makes system calls to read clocks
  fastpath report -o clocks.html all of it on one page, of this host or of many";

/// Statuses of crate::exit.
const EXIT_STATUSES: &str = "\
Exit status: the same for all commands, but for those of programs that are run or counted:
   0  done; nothing is slow, broken or found
   1  something is slow, broken or found
   2  usage error
   3  no such process
   4 to 18  why attach or detach refused a process: fastpath attach --help
  66  input cannot be read, or is something else
  69  it cannot be told, or not be done here
  70  something else failed
  74  the output cannot be written
  125 to 127  run could not serve (--require); not executable; not found";

/// Finds, fixes and guards slow clock reads on Linux
#[derive(Parser)]
#[command(
    name = "fastpath",
    version,
    about,
    max_term_width = 100,
    after_help = OVERVIEW,
    after_long_help = format!("{OVERVIEW}\n\n{EXIT_STATUSES}")
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
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
#[command(after_long_help = "\
Paths: `vdso` (the kernel's), `fastpath` (ours), `syscall`, `unsupported` (the kernel has no such clock), `unknown` (could not \
be established; the verdict says why). The path is established, not guessed from the cost: a child calls libc under a \
seccomp filter that refuses the system call.

Units are nanoseconds per call. Exit status: 0; 2 usage error; 69 this kernel starts no program of that ISA; 74 the output cannot be written.")]
pub struct Probe {
    /// One line of JSON
    #[arg(long)]
    pub json: bool,

    /// Whose programs: on x86-64, 32-bit ones have a vDSO of their own. Asked with i386, a small 32-bit program looks
    #[arg(long, value_name = "ISA", default_value = std::env::consts::ARCH,
          value_parser = clap::builder::PossibleValuesParser::new(fastpath_measure::Probe::isas()))]
    pub isa: String,
}

/// Say why clocks are slow here, or are not, and what to do about it
#[derive(clap::Args)]
#[command(after_long_help = "\
Looks up in a second what an expert would: the kernel's clocksource and why it is not the CPU's counter (log, command line, \
hypervisor, CPU flags); what the counter is worth (promised, measured, all CPUs against each other); path and price of every \
clock; vDSO, vsyscall, seccomp, time namespace, what system calls cost. With PID, also that process: libc, Go or Java, its \
vDSO, whether fastpath is in it, what it would gain. With --verbose it shows all that it saw, and the file or the measurement that \
each line comes from.

Needs no privileges, and changes nothing. What it was not allowed to see, it lists, with what would make it visible.

Every remedy states its price. One of them can make time wrong; it says so.

Exit status: 0 healthy: every clock that can be fast is fast; 1 a clock or a function is slow, or the counter that clocks are \
read from is not sound; 2 usage error; 3 no such process; 69 it could not be told; 74 the output cannot be written. With PID, \
the verdict is on that process.

  fastpath doctor            this host, as a program started from here sees it
  fastpath doctor 1234       the process 1234; `fastpath doctor redis-server` by its name
  fastpath doctor --json     the same as data (docs/json.md has the fields)")]
pub struct Doctor {
    /// One line of JSON
    #[arg(long)]
    pub json: bool,

    /// Show the evidence: what was looked at, what it showed, and where
    #[arg(long, short, conflicts_with = "json")]
    pub verbose: bool,

    /// A process to look at, beside the host
    #[arg(value_name = "PID|NAME", add = offered::any())]
    pub process: Option<Named>,
}

/// Compare the paths side by side: counter, our vDSO, the kernel's vDSO, system call
#[derive(clap::Args)]
#[command(after_long_help = "\
Rounds are interleaved and ratios are taken within a round, so that a noisy machine disturbs both sides alike. Below the medians stand mean, \
standard deviation, the least and the most of each, and how many rounds are outliers: further from the median than 22 times the median \
distance from it, as hyperfine counts. Where it takes more than two seconds, a terminal that is standard error shows how far it is.

Exit status: 0; 1 a clock was seen to go backwards; 2 usage error; 74 the output cannot be written.

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

/// Check that clock reads take the fast path, for CI, init containers and start-up probes
#[derive(clap::Args)]
#[command(after_long_help = "\
Prints one line: what was found, or what broke. The path decides, and it is established under a seccomp filter, not guessed. \
Prices are held to ratios: every call is measured in turns with reads of the CPU's counter and with a system call, and scaled \
to what the counter costs at its best, so that a busy machine raises no alarm. What looks broken is looked at again, up to \
six times within a second, and the best look counts.

What is broken: a path that is not among --path; a clock read that costs more than --max-ns (nanoseconds), or half a system call \
and more than 2.5 counter reads; getpid at more than 64 counter reads (a tracer, a long seccomp filter or a sandbox taxes every \
system call); getrandom of 16 bytes at more than 8 getpids, or by system call where libc (glibc 2.41) and kernel (Linux 6.11) have \
it in the vDSO; one byte of /dev/urandom at more than 12 getpids.

Exit status: 0 as it should be; 1 broken; 2 usage error; 66 the baseline cannot be read; 69 it could not be told; 74 the output, \
or the baseline, cannot be written.

  fastpath guard                                              MONOTONIC and REALTIME, by the vDSO or by fastpath, below 100 ns
  fastpath guard --clocks boottime,tai --max-ns 60
  fastpath guard --calls clock_gettime,getpid,getrandom,urandom
  fastpath guard --write-baseline b.json; ...; fastpath guard --versus-baseline b.json")]
pub struct Guard {
    /// The most that a clock read may cost, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "100", value_parser = positive)]
    pub max_ns: f64,

    #[arg(long, value_name = "auto|all|LIST", default_value = "auto", help = Clocks::HELP, add = complete::clocks())]
    pub clocks: Clocks,

    /// Paths that are allowed, separated by commas: vdso (the kernel's), fastpath, syscall; or any
    #[arg(long, value_name = "LIST", default_value = "vdso,fastpath", value_parser = Paths::parse)]
    pub path: Paths,

    /// What is checked
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "clock_gettime")]
    pub calls: Vec<GuardedCall>,

    /// Compare with what --write-baseline or --json wrote: no path may be lost, and no call may cost --tolerance times as many
    /// counter reads as then
    #[arg(long, value_name = "FILE")]
    pub versus_baseline: Option<PathBuf>,

    /// How many times as many counter reads as in the baseline a call may cost
    #[arg(long, value_name = "TIMES", default_value = "1.5", value_parser = positive)]
    pub tolerance: f64,

    /// Keep what was seen, if it is as it should be
    #[arg(long, value_name = "FILE")]
    pub write_baseline: Option<PathBuf>,

    /// One line of JSON; docs/json.md has the fields
    #[arg(long)]
    pub json: bool,
}

/// Tell Prometheus which path every clock takes, and what it costs
#[derive(clap::Args)]
#[command(after_long_help = "\
Serves http://ADDR:PORT/metrics, in OpenMetrics or Prometheus text as the client accepts, until SIGTERM or SIGINT; or, with \
--textfile, writes the same to a file (whole or not at all) for node_exporter's textfile collector, and ends.

A scrape probes every clock: some 10 ms of CPU time. Scrapes within --at-least seconds of each other are answered from one look. What \
doctor knows of the counter is looked up every ten minutes. Clients have five seconds; the 17th at a time ends the oldest.

What other users' processes have mapped is seen with CAP_SYS_PTRACE; without it they are counted in \
fastpath_processes_unreadable. Nothing else needs a privilege. Units are Prometheus's: seconds. deploy/ has a systemd unit, a \
container, a DaemonSet, alert rules (with clock_gettime_path_ns as a recording rule) and a dashboard.

Exit status: 0 ended by a signal, or the file was written; 2 usage error; 69 the address cannot be listened on; 74 the file \
cannot be written.

  fastpath export --listen 127.0.0.1:9812
  fastpath export --textfile /var/lib/node_exporter/textfile_collector/fastpath.prom")]
pub struct Export {
    /// Where to listen: an address or a host's name; without one (:9812), on all addresses. Port 0 takes a free one, which is told on
    /// standard error
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9812", value_parser = listen_at)]
    pub listen: std::net::SocketAddr,

    /// Write the metrics to a file instead, once
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,

    /// Look at most once in so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub at_least: u64,
}

/// Make one page of what is known of this host's clocks, or of many hosts', to read, send and print
#[derive(clap::Args)]
#[command(after_long_help = "\
Without FILE, this host is measured, in some seconds: every clock's path and price, how the prices are spread, now and with \
fastpath (measured in turns, in this process), what doctor says, and who makes system calls to read clocks meanwhile (root; or \
CAP_BPF and CAP_PERFMON). What cannot be had is said with its reason.

With FILE, nothing is measured. A FILE is what `probe --json` or `report --json` wrote on a host, or several of these, one \
behind the other. Many hosts become a table, the sickest first, with all of each host below it.

The page is one file of HTML. It loads nothing from anywhere, and runs nothing but the script that sorts its table; it follows the \
reader's light or dark colours, and prints whole. An existing page is replaced whole or not at all.

Exit status: 0, whatever the hosts are like; 2 usage error; 66 a FILE cannot be read, or is something else; 69 this host cannot \
be measured; 74 the output cannot be written.

  fastpath report -o clocks.html
  fastpath report web1.json web2.json db1.json -o fleet.html
  for host in web1 web2 db1; do ssh $host fastpath probe --json; done | fastpath report - -o fleet.html
  fastpath report --json         what the page shows, as one object on one line (docs/json.md has the fields)")]
pub struct Report {
    /// Where the page goes to; without it, to standard output, if that is no terminal
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// One line of JSON instead of the page
    #[arg(long)]
    pub json: bool,

    /// For how long system calls are counted; 0: not at all
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds_or_none, conflicts_with = "files")]
    pub trace: std::time::Duration,

    /// What other hosts wrote; `-`: standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// What `guard` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GuardedCall {
    /// Each of --clocks
    #[value(name = "clock_gettime")]
    ClockGettime,
    /// What every system call costs
    Getpid,
    /// 16 random bytes
    Getrandom,
    /// One byte of /dev/urandom
    Urandom,
}

/// Paths that are allowed; none: any.
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

/// Show who makes system calls to read clocks, how often, at what price, and why
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("whom").args(["pid", "all", "command"])),
    after_long_help = "\
Counted are the system calls clock_gettime, clock_getres, gettimeofday, time and getcpu, those of 32-bit programs and jumps to \
the vsyscall page too. Reads that a vDSO answers are no system calls and are not seen. fastpath's own are not counted.

Each row is one program's calls for one clock, for one reason. `calls/s` is over the whole time; `ns` is what such a call costs \
on this host, measured before; `CPU` is both multiplied, in percent of one CPU. The dearest row comes first.

Ends by -d, Ctrl-C, or the end of CMD or PID. With CMD, the table goes to standard error, for the output is CMD's own, or to \
FILE. On a terminal it is shown while it grows, except with CMD. After -d CMD goes on, and is waited for.

Counted in the kernel, by BPF: root, or CAP_BPF and CAP_PERFMON, and Linux 5.8. Without them only -- CMD works: the program is \
stopped at each call, which takes some 10 us a call; set-user-ID programs that it starts gain no privileges; and all of its \
descendants are waited for. A program that a process executes in the place of another has rows of its own.

In a PID namespace, processes of that namespace are seen, by its numbers; those of namespaces below it are not.

Exit status: 0; CMD's own (and CMD's signal ends fastpath too); 2 usage error; 3 no such process; 69 nothing can be counted here; \
74 the output cannot be written; 126 and 127 CMD cannot be executed or found.

  fastpath trace -d 10                    all processes, for ten seconds
  fastpath trace -p 1234 --stacks         a process and those it starts, and the functions that call
  fastpath trace --json -o t.json -- ./app   one object, on one line (docs/json.md has the fields)"
)]
pub struct Trace {
    /// A process, and those that it starts from now on
    #[arg(short, long, value_name = "PID|NAME", add = offered::any())]
    pub pid: Option<Named>,

    /// All processes; the default
    #[arg(short, long)]
    pub all: bool,

    /// End after so many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<std::time::Duration>,

    /// Also show which functions call: one call in 64 is looked at, and the first 64 of each place
    #[arg(long)]
    pub stacks: bool,

    /// One line of JSON
    #[arg(long)]
    pub json: bool,

    /// Where the result goes to
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<std::path::PathBuf>,

    /// How many places (process, clock, instruction) are counted at once. Calls that find no room are counted as lost
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub places: u32,

    /// How calls are counted; without it, `bpf` where that is allowed, else `ptrace`
    #[arg(long, value_name = "HOW", value_parser = ["bpf", "ptrace"])]
    pub by: Option<String>,

    /// A program to start and watch, and its arguments
    #[arg(last = true, value_name = "CMD", add = programs::any())]
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

/// Start a program on a synthetic vDSO
#[derive(clap::Args)]
#[command(after_long_help = "\
The program keeps this process: its PID, parent, terminal, environment, descriptors, and exit status. Descendants are served \
too; setuid programs and debuggees run as always.

Exit status: the program's; 125 if --require was given and the program could not be served; 126 if it cannot be executed; \
127 if it was not found; 2 on a usage error.

  fastpath run -- redis-server                    only where clocks are slow on this host
  fastpath run --without-vdso -- ./app            what a lost fast path would cost ./app
  fastpath run --without-vdso --clocks all -- ./app   fastpath giving it back")]
pub struct Run {
    #[arg(long, value_name = "auto|all|LIST", help = Clocks::HELP, add = complete::clocks())]
    pub clocks: Option<Clocks>,

    /// Exit with 125 instead of running the program untouched
    #[arg(long)]
    pub require: bool,

    /// Believe a counter (TSC) that the CPU does not promise to tick at one rate. It is then watched more closely: 100 samples a
    /// second instead of 10, and the CPUs compared up to 100 times a second, 1 to 2 % of one CPU in all; where the machine is too
    /// busy for that, reads are slow. A counter that goes wrong is read wrong until it is caught: by up to 40 ms, for up to 20 ms on two
    /// CPUs and longer on more (docs/counter.md). Without it such a counter is refused
    #[arg(long)]
    pub trust_counter: bool,

    /// Start the program as on a host with vdso=0
    #[arg(long)]
    pub without_vdso: bool,

    /// Show what each step of the start cost, and where nothing needs fixing say so, on standard error
    #[arg(long, short)]
    pub verbose: bool,

    /// Do not warn where the program runs untouched because it cannot be served
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", add = programs::any())]
    pub command: Vec<OsString>,
}

/// Put running processes on a synthetic vDSO
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").args(["named", "cgroup", "unit"]).required(true).multiple(true)), after_long_help = "\
The process is not restarted and notices nothing: its threads stand still for some milliseconds, and a system call in which \
one waits goes on waiting. What it will ask for is what the kernel's functions answer, from then on without a system call. \
A helper stays behind that keeps the page true, until the last process has ended or was detached. Where fastpathd runs it keeps the \
page, and only --children leaves a helper, which meets what is executed. Where the one that keeps it dies, clocks are the \
kernel's again: slow, and right. `fastpath detach` works at any time, whatever became of the fastpath that attached.

It takes the right to trace the process (its user where Yama permits, root, CAP_SYS_PTRACE), and works from a host on processes in \
containers. Descendants that are forked stay attached; with --children, those that execute a program are served as well.

Exit status: 0; else that of the first process that was refused, which is untouched then:
   2  usage error                         11  a seccomp filter that cannot be suspended
   3  no such process                     12  its vDSO's code cannot be written
   4  a thread of the kernel's            13  it may not read the counter (PR_SET_TSC)
   5  it has ended (a zombie)             14  a thread does not stop in time, or shares memory,
                                             or has a stack that cannot be read
   6  it is being traced                  16  the counter cannot be trusted, or no page can be had
   7  no permission                       17  its code was changed by somebody else
   8  attached already, or under `run`    18  fastpathd's policy says never
   9  not a 64-bit program of this host   70  something else failed
  10  it has no vDSO

  fastpath attach postgres                     all of them, only where clocks are slow on this host
  fastpath attach --unit redis                 all processes of a service
  fastpath attach 1234 --clocks all -v         all clocks, and how long it stood still")]
pub struct Attach {
    #[arg(long, value_name = "auto|all|LIST", help = Clocks::HELP, add = complete::clocks())]
    pub clocks: Option<Clocks>,

    /// Serve the programs that they execute, too
    #[arg(long)]
    pub children: bool,

    /// Believe a counter (TSC) that the CPU does not promise to tick at one rate; see `fastpath run --help`
    #[arg(long)]
    pub trust_counter: bool,

    /// Show how long each process stood still, on standard error
    #[arg(long, short)]
    pub verbose: bool,

    #[command(flatten)]
    pub whom: Whom,
}

/// Which processes are meant
#[derive(clap::Args)]
#[group(skip)]
pub struct Whom {
    /// Processes, by number or by the name of their program: all that have it
    #[arg(value_name = "PID|NAME", add = offered::own())]
    pub named: Vec<Named>,

    /// All processes of a control group and of those below it: /system.slice/app.service, or its directory
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    pub cgroup: Option<PathBuf>,

    /// All processes of one of systemd's units
    #[arg(long, value_name = "NAME")]
    pub unit: Option<String>,
}

/// Take processes off it again
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").args(["named", "cgroup", "unit", "all"]).required(true).multiple(true)),
    mut_arg("named", |named| named.add(offered::attached())), after_long_help = "\
Entry points get the kernel's bytes back, and what was mapped is unmapped once no thread is in it. Where a thread does not leave \
it, the memory stays, unused, and a second `detach` or the next `attach` removes it.

Exit status: 0; 15 if a process is not attached, 8 if it was started by `fastpath run`, else as `fastpath attach --help` says.

  fastpath detach postgres       all processes of that name
  fastpath detach --all          all that `fastpath status` shows as attached")]
pub struct Detach {
    #[command(flatten)]
    pub whom: Whom,

    /// All that are attached
    #[arg(long, conflicts_with_all = ["named", "cgroup", "unit"])]
    pub all: bool,
}

/// List the processes that are on a synthetic vDSO
#[derive(clap::Args)]
#[command(after_long_help = "\
AGE is that of the last refresh: 100 ms at most where all is well. RESIDUAL is the error against the kernel's clock that it found. \
FALLBACKS counts how often clocks were taken off the page since it was made, so that readers asked the kernel. \
Where fastpathd runs it is asked, too: which rule of its policy attached a process, and how it is itself.

With --watch, a line with the time comes first. On a terminal the table is redrawn in its place, cut to the terminal's size; elsewhere, and \
where TERM is dumb, the tables follow each other.

Exit status: 0, also after SIGINT (Ctrl-C), SIGTERM and SIGHUP; 2 usage error; 69 processes cannot be listed (no /proc); 74 the output \
cannot be written, or its reader is gone.

  fastpath status --watch           redrawn every second
  fastpath status --watch=0.2       five times a second
  fastpath status --json --watch=60 >>status.json   a line of JSON every minute")]
pub struct Status {
    /// One line of JSON; docs/json.md has the fields
    #[arg(long)]
    pub json: bool,

    /// Show it again and again until Ctrl-C, every second or every so many seconds, 0.1 to 86400
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = interval)]
    pub watch: Option<std::time::Duration>,
}

/// Find programs that will never take the fast path, without running them
#[derive(clap::Args)]
#[command(after_long_help = "\
Looks at ELF programs and libraries of x86-64, i386, AArch64 and Arm. A PATH is a file, a directory (with all below it; symbolic \
links are not followed, a file with several names is looked at once, file systems that the kernel makes up are left out), or an \
image: an OCI layout, what `docker save` writes, or a layer (tar, alone or with gzip or zstd). Archives are looked into where they \
are named, not where they lie in a directory. What a later layer removes or replaces is not reported.

Rules, with their levels:
  static-glibc-without-vdso  error    a static glibc before 2.31 (note: if it was not seen to read a clock)
  static-musl-without-vdso   error    a static musl that does not look for the vDSO
  go-without-vdso            error    Go before 1.11, except on amd64
  static-without-vdso        error    another static program that makes the system calls itself
  libc-without-vdso          error    a shared C library that does not look for the vDSO
  own-system-call            warning  a program or library whose own code makes the system calls, beside its C library
  vsyscall-page              error    it calls addresses in the vsyscall page
The reads meant are clock_gettime, gettimeofday and time. System calls that a C library falls back on when there is no vDSO are no \
finding. Not seen are calls by way of a common function that gets the number (libc's syscall(), klibc's and dietlibc's on some \
ISAs), and code that is packed or generated.

A file that is broken gives one warning. Limits: 64 GiB and 10 minutes per archive, 2,000 bytes out of each byte of it, 2 GiB \
of code per file; memory stays below 512 MiB.

Exit status: 0; 1 something was found at --fail-on or above; 2 usage error; 66 a PATH cannot be read; 74 the output cannot be \
written.

  fastpath audit /usr/bin /opt
  docker save app | zstd >app.tar.zst; fastpath audit --fail-on warning app.tar.zst
  fastpath audit --sarif build/ >audit.sarif")]
pub struct Audit {
    /// One line of JSON; docs/json.md has the fields
    #[arg(long, conflicts_with = "sarif")]
    pub json: bool,

    /// SARIF 2.1.0, for code scanning
    #[arg(long)]
    pub sarif: bool,

    /// The lowest level of a finding that makes the exit status 1
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = FailOn::Error)]
    pub fail_on: FailOn,

    /// Also list the programs and libraries without findings
    #[arg(long)]
    pub all: bool,

    /// Files, directories, images
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<std::path::PathBuf>,
}

/// What an audit fails on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FailOn {
    Note,
    Warning,
    Error,
    Never,
}

/// Parses the address that `export` listens at.
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
    // 127.0.0.1 is what every client of localhost tries.
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
    fn export_listens_where_people_say() {
        let at = |text: &str| listen_at(text).map(|address| address.to_string());
        assert_eq!(at("127.0.0.1:9812").as_deref(), Ok("127.0.0.1:9812"));
        assert_eq!(at(":9812").as_deref(), Ok("0.0.0.0:9812"));
        assert_eq!(at("localhost:0").as_deref(), Ok("127.0.0.1:0"));
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
