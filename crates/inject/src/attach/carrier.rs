//! One thread of a running target that makes system calls for the tracer, while all other threads run.
//!
//! The calls are made by a `syscall` instruction in the unused tail of an executable mapping. The code after it
//! restores every register and jumps back to where the thread was: if the tracer dies, the thread goes back by itself.
//! Neither the thread's stack nor its signal mask is touched (a goroutine's stack has no room, and a mask would stay
//! changed). A signal that arrives meanwhile is delivered at the program's own registers, as without a tracer, and the
//! call is made after it.
//!
//! Before and after the calls, the thread is in a stop from which the kernel itself decides how an interrupted system
//! call continues: it sees the registers as it left them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use fastpath_page::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::ptrace::Options;

use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread};
use super::threads;
use super::{checks, leftovers};
use crate::abi::{self, Abi, Call, Registers, running};
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::remote::Remote;
use crate::target::Status;
use crate::tracee::{Event, Tracee};

/// Bytes that must be unused at the end of a mapping; the gadget takes the middle.
pub const TAIL: usize = 192;
const SCRATCH_BYTES: u64 = 4096;
/// Offset of the gadget in the tail: the code before the tail keeps its padding.
const GADGET_AT: usize = 32;
/// Mark at the end of the tail while it is in use: it identifies the tail that a killed fastpath left behind. The
/// remote calls also use it as a name.
const SIGN: &[u8] = leftovers::SCRATCH_NAME.to_bytes_with_nul();
/// Timeout for a call, and for a thread's stop after one; on a busy machine the thread may have to wait for a CPU.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time that the program waits for remote calls before it runs for a while: the calls take milliseconds, on a busy
/// machine longer.
const AT_A_TIME: Duration = Duration::from_millis(40);
/// More signals in a row than a program lives with.
const MOST_SIGNALS: u32 = 1000;

/// A thread that makes calls.
pub struct Carrier<'s> {
    session: &'s Session<'s>,
    thread: Thread,
    abi: &'static dyn Abi,
    /// Program's own registers, as they were at the stop.
    program: Registers,
    /// Stop at which they were read.
    at: Event,
    gadget: u64,
    displaced: Vec<u8>,
    scratch: u64,
    /// The thread's registers must not be changed any more: another program may be running.
    is_lost: bool,
}

