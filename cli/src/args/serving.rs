//! The arguments of commands that put programs on fast clocks.

use std::ffi::OsString;
use std::path::PathBuf;

use fastpath_measure::Clocks;

use super::observing::interval;
use crate::processes::Named;

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
