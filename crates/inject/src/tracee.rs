//! One stopped thread, seen through ptrace(2) and /proc/PID/mem.

#[cfg(target_arch = "x86_64")]
mod running;

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

use crate::abi::{self, Call, Registers};
use crate::error::{Error, Result, tried};
#[cfg(target_arch = "x86_64")]
pub use running::Event;

/// Real-time signals as the kernel numbers them (signal(7)); a system-call-stop shows as SIGTRAP | 0x80, above them.
const REAL_TIME: std::ops::RangeInclusive<i32> = 32..=64;

/// Reason why a traced thread is stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// PTRACE_EVENT_EXEC: the new program is mapped and has not run an instruction.
    Exec,
    /// Entry to or exit from a system call (only while it is resumed with [`Tracee::resume_to_syscall`]).
    Syscall,
    /// A signal is about to be delivered.
    Signal(Signal),
    /// PTRACE_EVENT_STOP: an interrupt, or a group-stop by the signal named.
    Interrupt(Option<Signal>),
    /// The thread has ended.
    Exited,
}

/// A thread that this thread traces.
pub struct Tracee {
    pid: Pid,
    /// Process that it belongs to, if it is not its first thread.
    process: Option<i32>,
    memory: Option<File>,
}

impl Tracee {
    /// Starts to trace `pid` without stopping it (PTRACE_SEIZE). If this process dies, the kernel lets the thread go
    /// on.
    pub fn seize(pid: i32) -> Result<Tracee> {
        let pid = Pid::from_raw(pid);
        let options = ptrace::Options::PTRACE_O_TRACEEXEC | ptrace::Options::PTRACE_O_TRACESYSGOOD;
        ptrace::seize(pid, options).map_err(tried("PTRACE_SEIZE"))?;
        Ok(Tracee {
            pid,
            process: None,
            memory: None,
        })
    }

