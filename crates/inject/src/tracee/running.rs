//! One thread of a running process, waited for separately.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::Tracee;
use crate::error::{Result, tried};

/// State change of one thread of a running process, with signals by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// PTRACE_EVENT_STOP: stopped, as requested, where the kernel would return to the program.
    Trap,
    /// The same where the thread would be stopped without a tracer as well: by job control.
    JobStop,
    /// A signal is about to be delivered.
    Signal(i32),
    /// Entry to or exit from a system call.
    Syscall,
    /// Its program has been replaced (execve(2)), and the next one has not begun. Only if the options request it.
    Exec,
    /// Another event that the options request.
    Other,
    /// The thread has ended.
    Exited,
}

impl Event {
    /// Returns the signal that is about to be delivered; 0: none.
    pub fn signal(self) -> i32 {
        if let Event::Signal(signal) = self { signal } else { 0 }
    }
}

impl Tracee {
    /// Like [`Tracee::seize`] for a thread of `process`, with these options and PTRACE_O_TRACESYSGOOD.
    pub fn seize_thread(process: i32, tid: i32, options: ptrace::Options) -> Result<Tracee> {
        let pid = Pid::from_raw(tid);
        let options = options | ptrace::Options::PTRACE_O_TRACESYSGOOD;
        ptrace::seize(pid, options).map_err(tried("PTRACE_SEIZE"))?;
        Ok(Tracee {
            pid,
            process: Some(process),
            memory: None,
        })
    }

    /// Returns a tracee for a thread that this thread traces already.
    pub fn already(process: i32, tid: i32) -> Tracee {
        Tracee {
            pid: Pid::from_raw(tid),
            process: Some(process),
            memory: None,
        }
    }

    /// Changes the ptrace options; adds PTRACE_O_TRACESYSGOOD. The thread must be stopped.
    pub fn set_options(&self, options: ptrace::Options) -> Result<()> {
        let options = options | ptrace::Options::PTRACE_O_TRACESYSGOOD;
        ptrace::setoptions(self.pid, options).map_err(tried("PTRACE_SETOPTIONS"))
    }

    /// Returns the next event of this thread only; `None` if there is none yet and `wait` is false. If the stop ended a
    /// system call with EINTR, makes the kernel restart that call at once: if the tracer died first, the program would
    /// see an EINTR that it would not have seen without a tracer.
    pub fn event(&self, wait: bool) -> Result<Option<Event>> {
        let event = self.next_event(wait)?;
        if let Some(Event::Trap | Event::JobStop | Event::Signal(_)) = event
            // The thread may have been killed since its stop; its end is the next event.
            && let Ok(mut registers) = self.registers()
            && registers.undo_interruption()
        {
            let _ = self.set_registers(&registers);
        }
        Ok(event)
    }

