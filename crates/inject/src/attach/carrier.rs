//! One thread of a running program that makes system calls for us, while all others run on.
//!
//! The call is made by a `syscall` in the unused tail of an executable mapping. Behind it stands code that gives every register its
//! value again and jumps back to where the thread was: if we die, it goes there by itself. Neither its stack nor its signal mask
//! is touched (a goroutine's stack has no room, and a mask would stay changed). A signal that comes meanwhile is delivered where the
//! program was, as if we were not there, and the call is made after it.
//!
//! The thread stands in a stop from which the kernel decides by itself what becomes of an interrupted system call, before and after:
//! it sees the registers as it left them.

use nix::sys::ptrace::Options;

use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread};
use super::threads;
use crate::abi::{self, Abi, Call, Registers, running};
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::remote::Remote;
use crate::tracee::{Event, Tracee};

/// Bytes that must be unused at the end of a mapping, of which the gadget takes the middle.
const TAIL: usize = 192;
/// From the beginning of the tail: the code before it keeps its padding.
const GADGET_AT: usize = 32;
/// At the end of the tail while it is in use: a tail that was left behind by a fastpath that died can be told by it.
const SIGN: [u8; 8] = *b"fp-carry";
/// More signals in a row than a program lives with.
const MOST_SIGNALS: u32 = 1000;

/// A thread that makes calls.
pub struct Carrier {
    thread: Thread,
    abi: &'static dyn Abi,
    /// The program's own registers, as it stands in the kernel.
    program: Registers,
    /// The stop in which it stood there.
    at: Event,
    gadget: u64,
    displaced: Vec<u8>,
    scratch: u64,
}

