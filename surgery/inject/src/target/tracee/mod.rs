//! One traced thread, seen through ptrace(2) and /proc/PID/mem.

mod state;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, WaitOptions, WaitStatus};

use crate::abi::host::running;
use crate::abi::{self, Call, Registers};
use crate::error::{Error, Result, tried};
use crate::target::maps;
use crate::target::memory::Memory;
pub use state::CallResult;

/// State change of a traced thread, with signals by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// PTRACE_EVENT_EXEC: its program has been replaced (execve(2)), and the next one has not run an instruction. Only
    /// if the options request it.
    Exec,
    /// Entry to or exit from a system call (only while it is resumed to one).
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// PTRACE_EVENT_STOP: stopped, as requested, where the kernel would return to the program.
    Interrupt,
    /// The same where the thread would be stopped without a tracer as well: a group-stop, by job control.
    Group,
    /// Another event that the options request.
    Other,
    /// The thread has ended.
    Exited,
}

impl Stop {
    fn from_status(status: WaitStatus) -> Stop {
        let status = status.as_raw();
        if !libc::WIFSTOPPED(status) {
            return Stop::Exited;
        }
        match (status >> 16, libc::WSTOPSIG(status)) {
            (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Stop::Interrupt,
            (libc::PTRACE_EVENT_STOP, _) => Stop::Group,
            (libc::PTRACE_EVENT_EXEC, _) => Stop::Exec,
            // PTRACE_O_TRACESYSGOOD
            (0, signal) if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            (0, signal) => Stop::Signal(signal),
            _ => Stop::Other,
        }
    }

    /// Returns the signal that is about to be delivered; 0: none.
    pub fn signal(self) -> i32 {
        if let Stop::Signal(signal) = self { signal } else { 0 }
    }
}

/// Point at which a traced thread resumes until.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The next event that the options request.
    Event,
    /// The same, or the entry to or the exit from a system call.
    Syscall,
}

/// A thread that this thread traces.
pub struct Tracee {
    pid: Pid,
    /// Process that it belongs to.
    process: i32,
    memory: Option<Rc<Memory>>,
    /// Its registers, if they were read since it stopped.
    registers: Cell<Option<Registers>>,
    /// Call in which it was when it was last asked to stop, if the registers do not show that.
    pub interrupted_call: Cell<Option<running::OpenCall>>,
}

impl Tracee {
    /// Starts to trace the thread `tid` of `process` without stopping it (PTRACE_SEIZE), with these options and
    /// PTRACE_O_TRACESYSGOOD. If this process dies, the kernel lets the thread go on.
    pub fn seize(process: i32, tid: i32, options: Options) -> Result<Tracee> {
        let tracee = Tracee::already(process, tid);
        let options = options | Options::PTRACE_O_TRACESYSGOOD;
        ptrace::seize(tracee.pid, options).map_err(tried("PTRACE_SEIZE"))?;
        Ok(tracee)
    }

    /// Returns a tracee for a thread that this thread traces already.
    pub fn already(process: i32, tid: i32) -> Tracee {
        Tracee {
            pid: Pid::from_raw(tid),
            process,
            memory: None,
            registers: Cell::new(None),
            interrupted_call: Cell::new(None),
        }
    }

    /// Returns the thread id, in the PID namespace of this process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns the process id.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Changes the ptrace options; adds PTRACE_O_TRACESYSGOOD. The thread must be stopped.
    pub fn set_options(&self, options: Options) -> Result<()> {
        let options = options | Options::PTRACE_O_TRACESYSGOOD;
        ptrace::setoptions(self.pid, options).map_err(tried("PTRACE_SETOPTIONS"))
    }

    /// Waits for the next stop of any thread that this thread traces. An exec changes the id of a thread that was not
    /// its group's leader, so this updates the tracee's id.
    pub fn wait(&mut self) -> Result<Stop> {
        /// wait(2), __WALL and __WNOTHREAD.
        const OF_THIS_THREAD: u32 = 0x6000_0000;
        let options = WaitOptions::from_bits_retain(OF_THIS_THREAD);
        let waited = rustix::io::retry_on_intr(|| rustix::process::wait(options)).map_err(tried("wait"))?;
        let (pid, status) = waited.ok_or(Error::Gone)?;
        let stop = Stop::from_status(status);
        if self.pid() != pid.as_raw_pid() || stop == Stop::Exec {
            *self = Tracee::already(pid.as_raw_pid(), pid.as_raw_pid());
        }
        Ok(stop)
    }

    /// Returns the next stop of this thread only; `None` if there is none yet and `wait` is false. If the stop ended a
    /// system call with EINTR, makes the kernel restart that call at once: if the tracer died first, the program would
    /// see an EINTR that it would not have seen without a tracer.
    pub fn event(&self, wait: bool) -> Result<Option<Stop>> {
        Ok(self.event_with_registers(wait)?.map(|(stop, _)| stop))
    }