impl<'s> Carrier<'s> {
    /// Stops a thread of the process, one that is not in a system call if there is any.
    pub fn of(session: &'s Session<'s>, maps: &[Mapping]) -> Answer<Carrier<'s>> {
        let mut tries = threads::Tries::start();
        loop {
            let mut last = Refusal::Failed(Error::Gone);
            // Where the kernel does not report critical sections, a thread that may be in one comes last.
            for even_if_critical in [false, true] {
                let pid = session.pid();
                for tid in threads::by_convenience(pid)
                    .into_iter()
                    .filter(|tid| !checks::is_worker(pid, *tid))
                {
                    match Carrier::on(session, tid, maps, even_if_critical) {
                        Ok(Some(carrier)) => return Ok(carrier),
                        Ok(None) => {}
                        Err(refusal @ Refusal::Sealed { .. }) => return Err(refusal),
                        Err(refusal) => last = refusal,
                    }
                }
            }
            if !matches!(last, Refusal::DoesNotStop { .. }) || !tries.wait(session) {
                return Err(last);
            }
        }
    }

    /// Stops the thread `tid`. Returns `None` if it may be in a critical section and `even_if_critical` is false.
    fn on(session: &'s Session<'s>, tid: i32, maps: &[Mapping], even_if_critical: bool) -> Answer<Option<Carrier<'s>>> {
        // Before the thread stops: these reads may be slow.
        let (gadget, displaced) = find_tail(session.pid(), maps, session.tails_are_free.get())?;
        let mut thread = session.thread(tid)?;
        thread.tracee.interrupt()?;
        let (mut program, at) = match stand(session.pid(), &thread.tracee) {
            Ok(stands) => stands,
            Err(refusal) => {
                session.keep(thread);
                return Err(refusal);
            }
        };
        session.standing.begin();
        match make_ready(&mut thread.tracee, &mut program, even_if_critical) {
            Ok(true) => {}
            refused => {
                thread.go_on(at);
                session.standing.end();
                return refused.map(|_| None);
            }
        };
        let mut carrier = Carrier {
            session,
            abi: abi::of(&program),
            thread,
            program,
            at,
            gadget,
            displaced,
            scratch: 0,
            is_lost: false,
        };
        if let Err(e) = carrier.lay_way_back() {
            carrier.thread.go_on(at);
            return Err(Refusal::Sealed { why: e.to_string() });
        }
        Ok(Some(carrier))
    }

    /// Returns the process of the thread.
    pub fn process(&self) -> i32 {
        self.session.pid()
    }

    /// Returns the tail that the calls are made from.
    pub fn tail(&self) -> u64 {
        self.gadget - GADGET_AT as u64
    }

    /// Maps memory for what the remote calls pass by pointer. Its name identifies it if fastpath dies.
    pub fn map_scratch(&mut self) -> Result<()> {
        /// MFD_NOEXEC_SEAL, include/uapi/linux/memfd.h (Linux 6.3), which vm.memfd_noexec may require; older kernels do
        /// not know it.
        const NOT_EXECUTABLE: libc::c_uint = 8;
        let name = self.tail() + (TAIL - SIGN.len()) as u64;
        let mut make = |flags: libc::c_uint| {
            let arguments = [name, u64::from(flags), 0, 0, 0, 0];
            self.call("memfd_create", Call::MemfdCreate, arguments)
        };
        let fd = match make(libc::MFD_CLOEXEC | NOT_EXECUTABLE) {
            Err(Error::Remote {
                errno: Errno::EINVAL, ..
            }) => make(libc::MFD_CLOEXEC)?,
            made => made?,
        };
        let sized = self.thread.tracee.take_fd(fd as i32).and_then(|file| {
            let sized = std::fs::File::from(file).set_len(SCRATCH_BYTES);
            sized.map_err(|e| Error::io("memfd", e))
        });
        let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let arguments = [0, SCRATCH_BYTES, write, libc::MAP_PRIVATE as u64, fd, 0];
        let mapped = sized.and_then(|()| self.call("mmap", Call::Mmap, arguments));
        self.call("close", Call::Close, [fd, 0, 0, 0, 0, 0])?;
        self.scratch = mapped?;
        Ok(())
    }

    /// Unmaps the scratch memory.
    pub fn unmap_scratch(&mut self) -> Result<()> {
        self.call("munmap", Call::Munmap, [self.scratch, SCRATCH_BYTES, 0, 0, 0, 0])?;
        Ok(())
    }

    /// Writes the gadget: the code after its system call returns to where the program is now.
    fn lay_way_back(&mut self) -> Result<()> {
        let mut tail = running::gadget(&self.program);
        tail.resize(TAIL - GADGET_AT - SIGN.len(), 0xcc);
        tail.extend(SIGN);
        self.thread.tracee.write(self.gadget, &tail)
    }

    /// Delivers a signal that arrived while the registers were the tracer's.
    fn deliver(&mut self, signal: i32) -> Result<()> {
        self.thread.tracee.set_registers(&self.program)?;
        self.thread.tracee.interrupt()?;
        self.thread.tracee.resume(false, signal)?;
        self.take_up()
    }

    /// Lets the program run for a while if it has waited for long.
    fn breathe(&mut self) -> Result<()> {
        let stood = self.session.standing.elapsed();
        if stood < AT_A_TIME {
            return Ok(());
        }
        self.stand_where_it_was()?;
        self.thread.tracee.set_registers(&self.program)?;
        // The program's filters must apply to its own system calls.
        self.thread.tracee.set_options(Options::PTRACE_O_TRACEEXEC)?;
        threads::go_on(&self.thread.tracee, self.at, true);
        self.session.standing.end();
        let begun = Instant::now();
        while begun.elapsed() < stood {
            match self.thread.tracee.event(false)? {
                None => std::thread::sleep(Duration::from_micros(200)),
                Some(Event::Exited | Event::Exec) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                Some(event) => threads::go_on(&self.thread.tracee, event, true),
            }
            if !self.thread.is_held() {
                self.session.rest(Duration::ZERO);
            }
        }
        self.thread.tracee.interrupt()?;
        self.take_up()?;
        suspend_filters(&self.thread.tracee).map_err(to_error)
    }

    /// Waits for the requested stop; later calls are made from there.
    fn take_up(&mut self) -> Result<()> {
        let stands = stand(self.process(), &self.thread.tracee);
        self.is_lost = stands.is_err();
        (self.program, self.at) = stands.map_err(to_error)?;
        self.session.standing.begin();
        refuse_dispatcher(&self.thread.tracee)?;
        leave_critical_section(&mut self.thread.tracee, &mut self.program)?;
        self.lay_way_back()
    }

    /// Returns the address after the instruction that makes the remote calls.
    fn behind_call(&self) -> u64 {
        self.gadget + self.abi.instruction() as u64
    }

    fn try_call(&mut self, registers: &Registers) -> Result<Option<Registers>> {
        self.thread.tracee.set_registers(registers)?;
        self.thread.tracee.resume(true, 0)?;
        let mut begun = Instant::now();
        let mut was_asked = false;
        loop {
            match self.thread.tracee.event(false)? {
                None if begun.elapsed() <= PATIENCE => {
                    threads::nap(begun);
                    continue;
                }
                // Its stop shows where it is.
                None if !was_asked => {
                    self.thread.tracee.interrupt()?;
                    begun = Instant::now();
                    was_asked = true;
                    continue;
                }
                None => return Err(does_not_go_on()),
                Some(Event::Exited | Event::Exec) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                Some(Event::Signal(libc::SIGSYS)) if self.thread.tracee.call_was_dispatched(self.behind_call())? => {
                    // The program does not get this signal: the call was the tracer's.
                    self.thread.tracee.set_registers(&self.program)?;
                    return Err(dispatches_calls());
                }
                Some(Event::Signal(signal)) => {
                    self.deliver(signal)?;
                    return Ok(None);
                }
                Some(Event::Syscall) => {
                    let after = self.thread.tracee.registers()?;
                    if after.pc() == self.behind_call() && self.thread.tracee.is_leaving_a_call()? {
                        return Ok(Some(after));
                    }
                }
                Some(Event::Trap | Event::JobStop)
                    if was_asked && self.thread.tracee.registers()?.pc() == registers.pc() =>
                {
                    self.thread.tracee.set_registers(&self.program)?;
                    return Err(does_not_go_on());
                }
                Some(Event::Trap | Event::JobStop | Event::Other) => {}
            }
            self.thread.tracee.resume(true, 0)?;
        }
    }

    /// Restores the program's registers, and lets the thread go as it was found.
    pub fn finish(mut self) -> Result<()> {
        self.stand_where_it_was()?;
        self.thread.tracee.set_registers(&self.program)?;
        self.thread.tracee.write(self.gadget, &self.displaced)?;
        self.thread.tracee.set_options(Options::empty())?;
        self.thread.go_on(self.at);
        Ok(())
    }

    /// Brings the thread from after a remote call, where the kernel would go on, into a stop in which the kernel still
    /// decides about the program's own call.
    fn stand_where_it_was(&mut self) -> Result<()> {
        if self.is_lost {
            return Err(Error::Gone);
        }
        self.thread.tracee.interrupt()?;
        self.thread.tracee.resume(false, 0)?;
        let begun = Instant::now();
        loop {
            match self.thread.tracee.event(false)? {
                Some(at @ (Event::Trap | Event::JobStop)) => {
                    self.at = at;
                    break;
                }
                Some(Event::Signal(signal)) => {
                    self.deliver(signal)?;
                    break;
                }
                Some(Event::Exited | Event::Exec) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                Some(Event::Syscall | Event::Other) => self.thread.tracee.resume(false, 0)?,
                None if begun.elapsed() > PATIENCE => return Err(does_not_go_on()),
                None => threads::nap(begun),
            }
        }
        Ok(())
    }
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        self.session.standing.end();
    }
}

