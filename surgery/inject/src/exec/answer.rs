//! Serves a program that asks: at its exec, and once its libraries are mapped.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::Ordering;

use fastpath_os::{Status, StatusFile};
use nix::sys::ptrace::Options;

use super::asker::Asker;
use super::attendant::Attendant;
use super::install;
use super::mailbox::{InUse, Request, Shared, Taken};
use super::unserved::Unserved;
use crate::abi::{self, Call};
use crate::error::{Error, Result};
use crate::plan::region;
use crate::target::credentials::{Assumed, Credentials};
use crate::target::maps::Mapping;
use crate::target::tracee::{Stop, Tracee, Until};
use crate::target::{self, View, read_status};

/// Longest path that execve takes (limits.h: PATH_MAX).
const PATH_MAX: usize = 4096;
/// Limit of system calls that a thread may make between its request and its exec; after more, it is released: a signal
/// handler may run there.
const MOST_CALLS: u32 = 256;

impl Attendant {
    /// An error leaves a program on the kernel's path: correct, only slower.
    pub(super) fn answer(&self, taken: Taken) -> Result<()> {
        let mut waiting = Waiting {
            mailbox: &self.mailbox,
            taken: Some(taken),
        };
        let asker = match self.find(&taken) {
            Ok(asker) => asker,
            Err(unserved) => {
                if let Some(why) = unserved {
                    waiting.refuse(why);
                }
                return Ok(());
            }
        };
        let answered = match taken.request {
            Request::Exec { path, dirfd, flags } => self.inject(&mut waiting, asker, path, dirfd, flags),
            Request::Entry => self.second_visit(asker),
        };
        answered.inspect_err(|why| {
            if let Some(why) = unserved(why) {
                self.mailbox.count(why);
            }
        })
    }

    /// Returns the address of the region in a process that maps this mailbox.
    fn region(&self, maps: &[Mapping]) -> Option<u64> {
        self.mailbox.mapping(maps)?.start.checked_sub(region::MAILBOX)
    }

    /// Traces a thread that waits in the hook, and stops it there.
    fn stop(asker: Asker) -> Result<(Tracee, Vec<Mapping>)> {
        let Asker { tid, futex, maps } = asker;
        let mut tracee = Tracee::seize(tid, tid, Options::PTRACE_O_TRACEEXEC)?;
        tracee.interrupt()?;
        loop {
            match tracee.wait()? {
                Stop::Interrupt => break,
                Stop::Group => tracee.listen()?,
                Stop::Exited => return Err(Error::Gone),
                stop => tracee.resume(Until::Syscall, stop.signal())?,
            }
        }
        // The thread may have stopped waiting meanwhile, or the number may be another thread's.
        if tracee.registers()?.repeats_wait_on_futex(futex)
            || target::waits_on_futex(tid, futex).is_ok_and(|waits| waits == Some(true))
        {
            return Ok((tracee, maps));
        }
        tracee.detach(0)?;
        Err(Error::Gone)
    }

    fn inject(&self, waiting: &mut Waiting<'_>, asker: Asker, path: u64, dirfd: i32, flags: u32) -> Result<()> {
        let (mut tracee, _) = Self::stop(asker)?;
        let tid = tracee.pid();
        let in_proc = |e| Error::io(format!("/proc/{tid}/status"), e);
        let target = read_path(&mut tracee, path, flags);
        let checked = target.and_then(|path| {
            let status = StatusFile::open(tid).map_err(in_proc)?;
            let before = Credentials::from_status(&status.read().map_err(in_proc)?)?;
            let view = View::read(&tid.to_string(), dirfd)?;
            // The target names the file: it must not get a file opened that it could not open itself.
            let _rights = Assumed::assume(&before)?;
            view.may_serve(&path, Some((&self.allowed, &before)))?;
            Ok((status, before))
        });
        let ((status, before), mailbox) = match checked.and_then(|before| Ok((before, self.mailbox.keep_in_use()?))) {
            Ok(checked) => checked,
            Err(e) => {
                tracee.detach(0)?;
                return Err(e);
            }
        };
        waiting.go();
        let mut registers = tracee.registers()?;
        if registers.end_wait_on_futex() {
            // The hook looks at its slot again; otherwise the kernel would make the call again, and stop for it twice.
            tracee.set_registers(&registers)?;
        }
        tracee.resume(Until::Syscall, 0)?;
        let served = self
            .wait_for_exec(&mut tracee, true)
            .and_then(|happened| match happened {
                true => {
                    // Another thread than the first of its process has a new number.
                    let status = match tracee.pid() == tid {
                        true => status.read().map_err(in_proc)?,
                        false => read_status(tracee.pid())?,
                    };
                    self.install(&mut tracee, &status, &before, &mailbox)
                }
                false => Ok(()),
            });
        tracee.detach(0).and(served)
    }

