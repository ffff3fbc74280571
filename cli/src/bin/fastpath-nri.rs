//! `fastpath-nri`: the front of `service/nri`.

#[path = "../man.rs"]
mod man;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fastpath_nri::{Method, PluginOptions, RuntimeSocket, hook, log, run};

/// Serve containers whose pod has the annotation fastpath.io/clocks
#[derive(Parser)]
#[command(
    name = "fastpath-nri",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true,
    after_long_help = "\
A plugin of the container runtime (NRI: containerd 1.7 or newer, CRI-O 1.26 or newer). It has fastpathd serve the containers of annotated pods; \
the pods' specs stay as they are. With the method `attach`, fastpathd attaches the container's first process when it has executed the \
container's program, with its descendants and the programs that they execute; also in containers that run already when the plugin starts. With \
`preload`, the container gets libfastpath-preload.so and the directory of fastpathd's socket as read-only mounts, and LD_PRELOAD; this serves \
dynamic programs, also those of `kubectl exec`, and needs no ptrace.

Annotations of a pod; KEY.container.NAME is for one of its containers, and precedes KEY:

  fastpath.io/clocks: auto       the clocks that are slow on this host
  fastpath.io/clocks: all        or a list: realtime,monotonic; see fastpath-run(1)
  fastpath.io/clocks: off        none
  fastpath.io/method: attach     the default on x86-64
  fastpath.io/method: preload    the default elsewhere

A container starts whatever happens here. If the daemon, its socket or the library is missing, or an annotation cannot be understood, a line in \
the log says why the container stays on the kernel's path. Without a daemon, the plugin asks again every 5 seconds.

A runtime starts the plugin if its file, or a link to it, is /opt/nri/plugins/10-fastpath; /etc/nri/conf.d/10-fastpath.conf then has its \
options (socket, library, method), in TOML. Started otherwise, it connects to the runtime's socket, and again after the runtime restarts. A \
plugin that a runtime starts logs to the system's log, too. It needs root, and the host's PID namespace.

Exit status: 0 the runtime that started it has closed the connection; 1 cannot start or continue; 2 usage error. `oci-hook` always exits with 0: \
another status would keep the container from starting.

  fastpath-nri                                          connects to /var/run/nri/nri.sock
  ln -s /usr/local/bin/fastpath-nri /opt/nri/plugins/10-fastpath
  kubectl annotate pod app fastpath.io/clocks=auto"
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Socket of the runtime's NRI
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,

    /// Place among the runtime's plugins, which are called in ascending order
    #[arg(long, value_name = "NN", default_value = "10", value_parser = index)]
    index: String,

    #[command(flatten)]
    daemon: Daemon,

    /// libfastpath-preload.so on this node, for the method preload; containers see it at the same path. By default, the
    /// one that a package or `make install` has installed
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// Method for pods without the annotation fastpath.io/method
    #[arg(long, value_name = "attach|preload", default_value = default_method(), value_parser = method())]
    method: Method,

    /// Write the man pages to a directory
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    man: Option<PathBuf>,

    /// Write a shell's completions to standard output
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<clap_complete::Shell>,
}

#[derive(clap::Args)]
struct Daemon {
    /// Socket of fastpathd
    #[arg(long, value_name = "PATH", env = fastpath_protocol::SOCKET_VARIABLE, default_value = fastpath_protocol::SOCKET)]
    socket: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one container, as a createRuntime hook of an OCI runtime
    #[command(
        name = "oci-hook",
        after_long_help = "\
For runtimes without NRI. Reads the container's state from standard input, as OCI hooks do, and exits at once. If the container's annotations ask \
for it (fastpath.io/clocks, see fastpath-nri(8)), a process stays behind until the container's program has been executed, asks fastpathd to \
attach it, and ends. The log is the system's (daemon.notice). CRI-O and Podman run the hook for annotated containers if hooks.d has \
/usr/share/containers/oci/hooks.d/fastpath.json (deploy/oci/fastpath.json).

Exit status: always 0, because another status would keep the container from starting."
    )]
    OciHook {
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// Variable in which a runtime passes the descriptor of the connection to a plugin that it starts.
const CONNECTED: &str = "NRI_PLUGIN_SOCKET";
/// Variable in which it passes the plugin's place, from its file's name.
const INDEX: &str = "NRI_PLUGIN_IDX";

fn index(typed: &str) -> Result<String, String> {
    match typed.len() == 2 && typed.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(typed.to_owned()),
        false => Err("two digits are needed".into()),
    }
}

fn default_method() -> &'static str {
    let default = Method::NAMES.iter().find(|(_, method)| *method == Method::DEFAULT);
    default.map_or("attach", |(name, _)| name)
}

fn method() -> impl clap::builder::TypedValueParser<Value = Method> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let names = Method::NAMES.map(|(name, _)| name);
    PossibleValuesParser::new(names).try_map(|name: String| name.parse::<Method>())
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // A mistake in a hook's arguments must not keep containers from starting.
        Err(error) if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|first| first == "oci-hook") => {
            log::to_system();
            log::say(&error.to_string());
            return ExitCode::SUCCESS;
        }
        Err(error) => error.exit(),
    };
    if let Some(directory) = &args.man {
        return match man::write(Args::command(), "8", directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                log::say(&format!("{}: {error}", directory.display()));
                ExitCode::from(74)
            }
        };
    }
    if let Some(shell) = args.completions {
        let written = std::io::stdout().write_all(&man::completions(Args::command(), shell));
        return ExitCode::from(if written.is_ok() { 0 } else { 74 });
    }
    if let Some(Command::OciHook { daemon }) = args.command {
        hook::run(&daemon.socket);
        return ExitCode::SUCCESS;
    }
    plugin(args)
}

fn plugin(args: Args) -> ExitCode {
    let options = PluginOptions {
        socket: std::path::absolute(&args.daemon.socket).unwrap_or(args.daemon.socket),
        library: args.library.map(|path| std::path::absolute(&path).unwrap_or(path)),
        method: args.method,
    };
    let connected = std::env::var(CONNECTED).ok().map(|fd| fd.parse());
    let place = match connected {
        None => RuntimeSocket::Listens(args.nri_socket),
        Some(Ok(fd)) => {
            log::to_system();
            RuntimeSocket::Connected(fd)
        }
        Some(Err(_)) => {
            log::say(&format!("{CONNECTED} is not a descriptor"));
            return ExitCode::from(2);
        }
    };
    let index = std::env::var(INDEX).unwrap_or(args.index);
    match run(&place, &index, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log::say(&why);
            ExitCode::FAILURE
        }
    }
}