impl Remote for Carrier<'_> {
    fn call(&mut self, what: &'static str, call: Call, args: [u64; 6]) -> Result<u64> {
        self.breathe()?;
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

    fn note(&mut self, descriptors: [u64; 2]) -> Result<()> {
        leftovers::note(self, descriptors)
    }

    fn abi(&self) -> &'static dyn Abi {
        self.abi
    }

    fn tracee(&mut self) -> &mut Tracee {
        &mut self.thread.tracee
    }
}

/// Prepares a thread for remote calls: refuses one that cannot make them, aborts a critical section, and suspends
/// filters. Returns false if it may be in a critical section, unless `even_if_critical`.
fn make_ready(tracee: &mut Tracee, program: &mut Registers, even_if_critical: bool) -> Answer<bool> {
    if program.is_32_bit() {
        return Err(Error::Unsupported("it runs 32-bit code".into()).into());
    }
    refuse_dispatcher(tracee)?;
    if !leave_critical_section(tracee, program)? && !even_if_critical {
        return Ok(false);
    }
    suspend_filters(tracee)?;
    Ok(true)
}

/// Refuses a thread that handles its system calls itself: remote calls would go to its handler. If the thread blocks
/// SIGSYS, as in the handler, the kernel also resets the handler (force_sig_info_to_task in kernel/signal.c), and the
/// program's next call kills it.
fn refuse_dispatcher(tracee: &Tracee) -> Result<()> {
    match tracee.dispatches_calls()? {
        Some(false) => Ok(()),
        Some(true) => Err(dispatches_calls()),
        // A program without a handler does not dispatch, and one that does not block the signal loses no handler.
        None if Status::of(&tracee.pid().to_string())?.blocks_handled_sigsys => Err(dispatches_calls()),
        None => Ok(()),
    }
}

