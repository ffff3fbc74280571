//! `fastpathd`: the front of `service/daemon`.

#[path = "../man.rs"]
mod man;
#[path = "../version.rs"]
mod version;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use fastpath_daemon::TRY_AGAIN;
use fastpath_daemon::record::Requester;
use fastpath_daemon::{DaemonOptions, Policy, ServeError, Service, log, serve};
use fastpath_helper::attach::by_rule::{self, Attempt, Order};
use fastpath_helper::process::Surroundings;
use fastpath_measure::Clocks;
use fastpath_publish::evidence::Trust;

/// Publish the time for all processes of a host that fastpath serves
#[derive(Parser)]
#[command(
    name = "fastpathd",
    version,
    long_version = version::LONG.as_str(),
    max_term_width = 100,
    after_long_help = "\
One publisher for all pages. If it runs, `fastpath run`, `fastpath attach` and programs under libfastpath-preload.so take their pages from it. \
A user can reach only its own processes, root all. fastpathd stays in the foreground, logs to standard error, and notifies systemd when it \
is ready. SIGTERM ends it. After its end, clock reads fall back to the kernel, and are fast again when a daemon runs: as root it finds the \
pages of the daemon before it.

Exit status: 0 after SIGTERM or SIGINT; 1 cannot start or continue; 2 usage error; 3 this host's counter cannot be trusted, or its memory \
pages are too large; 4 the policy has a mistake or cannot be read, so that processes could be served that a rule excludes. After 2, 3 and 4, \
a restart does not help.

  fastpathd                                            as deploy/systemd/fastpathd.service starts it
  export FASTPATH_SOCKET=$XDG_RUNTIME_DIR/fastpathd.sock; fastpathd & fastpath run -- CMD"
)]
struct Args {
    /// Socket to listen on; clients use the same variable
    #[arg(long, value_name = "PATH", env = fastpath_protocol::SOCKET_VARIABLE, default_value = fastpath_protocol::SOCKET)]
    socket: PathBuf,

    #[arg(long, value_name = "auto|all|LIST", default_value = "auto",
          help = format!("Clocks of programs under libfastpath-preload.so. {}", Clocks::HELP))]
    clocks: Clocks,

    /// Rules for the processes that are attached when they appear, with their descendants (`children`) and their own
    /// system calls for time (`rescue`) if a rule says so, and for those that never are (example:
    /// deploy/fastpath-policy.toml). SIGHUP reloads it. The default, /etc/fastpath/policy.toml, need not exist; FILE
    /// must
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Check the policy file, list the processes that each rule selects now, and exit: 0 if the file is valid, or the
    /// default file does not exist; 1 if not
    #[arg(long)]
    check_policy: bool,

    /// List the processes that the policy would attach now, and those that the daemon at the socket, if one runs, cannot
    /// attach (`not: ...`), attach none, and exit like --check-policy
    #[arg(long, conflicts_with = "check_policy")]
    dry_run: bool,

    /// Check that the daemon at the socket answers, and exit: 0 if it does, 1 if not. For health checks
    #[arg(long, conflicts_with_all = ["check_policy", "dry_run"])]
    ping: bool,

    /// Most pages of a user; root may have more
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pages_per_user: usize,

    /// Use a counter (TSC) for which the CPU does not guarantee a constant rate, and watch it more closely: see
    /// fastpath-run(1)
    #[arg(long)]
    trust_counter: bool,

    /// Attach one process by a rule of the daemon that listens on the socket. The daemon starts this program so
    #[arg(long, value_name = "PID", hide = true)]
    attach: Option<i32>,

    /// With --attach: what it gets
    #[arg(long, value_name = "SERVICE", hide = true, requires = "attach", default_value_t)]
    service: Service,

    /// With --attach: a number that stands for what the daemon decided by
    #[arg(long, value_name = "NUMBER", hide = true, requires = "attach")]
    attach_facts: Option<u64>,

    /// With --attach: the policy of its descendants
    #[arg(long, value_name = "FILE", hide = true, requires = "attach")]
    attach_policy: Option<PathBuf>,

    /// With --attach: the number of tries so far, if no other follows
    #[arg(long, value_name = "N", hide = true, requires = "attach")]
    attach_tries: Option<u32>,

    /// With --attach: the process that asked for it
    #[arg(long, value_name = "UID:PID", hide = true, requires = "attach")]
    attach_by: Option<Requester>,

    /// With --attach: the rule that selects it
    #[arg(long, value_name = "N", hide = true, requires = "attach")]
    attach_rule: Option<usize>,

    /// Write the man page to a directory
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    man: Option<PathBuf>,

    /// Write a shell's completions to standard output
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<clap_complete::Shell>,
}

