//! System calls made in a stopped program, such that the program survives if this process is killed between any two
//! steps.
//!
//! The calls are made by a system call instruction that is written to the unused tail of an executable mapping. After
//! it comes an rt_sigreturn, and the stack pointer is at a signal frame with the program's own registers and mask. The
//! tracer stops the program as it leaves the call. If the tracer dies, the kernel lets the program run on: it returns
//! from the "signal" and is where it was (sigreturn(2); arch/*/kernel/signal*.c).

use nix::sys::signal::Signal;

use crate::abi::{Abi, Call, Registers};
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::tracee::{Stop, Tracee};

/// Bytes of a mapping's tail that must be unused.
const TAIL: usize = 16;
/// Size of the ABI's red zone below the stack pointer, which belongs to the program.
const RED_ZONE: u64 = 128;
/// Room below the signal frame for what remote calls pass by pointer.
pub const SCRATCH: u64 = 1024;
/// Mask of all signals. SIGKILL and SIGSTOP cannot be blocked.
const ALL_SIGNALS: u64 = u64::MAX;
/// Limit of stops by job control within one call.
const PATIENCE: u32 = 1000;

/// Makes system calls in another program.
pub trait Remote {
    /// Makes one call, named `what` in errors.
    fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64>;

    /// Returns the address of [`SCRATCH`] bytes that remote calls may use.
    fn scratch(&self) -> u64;

    /// Records descriptors that exist in the program for a moment, for a cleanup if this process dies before they are
    /// closed.
    fn note(&mut self, _descriptors: [u64; 2]) -> Result<()> {
        Ok(())
    }

    /// Returns the program's kernel interface.
    fn abi(&self) -> &'static dyn Abi;

    /// Returns the tracee, for access to its memory.
    fn tracee(&mut self) -> &mut Tracee;
}

/// A stopped program, borrowed for remote calls. If it is dropped without [`RemoteCalls::finish`], the program
/// continues through the signal frame, so that is only for errors after which the tracee is gone.
pub struct RemoteCalls<'a> {
    tracee: &'a mut Tracee,
    abi: &'static dyn Abi,
    saved: Registers,
    mask: u64,
    gadget: u64,
    displaced: [u8; TAIL],
    frame: u64,
    stopped_by_user: bool,
}

impl<'a> RemoteCalls<'a> {
    /// Prepares `tracee`, which must be outside any system call. Changes nothing that the program can see. `reserve`
    /// bytes below the stack pointer stay free for the caller.
    pub fn begin(
        tracee: &'a mut Tracee,
        abi: &'static dyn Abi,
        maps: &[Mapping],
        reserve: usize,
    ) -> Result<RemoteCalls<'a>> {
        let saved = tracee.registers()?;
        let mask = tracee.signal_mask()?;
        let (gadget, displaced) = find_tail(tracee, maps)?;
        let bytes = abi.signal_frame(&saved, mask);
        let frame = (saved.sp() - RED_ZONE - (reserve + bytes.len()) as u64) & !15;
        tracee.write(frame, &bytes)?;
        tracee.write(gadget, abi.gadget())?;
        let mut calls = RemoteCalls {
            tracee,
            abi,
            saved,
            mask,
            gadget,
            displaced,
            frame,
            stopped_by_user: false,
        };
        match calls.park() {
            Ok(()) => Ok(calls),
            Err(e) => {
                // The registers are still the program's.
                let _ = calls.tracee.write(calls.gadget, &calls.displaced);
                Err(e)
            }
        }
    }

    /// Sets registers first, mask second: from here on the frame restores the program.
    fn park(&mut self) -> Result<()> {
        let registers = self.call_registers(Call::Getpid, [0; 6]);
        self.tracee.set_registers(&registers)?;
        self.tracee.set_signal_mask(ALL_SIGNALS)
    }

    fn call_registers(&self, call: Call, args: [u64; 6]) -> Registers {
        let sp = self.frame + self.abi.above_frame();
        let number = self.abi.number(call);
        self.abi.call_registers(&self.saved, self.gadget, sp, number, args)
    }

    /// Returns the program's registers as they were found.
    pub fn saved(&self) -> &Registers {
        &self.saved
    }

    /// Restores the program, with `registers`.
    pub fn finish(self, registers: Registers) -> Result<()> {
        self.tracee.set_signal_mask(self.mask)?;
        self.tracee.set_registers(&registers)?;
        self.tracee.write(self.gadget, &self.displaced)?;
        if self.stopped_by_user {
            // The call loop swallowed the stop, while the program had to go on; the program stops as soon as it is
            // detached.
            // SAFETY: kill takes no pointer.
            unsafe { libc::kill(self.tracee.pid(), libc::SIGSTOP) };
        }
        Ok(())
    }

    /// Restores the program as it was.
    pub fn abandon(self) -> Result<()> {
        let saved = self.saved;
        self.finish(saved)
    }
}

impl Remote for RemoteCalls<'_> {
    fn abi(&self) -> &'static dyn Abi {
        self.abi
    }

    fn scratch(&self) -> u64 {
        self.frame - SCRATCH
    }

    fn tracee(&mut self) -> &mut Tracee {
        self.tracee
    }

    fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64> {
        self.tracee.set_registers(&self.call_registers(call, args))?;
        // Traced by entry and exit, not by single steps: the kernel does not clear the trap flag when a tracer dies,
        // and it forces SIGTRAP on a program that ignores it.
        for _ in 0..PATIENCE {
            self.tracee.resume_to_syscall(None)?;
            match self.tracee.wait()? {
                Stop::Exited => return Err(Error::Gone),
                Stop::Signal(Signal::SIGSTOP) | Stop::Interrupt(Some(_)) => self.stopped_by_user = true,
                _ => {}
            }
            // At the entry, the program counter is after the instruction already.
            let after = self.tracee.registers()?;
            if after.pc() != self.gadget + self.abi.instruction() as u64 || !self.tracee.is_leaving_a_call()? {
                continue;
            }
            return after.result().map_err(|errno| Error::Remote { what, errno });
        }
        Err(Error::Unsupported(format!("{what} in the program did not finish")))
    }
}

/// Finds unused executable memory: the tail of a mapping's last page, after the file's code. The kernel's vDSO comes
/// first, as no page of a file is copied for it.
fn find_tail(tracee: &mut Tracee, maps: &[Mapping]) -> Result<(u64, [u8; TAIL])> {
    let executable = maps.iter().filter(|m| m.executable && m.name != "[vsyscall]");
    let (vdso, others): (Vec<_>, Vec<_>) = executable.partition(|m| m.name == "[vdso]");
    for mapping in vdso.into_iter().chain(others) {
        let address = mapping.end - TAIL as u64;
        let mut bytes = [0; TAIL];
        if tracee.read(address, &mut bytes).is_ok() && [0, 0x90, 0xcc].iter().any(|pad| bytes.iter().all(|b| b == pad))
        {
            return Ok((address, bytes));
        }
    }
    Err(Error::Unsupported(
        "no unused executable bytes in the program to make system calls from".into(),
    ))
}
