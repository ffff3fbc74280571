//! System calls made in a stopped program, so that the program survives even if we are killed between any two steps.
//!
//! The call is made by a system call instruction that we place in the unused tail of an executable mapping. Behind it stands an
//! rt_sigreturn, and the stack pointer is at a signal frame that holds the program's own registers and mask. As long as we
//! live, we stop the program as it leaves the call. If we die, the kernel lets it run on: it returns from the "signal"
//! and is where it was (sigreturn(2); arch/*/kernel/signal*.c).

use nix::sys::signal::Signal;

use crate::abi::{Abi, Call, Registers};
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::tracee::{Stop, Tracee};

/// Bytes of a mapping's tail that must be unused.
const TAIL: usize = 16;
/// The ABI's red zone below the stack pointer belongs to the program.
const RED_ZONE: u64 = 128;
/// Room below the signal frame for what remote calls pass by pointer.
pub const SCRATCH: u64 = 1024;
/// Never blocked: they cannot be.
const ALL_SIGNALS: u64 = u64::MAX;
/// How often a step may be interrupted by job control before we give up.
const PATIENCE: u32 = 1000;

/// Whoever makes system calls in somebody else's program.
pub trait Remote {
    /// Makes one.
    fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64>;

    /// Address of [`SCRATCH`] bytes that remote calls may use.
    fn scratch(&self) -> u64;

    /// Keeps in mind descriptors that were made in the program for the moment, should we die before they are closed.
    fn note(&mut self, _descriptors: [u64; 2]) -> Result<()> {
        Ok(())
    }

    /// What the program's kernel interface looks like.
    fn abi(&self) -> &'static dyn Abi;

    /// The tracee, for its memory.
    fn tracee(&mut self) -> &mut Tracee;
}

/// A stopped program, borrowed for remote calls. Dropping it without [`RemoteCalls::finish`] leaves the kernel to run the
/// signal frame's way back, so it is only for errors after which the tracee is gone.
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
    /// Prepares `tracee`, which stands outside any system call. Nothing that the program can see is changed. `reserve` bytes
    /// below the stack pointer stay free for the caller.
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

    /// Registers first, mask second: from here on the frame leads back.
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

    /// The program's registers as they were found.
    pub fn saved(&self) -> &Registers {
        &self.saved
    }

    /// Puts everything back, with `registers` in force.
    pub fn finish(self, registers: Registers) -> Result<()> {
        self.tracee.set_signal_mask(self.mask)?;
        self.tracee.set_registers(&registers)?;
        self.tracee.write(self.gadget, &self.displaced)?;
        if self.stopped_by_user {
            // Swallowed above, while the program had to go on; it stops as soon as we let go.
            // SAFETY: kill takes no pointer.
            unsafe { libc::kill(self.tracee.pid(), libc::SIGSTOP) };
        }
        Ok(())
    }

    /// Puts everything back as it was.
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
        // By its entry and its exit. Not by single steps: the kernel does not take the trap flag back when a tracer dies, and
        // it forces SIGTRAP on a program that ignores it.
        for _ in 0..PATIENCE {
            self.tracee.resume_to_syscall(None)?;
            match self.tracee.wait()? {
                Stop::Exited => return Err(Error::Gone),
                Stop::Signal(Signal::SIGSTOP) | Stop::Interrupt(Some(_)) => self.stopped_by_user = true,
                _ => {}
            }
            // The program counter stands behind the instruction at the entry already.
            let after = self.tracee.registers()?;
            if after.pc() != self.gadget + self.abi.instruction() as u64 || !self.tracee.is_leaving_a_call()? {
                continue;
            }
            return after.result().map_err(|errno| Error::Remote { what, errno });
        }
        Err(Error::Unsupported(format!("{what} in the program did not finish")))
    }
}

/// Finds executable memory that nothing uses: the tail of a mapping's last page, behind the file's code. The kernel's vDSO
/// first: no file's page gets copied for it.
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
