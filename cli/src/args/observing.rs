//! The arguments of commands that only observe.

use std::ffi::OsString;
use std::path::PathBuf;

use fastpath_measure::Clocks;

use crate::processes::Named;

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
  fastpath doctor --rate 10  and whether the clock runs at the right rate
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

A scrape probes every clock and reads the mappings of each process: some 45 ms of CPU time, and 65 ms for each thousand processes. Scrapes within --at-least seconds get the same result. The counter \
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
pub(super) fn interval(text: &str) -> Result<std::time::Duration, String> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds));
    let number = number.ok_or_else(|| "seconds, 0.1 to 86400, are needed".to_owned())?;
    Ok(std::time::Duration::from_secs_f64(number))
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