fn dispatches_calls() -> Error {
    Error::Unsupported("it handles system calls itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH)".into())
}

/// Suspends a thread's filters while it makes remote calls: each thread may have filters of its own.
fn suspend_filters(tracee: &Tracee) -> Answer<()> {
    let suspend = match Status::of(&tracee.pid().to_string())?.filters {
        0 => Options::empty(),
        _ => suspend(),
    };
    let set = tracee.set_options(suspend | Options::PTRACE_O_TRACEEXEC);
    set.map_err(|e| Refusal::Seccomp {
        why: format!("{e} (PTRACE_O_SUSPEND_SECCOMP takes CAP_SYS_ADMIN, and a kernel with CONFIG_CHECKPOINT_RESTORE)"),
    })
}

fn to_error(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Failed(e) => e,
        other => Error::Unsupported(other.to_string()),
    }
}

/// Aborts a restartable sequence (rseq(2)): the thread was interrupted, and must not continue the sequence after calls
/// from elsewhere. Returns whether the thread is known to be in none.
fn leave_critical_section(tracee: &mut Tracee, program: &mut Registers) -> Result<bool> {
    /// Offset of `start_ip` in struct rseq_cs (include/uapi/linux/rseq.h), after version and flags.
    const START_AT: u64 = 8;
    if program.is_in_call() {
        return Ok(true);
    }
    let Some(area) = tracee.rseq_area()? else {
        return Ok(false);
    };
    // No area is registered.
    if area == 0 {
        return Ok(true);
    }
    let section = tracee.read_words(area + 8, 1, 8)?[0];
    if section == 0 {
        return Ok(true);
    }
    let words = tracee.read_words(section + START_AT, 3, 8)?;
    if let [start, length, abort] = words[..]
        && program.pc().wrapping_sub(start) < length
    {
        program.set_pc(abort);
        tracee.set_registers(program)?;
    }
    Ok(true)
}

fn does_not_go_on() -> Error {
    Error::Unsupported("a thread of it does not go on (its cgroup is frozen, or it has no CPU); try again later".into())
}

/// Waits for an interrupted thread to stop, and returns its registers and the stop. Delivers signals that arrive
/// before.
fn stand(pid: i32, tracee: &Tracee) -> Answer<(Registers, Event)> {
    let patience = threads::Patience::start();
    loop {
        match tracee.event(false)? {
            Some(at @ (Event::Trap | Event::JobStop)) => return Ok((tracee.registers()?, at)),
            Some(Event::Signal(signal)) => tracee.resume(false, signal)?,
            Some(Event::Exited | Event::Exec) => return Err(Error::Gone.into()),
            Some(Event::Syscall | Event::Other) => tracee.resume(false, 0)?,
            None => patience.with_stop_of(pid, tracee.pid())?,
        }
    }
}

/// Returns PTRACE_O_SUSPEND_SECCOMP (ptrace(2)), which nix has no name for.
fn suspend() -> Options {
    Options::from_bits_retain(1 << 21)
}

