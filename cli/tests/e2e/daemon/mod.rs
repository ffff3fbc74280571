//! `fastpathd`: one publisher for all, found by its socket, killed and restarted, and attacked.

mod attacks;
mod bystander;
mod children;
mod clients;
mod clock;
mod life;
mod obstruction;
mod policy;
mod records;
mod rescue;
mod status;
mod versions;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::RwLock;

use fastpath_protocol::{Client, ClientError, DaemonStatus};

use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{Pid, Running, SERVED_WITHOUT_VDSO, fastpath, start, wait_until};

/// A daemon adopts the pages of any dead one. So a test that kills one runs alone; on a host there is one daemon at a
/// time.
static HOST: RwLock<()> = RwLock::new(());

/// A place for a daemon's socket, and the lock that lets tests have daemons.
struct Place(tempfile::TempDir, #[expect(dead_code, reason = "held")] Box<dyn Any>);

impl Place {
    /// Waits until no other test has a daemon, and keeps others from starting one.
    fn alone() -> Place {
        Place::with(Box::new(HOST.write().unwrap_or_else(|e| e.into_inner())))
    }

    /// Keeps other tests from killing a daemon while this one runs.
    fn among_others() -> Place {
        Place::with(Box::new(HOST.read().unwrap_or_else(|e| e.into_inner())))
    }

    /// For a daemon that does not come to listen, or beside another place.
    fn new() -> Place {
        Place::with(Box::new(()))
    }

    fn with(lock: Box<dyn Any>) -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        // Other users are clients, too.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("chmod");
        Place(directory, lock)
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("fastpathd.sock")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
        command
            .args(["--clocks", "all", "--socket"])
            .arg(self.socket())
            .args(arguments);
        command
    }

    /// Starts a daemon, and waits until it answers.
    #[track_caller]
    fn daemon(&self) -> Running {
        let daemon = start(self.command(&[]));
        wait_until("fastpathd", || Client::connect_to(&self.socket()).is_ok());
        daemon
    }

    #[track_caller]
    fn status(&self) -> DaemonStatus {
        self.ask(|client| client.status())
    }

    /// Returns an answer of the daemon. Clients wait for two seconds, which may be too short on a very busy machine.
    #[track_caller]
    fn ask<T>(&self, ask: impl Fn(Client) -> Result<T, ClientError>) -> T {
        let (mut answer, mut failures) = (None, Vec::new());
        let answers = || {
            match Client::connect_to(&self.socket()).and_then(&ask) {
                Ok(it) => answer = Some(it),
                Err(failure) => failures.push(failure),
            }
            answer.is_some()
        };
        assert!(holds_within(TIMEOUT, answers), "{failures:?}");
        answer.expect("just given")
    }

    /// `fastpath ARGUMENTS`, with this daemon's socket.
    fn fastpath(&self, arguments: &[&str]) -> Command {
        let mut command = fastpath(arguments);
        command.env("FASTPATH_SOCKET", self.socket());
        command
    }

    /// `fastpath run --without-vdso --clocks all --require -- COMMAND`.
    fn served(&self, command: &[impl AsRef<str>]) -> Command {
        let mut served = self.fastpath(SERVED_WITHOUT_VDSO);
        served.args(command.iter().map(AsRef::as_ref));
        served
    }
}

/// Returns the inode of the page that a process maps.
fn page_of(pid: Pid) -> Option<u64> {
    let maps = pid.read("maps");
    let line = maps.lines().find(|line| line.contains("memfd:fastpath-page"))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

/// Waits until a process is served, and runs the program: before its exec, it was fastpath.
#[track_caller]
fn wait_until_served(running: &Running) {
    wait_until("the program", || {
        running.pid().is_served() && running.pid().program() != "fastpath"
    });
}

/// Returns the pidfd of a process that runs.
fn pidfd(pid: Pid) -> std::os::fd::OwnedFd {
    // SAFETY: pidfd_open returns a new descriptor, which nothing else owns.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid.0, 0) as i32;
        <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
