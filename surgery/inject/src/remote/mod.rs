//! System calls made in a stopped thread of another program, such that the program survives if this process is killed
//! between any two steps.
//!
//! The calls are made by a system call instruction in the unused tail of an executable mapping ([`tail`]). The code
//! after it is the *return trampoline*: it restores every register that a remote call changes, and jumps to where the
//! thread was. The tracer stops the thread as it leaves the call. If the tracer dies, the kernel lets the thread run
//! on, and the thread returns by itself. Neither its stack nor its signal mask is touched: a goroutine's stack has no
//! room, and a mask would stay changed.
//!
//! A signal that arrives meanwhile is delivered at the program's own registers, as without a tracer, and the call is
//! made after it. Before and after the calls, the thread is in a stop from which the kernel itself decides how an
//! interrupted system call continues: it sees the registers as it left them.
//!
//! A program that is stopped at its exec and a thread of a running program differ in a [`Policy`] only.

pub mod apply;
mod batch;
mod counter;
pub mod descriptors;
pub mod mapping;
mod policy;
pub mod tail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::abi::{self, Abi, Call, Registers};
use crate::error::{Error, Result, tried};
use crate::target::maps::Mapping;
use crate::target::tracee::{CallResult, Stop, Tracee, Until};
use batch::Batch;
pub use batch::{End, Indirect, RemoteCall};
pub use policy::Policy;
use tail::Tail;

/// Size of the scratch memory on the stack, for what remote calls pass by pointer.
const SCRATCH_BYTES: u64 = batch::SCRATCH_BYTES.next_multiple_of(1024);
/// Size of the ABI's red zone below the stack pointer, which belongs to the program.
const RED_ZONE: u64 = 128;
/// More signals in a row than a program lives with.
const MOST_SIGNALS: u32 = 1000;
/// Time in which most threads stop and most calls are made: until then the waiting thread only yields its CPU. A sleep
/// takes at least as long.
const NAP: Duration = Duration::from_micros(100);

