//! In a container that forbids ptrace, made as container engines make them: user, PID and mount namespaces, its own
//! root, no capability, Docker's default filter. The mounts are those of docs/containers.md: the directory of the
//! socket, and the library.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::daemon::Daemon;
use super::{SERVED, library, permit};
use crate::common::{Outcome, finish, helper_program, install, needs_root, program, skip, tool};

/// Arguments: ROOT, the socket's directory, and files to mount in /opt; then the command.
const CONTAINER: &str = r#"
set -e
root=$1 socket=$2
shift 2
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir usr proc opt etc run run/fastpath
mount --rbind /usr usr
for part in bin sbin lib lib64; do
    if test -L "/$part"; then cp -P "/$part" .; elif test -d "/$part"; then mkdir "$part"; mount --rbind "/$part" "$part"; fi
done
cp /etc/ld.so.cache etc
mount --bind "$socket" run/fastpath
mount -o remount,bind,ro run/fastpath
while test "$1" != --; do
    touch "opt/${1##*/}"
    mount --bind "$1" "opt/${1##*/}"
    shift
done
shift
mount -t proc proc proc
exec chroot . /usr/bin/setpriv --bounding-set=-all --inh-caps=-all --no-new-privs /opt/filter container "$@"
"#;

/// A daemon of the host, and the files of a container.
struct Host {
    daemon: Daemon,
    root: tempfile::TempDir,
    files: Vec<String>,
}

impl Host {
    fn new() -> Option<Host> {
        let (Some(()), Some(_), Some(_)) = (needs_root(), tool("unshare"), tool("setpriv")) else {
            return None;
        };
        let root = tempfile::tempdir().expect("a directory");
        permit(root.path(), 0o755);
        // Under names that the container expects, and readable by every user.
        let kept = tempfile::tempdir().expect("a directory").keep();
        permit(&kept, 0o755);
        let files = [
            (helper_program("filter", "cc", &[])?, "filter"),
            (program("torture")?, "torture"),
            (library().to_owned(), "libfastpath-preload.so"),
            (env!("CARGO_BIN_EXE_fastpath").to_owned(), "fastpath"),
        ];
        let copied = files.map(|(from, name)| {
            let to = kept.join(name);
            install(from, &to, 0o755);
            to.to_str().expect("UTF-8").to_owned()
        });
        Some(Host {
            daemon: Daemon::start(),
            root,
            files: copied.to_vec(),
        })
    }

    /// Runs a command as the first process of a container of user 65534.
    fn container(&self, command: &[&str]) -> Outcome {
        let socket = self.daemon.socket();
        let directory = socket.parent().expect("a directory");
        let mut unshare = Command::new("unshare");
        unshare
            .args([
                "--user",
                "--map-root-user",
                "--pid",
                "--mount",
                "--fork",
                "sh",
                "-c",
                CONTAINER,
                "sh",
            ])
            .args([self.root.path(), directory])
            .args(&self.files)
            .arg("--")
            .args([
                "env",
                "FASTPATH_SOCKET=/run/fastpath/socket",
                "FASTPATH_PRELOAD_CLOCKS=all",
            ])
            .args(["FASTPATH_PRELOAD_VERBOSE=1", "FASTPATH_PRELOAD_TIMEOUT_MS=10000"])
            .args(command)
            .uid(65534)
            .gid(65534);
        finish(unshare)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(directory) = self.files.first().and_then(|file| std::path::Path::new(file).parent()) {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

const PRELOAD: &str = "LD_PRELOAD=/opt/libfastpath-preload.so";

#[test]
fn programs_in_a_container_that_forbids_ptrace_are_served_by_the_hosts_daemon() {
    let Some(host) = Host::new() else { return };
    let without = host.container(&["cat", "/proc/self/status"]);
    if without.err.contains("unshare:") || without.err.contains("mount:") {
        return skip(format_args!("no container can be made here: {}", without.err.trim()));
    }
    // Checks the container: it is the first process, has a filter and no capability, and `run` cannot serve there.
    let status = without.expect_success().out;
    let of = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
    assert_eq!(
        (of("Pid:"), of("Seccomp:"), of("CapEff:")),
        (Some("1"), Some("2"), Some("0000000000000000"))
    );
    let run = ["/opt/fastpath", "run", "--clocks", "all", "--require", "--", "true"];
    let refused = host.container(&run).expect_code(125);
    assert!(refused.err.contains("forbids ptrace"), "{refused:#?}");

    let torture = ["/opt/torture", "-s", "2", "-t", "2", "-m", "same,causal,mixed"];
    let outcome = host
        .container(&[&["env", PRELOAD], &torture[..]].concat())
        .expect_success();
    assert!(
        outcome.out.contains("\"violations\":0}") && outcome.err == SERVED,
        "{outcome:#?}"
    );
    // Children of the first process inherit the filter and the variable.
    let count = "grep -c memfd:fastpath-page /proc/self/maps";
    let script = format!("{count}; ( {count}; ) | cat; exec {count}");
    let outcome = host.container(&["env", PRELOAD, "sh", "-c", &script]).expect_success();
    assert_eq!(outcome.out, "1\n1\n1\n", "{outcome:#?}");
}