    /// Returns the next stop as [`Tracee::event`] does, and the registers with which the program will go on from a stop
    /// that does not end a system call of the tracer's; `None` for another stop, or if the thread has been killed since.
    pub fn event_with_registers(&self, wait: bool) -> Result<Option<(Stop, Option<Registers>)>> {
        let Some(mut stop) = self.next_event(wait)? else {
            return Ok(None);
        };
        let mut registers = None;
        if let Stop::Interrupt | Stop::Group | Stop::Signal(_) = stop {
            registers = match self.registers() {
                Ok(registers) => Some(registers),
                // The thread has been killed since its stop; its end is the next event.
                Err(Error::Gone) => None,
                Err(e) => return Err(e),
            };
            if let Some(registers) = &mut registers {
                stop = running::undo_interruption(self, stop, registers)?;
            }
        }
        Ok(Some((stop, registers)))
    }

    /// Returns the next stop as the kernel reports it.
    pub fn next_event(&self, wait: bool) -> Result<Option<Stop>> {
        let any_kind = WaitOptions::from_bits_retain(libc::__WALL as u32);
        let options = if wait { any_kind } else { any_kind | WaitOptions::NOHANG };
        let pid = rustix::process::Pid::from_raw(self.pid());
        match rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, options)) {
            Ok(waited) => Ok(waited.map(|(_, status)| Stop::from_status(status))),
            // Its process ended, or replaced its program, and another thread of this process has waited for it.
            Err(rustix::io::Errno::CHILD) => Ok(Some(Stop::Exited)),
            Err(e) => Err(tried("waitpid")(e)),
        }
    }

    /// Waits for the stop that [`Tracee::interrupt`] requested; signals that arrive before are delivered. `Err(Gone)`
    /// if the thread ends, or executes another program. `nap` is called while nothing happens, and may end the wait by
    /// an error; `None` waits in the kernel instead.
    pub fn wait_for_interrupt<E: From<Error>>(
        &self,
        nap: Option<&dyn Fn() -> std::result::Result<(), E>>,
    ) -> std::result::Result<(Registers, Stop), E> {
        loop {
            match (self.event(nap.is_none())?, nap) {
                (Some(stop @ (Stop::Interrupt | Stop::Group)), _) => return Ok((self.registers()?, stop)),
                (Some(Stop::Exited | Stop::Exec), _) => return Err(Error::Gone.into()),
                (Some(stop), _) => self.resume(Until::Event, stop.signal())?,
                (None, Some(nap)) => nap()?,
                (None, None) => {}
            }
        }
    }

    /// Makes a ptrace(2) request whose arguments are integers.
    fn request(&self, what: &'static str, request: libc::c_uint, data: i32) -> Result<()> {
        self.registers.set(None);
        // SAFETY: the callers' requests (PTRACE_CONT, PTRACE_SYSCALL, PTRACE_LISTEN, PTRACE_DETACH) take the data as a
        // number, and access no memory of this process.
        let r = unsafe { libc::ptrace(request, self.pid(), 0usize, data as usize) };
        Errno::result(r).map(drop).map_err(tried(what))
    }

    /// Makes a ptrace(2) request by which the kernel describes the thread: it takes the size of a buffer of words, and
    /// writes at most that. Returns the words, or the errno.
    fn describe<const WORDS: usize>(&self, request: libc::c_uint) -> std::result::Result<[u64; WORDS], Errno> {
        let mut words = [0u64; WORDS];
        let size = size_of_val(&words);
        // SAFETY: the requests that are made here write at most `size` bytes at the pointer, and `words` has that size.
        let r = unsafe { libc::ptrace(request, self.pid(), size, words.as_mut_ptr()) };
        Errno::result(r).map(|_| words)
    }

    /// Lets the thread run, delivering `signal` (0: none).
    pub fn resume(&self, until: Until, signal: i32) -> Result<()> {
        match until {
            Until::Event => self.request("PTRACE_CONT", libc::PTRACE_CONT, signal),
            Until::Syscall => self.request("PTRACE_SYSCALL", libc::PTRACE_SYSCALL, signal),
        }
    }

    /// Leaves it stopped by job control, as it would be without a tracer, and still reports SIGCONT.
    pub fn listen(&self) -> Result<()> {
        self.request("PTRACE_LISTEN", libc::PTRACE_LISTEN as libc::c_uint, 0)
    }

    /// Asks a running thread to stop.
    pub fn interrupt(&self) -> Result<()> {
        self.interrupted_call.set(running::open_call(self));
        ptrace::interrupt(self.pid).map_err(tried("PTRACE_INTERRUPT"))
    }

    /// Stops tracing; the thread goes on, with `signal` (0: none) if it is in a signal-delivery-stop.
    pub fn detach(&self, signal: i32) -> Result<()> {
        self.request("PTRACE_DETACH", libc::PTRACE_DETACH, signal)
    }

    /// Returns its general registers.
    pub fn registers(&self) -> Result<Registers> {
        let registers = self.registers.get().map_or_else(|| Registers::read(self.pid), Ok)?;
        self.registers.set(Some(registers));
        Ok(registers)
    }

    /// Changes its general registers.
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        self.registers.set(None);
        registers.apply(self.pid)
    }

    /// Returns its memory, which all threads of its process share.
    pub fn memory(&mut self) -> Result<Rc<Memory>> {
        if let Some(memory) = &self.memory {
            return Ok(memory.clone());
        }
        let memory = Rc::new(Memory::writable(self.pid())?);
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    /// Reads its memory; all of `bytes` or an error.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory()?.read(address, bytes)
    }

    /// Reads pieces of its memory, each a start and a number of bytes: all of them or an error. They are one call where
    /// process_vm_readv(2) may read them.
    pub fn read_each(&mut self, pieces: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let remote = pieces.iter().map(|(at, len)| RemoteIoVec {
            base: *at as usize,
            len: *len,
        });
        let mut all = vec![0; pieces.iter().map(|piece| piece.1).sum()];
        if self.read_pieces(&mut all, &remote.collect::<Vec<_>>()) < all.len() {
            let memory = self.memory()?;
            return pieces.iter().map(|(at, len)| memory.bytes(*at, *len)).collect();
        }
        let mut rest = &all[..];
        let mut next = |len: usize| {
            let (piece, behind) = rest.split_at(len);
            rest = behind;
            piece.to_vec()
        };
        Ok(pieces.iter().map(|(_, len)| next(*len)).collect())
    }

    /// Writes its memory, read-only pages included (a private page is copied for it first).
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory()?.write(address, bytes)
    }

    /// Reads little-endian words of `size` bytes, 4 or 8.
    pub fn read_words(&mut self, address: u64, count: usize, size: usize) -> Result<Vec<u64>> {
        let bytes = self.memory()?.bytes(address, count * size)?;
        let widen = |word: &[u8]| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(bytes.chunks_exact(size).map(widen).collect())
    }

    /// Duplicates its file descriptor `fd` into this process (pidfd_getfd(2), Linux 5.6).
    pub fn take_fd(&self, fd: i32) -> Result<OwnedFd> {
        let process = rustix::process::Pid::from_raw(self.process).ok_or(Error::Gone)?;
        let pidfd = rustix::process::pidfd_open(process, PidfdFlags::empty()).map_err(tried("pidfd_open"))?;
        rustix::process::pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).map_err(tried("pidfd_getfd"))
    }

    /// Ends a program that has not run an instruction, with an exit status. Its memory may be overwritten. The end of a
    /// call that it was in, as of its execve, changes the registers once more.
    pub fn exit(&mut self, status: u8) -> Result<()> {
        const MOST_STOPS: usize = 8;
        let mut is_entering = false;
        for _ in 0..MOST_STOPS {
            if !is_entering {
                let registers = self.registers()?;
                let abi = abi::for_registers(&registers);
                let at = match self.write(registers.pc(), abi.system_call()) {
                    Ok(()) => registers.pc(),
                    // The kernel lets no process write code (proc_mem.force_override).
                    Err(e) => self.system_call_of_vdso(abi.system_call()).ok_or(e)?,
                };
                let arguments = [u64::from(status), 0, 0, 0, 0, 0];
                let call = abi.number(Call::ExitGroup);
                self.set_registers(&abi.call_registers(&registers, at, call, arguments))?;
            }
            self.resume(Until::Syscall, 0)?;
            match self.wait()? {
                Stop::Exited => return Ok(()),
                stop => is_entering = stop == Stop::Syscall && self.leaving_call()?.is_none(),
            }
        }
        Err(Error::Unsupported("it does not leave by exit_group".into()))
    }

    /// Returns the address of a system call instruction in its vDSO.
    fn system_call_of_vdso(&mut self, instruction: &[u8]) -> Option<u64> {
        let maps = maps::read(self.pid()).ok()?;
        let vdso = maps.iter().find(|mapping| mapping.name == "[vdso]")?;
        let code = self
            .memory()
            .ok()?
            .bytes(vdso.start, (vdso.end - vdso.start) as usize)
            .ok()?;
        let at = code.windows(instruction.len()).position(|bytes| bytes == instruction)?;
        Some(vdso.start + at as u64)
    }
}
