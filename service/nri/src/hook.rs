//! The OCI hook: gets the state of a container from the runtime, and leaves a process behind that has fastpathd attach
//! the container once it runs its own program.
//!
//! The runtime waits for the hook, and a hook that fails keeps the container from starting: the hook waits for nothing
//! but the state, and never fails.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};
use serde::Deserialize;

use crate::annotation::wish;
use crate::attaching::{Candidate, Program, attend};
use crate::log::{self, say};
use crate::options::Method;

/// Timeout of the state.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest state that is read, in bytes.
const LONGEST: u64 = 4 << 20;

/// The state of a container (OCI runtime specification, "State").
#[derive(Debug, Deserialize)]
struct ContainerState {
    id: String,
    status: String,
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// Annotations by which CRI-O and containerd tell a container's name in its pod.
const NAMES: [&str; 2] = ["io.kubernetes.container.name", "io.kubernetes.cri.container-name"];
/// Annotations by which they tell a pod's own container, which runs no program of the user's.
const KINDS: [&str; 2] = ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type"];

/// Does what the annotations of the container on standard input ask for.
pub fn run(socket: &Path) {
    log::to_system();
    if let Err(why) = state().and_then(|state| serve(&state, socket)) {
        say(&why);
    }
}

/// Reads the state from standard input.
fn state() -> Result<ContainerState, String> {
    let wrong = |error: io::Error| format!("the container's state: {error}");
    let mut text = Vec::new();
    let mut stdin = io::stdin().lock().take(LONGEST);
    let begun = Instant::now();
    loop {
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        let mut fds = [PollFd::new(stdin.get_ref().as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        if ready.map_err(|error| wrong(error.into()))? == 0 {
            return Err(format!(
                "the container's state: no end of it within {} s",
                TIMEOUT.as_secs()
            ));
        }
        let mut some = [0; 64 << 10];
        match stdin.read(&mut some).map_err(wrong)? {
            0 => break,
            length => text.extend_from_slice(&some[..length]),
        }
    }
    serde_json::from_slice(&text).map_err(|error| wrong(error.into()))
}

fn serve(state: &ContainerState, socket: &Path) -> Result<(), String> {
    let of = |keys: &[&str]| {
        keys.iter()
            .find_map(|key| state.annotations.get(*key))
            .map(String::as_str)
    };
    if of(&KINDS) == Some("sandbox") {
        return Ok(());
    }
    let stays = |why: &dyn std::fmt::Display| format!("container {} stays on the kernel's path: {why}", state.id);
    let wish = wish(&state.annotations, of(&NAMES).unwrap_or_default(), Method::Attach);
    let Some(wish) = wish.map_err(|why| stays(&why))? else {
        return Ok(());
    };
    if wish.method != Method::Attach {
        return Err(stays(
            &"the OCI hook can only attach; the NRI plugin serves the method preload",
        ));
    }
    let before = match state.status.as_str() {
        "creating" | "created" => {
            let program =
                Program::read(state.pid).ok_or_else(|| stays(&format_args!("process {} has ended", state.pid)))?;
            Some(program)
        }
        "running" => None,
        other => return Err(stays(&format_args!("it is {other}"))),
    };
    let candidate = Candidate::new(format!("container {}", state.id), state.pid, wish.clocks, before);
    let candidate = candidate.map_err(|error| stays(&format_args!("process {}: {error}", state.pid)))?;
    // SAFETY: this process has one thread.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => Ok(()),
        Ok(ForkResult::Child) => {
            log::to_system_alone();
            // The runtime waits until its pipes are closed.
            if let Err(error) = leave() {
                say(&stays(&error));
            } else {
                attend(candidate, socket);
            }
            // SAFETY: _exit ends this process; the parent runs what is to be run at an exit.
            unsafe { libc::_exit(0) }
        }
        Err(error) => Err(stays(&format_args!("fork: {error}"))),
    }
}

/// Makes this process independent of the runtime.
fn leave() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    setsid()?;
    std::env::set_current_dir("/")
}
