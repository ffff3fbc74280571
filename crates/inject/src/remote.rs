//! System calls made in a stopped program, so that the program survives even if we are killed between any two steps.
//!
//! The call is made by a `syscall` instruction that we place in the unused tail of an executable mapping. Behind it stands an
//! rt_sigreturn, and the stack pointer is at a signal frame that holds the program's own registers and mask. As long as we
//! live, we stop the program as it leaves the call. If we die, the kernel lets it run on: it returns from the "signal"
//! and is where it was (arch/x86/kernel/signal_64.c, sigreturn(2)).

use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::tracee::{Registers, Stop, Tracee};

/// syscall; mov $15 (rt_sigreturn), %eax; syscall
const GADGET: [u8; 9] = [0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];
/// Bytes of a mapping's tail that must be unused.
const TAIL: usize = 16;
/// The ABI's red zone below the stack pointer belongs to the program.
const RED_ZONE: u64 = 128;
/// Room below the signal frame for what remote calls pass by pointer.
const SCRATCH: u64 = 1024;
/// Never blocked: they cannot be.
const ALL_SIGNALS: u64 = u64::MAX;
/// How often a step may be interrupted by job control before we give up.
const PATIENCE: u32 = 1000;

/// A stopped program, borrowed for remote calls. Dropping it without [`RemoteCalls::finish`] leaves the kernel to run the
/// signal frame's way back, so it is only for errors after which the tracee is gone.
pub struct RemoteCalls<'a> {
    tracee: &'a mut Tracee,
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
    pub fn begin(tracee: &'a mut Tracee, maps: &[Mapping], reserve: usize) -> Result<RemoteCalls<'a>> {
        let saved = tracee.registers()?;
        let mask = tracee.signal_mask()?;
        let (gadget, displaced) = find_tail(tracee, maps)?;
        let frame = (saved.rsp - RED_ZONE - (reserve + FRAME_BYTES) as u64) & !15;
        tracee.write(frame, &signal_frame(&saved, mask))?;
        tracee.write(gadget, &GADGET)?;
        let mut calls = RemoteCalls {
            tracee,
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
        self.tracee
            .set_registers(self.call_registers(libc::SYS_getpid as u64, [0; 6]))?;
        self.tracee.set_signal_mask(ALL_SIGNALS)
    }

    fn call_registers(&self, nr: u64, args: [u64; 6]) -> Registers {
        let mut r = self.saved;
        r.rip = self.gadget;
        // rt_sigreturn finds its frame one return address below the stack pointer.
        r.rsp = self.frame + 8;
        r.orig_rax = u64::MAX;
        r.rax = nr;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        r
    }

    /// Address of [`SCRATCH`] bytes that remote calls may use.
    pub fn scratch(&self) -> u64 {
        self.frame - SCRATCH
    }

    /// The program's registers as they were found.
    pub fn saved(&self) -> &Registers {
        &self.saved
    }

    /// The tracee, for its memory.
    pub fn tracee(&mut self) -> &mut Tracee {
        self.tracee
    }

    /// Makes one system call in the program.
    pub fn call(&mut self, what: &'static str, nr: libc::c_long, args: [u64; 6]) -> Result<u64> {
        self.tracee.set_registers(self.call_registers(nr as u64, args))?;
        // By its entry and its exit. Not by single steps: the kernel does not take the trap flag back when a tracer dies, and
        // it forces SIGTRAP on a program that ignores it.
        for _ in 0..PATIENCE {
            self.tracee.resume_to_syscall(None)?;
            match self.tracee.wait()? {
                Stop::Exited => return Err(Error::Gone),
                Stop::Signal(Signal::SIGSTOP) | Stop::Interrupt(Some(_)) => self.stopped_by_user = true,
                _ => {}
            }
            // rip stands behind the instruction at the entry already.
            let after = self.tracee.registers()?;
            if after.rip != self.gadget + 2 || !self.tracee.is_leaving_a_call()? {
                continue;
            }
            let value = after.rax as i64;
            return if (-4095..0).contains(&value) {
                Err(Error::Remote {
                    what,
                    errno: Errno::from_raw(-value as i32),
                })
            } else {
                Ok(after.rax)
            };
        }
        Err(Error::Unsupported(format!("{what} in the program did not finish")))
    }

    /// Puts everything back, with `registers` in force.
    pub fn finish(self, registers: Registers) -> Result<()> {
        self.tracee.set_signal_mask(self.mask)?;
        self.tracee.set_registers(registers)?;
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

const FRAME_BYTES: usize = 8 + 8 + 8 + 24 + 256 + 8;

/// struct rt_sigframe as rt_sigreturn reads it: the return address, then struct ucontext (include/uapi/asm-generic/ucontext.h)
/// with struct sigcontext_64 (arch/x86/include/uapi/asm/sigcontext.h). No saved FPU state: at its first instruction a
/// program has none.
fn signal_frame(r: &Registers, mask: u64) -> [u8; FRAME_BYTES] {
    /// arch/x86/include/uapi/asm/ucontext.h: UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
    const UC_FLAGS: u64 = 2 | 4;
    let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
    let words = [
        0, // return address, popped already
        UC_FLAGS, 0, // uc_link
        0, 2, 0, // uc_stack: SS_DISABLE
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags, segments, 0, 0, 0, 0, // err, trapno, oldmask, cr2
        0, // fpstate
        0, 0, 0, 0, 0, 0, 0, 0, // reserved
        mask,
    ];
    let mut bytes = [0; FRAME_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