    /// Returns the thread id, in the PID namespace of this process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits for the next stop of any thread that this thread traces. An exec changes the id of a thread that was not
    /// its group's leader, so this updates the tracee's id.
    pub fn wait(&mut self) -> Result<Stop> {
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes one int.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
            if pid < 0 {
                match Errno::last() {
                    Errno::EINTR => continue,
                    e => return Err(tried("waitpid")(e)),
                }
            }
            let pid = Pid::from_raw(pid);
            if self.pid != pid {
                self.pid = pid;
                self.memory = None;
            }
            // A group-stop arrives as PTRACE_EVENT_STOP with the stopping signal; nix knows only SIGTRAP's variant.
            if libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_STOP {
                let signal = Signal::try_from(libc::WSTOPSIG(status))
                    .ok()
                    .filter(|s| *s != Signal::SIGTRAP);
                return Ok(Stop::Interrupt(signal));
            }
            if libc::WIFSTOPPED(status) && status >> 16 == 0 && REAL_TIME.contains(&libc::WSTOPSIG(status)) {
                // nix::Signal has no real-time signals: deliver them here.
                self.resume_raw(libc::PTRACE_SYSCALL, libc::WSTOPSIG(status))?;
                continue;
            }
            return Ok(match WaitStatus::from_raw(pid, status).map_err(tried("waitpid"))? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                    self.memory = None;
                    Stop::Exec
                }
                WaitStatus::PtraceSyscall(_) => Stop::Syscall,
                WaitStatus::Stopped(_, signal) => Stop::Signal(signal),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => Stop::Exited,
                _ => continue,
            });
        }
    }

    fn resume_raw(&self, request: libc::c_uint, signal: i32) -> Result<()> {
        // SAFETY: these requests take no pointer; the kernel checks the rest.
        let r = unsafe { libc::ptrace(request, self.pid.as_raw(), 0usize, signal as usize) };
        if r < 0 {
            Err(tried("ptrace(resume)")(Errno::last()))
        } else {
            Ok(())
        }
    }

    /// Lets it run to its next system call's entry or exit, delivering `signal`.
    pub fn resume_to_syscall(&self, signal: Option<Signal>) -> Result<()> {
        ptrace::syscall(self.pid, signal).map_err(tried("PTRACE_SYSCALL"))
    }

    /// Leaves it stopped by job control, as it would be without a tracer, and still reports SIGCONT.
    pub fn listen(&self) -> Result<()> {
        self.resume_raw(libc::PTRACE_LISTEN as libc::c_uint, 0)
    }

    /// Returns whether it is stopped at the exit of a system call, not at the entry (PTRACE_GET_SYSCALL_INFO, Linux
    /// 5.3).
    pub fn is_leaving_a_call(&self) -> Result<bool> {
        /// include/uapi/linux/ptrace.h: PTRACE_GET_SYSCALL_INFO, PTRACE_SYSCALL_INFO_EXIT; the first byte is the kind
        /// of stop.
        const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
        const INFO_EXIT: u8 = 2;
        let mut info = [0u8; 88];
        // SAFETY: the kernel writes at most `info.len()` bytes to `info`.
        let r = unsafe { libc::ptrace(GET_SYSCALL_INFO, self.pid.as_raw(), info.len(), info.as_mut_ptr()) };
        if r < 0 {
            Err(tried("PTRACE_GET_SYSCALL_INFO")(Errno::last()))
        } else {
            Ok(info[0] == INFO_EXIT)
        }
    }

    /// Asks a running thread to stop.
    pub fn interrupt(&self) -> Result<()> {
        ptrace::interrupt(self.pid).map_err(tried("PTRACE_INTERRUPT"))
    }

    /// Stops tracing; the thread goes on, with `signal` if it is in a signal-delivery-stop.
    pub fn detach(self, signal: Option<Signal>) -> Result<()> {
        ptrace::detach(self.pid, signal).map_err(tried("PTRACE_DETACH"))
    }

    /// Returns its general registers.
    pub fn registers(&self) -> Result<Registers> {
        Registers::of(self.pid)
    }

    /// Changes its general registers.
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        registers.apply(self.pid)
    }

    /// Returns its blocked signals (the kernel's 64-bit set).
    pub fn signal_mask(&self) -> Result<u64> {
        let mut mask = 0u64;
        self.sigmask_request(libc::PTRACE_GETSIGMASK, &mut mask)?;
        Ok(mask)
    }

    /// Changes its blocked signals.
    pub fn set_signal_mask(&self, mut mask: u64) -> Result<()> {
        self.sigmask_request(libc::PTRACE_SETSIGMASK, &mut mask)
    }

    fn sigmask_request(&self, request: libc::c_uint, mask: &mut u64) -> Result<()> {
        // SAFETY: both requests take the size of the kernel's sigset_t and a pointer to one.
        let r = unsafe { libc::ptrace(request, self.pid.as_raw(), size_of::<u64>(), mask as *mut u64) };
        if r < 0 {
            Err(tried("ptrace(SIGMASK)")(Errno::last()))
        } else {
            Ok(())
        }
    }

    fn memory(&mut self) -> Result<&File> {
        if self.memory.is_none() {
            let path = format!("/proc/{}/mem", self.pid);
            let file = File::options()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| Error::io(path, e))?;
            self.memory = Some(file);
        }
        self.memory.as_ref().ok_or(Error::Gone)
    }

    /// Reads its memory; all of `bytes` or an error.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let path = format!("/proc/{}/mem", self.pid);
        self.memory()?
            .read_exact_at(bytes, address)
            .map_err(|e| Error::io(path, e))
    }

    /// Writes its memory, read-only pages included (a private page is copied for it first).
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let path = format!("/proc/{}/mem", self.pid);
        self.memory()?
            .write_all_at(bytes, address)
            .map_err(|e| Error::io(path, e))
    }

    /// Reads little-endian words of `size` bytes, 4 or 8.
    pub fn read_words(&mut self, address: u64, count: usize, size: usize) -> Result<Vec<u64>> {
        let mut bytes = vec![0; count * size];
        self.read(address, &mut bytes)?;
        let widen = |word: &[u8]| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(bytes.chunks_exact(size).map(widen).collect())
    }

    /// Duplicates its file descriptor `fd` into this process (pidfd_getfd(2), Linux 5.6).
    pub fn take_fd(&self, fd: i32) -> Result<OwnedFd> {
        // SAFETY: both calls take integers; each result is a new descriptor that nothing else owns.
        unsafe {
            let pidfd = libc::syscall(libc::SYS_pidfd_open, self.process.unwrap_or(self.pid.as_raw()), 0);
            if pidfd < 0 {
                return Err(tried("pidfd_open")(Errno::last()));
            }
            let pidfd = OwnedFd::from_raw_fd(pidfd as i32);
            let taken = libc::syscall(libc::SYS_pidfd_getfd, std::os::fd::AsRawFd::as_raw_fd(&pidfd), fd, 0);
            if taken < 0 {
                return Err(tried("pidfd_getfd")(Errno::last()));
            }
            Ok(OwnedFd::from_raw_fd(taken as i32))
        }
    }

    /// Ends a program that has not run an instruction, with an exit status. Its memory may be overwritten.
    pub fn exit(&mut self, status: u8) -> Result<()> {
        let registers = self.registers()?;
        let abi = abi::of(&registers);
        let (pc, sp) = (registers.pc(), registers.sp());
        self.write(pc, &abi.gadget()[..abi.instruction()])?;
        let arguments = [u64::from(status), 0, 0, 0, 0, 0];
        self.set_registers(&abi.call_registers(&registers, pc, sp, abi.number(Call::ExitGroup), arguments))?;
        self.resume_to_syscall(None)?;
        while self.wait()? != Stop::Exited {
            self.resume_to_syscall(None)?;
        }
        Ok(())
    }
}