/// Default policy file.
const POLICY: &str = "/etc/fastpath/policy.toml";
/// Exit status if the policy cannot be read.
const NO_POLICY: u8 = 4;

fn main() -> ExitCode {
    let surroundings = Surroundings::note();
    let args = Args::parse();
    if let Some(directory) = &args.man {
        return man_page(directory);
    }
    if let Some(shell) = args.completions {
        let written = std::io::stdout().write_all(&man::completions(Args::command(), shell));
        return ExitCode::from(if written.is_ok() { 0 } else { 74 });
    }
    if let Some(pid) = args.attach {
        return attach_one(&args, pid, &surroundings);
    }
    if args.ping {
        return ping(&args.socket);
    }
    let missing = args.policy.as_ref().filter(|path| !path.exists());
    if let Some(path) = missing {
        complain(&format_args!("--policy {}: no such file", path.display()));
        return ExitCode::from(if args.check_policy || args.dry_run {
            1
        } else {
            NO_POLICY
        });
    }
    let policy = args.policy.unwrap_or_else(|| PathBuf::from(POLICY));
    if args.check_policy || args.dry_run {
        return preview(&policy, &args.socket, args.dry_run);
    }
    let options = DaemonOptions {
        // Processes that it starts may have another working directory.
        socket: std::path::absolute(&args.socket).unwrap_or(args.socket),
        clocks: args.clocks.named(),
        trust: Trust::from_option(args.trust_counter),
        // Clients get the path, and may have another working directory.
        policy: std::path::absolute(&policy).unwrap_or(policy),
        pages_per_user: args.pages_per_user,
    };
    let (why, status) = match serve(&options) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(ServeError::Start(why)) => (why, 1),
        Err(ServeError::Host(why)) => (why, 3),
        Err(ServeError::Policy(why)) => (why, NO_POLICY),
    };
    complain(&why);
    ExitCode::from(status)
}

/// Attaches one process: the daemon starts this program for that, because it must not read another process's memory
/// itself.
fn attach_one(args: &Args, pid: i32, surroundings: &Surroundings) -> ExitCode {
    let order = Order {
        pid,
        by: args.attach_by.unwrap_or_else(Requester::this_process),
        rule: args.attach_rule,
        service: args.service,
        policy: args.attach_policy.clone().unwrap_or_else(|| PathBuf::from(POLICY)),
        facts: args.attach_facts,
        tries: args.attach_tries,
    };
    match by_rule::attach(&order, surroundings) {
        Attempt::Over => ExitCode::SUCCESS,
        Attempt::TryAgain => ExitCode::from(TRY_AGAIN),
    }
}

/// Asks the daemon at a socket for its state.
fn ping(socket: &std::path::Path) -> ExitCode {
    let state = fastpath_protocol::Client::connect_to(socket).and_then(|client| client.state());
    match state {
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    }
}

/// Prints the effect of a policy now, by the daemon at a socket if one runs.
fn preview(path: &std::path::Path, socket: &std::path::Path, dry_run: bool) -> ExitCode {
    let policy = match Policy::read(path) {
        Ok(policy) => policy.unwrap_or_default(),
        Err(why) => {
            complain(&why);
            return ExitCode::FAILURE;
        }
    };
    let daemon = fastpath_protocol::Client::connect_to(socket).and_then(|client| client.state());
    let preview = policy.preview(daemon.ok().as_ref());
    let text = if dry_run {
        preview.attached()
    } else {
        preview.by_rule(&policy)
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format_args!("standard output: {e}"));
            ExitCode::from(74)
        }
    }
}

/// Says why something is not done.
fn complain(why: &dyn std::fmt::Display) {
    log::say(log::Priority::Warning, why);
    log::flush();
}

fn man_page(directory: &std::path::Path) -> ExitCode {
    match man::write(Args::command(), "8", directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format_args!("{}: {e}", directory.display()));
            ExitCode::from(74)
        }
    }
}
