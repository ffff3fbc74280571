//! A child process that does what may never return.
//!
//! Files and memory of another process may be provided by that process itself (FUSE, userfaultfd(2)): a read may wait for
//! ever, even in a way that SIGKILL does not end. A thread that waits so keeps its process from ending. A child is left
//! behind instead.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::Mapping;

/// Longest answer in bytes.
const LONGEST: u64 = 64 << 20;
/// Time in which a child that is killed ends, unless it waits in the kernel.
const LONGEST_END: Duration = Duration::from_millis(50);
/// Number of processes that are examined by one request: a request and its answer cost as much as to examine one.
const BATCH: usize = 64;

/// A child process that answers requests, each of two numbers.
pub struct Worker {
    pid: libc::pid_t,
    /// A socket, since a write to a pipe without a reader may end this process (SIGPIPE).
    stream: UnixStream,
    /// Whether a request has failed: its answer may come later, and must not be taken for the next one's.
    is_over: bool,
}

impl Worker {
    /// Starts a child that answers with what `serve` returns. It has no descriptors but `keeps`, and none of the pages and
    /// mailboxes that this process writes: nothing stays in use if it is left behind.
    pub fn start(keeps: &[RawFd], mut serve: impl FnMut([u64; 2]) -> Vec<u8>) -> io::Result<Worker> {
        let (stream, of_child) = UnixStream::pair()?;
        // SAFETY: the child has a copy of this thread only. It allocates, which the C libraries allow after a fork, takes
        // no lock of another thread, and ends by _exit.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // A panic must not return to the code of the parent.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    release(&[keeps, &[of_child.as_raw_fd()]].concat());
                    answer_all(of_child, &mut serve);
                }));
                // SAFETY: _exit ends the child without running the exit handlers of the parent.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Worker {
                pid,
                stream,
                is_over: false,
            }),
        }
    }

    /// Returns the answer to a request.
    ///
    /// # Errors
    /// TimedOut if it takes longer than `timeout`. After an error, all other requests fail, too.
    pub fn ask(&mut self, request: [u64; 2], timeout: Duration) -> io::Result<Vec<u8>> {
        if self.is_over {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let answer = self.answer(request, timeout);
        self.is_over = answer.is_err();
        answer
    }

    fn answer(&mut self, request: [u64; 2], timeout: Duration) -> io::Result<Vec<u8>> {
        let until = Instant::now() + timeout;
        self.stream.write_all(request.map(u64::to_ne_bytes).as_flattened())?;
        let mut length = [0; 8];
        self.read(&mut length, until)?;
        let length = u64::from_ne_bytes(length);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut answer = vec![0; length as usize];
        self.read(&mut answer, until)?;
        Ok(answer)
    }

    fn read(&mut self, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if !crate::is_ready(&self.stream, libc::POLLIN, left) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // Its end closes its socket. A child that waits in the kernel is left to init.
        if crate::is_ready(&self.stream, 0, LONGEST_END) {
            // SAFETY: as above; a null status is allowed.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// Answers each request with a length and as many bytes.
fn answer_all(mut stream: UnixStream, serve: &mut impl FnMut([u64; 2]) -> Vec<u8>) {
    let mut request = [0; 16];
    while stream.read_exact(&mut request).is_ok() {
        let (numbers, _) = request.as_chunks();
        let answer = serve([u64::from_ne_bytes(numbers[0]), u64::from_ne_bytes(numbers[1])]);
        let length = (answer.len() as u64).to_ne_bytes();
        if stream
            .write_all(&length)
            .and_then(|()| stream.write_all(&answer))
            .is_err()
        {
            return;
        }
    }
}

/// Examines each process with `look` in a worker; `None` for one that takes longer than `timeout`. Without a worker, this
/// process does it.
pub fn look_at_all(
    pids: &[i32],
    timeout: Duration,
    mut look: impl FnMut(i32) -> Vec<u8>,
) -> Vec<(i32, Option<Vec<u8>>)> {
    let mut looked: Vec<(i32, Option<Vec<u8>>)> = Vec::with_capacity(pids.len());
    // Where one of a batch does not answer, each is asked for alone up to here.
    let mut alone_until = 0;
    while looked.len() < pids.len() {
        let serve = |[first, count]: [u64; 2]| answers(&pids[first as usize..][..count as usize], &mut look);
        let Ok(mut worker) = Worker::start(&[], serve) else {
            let rest = &pids[looked.len()..];
            looked.extend(rest.iter().map(|pid| (*pid, Some(look(*pid)))));
            return looked;
        };
        while let Some(rest) = pids.get(looked.len()..).filter(|rest| !rest.is_empty()) {
            let is_alone = looked.len() < alone_until;
            let (count, timeout) = if is_alone {
                (1, timeout)
            } else {
                (rest.len().min(BATCH), timeout / 4)
            };
            let Ok(bytes) = worker.ask([looked.len() as u64, count as u64], timeout) else {
                if is_alone {
                    looked.push((rest[0], None));
                } else {
                    alone_until = looked.len() + count;
                }
                break;
            };
            let mut bytes = &bytes[..];
            for pid in &rest[..count] {
                let answer = bytes.split_off(..8).and_then(|length| {
                    let length = u64::from_ne_bytes(length.try_into().ok()?);
                    Some(bytes.split_off(..length as usize)?.to_vec())
                });
                looked.push((*pid, answer));
            }
        }
    }
    looked
}

/// Returns the answer for each process, behind its length.
fn answers(pids: &[i32], look: &mut impl FnMut(i32) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for pid in pids {
        let answer = look(*pid);
        bytes.extend((answer.len() as u64).to_ne_bytes());
        bytes.extend(answer);
    }
    bytes
}

/// Closes all descriptors but standard error and `kept`, and unmaps fastpath's pages and mailboxes that this process
/// writes: a worker that is left behind would keep them in use. The region of a process that is served stays.
fn release(kept: &[RawFd]) {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let descriptors: Vec<RawFd> = names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in descriptors.iter().filter(|fd| **fd != 2 && !kept.contains(fd)) {
        // SAFETY: no code that runs in this child uses these descriptors.
        unsafe { libc::close(*fd) };
    }
    let maps = crate::maps::own().unwrap_or_default();
    let is_ours = |mapping: &&Mapping| mapping.name.starts_with("/memfd:fastpath");
    let is_of_region = |mapping: &Mapping| {
        let mut code = maps.iter().filter(is_ours).filter(|other| other.executable);
        code.any(|code| code.start.abs_diff(mapping.start) < 1 << 20)
    };
    let shared = maps
        .iter()
        .filter(is_ours)
        .filter(|mapping| mapping.shared && mapping.writable);
    for mapping in shared.filter(|mapping| !is_of_region(mapping)) {
        // SAFETY: no code that runs in this child uses a page that is published or a mailbox that is attended to.
        unsafe { libc::munmap(mapping.start as *mut libc::c_void, mapping.len() as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_answers_until_it_does_not_return() {
        let mut worker = Worker::start(&[], |[a, b]| {
            if a == 0 {
                std::thread::sleep(Duration::from_secs(60));
            }
            vec![b as u8; a as usize]
        })
        .unwrap();
        assert_eq!(worker.ask([3, 7], Duration::from_secs(10)).unwrap(), [7; 3]);
        assert_eq!(
            worker.ask([1 << 20, 9], Duration::from_secs(10)).unwrap(),
            vec![9; 1 << 20]
        );
        let begun = Instant::now();
        let late = worker.ask([0, 0], Duration::from_millis(20)).unwrap_err();
        // Its answer would be taken for this one's.
        assert!(worker.ask([3, 7], Duration::from_secs(10)).is_err());
        drop(worker);
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn each_process_but_one_that_does_not_return_is_examined() {
        let pids: Vec<i32> = (0..3 * BATCH as i32).collect();
        let looked = look_at_all(&pids, Duration::from_millis(800), |pid| {
            if pid == 70 {
                std::thread::sleep(Duration::from_secs(60));
            }
            vec![pid as u8; pid as usize % 3]
        });
        let wanted = |pid: i32| (pid != 70).then(|| vec![pid as u8; pid as usize % 3]);
        let wanted: Vec<_> = pids.iter().map(|pid| (*pid, wanted(*pid))).collect();
        assert_eq!(looked, wanted);
    }

    #[test]
    fn a_worker_that_panics_is_one_that_does_not_answer() {
        let mut worker = Worker::start(&[], |_| std::panic::panic_any(0)).unwrap();
        assert!(worker.ask([0, 0], Duration::from_secs(10)).is_err());
    }
}
