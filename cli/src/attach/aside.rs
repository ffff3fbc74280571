//! Examines other processes' memory in a child process: the memory may be provided by those processes themselves (FUSE,
//! userfaultfd(2)), and a read may wait for ever, even in a way that SIGKILL does not end. A child that does not answer
//! in time is left behind, and another one continues with the next process.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Timeout for one process.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the result of `look` for each process; `None` if it took too long, or the child could not continue.
pub fn look_at_all<T: Serialize + DeserializeOwned>(pids: &[i32], look: impl Fn(i32) -> T) -> Vec<(i32, Option<T>)> {
    let mut looked = Vec::new();
    while let Some(rest) = pids.get(looked.len()..).filter(|rest| !rest.is_empty()) {
        let Ok(mut child) = Looker::start(rest, &look) else {
            // Without a child, this process does it.
            looked.extend(rest.iter().map(|pid| (*pid, Some(look(*pid)))));
            return looked;
        };
        for pid in rest {
            let answer = child.answer();
            let is_over = answer.is_none();
            looked.push((*pid, answer));
            if is_over {
                break;
            }
        }
    }
    looked
}

struct Looker {
    pid: Pid,
    pipe: std::io::PipeReader,
}

impl Looker {
    /// Starts a child that examines all of these: for each, it writes a length and as much JSON.
    fn start<T: Serialize>(pids: &[i32], look: &impl Fn(i32) -> T) -> std::io::Result<Looker> {
        let (pipe, mut out) = std::io::pipe()?;
        // SAFETY: this command has one thread; the child does what this process could have done, and ends by _exit.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Looker { pid: child, pipe }),
            ForkResult::Child => {
                drop(pipe);
                for pid in pids {
                    let json = serde_json::to_vec(&look(*pid)).unwrap_or_default();
                    let length = (json.len() as u32).to_ne_bytes();
                    if out.write_all(&[&length[..], &json].concat()).is_err() {
                        break;
                    }
                }
                // SAFETY: _exit ends the child without running the exit handlers of the parent.
                unsafe { libc::_exit(0) }
            }
        }
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let mut json = vec![0; u32::from_ne_bytes(length) as usize];
        self.read(&mut json)?;
        serde_json::from_slice(&json).ok()
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Option<()> {
        while !bytes.is_empty() {
            let timeout = PollTimeout::try_from(TIMEOUT).unwrap_or(PollTimeout::MAX);
            let ready = poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], timeout);
            match ready {
                Err(nix::errno::Errno::EINTR) => continue,
                Ok(1..) => {}
                _ => return None,
            }
            let count = self.pipe.read(bytes).ok().filter(|count| *count > 0)?;
            bytes = &mut bytes[count..];
        }
        Some(())
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGKILL);
        // A child that is stuck in the kernel is left to init.
        for _ in 0..50 {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(nix::sys::wait::WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
    }
}