impl Carrier {
    /// Stops a thread of the process, one that is not in a system call if there is any. `suspend_seccomp`: it has a filter that
    /// our calls must not meet.
    pub fn of(session: &Session, maps: &[Mapping], suspend_seccomp: bool) -> Answer<Carrier> {
        let mut last = Refusal::Failed(Error::Gone);
        for tid in threads::by_convenience(session.pid()) {
            match Carrier::on(session, tid, maps, suspend_seccomp) {
                Ok(carrier) => return Ok(carrier),
                Err(refusal @ (Refusal::Seccomp { .. } | Refusal::Sealed { .. })) => return Err(refusal),
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    fn on(session: &Session, tid: i32, maps: &[Mapping], suspend_seccomp: bool) -> Answer<Carrier> {
        let mut thread = session.thread(tid)?;
        thread.tracee.interrupt()?;
        let (program, at) = stand(&thread.tracee)?;
        let ready = Carrier::make_ready(&mut thread.tracee, &program, maps, suspend_seccomp);
        let (gadget, displaced) = match ready {
            Ok(ready) => ready,
            Err(refusal) => {
                thread.go_on(at);
                return Err(refusal);
            }
        };
        let mut carrier = Carrier {
            abi: abi::of(&program),
            thread,
            program,
            at,
            gadget,
            displaced,
            scratch: 0,
        };
        if let Err(e) = carrier.lay_way_back() {
            carrier.thread.go_on(at);
            return Err(Refusal::Sealed { why: e.to_string() });
        }
        Ok(carrier)
    }

    fn make_ready(
        tracee: &mut Tracee,
        program: &Registers,
        maps: &[Mapping],
        suspend_seccomp: bool,
    ) -> Answer<(u64, Vec<u8>)> {
        if program.is_32_bit() {
            return Err(Error::Unsupported("it runs 32-bit code".into()).into());
        }
        let place = find_tail(tracee, maps)?;
        if suspend_seccomp {
            tracee.set_options(suspend()).map_err(|e| Refusal::Seccomp {
                why: format!(
                    "{e} (PTRACE_O_SUSPEND_SECCOMP takes CAP_SYS_ADMIN, and a kernel with CONFIG_CHECKPOINT_RESTORE)"
                ),
            })?;
        }
        Ok(place)
    }

    /// Where the remote calls may put what they pass by pointer: [`crate::remote::SCRATCH`] bytes of the program's memory.
    pub fn set_scratch(&mut self, at: u64) {
        self.scratch = at;
    }

    /// Makes what follows the system call lead to where the program is now.
    fn lay_way_back(&mut self) -> Result<()> {
        let mut program = self.program;
        if program.would_see_eintr() {
            program.call_again();
        }
        let mut tail = running::gadget(&program);
        tail.resize(TAIL - GADGET_AT - SIGN.len(), 0xcc);
        tail.extend(SIGN);
        self.thread.tracee.write(self.gadget, &tail)
    }

    /// Lets the program have a signal that was about to be delivered while its registers were ours.
    fn deliver(&mut self, signal: i32) -> Result<()> {
        self.thread.tracee.set_registers(&self.program)?;
        self.thread.tracee.interrupt()?;
        self.thread.tracee.resume(false, signal)?;
        (self.program, self.at) = stand(&self.thread.tracee)?;
        self.lay_way_back()
    }

    fn try_call(&mut self, registers: &Registers) -> Result<Option<Registers>> {
        self.thread.tracee.set_registers(registers)?;
        self.thread.tracee.resume(true, 0)?;
        loop {
            match self.thread.tracee.event(true)? {
                Some(Event::Exited) | None => return Err(Error::Gone),
                Some(Event::Signal(signal)) => {
                    self.deliver(signal)?;
                    return Ok(None);
                }
                Some(Event::Syscall) => {
                    let after = self.thread.tracee.registers()?;
                    let behind = self.gadget + self.abi.instruction() as u64;
                    if after.pc() == behind && self.thread.tracee.is_leaving_a_call()? {
                        return Ok(Some(after));
                    }
                }
                Some(Event::Trap | Event::JobStop | Event::Other) => {}
            }
            self.thread.tracee.resume(true, 0)?;
        }
    }

    /// Puts the program's registers in force again, and lets the thread go as it was found.
    pub fn finish(mut self) -> Result<()> {
        // From here the kernel would go on behind the call: into a stop where it still decides about the program's own one.
        self.thread.tracee.interrupt()?;
        self.thread.tracee.resume(false, 0)?;
        loop {
            match self.thread.tracee.event(true)? {
                Some(at @ (Event::Trap | Event::JobStop)) => {
                    self.at = at;
                    break;
                }
                Some(Event::Signal(signal)) => {
                    self.deliver(signal)?;
                    break;
                }
                Some(Event::Exited) | None => return Err(Error::Gone),
                Some(Event::Syscall | Event::Other) => self.thread.tracee.resume(false, 0)?,
            }
        }
        self.thread.tracee.set_registers(&self.program)?;
        self.thread.tracee.write(self.gadget, &self.displaced)?;
        self.thread.tracee.set_options(Options::empty())?;
        self.thread.go_on(self.at);
        Ok(())
    }
}

impl Remote for Carrier {
    fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64> {
        for _ in 0..MOST_SIGNALS {
            let number = self.abi.number(call);
            let registers = self
                .abi
                .call_registers(&self.program, self.gadget, self.program.sp(), number, args);
            if let Some(after) = self.try_call(&registers)? {
                return after.result().map_err(|errno| Error::Remote { what, errno });
            }
        }
        Err(Error::Unsupported(format!(
            "{what} in the program did not finish for signals"
        )))
    }

    fn scratch(&self) -> u64 {
        self.scratch
    }

    fn abi(&self) -> &'static dyn Abi {
        self.abi
    }

    fn tracee(&mut self) -> &mut Tracee {
        &mut self.thread.tracee
    }
}

/// Waits for a thread that was interrupted to stand in the stop that follows, and gives its registers there, and the stop. Signals that come before
/// are delivered.
fn stand(tracee: &Tracee) -> Result<(Registers, Event)> {
    let patience = threads::Patience::start();
    loop {
        match tracee.event(false)? {
            Some(at @ (Event::Trap | Event::JobStop)) => {
                let mut registers = tracee.registers()?;
                // By our calls the kernel would forget that it is in one: it begins anew, as it does whenever it has lost its CPU.
                if let Some(abort) = tracee.sequence_begins_anew_at(registers.pc()) {
                    registers.set_pc(abort);
                }
                return Ok((registers, at));
            }
            Some(Event::Signal(signal)) => tracee.resume(false, signal)?,
            Some(Event::Exited) => return Err(Error::Gone),
            Some(Event::Syscall | Event::Other) => tracee.resume(false, 0)?,
            None if patience.is_over() => {
                return Err(Error::Unsupported("the thread does not stop".into()));
            }
            None => threads::nap(),
        }
    }
}

/// PTRACE_O_SUSPEND_SECCOMP (ptrace(2)), which nix has no name for.
fn suspend() -> Options {
    Options::from_bits_retain(1 << 21)
}

/// Finds executable memory that nothing uses: the tail of a mapping's last page, behind the code of a file. The kernel's vDSO first: no
/// file's page gets copied for it.
fn find_tail(tracee: &mut Tracee, maps: &[Mapping]) -> Result<(u64, Vec<u8>)> {
    // Not of anonymous memory: what is unused there may be about to be used.
    let of_files = maps
        .iter()
        .filter(|m| m.executable && (m.inode != 0 || m.name == "[vdso]"));
    let ours = |m: &&Mapping| !m.name.starts_with("/memfd:fastpath");
    let (vdso, others): (Vec<_>, Vec<_>) = of_files.filter(ours).partition(|m| m.name == "[vdso]");
    for mapping in vdso.into_iter().chain(others) {
        let at = mapping.end - TAIL as u64;
        let mut bytes = [0; TAIL];
        if tracee.read(at, &mut bytes).is_err() {
            continue;
        }
        let is_unused = |bytes: &[u8]| [0, 0x90, 0xcc].iter().any(|pad| bytes.iter().all(|b| b == pad));
        let was_ours = bytes.ends_with(&SIGN) && is_unused(&bytes[..GADGET_AT]);
        if was_ours {
            // Left by a fastpath that died: whoever was on it has long gone back.
            let pad = bytes[0];
            bytes[GADGET_AT..].fill(pad);
        }
        if is_unused(&bytes) {
            return Ok((at + GADGET_AT as u64, bytes[GADGET_AT..].to_vec()));
        }
    }
    Err(Error::Unsupported(
        "no unused executable bytes in the program to make system calls from".into(),
    ))
}