/// Waits a little for an event that was requested at `begun`.
pub fn nap(begun: Instant) {
    if begun.elapsed() < NAP {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

/// Policy for a program that has not run an instruction.
struct AtExec;

impl Policy for AtExec {}

/// A stopped thread that makes system calls for the tracer.
pub struct RemoteCalls<'t> {
    tracee: &'t mut Tracee,
    policy: &'t dyn Policy,
    abi: &'static dyn Abi,
    /// Program's own registers, as they were at the stop.
    program: Registers,
    /// Stop in which they were read.
    stop: Stop,
    tail: Tail,
    /// Tails that were used before. A caller may refer to what is in them until the end.
    left_tails: Vec<Tail>,
    scratch: u64,
    /// Loop for several calls at once, in a program at its exec.
    batch: Option<Batch>,
    /// Whether the tail has the return trampoline.
    is_ready: bool,
    /// Whether the thread has the registers `program`.
    is_program: bool,
    /// The thread's registers must not be changed any more: another program may be running.
    is_lost: bool,
}

/// Result of a try of a remote call.
enum Tried {
    Left(CallResult),
    /// A signal is about to be delivered instead: the call has not been made.
    Signal(i32),
}

/// Does `work` with remote calls in `tracee`, which is stopped at its exec, then restores its registers, whatever the
/// result. `reserve` bytes below the stack pointer stay free for the caller. `end` allows several calls at once.
pub fn at_exec<T>(
    tracee: &mut Tracee,
    maps: &[Mapping],
    reserve: u64,
    end: Option<End>,
    work: impl FnOnce(&mut RemoteCalls<'_>) -> Result<T>,
) -> Result<T> {
    let (memory, pid) = (tracee.memory()?, tracee.pid());
    let tail = match Tail::find(memory.clone(), pid, maps, false) {
        Ok(tail) => tail,
        Err(e) => {
            let tail = Tail::borrow(memory, pid, maps).ok_or(e)?;
            // If this process dies meanwhile, the program must not run: its code is not its own.
            tracee.set_options(Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL)?;
            let done = from_tail(tracee, tail.clone(), reserve, None, work);
            tail.erase()?;
            tracee.set_options(Options::PTRACE_O_TRACEEXEC)?;
            return done;
        }
    };
    from_tail(tracee, tail, reserve, end, work)
}

fn from_tail<T>(
    tracee: &mut Tracee,
    tail: Tail,
    reserve: u64,
    end: Option<End>,
    work: impl FnOnce(&mut RemoteCalls<'_>) -> Result<T>,
) -> Result<T> {
    let mut program = tracee.registers()?;
    program.end_exec();
    let mut calls = RemoteCalls::new(tracee, &AtExec, tail, program, Stop::Syscall);
    calls.scratch = (program.sp() - RED_ZONE - reserve - SCRATCH_BYTES) & !15;
    if !end.map_or(Ok(false), |end| calls.prepare_batch(end))? {
        // Remote calls one by one end in a stop of this kind.
        calls.tracee.interrupt()?;
        calls.tracee.resume(Until::Event, 0)?;
        calls.take_over()?;
    }
    let done = work(&mut calls);
    calls.finish()?;
    done
}

impl<'t> RemoteCalls<'t> {
    /// Prepares remote calls in a thread that is in `stop` with the registers `program`. Changes nothing that the
    /// program can see. On an error the thread has its own registers.
    pub fn begin(
        tracee: &'t mut Tracee,
        policy: &'t dyn Policy,
        tail: Tail,
        program: Registers,
        stop: Stop,
    ) -> Result<RemoteCalls<'t>> {
        let mut calls = RemoteCalls::new(tracee, policy, tail, program, stop);
        calls.write_trampoline().map(|()| calls)
    }

    fn new(
        tracee: &'t mut Tracee,
        policy: &'t dyn Policy,
        tail: Tail,
        program: Registers,
        stop: Stop,
    ) -> RemoteCalls<'t> {
        RemoteCalls {
            tracee,
            policy,
            abi: abi::for_registers(&program),
            program,
            stop,
            tail,
            left_tails: Vec::new(),
            scratch: 0,
            batch: None,
            is_ready: false,
            is_program: false,
            is_lost: false,
        }
    }

    /// Returns the program's kernel interface.
    pub fn abi(&self) -> &'static dyn Abi {
        self.abi
    }

    /// Returns the tracee, for access to its memory.
    pub fn tracee(&mut self) -> &mut Tracee {
        self.tracee
    }

    /// Returns the memory that the calls are made from.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Returns the address of memory that remote calls may use.
    pub fn scratch(&self) -> u64 {
        self.scratch
    }

    /// Changes the address of the scratch memory.
    pub fn set_scratch(&mut self, at: u64) {
        self.scratch = at;
    }

    /// Makes the program continue with another stack pointer once the calls are finished. If this process dies before,
    /// the program continues with its own.
    pub fn set_stack_pointer(&mut self, sp: u64) {
        self.is_program &= sp == self.program.sp();
        self.program.set_sp(sp);
    }

    /// Makes the program continue at `pc` with these arguments of a function once the calls are finished. If this process dies before,
    /// the program continues where it was.
    pub fn set_start(&mut self, pc: u64, [first, second]: [u64; 2]) {
        self.is_program = false;
        self.program = self
            .abi
            .call_registers(&self.program, pc, 0, [first, second, 0, 0, 0, 0]);
    }

    /// Makes one call, named `what` in errors.
    pub fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64> {
        if self.policy.must_run() {
            self.return_to_program()?;
            self.is_lost = true;
            self.policy.run(self.tracee, self.stop)?;
            self.take_over()?;
        }
        for _ in 0..MOST_SIGNALS {
            match self.try_call(self.abi.number(call), args)? {
                Tried::Left(result) => return result.map_err(|errno| Error::Remote { what, errno }),
                Tried::Signal(signal) => self.deliver(signal)?,
            }
        }
        Err(Error::Unsupported(format!(
            "{what} in the program did not finish for signals"
        )))
    }

    /// Closes a descriptor.
    pub fn close(&mut self, fd: u64) -> Result<()> {
        self.call("close", Call::Close, [fd, 0, 0, 0, 0, 0]).map(drop)
    }

    /// Unmaps memory.
    pub fn munmap(&mut self, at: u64, size: u64) -> Result<()> {
        self.call("munmap", Call::Munmap, [at, size, 0, 0, 0, 0]).map(drop)
    }

    /// Changes the thread's registers, unless it is lost: a caller that cleans up after an error makes more calls.
    fn set_registers(&mut self, registers: Registers) -> Result<()> {
        if self.is_lost {
            return Err(Error::Gone);
        }
        self.is_program = false;
        self.tracee.set_registers(&registers)
    }

    /// Writes the code of the calls, into a tail near the program's code.
    fn write_trampoline(&mut self) -> Result<()> {
        let pc = self.program.pc();
        let tails = self.policy.tails();
        if !tails.is_empty() && !self.abi.reaches(self.tail.code(), pc) {
            let near = tail::near(tails, self.abi, pc)?.clone();
            self.left_tails.push(std::mem::replace(&mut self.tail, near));
        }
        self.tail.write(&self.trampoline())?;
        self.is_ready = true;
        Ok(())
    }

    /// Returns the code in the tail.
    fn trampoline(&self) -> Vec<u8> {
        let back = self.abi.trampoline(&self.program, self.after_call());
        [self.abi.system_call(), &back].concat()
    }

    /// Returns the address after the instruction that makes the remote calls.
    fn after_call(&self) -> u64 {
        self.tail.code() + self.abi.system_call().len() as u64
    }

    /// Makes one call, of this number.
    fn try_call(&mut self, number: u64, args: [u64; 6]) -> Result<Tried> {
        if !self.is_ready {
            self.write_trampoline()?;
        }
        let registers = self.abi.call_registers(&self.program, self.tail.code(), number, args);
        self.set_registers(registers)?;
        // Traced by entry and exit, not by single steps: the kernel does not clear the trap flag when a tracer dies,
        // and it forces SIGTRAP on a program that ignores it.
        self.tracee.resume(Until::Syscall, 0)?;
        let timeout = self.policy.timeout();
        let mut begun = Instant::now();
        let mut was_asked = false;
        loop {
            match self.tracee.event(timeout.is_none())? {
                None if timeout.is_none_or(|timeout| begun.elapsed() <= timeout) => {
                    nap(begun);
                    continue;
                }
                // Its stop shows where it is.
                None if !was_asked => {
                    self.tracee.interrupt()?;
                    begun = Instant::now();
                    was_asked = true;
                    continue;
                }
                None => return Err(does_not_go_on()),
                Some(Stop::Exited | Stop::Exec) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                Some(Stop::Signal(signal)) => {
                    let refused = self.policy.refuse_signal(self.tracee, signal, self.after_call());
                    if let Err(refused) = refused {
                        self.set_own_registers()?;
                        return Err(refused);
                    }
                    return Ok(Tried::Signal(signal));
                }
                Some(Stop::Syscall) => match self.tracee.leaving_call()? {
                    Some(left) if left.pc == self.after_call() => {
                        // An AArch64 kernel shows the result of a 32-bit program with its sign.
                        let word = u64::MAX >> (64 - 8 * self.abi.word());
                        return Ok(Tried::Left(left.result.map(|result| result & word)));
                    }
                    _ => {}
                },
                Some(Stop::Interrupt | Stop::Group) if was_asked && self.tracee.registers()?.pc() == registers.pc() => {
                    self.set_own_registers()?;
                    return Err(does_not_go_on());
                }
                Some(Stop::Interrupt | Stop::Group | Stop::Other) => {}
            }
            self.tracee.resume(Until::Syscall, 0)?;
        }
    }

    /// Delivers a signal that arrived while the registers were the tracer's. In an interrupted call of the program's, the
    /// kernel decides how that ends.
    fn deliver(&mut self, signal: i32) -> Result<()> {
        let Some(last) = self.program.last_call() else {
            self.set_own_registers()?;
            self.tracee.interrupt()?;
            self.tracee.resume(Until::Event, signal)?;
            return self.take_over();
        };
        let mut held = VecDeque::from([(signal, self.signal_information()?)]);
        while let Some((signal, information)) = held.pop_front() {
            while let Some(other) = self.enter_own_call(last)? {
                held.push_back((other, self.signal_information()?));
            }
            self.is_lost = true;
            // It is sent again, without what it said of its sender.
            self.tracee.resume(Until::Event, signal)?;
            loop {
                match self.next_stop()? {
                    Stop::Signal(number) if number == signal => break,
                    stop => self.tracee.resume(Until::Event, stop.signal())?,
                }
            }
            ptrace::setsiginfo(Pid::from_raw(self.tracee.pid()), &information).map_err(tried("PTRACE_SETSIGINFO"))?;
            self.tracee.interrupt()?;
            self.tracee.resume(Until::Event, signal)?;
            self.take_over()?;
        }
        Ok(())
    }

    fn signal_information(&self) -> Result<libc::siginfo_t> {
        ptrace::getsiginfo(Pid::from_raw(self.tracee.pid())).map_err(tried("PTRACE_GETSIGINFO"))
    }

    /// Brings the thread to the exit of its own interrupted call, just before the kernel decides how that continues. A stop
    /// is requested. Returns a signal that comes first, if there is one.
    fn enter_own_call(&mut self, [number, first]: [u64; 2]) -> Result<Option<i32>> {
        match self.try_call(number, [first, 0, 0, 0, 0, 0])? {
            Tried::Signal(signal) => Ok(Some(signal)),
            Tried::Left(_) => {
                // In this order: the kernel looks at the result only if it has something to do besides.
                self.tracee.interrupt()?;
                self.set_registers(self.program)?;
                Ok(None)
            }
        }
    }

    /// Restores the program's registers where the kernel does not look at an interrupted call any more.
    fn set_own_registers(&mut self) -> Result<()> {
        match self.program.last_call() {
            Some(_) => self.set_registers(self.program.continuing()),
            None => self.set_registers(self.program),
        }
    }

    /// Waits for the requested stop; later calls are made from there.
    fn take_over(&mut self) -> Result<()> {
        let stopped = self.policy.wait_for_interrupt(self.tracee);
        self.is_lost = stopped.is_err();
        (self.program, self.stop) = stopped?;
        self.policy.prepare(self.tracee, &mut self.program)?;
        self.write_trampoline()
    }

    /// Waits for the thread's next stop.
    fn next_stop(&mut self) -> Result<Stop> {
        let timeout = self.policy.timeout();
        let begun = Instant::now();
        loop {
            match self.tracee.event(timeout.is_none())? {
                Some(Stop::Exited | Stop::Exec) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                Some(stop) => return Ok(stop),
                None if timeout.is_some_and(|timeout| begun.elapsed() > timeout) => return Err(does_not_go_on()),
                None => nap(begun),
            }
        }
    }

    /// Brings the thread from after a remote call, where the kernel would go on, into a stop in which the kernel still
    /// decides about the program's own call, with its registers.
    fn return_to_program(&mut self) -> Result<()> {
        if self.is_lost {
            return Err(Error::Gone);
        }
        if let Some(last) = self.program.last_call() {
            if let Some(signal) = self.enter_own_call(last)? {
                self.deliver(signal)?;
                return self.return_to_program();
            }
            self.tracee.resume(Until::Event, 0)?;
            loop {
                match self.next_stop()? {
                    stop @ (Stop::Interrupt | Stop::Group) => {
                        self.stop = stop;
                        return Ok(());
                    }
                    stop => self.tracee.resume(Until::Event, stop.signal())?,
                }
            }
        }
        self.tracee.interrupt()?;
        self.tracee.resume(Until::Event, 0)?;
        loop {
            match self.next_stop()? {
                stop @ (Stop::Interrupt | Stop::Group) => {
                    self.stop = stop;
                    break;
                }
                Stop::Signal(signal) => {
                    self.deliver(signal)?;
                    break;
                }
                _ => self.tracee.resume(Until::Event, 0)?,
            }
        }
        self.set_registers(self.program)
    }

    /// Restores the program's registers and the tail. The thread is then in the stop that this returns.
    pub fn finish(mut self) -> Result<Stop> {
        match &self.batch {
            // The program has not begun: there is no call of its own whose continuation the kernel could decide.
            Some(batch) if !self.is_lost => {
                let code = batch.code();
                if !self.is_program {
                    self.set_registers(self.program)?;
                }
                if self.is_ready {
                    self.tail.erase_from(code)?;
                }
            }
            _ => {
                self.return_to_program()?;
                self.left_tails.iter().try_for_each(Tail::erase)?;
                self.tail.erase()?;
            }
        }
        Ok(self.stop)
    }
}

fn does_not_go_on() -> Error {
    Error::Unsupported("a thread of it does not go on (its cgroup is frozen, or it has no CPU); try again later".into())
}
