//! Makes system calls in a guest: at the entry point of a new program, of which it has not run an instruction, or at the
//! end of a system call of its own.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::arch::{self, Registers};
use crate::memory::Memory;
use crate::ptrace::{self, SystemCall, Wait};

/// Bytes below the stack pointer for data that calls pass by pointer.
const SCRATCH: u64 = 512;

/// A guest, while it makes the sandbox's calls.
pub struct RemoteCalls<'g> {
    guest: Pid,
    memory: &'g Memory,
    saved: Registers,
    /// Address of the system call instruction.
    at: u64,
    /// What was there, if it was put there.
    displaced: Vec<u8>,
    mask: u64,
    stopped: bool,
}

impl<'g> RemoteCalls<'g> {
    /// Puts a system-call instruction at the program's entry point, and blocks its signals.
    pub fn begin(guest: Pid, memory: &'g Memory) -> io::Result<RemoteCalls<'g>> {
        let at = arch::pc(&arch::registers(guest)?);
        let mut displaced = vec![0; arch::SYSTEM_CALL.len()];
        memory.read(at, &mut displaced)?;
        memory.write(at, arch::SYSTEM_CALL)?;
        RemoteCalls::begin_at(guest, memory, at, displaced)
    }

    /// Takes the system-call instruction right before this address, and blocks the guest's signals.
    pub fn begin_before(guest: Pid, memory: &'g Memory, address: u64) -> io::Result<RemoteCalls<'g>> {
        RemoteCalls::begin_at(guest, memory, address - arch::SYSTEM_CALL.len() as u64, Vec::new())
    }

    fn begin_at(guest: Pid, memory: &'g Memory, at: u64, displaced: Vec<u8>) -> io::Result<RemoteCalls<'g>> {
        let mask = ptrace::signal_mask(guest)?;
        ptrace::set_signal_mask(guest, u64::MAX)?;
        Ok(RemoteCalls {
            guest,
            memory,
            saved: arch::registers(guest)?,
            at,
            displaced,
            mask,
            stopped: false,
        })
    }

    /// Writes `bytes` to where a call can take them by pointer, and returns the address. They are valid until the next
    /// `pass`.
    pub fn pass(&self, bytes: &[u8]) -> io::Result<u64> {
        let address = arch::stack_pointer(&self.saved) - arch::RED_ZONE - SCRATCH;
        assert!(bytes.len() as u64 <= SCRATCH);
        self.memory.write(address, bytes)?;
        Ok(address)
    }

    /// Makes one call in the guest.
    pub fn call(&mut self, sysno: Sysno, args: [u64; 6]) -> io::Result<u64> {
        let nr = sysno.id() as usize;
        arch::set_registers(self.guest, &arch::calling(&self.saved, self.at, nr, args))?;
        loop {
            ptrace::resume(self.guest, 0)?;
            match ptrace::wait(Some(self.guest))? {
                Wait::SystemCall(_) => {
                    if let SystemCall::Exit { .. } = ptrace::system_call(self.guest)? {
                        break;
                    }
                }
                Wait::Exited(..) | Wait::Signaled(..) => return Err(Errno::ESRCH.into()),
                Wait::Stopped(_, libc::SIGSTOP) => self.stopped = true,
                _ => {}
            }
        }
        match arch::result(&arch::registers(self.guest)?) {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            value => Ok(value as u64),
        }
    }

    /// Restores the guest, except for the effects of the calls.
    pub fn finish(self) -> io::Result<Registers> {
        self.memory.write(self.at, &self.displaced)?;
        arch::set_registers(self.guest, &self.saved)?;
        ptrace::set_signal_mask(self.guest, self.mask)?;
        if self.stopped {
            // SIGSTOP came in between, and cannot be blocked: send it again.
            kill(self.guest, Signal::SIGSTOP)?;
        }
        Ok(self.saved)
    }
}