    /// Installs in a program that has just started and has this status, unless it has rights beyond `before`, those of the
    /// program before it: another file may have replaced the one that was checked.
    fn install(&self, tracee: &mut Tracee, status: &Status, before: &Credentials, mailbox: &InUse<'_>) -> Result<()> {
        if before.have_grown_to(&Credentials::from_status(status)?) {
            return Err(Error::Unsupported(
                "it runs with other privileges than its caller's".into(),
            ));
        }
        let installed = install::install(tracee, status, &self.config, &mailbox.file, false)?;
        self.served.fetch_add(1, Ordering::Relaxed);
        if installed.without_children.is_some() {
            self.mailbox.count(Unserved::Refused);
        }
        Ok(())
    }

    /// Waits until the exec has happened and the new program is stopped before its first instruction. Returns false if
    /// it did not happen; the caller must then let the thread go, if it still exists.
    pub(super) fn wait_for_exec(&self, tracee: &mut Tracee, asked: bool) -> Result<bool> {
        let mut calls = 0;
        let mut happened = false;
        loop {
            match tracee.wait()? {
                Stop::Exited => return Ok(false),
                // The registers are the new program's, except for the result of the execve, which is set later.
                Stop::Exec if asked => return Ok(true),
                Stop::Exec => happened = true,
                // The exit of the execve itself: its registers are the new program's.
                Stop::Syscall if happened => return Ok(true),
                Stop::Syscall => {
                    calls += 1;
                    if asked && (calls > MOST_CALLS || leaves_exec(tracee)?) {
                        return Ok(false);
                    }
                }
                Stop::Group => {
                    tracee.listen()?;
                    continue;
                }
                stop @ (Stop::Interrupt | Stop::Signal(_) | Stop::Other) => {
                    tracee.resume(Until::Syscall, stop.signal())?;
                    continue;
                }
            }
            tracee.resume(Until::Syscall, 0)?;
        }
    }

    fn second_visit(&self, asker: Asker) -> Result<()> {
        let (mut tracee, maps) = Self::stop(asker)?;
        let done = self.handle_libraries(&mut tracee, &maps);
        // Detach before the program is released.
        tracee.detach(0)?;
        done
    }

    fn handle_libraries(&self, tracee: &mut Tracee, maps: &[Mapping]) -> Result<()> {
        let region = self.region(maps).ok_or(Error::Gone)?;
        install::install_in_libraries(tracee, &self.config, maps, region)
    }
}

/// Returns whether a thread in a syscall-stop leaves a call that would have replaced its program: it has failed.
fn leaves_exec(tracee: &Tracee) -> Result<bool> {
    if tracee.leaving_call()?.is_none() {
        return Ok(false);
    }
    let registers = tracee.registers()?;
    let is = |call| abi::for_registers(&registers).number(call) == registers.system_call();
    Ok(is(Call::Execve) || is(Call::Execveat))
}

fn read_path(tracee: &mut Tracee, address: u64, flags: u32) -> Result<OsString> {
    let mut path = Vec::new();
    while path.len() < PATH_MAX {
        let at = address + path.len() as u64;
        let chunk = tracee.read_each(&[(at, (256 - at % 256) as usize)])?.concat();
        let end = chunk.iter().position(|b| *b == 0);
        path.extend(&chunk[..end.unwrap_or(chunk.len())]);
        if end.is_some() {
            break;
        }
    }
    if path.is_empty() && flags & libc::AT_EMPTY_PATH as u32 == 0 {
        return Err(Error::Gone);
    }
    Ok(OsString::from_vec(path))
}

/// Returns why a program is not served, for the counts. Nothing was to be served if the process has ended, or its exec
/// fails as well: the shell's search for a program asks for each directory.
fn unserved(why: &Error) -> Option<Unserved> {
    match why {
        Error::Gone => None,
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => None,
            _ => Some(Unserved::Failed),
        },
        Error::Unsupported(_) | Error::Forbidden(_) | Error::CounterForbidden => Some(Unserved::Refused),
        Error::System { .. } | Error::Remote { .. } | Error::PlaceTaken => Some(Unserved::Failed),
    }
}

/// A thread that waits in its slot. Dropping this releases it, on every exit.
struct Waiting<'a> {
    mailbox: &'a Shared,
    taken: Option<Taken>,
}

impl Waiting<'_> {
    fn go(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.mailbox.go(&taken);
        }
    }

    fn refuse(&mut self, why: Unserved) {
        self.mailbox.count(why);
        if let Some(taken) = self.taken.take() {
            self.mailbox.refuse(&taken);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.go();
    }
}