    fn next_event(&self, wait: bool) -> Result<Option<Event>> {
        let flags = libc::__WALL | if wait { 0 } else { libc::WNOHANG };
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes one int.
            let answer = unsafe { libc::waitpid(self.pid.as_raw(), &mut status, flags) };
            match answer {
                0 => return Ok(None),
                // Its process ended, or replaced its program, and another thread of this process has waited for it.
                -1 if Errno::last() == Errno::ECHILD => return Ok(Some(Event::Exited)),
                -1 if Errno::last() == Errno::EINTR => {}
                -1 => return Err(tried("waitpid")(Errno::last())),
                _ if !libc::WIFSTOPPED(status) => return Ok(Some(Event::Exited)),
                _ => {
                    return Ok(Some(match (status >> 16, libc::WSTOPSIG(status)) {
                        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Event::Trap,
                        (libc::PTRACE_EVENT_STOP, _) => Event::JobStop,
                        (libc::PTRACE_EVENT_EXEC, _) => Event::Exec,
                        (0, signal) if signal == libc::SIGTRAP | 0x80 => Event::Syscall,
                        (0, signal) => Event::Signal(signal),
                        _ => Event::Other,
                    }));
                }
            }
        }
    }

    /// Returns where the thread has registered struct rseq (rseq(2)); 0: nowhere. `None`: this kernel does not report
    /// it (before Linux 5.13).
    pub fn rseq_area(&self) -> Result<Option<u64>> {
        /// include/uapi/linux/ptrace.h, with struct ptrace_rseq_configuration: the area, and two words about it.
        const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        let mut configuration = [0u64; 3];
        // SAFETY: the kernel writes at most `size` bytes to `configuration`, which has that size.
        let r = unsafe {
            let size = size_of_val(&configuration);
            libc::ptrace(
                GET_RSEQ_CONFIGURATION,
                self.pid.as_raw(),
                size,
                configuration.as_mut_ptr(),
            )
        };
        match Errno::last() {
            _ if r >= 0 => Ok(Some(configuration[0])),
            Errno::EIO | Errno::EINVAL => Ok(None),
            errno => Err(tried("PTRACE_GET_RSEQ_CONFIGURATION")(errno)),
        }
    }

    /// Returns whether the thread handles its system calls itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH). `None`:
    /// this kernel does not report it (before Linux 6.4).
    pub fn dispatches_calls(&self) -> Result<Option<bool>> {
        /// include/uapi/linux/ptrace.h, with struct ptrace_sud_config: mode, selector, offset, len.
        const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
        /// PR_SYS_DISPATCH_OFF, include/uapi/linux/prctl.h
        const OFF: u64 = 0;
        let mut config = [0u64; 4];
        // SAFETY: the kernel writes at most `size` bytes to `config`, which has that size.
        let r = unsafe {
            let size = size_of_val(&config);
            libc::ptrace(
                GET_SYSCALL_USER_DISPATCH_CONFIG,
                self.pid.as_raw(),
                size,
                config.as_mut_ptr(),
            )
        };
        match Errno::last() {
            _ if r >= 0 => Ok(Some(config[0] != OFF)),
            Errno::EIO | Errno::EINVAL => Ok(None),
            errno => Err(tried("PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG")(errno)),
        }
    }

    /// Returns whether the SIGSYS that is about to be delivered is for a call by the instruction before `behind`, which
    /// the program's own dispatcher would handle. A SIGSYS for another call is the program's: it may have been pending
    /// when the thread was stopped.
    pub fn call_was_dispatched(&self, behind: u64) -> Result<bool> {
        /// include/uapi/asm-generic/siginfo.h
        const SYS_USER_DISPATCH: i32 = 2;
        /// Offset of si_call_addr, which libc has no name for: after si_signo, si_errno, si_code and padding.
        const CALL_ADDRESS_AT: usize = 16;
        let information = ptrace::getsiginfo(self.pid).map_err(tried("PTRACE_GETSIGINFO"))?;
        // SAFETY: siginfo_t is 128 bytes of plain data on every 64-bit Linux; the kernel has written all of them.
        let call_address = unsafe {
            let start = (&raw const information).cast::<u8>();
            start.add(CALL_ADDRESS_AT).cast::<u64>().read_unaligned()
        };
        Ok(information.si_code == SYS_USER_DISPATCH && call_address == behind)
    }

    /// Lets the thread run, delivering `signal` (0: none), to its next system call's entry or exit if `to_syscall`.
    pub fn resume(&self, to_syscall: bool, signal: i32) -> Result<()> {
        let request = if to_syscall {
            libc::PTRACE_SYSCALL
        } else {
            libc::PTRACE_CONT
        };
        self.resume_raw(request, signal)
    }

    /// Stops tracing; the thread goes on, with `signal` (0: none) if it is in a signal-delivery-stop.
    pub fn let_go(&self, signal: i32) -> Result<()> {
        self.resume_raw(libc::PTRACE_DETACH, signal)
    }

    /// Reads as many whole words of 8 bytes as the program could read, up to `bytes`. A guard page ends the read.
    pub fn read_what_is_there(&self, address: u64, bytes: usize) -> Vec<u64> {
        const PAGE: u64 = 4096;
        let mut words = vec![0u64; bytes / 8];
        let end = address + 8 * words.len() as u64;
        // Page by page: a piece that is only partly present is not read at all (process_vm_readv(2)).
        let mut pieces = Vec::new();
        let mut at = address;
        while at < end {
            let next = (at / PAGE + 1) * PAGE;
            pieces.push(libc::iovec {
                iov_base: at as *mut libc::c_void,
                iov_len: (next.min(end) - at) as usize,
            });
            at = next;
        }
        let local = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: 8 * words.len(),
        };
        // SAFETY: the kernel writes at most the size of `words`; the pieces are addresses of the other process.
        let read =
            unsafe { libc::process_vm_readv(self.pid.as_raw(), &local, 1, pieces.as_ptr(), pieces.len() as _, 0) };
        words.truncate(read.max(0) as usize / 8);
        words
    }
}
