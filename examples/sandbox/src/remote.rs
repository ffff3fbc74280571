//! System calls made in a guest that has just been given a new program and has not run an instruction of it: where it would begin, it
//! makes our calls first.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::arch::{self, Registers};
use crate::memory::Memory;
use crate::ptrace::{self, SystemCall};

/// Room below the stack pointer for what calls pass by pointer.
const SCRATCH: u64 = 512;

/// A guest at its entry point, borrowed for our calls.
pub struct RemoteCalls<'g> {
    guest: Pid,
    memory: &'g Memory,
    saved: Registers,
    displaced: Vec<u8>,
    mask: u64,
    stopped: bool,
}

impl<'g> RemoteCalls<'g> {
    /// Puts a system-call instruction where the program begins, and holds its signals back.
    pub fn begin(guest: Pid, memory: &'g Memory) -> io::Result<RemoteCalls<'g>> {
        let saved = arch::registers(guest)?;
        let mut displaced = vec![0; arch::SYSTEM_CALL.len()];
        memory.read(arch::pc(&saved), &mut displaced)?;
        memory.write(arch::pc(&saved), arch::SYSTEM_CALL)?;
        let mask = ptrace::signal_mask(guest)?;
        ptrace::set_signal_mask(guest, u64::MAX)?;
        Ok(RemoteCalls {
            guest,
            memory,
            saved,
            displaced,
            mask,
            stopped: false,
        })
    }

    /// Puts `bytes` where a call can be pointed to them, until the next ones.
    pub fn pass(&self, bytes: &[u8]) -> io::Result<u64> {
        let address = arch::stack_pointer(&self.saved) - arch::RED_ZONE - SCRATCH;
        assert!(bytes.len() as u64 <= SCRATCH);
        self.memory.write(address, bytes)?;
        Ok(address)
    }

    /// Makes one call in the guest.
    pub fn call(&mut self, sysno: Sysno, args: [u64; 6]) -> io::Result<u64> {
        let nr = sysno.id() as usize;
        arch::set_registers(self.guest, &arch::calling(&self.saved, nr, args))?;
        loop {
            ptrace::resume(self.guest, None)?;
            match waitpid(self.guest, Some(WaitPidFlag::__WALL))? {
                WaitStatus::PtraceSyscall(_) => {
                    if let SystemCall::Exit { .. } = ptrace::system_call(self.guest)? {
                        break;
                    }
                }
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Errno::ESRCH.into()),
                WaitStatus::Stopped(_, Signal::SIGSTOP) => self.stopped = true,
                _ => {}
            }
        }
        match arch::result(&arch::registers(self.guest)?) {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            value => Ok(value as u64),
        }
    }

    /// The guest as it was, but for what the calls did.
    pub fn finish(self) -> io::Result<Registers> {
        self.memory.write(arch::pc(&self.saved), &self.displaced)?;
        arch::set_registers(self.guest, &self.saved)?;
        ptrace::set_signal_mask(self.guest, self.mask)?;
        if self.stopped {
            // It came in between, and cannot be held back.
            kill(self.guest, Signal::SIGSTOP)?;
        }
        Ok(self.saved)
    }
}