/// Finds unused executable memory: the tail of a mapping's last page, after the code of a file. The kernel's vDSO comes
/// first, as no page of a file is copied for it. With `ours_are_free`, a tail that a killed fastpath left in use counts
/// as unused.
fn find_tail(pid: i32, maps: &[Mapping], ours_are_free: bool) -> Result<(u64, Vec<u8>)> {
    let tails = Tails::of(pid, maps);
    let mut places = tails.there.iter().chain(&tails.elsewhere);
    let free = places.find_map(|at| match tails.read(*at) {
        Tail::Unused(pad) => Some((*at, pad)),
        Tail::Ours(pad) if ours_are_free => Some((*at, pad)),
        _ => None,
    });
    let (at, pad) = free.ok_or_else(|| {
        Error::Unsupported("no unused executable bytes in the program to make system calls from".into())
    })?;
    Ok((at + GADGET_AT as u64, vec![pad; TAIL - GADGET_AT]))
}

/// Returns the tails in which a killed fastpath left its code, and the padding before that. Reads only pages that are
/// present: a page that was written to is the process's own copy, and reading others could wait for their file system.
pub fn tails_in_use(pid: i32, maps: &[Mapping]) -> Vec<(u64, u8)> {
    let tails = Tails::of(pid, maps);
    let ours = |at: &u64| match tails.read(*at) {
        Tail::Ours(pad) => Some((*at, pad)),
        _ => None,
    };
    tails.there.iter().filter_map(ours).collect()
}

/// Contents of the last bytes of a mapping.
enum Tail {
    Unused(u8),
    /// fastpath's code, and the padding before that.
    Ours(u8),
    Used,
}

/// Tails of a process's executable mappings of files.
struct Tails {
    memory: std::io::Result<File>,
    /// Tails in pages that are present, which are read without a wait.
    there: Vec<u64>,
    /// Tails that have to be read from the file system.
    elsewhere: Vec<u64>,
}

impl Tails {
    fn of(pid: i32, maps: &[Mapping]) -> Tails {
        // Not of anonymous memory: the program may be about to use the rest of it.
        let of_files = maps
            .iter()
            .filter(|m| m.executable && (m.inode != 0 || m.name == "[vdso]"));
        let ours = |m: &&Mapping| !m.name.starts_with("/memfd:fastpath");
        let (vdso, others): (Vec<_>, Vec<_>) = of_files.filter(ours).partition(|m| m.name == "[vdso]");
        let pagemap = File::open(format!("/proc/{pid}/pagemap"));
        let tail = |mapping: &Mapping| mapping.end - TAIL as u64;
        let (there, elsewhere) = others
            .into_iter()
            .map(tail)
            .partition::<Vec<_>, _>(|at| is_there(&pagemap, *at));
        Tails {
            memory: File::open(format!("/proc/{pid}/mem")),
            there: vdso.into_iter().map(tail).chain(there).collect(),
            elsewhere,
        }
    }

    fn read(&self, at: u64) -> Tail {
        let mut bytes = [0; TAIL];
        let memory = self.memory.as_ref();
        let is_read = memory.is_ok_and(|memory| memory.read_exact_at(&mut bytes, at).is_ok());
        let is_unused = |bytes: &[u8]| [0, 0x90, 0xcc].iter().any(|pad| bytes.iter().all(|b| b == pad));
        match is_read {
            true if is_unused(&bytes) => Tail::Unused(bytes[0]),
            true if bytes.ends_with(SIGN) && is_unused(&bytes[..GADGET_AT]) => Tail::Ours(bytes[0]),
            _ => Tail::Used,
        }
    }
}

/// Returns whether the page of an address is in memory or swapped out (Documentation/admin-guide/mm/pagemap.rst), and
/// true where that is unknown.
fn is_there(pagemap: &std::io::Result<File>, address: u64) -> bool {
    let mut entry = [0; 8];
    let read = pagemap.as_ref().ok().and_then(|pagemap| {
        let at = address / PAGE_SIZE as u64 * entry.len() as u64;
        pagemap.read_exact_at(&mut entry, at).ok()
    });
    read.is_none() || u64::from_ne_bytes(entry) >> 62 != 0
}
