//! The loop that handles every stop of every guest.

use std::collections::HashMap;

use fastpath_image::Isa;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::getevent;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::answers::Process;
use crate::arch;
use crate::auxv;
use crate::call::Call;
use crate::change::Change;
use crate::guest::Outcome;
use crate::memory::Memory;
use crate::policy;
use crate::ptrace::{self, SystemCall, Wait};
use crate::remote::RemoteCalls;
use crate::report::Report;
use crate::sites::Files;
use crate::vdso::{Advice, HostedVdso};

/// One thread of a guest.
#[derive(Clone, Copy)]
struct Thread {
    /// Its process.
    process: Pid,
    /// Address of the image in its process.
    image: Option<u64>,
    /// The clock that it is reading by a system call, from the entry to the exit.
    clock: Option<i32>,
    /// A new program has been loaded; the exit of that execve comes next, and then its first instruction.
    new_program: bool,
    /// It stopped before the event of its parent's fork, and waits for that event.
    early: bool,
    /// It is mapping code of a file.
    maps_code: bool,
    /// What its system call changes, and the process whose answers that are.
    change: Option<(Pid, Change)>,
}

impl Thread {
    fn new(process: Pid) -> Thread {
        Thread {
            process,
            image: None,
            clock: None,
            new_program: false,
            early: false,
            maps_code: false,
            change: None,
        }
    }
}

/// A running sandbox.
pub struct Tracer {
    first: Pid,
    vdso: Option<HostedVdso>,
    log: bool,
    threads: HashMap<Pid, Thread>,
    /// Processes with answers.
    processes: HashMap<Pid, Process>,
    /// Processes that use another one's memory, and that one.
    borrowers: HashMap<Pid, Pid>,
    files: Files,
    report: Report,
}

impl Tracer {
    /// Makes a tracer for a guest that is seized and waits for its exec.
    pub fn new(first: Pid, vdso: Option<HostedVdso>, log: bool) -> Tracer {
        Tracer {
            first,
            vdso,
            log,
            threads: HashMap::from([(first, Thread::new(first))]),
            processes: HashMap::new(),
            borrowers: HashMap::new(),
            files: Files::default(),
            report: Report::default(),
        }
    }

    /// Returns the counters so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Runs until the last guest has ended. Returns how the first did.
    pub fn run(&mut self) -> nix::Result<Outcome> {
        let mut outcome = Outcome::Killed(libc::SIGKILL);
        loop {
            let status = match ptrace::wait(None) {
                Err(Errno::ECHILD) => return Ok(outcome),
                Err(Errno::EINTR) => continue,
                status => status?,
            };
            match status {
                Wait::Exited(guest, code) => {
                    self.ended(guest);
                    if guest == self.first {
                        outcome = Outcome::Exited(code);
                    }
                }
                Wait::Signaled(guest, signal) => {
                    self.ended(guest);
                    if guest == self.first {
                        outcome = Outcome::Killed(signal);
                    }
                }
                status => match self.stopped(status) {
                    // Killed while it was stopped: its end is reported next.
                    Err(Errno::ESRCH) => {}
                    done => done?,
                },
            }
        }
    }

    fn stopped(&mut self, status: Wait) -> nix::Result<()> {
        match status {
            Wait::SystemCall(guest) => {
                self.at_system_call(guest)?;
                ptrace::resume(guest, 0)
            }
            Wait::Stopped(guest, signal) => ptrace::resume(guest, signal),
            Wait::Event(guest, signal, event) => self.at_event(guest, signal, event),
            _ => Ok(()),
        }
    }

    fn at_event(&mut self, guest: Pid, signal: i32, event: i32) -> nix::Result<()> {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                // Only this thread of its process is left, and it has taken the first thread's number.
                let former = Pid::from_raw(getevent(guest)? as i32);
                self.ended(former);
                self.ended(guest);
                let new = Thread {
                    new_program: true,
                    ..Thread::new(guest)
                };
                self.threads.insert(guest, new);
                ptrace::resume(guest, 0)
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let child = Pid::from_raw(getevent(guest)? as i32);
                let new = self.forked(guest, child);
                if self.threads.insert(child, new).is_some_and(|child| child.early) {
                    ptrace::resume(child, 0)?;
                }
                ptrace::resume(guest, 0)
            }
            libc::PTRACE_EVENT_STOP if !self.threads.contains_key(&guest) => {
                let early = Thread {
                    early: true,
                    ..Thread::new(guest)
                };
                self.threads.insert(guest, early);
                Ok(())
            }
            libc::PTRACE_EVENT_STOP if is_job_control(signal) => ptrace::listen(guest),
            _ => ptrace::resume(guest, 0),
        }
    }

    fn at_system_call(&mut self, guest: Pid) -> nix::Result<()> {
        match ptrace::system_call(guest)? {
            SystemCall::Entry { audit_arch, nr, args } => {
                let known = if audit_arch == Isa::HOST.audit_arch() {
                    arch::number(nr)
                } else {
                    None
                };
                let call = Call {
                    sysno: known.and_then(Sysno::new),
                    args,
                };
                self.at_entry(guest, &call)
            }
            SystemCall::Exit { pc, result } => {
                let thread = self.threads.entry(guest).or_insert_with(|| Thread::new(guest));
                if let Some((process, change)) = thread.change.take() {
                    self.changed(guest, process, change, result);
                }
                let thread = self.threads.entry(guest).or_insert_with(|| Thread::new(guest));
                if let Some(image) = thread
                    .image
                    .filter(|_| std::mem::take(&mut thread.maps_code) && result > 0)
                {
                    self.lead(guest, image, &[result as u64]);
                }
                let thread = self.threads.entry(guest).or_insert_with(|| Thread::new(guest));
                if std::mem::take(&mut thread.new_program) {
                    self.at_first_instruction(guest);
                } else if let Some(clock) = thread.clock.take() {
                    let image = thread.image;
                    self.after_clock_call(image, pc, clock);
                }
                Ok(())
            }
            SystemCall::None => Ok(()),
        }
    }

    fn at_entry(&mut self, guest: Pid, call: &Call) -> nix::Result<()> {
        self.report.calls += 1;
        let clock = call.clock();
        self.report.clock_calls += u64::from(clock.is_some());
        self.threads.entry(guest).or_insert_with(|| Thread::new(guest)).clock = clock;
        if let Some(errno) = policy::refusal(call, guest, self.vdso.is_some()) {
            self.report.refused += 1;
            if self.log {
                let name = call.sysno.map_or("unknown system call", |sysno| sysno.name());
                eprintln!("sandbox: {guest}: {name} refused: {}", errno.desc());
            }
            return arch::refuse(guest, errno);
        }
        let thread = self.threads.entry(guest).or_insert_with(|| Thread::new(guest));
        thread.maps_code = call.sysno == Some(Sysno::mmap)
            && call.args[2] & libc::PROT_EXEC as u64 != 0
            && call.args[3] & libc::MAP_ANONYMOUS as u64 == 0;
        self.changes(guest, call);
        Ok(())
    }

    /// Takes back the answers that a call is going to change. A guest whose memory cannot be written is about to end, or
    /// has unmapped its answers.
    fn changes(&mut self, guest: Pid, call: &Call) {
        let Some(change) = Change::from_call(call, || Memory::open(guest)) else {
            return;
        };
        let Some(thread) = self.threads.get_mut(&guest) else {
            return;
        };
        let target = Change::target(call, thread.process);
        thread.change = Some((target, change));
        if let Some(process) = self.processes.get_mut(&target) {
            let _ = process.before(guest, change);
        }
        self.borrowed_memory_changes(target, change);
    }

    /// Writes the answers that a call has changed.
    fn changed(&mut self, guest: Pid, target: Pid, change: Change, result: i64) {
        if let Some(process) = self.processes.get_mut(&target) {
            let _ = process.after(guest, change, result);
        }
        self.borrowed_memory_changes(target, change);
    }

    fn borrowed_memory_changes(&mut self, borrower: Pid, change: Change) {
        let owner = self.borrowers.get(&borrower).filter(|_| change == Change::Memory);
        if let Some(owner) = owner.and_then(|owner| self.processes.get_mut(owner)) {
            let _ = owner.memory_changes();
        }
    }

    /// Returns a new thread, in this process or in a new one. It has not run an instruction.
    fn forked(&mut self, parent: Pid, child: Pid) -> Thread {
        let Some(parent) = self.threads.get(&parent).copied() else {
            return Thread::new(child);
        };
        let change = parent.change.map(|(_, change)| change);
        let process = if change == Some(Change::Threads) {
            parent.process
        } else {
            child
        };
        let owner = self.borrowers.get(&parent.process).copied().unwrap_or(parent.process);
        match change {
            Some(Change::Threads) => {}
            Some(Change::LendMemory { .. }) => {
                self.borrowers.insert(child, owner);
            }
            _ => {
                let shares_descriptors = change == Some(Change::ShareDescriptors);
                let of_parent = self.processes.get(&parent.process);
                if let Some(Ok(process)) = of_parent.map(|of_parent| of_parent.forked(child, shares_descriptors)) {
                    self.processes.insert(child, process);
                }
            }
        }
        Thread {
            image: parent.image,
            ..Thread::new(process)
        }
    }

    /// Leads the system calls of the files that are mapped at these addresses to the image. A file for which that fails
    /// makes its calls as before.
    fn lead(&mut self, guest: Pid, image: u64, addresses: &[u64]) {
        let Some(vdso) = &self.vdso else { return };
        let mut lead = || {
            let memory = Memory::open(guest)?;
            let mut remote = RemoteCalls::begin_before(guest, &memory, vdso.behind_a_call(image))?;
            let entry = vdso.entry(image);
            for address in addresses {
                let led = self.files.lead(guest, &memory, *address, entry, &mut remote);
                self.report.led += led.unwrap_or_default();
            }
            remote.finish()
        };
        if let Err(error) = lead()
            && self.log
        {
            eprintln!("sandbox: {guest}: its system calls are not led to the image: {error}");
        }
    }

    /// Forgets a thread that has ended, or the process whose first thread it was.
    fn ended(&mut self, guest: Pid) {
        let thread = self.threads.remove(&guest);
        self.processes.remove(&guest);
        self.borrowers.remove(&guest);
        if let Some((target, _)) = thread.and_then(|thread| thread.change)
            && let Some(process) = self.processes.get_mut(&target)
        {
            process.ended(guest);
        }
    }

    /// Updates the page if the guest's slow path shows that it needs a sample.
    fn after_clock_call(&mut self, image: Option<u64>, pc: u64, clock: i32) {
        let (Some(vdso), Some(image)) = (&self.vdso, image) else {
            return;
        };
        self.report.from_image += u64::from(vdso.is_own_call(image, pc));
        match vdso.refresh_after(image, pc, clock) {
            Advice::LeaveAlone => {}
            Advice::Seed => self.report.seeds += 1,
            Advice::Refresh => self.report.refreshes += 1,
        }
    }

    /// Gives a new program the sandbox's vDSO, or none. Never the kernel's, whose answers would not stop.
    fn at_first_instruction(&mut self, guest: Pid) {
        let install = || {
            let memory = Memory::open(guest)?;
            let image = match &self.vdso {
                Some(vdso) => vdso.map_into(guest, &memory).map(Some),
                None => Ok(None),
            };
            let lead = |to| auxv::point_to(to, guest, &memory).map(|()| to);
            match image {
                Ok(image) => lead(image),
                Err(error) => {
                    eprintln!(
                        "sandbox: {guest}: the vDSO cannot be mapped into this guest ({error}): each of its clock reads stops"
                    );
                    lead(None)
                }
            }
        };
        match install() {
            Ok(image) => {
                self.threads.entry(guest).or_insert_with(|| Thread::new(guest)).image = image;
                let is_first = guest == self.first;
                let process = image.map(|image| Process::new(guest, HostedVdso::answers_at(image), is_first));
                if let Some(image) = image {
                    // The program and its interpreter.
                    let code = fastpath_os::maps::read(guest).unwrap_or_default();
                    let code = code
                        .iter()
                        .filter(|mapping| mapping.executable)
                        .map(|mapping| mapping.start);
                    self.lead(guest, image, &code.collect::<Vec<_>>());
                }
                match process {
                    Some(Ok(process)) => drop(self.processes.insert(guest, process)),
                    Some(Err(error)) => eprintln!("sandbox: {guest}: its answers cannot be written: {error}"),
                    None => {}
                }
            }
            Err(error) => eprintln!("sandbox: {guest}: its stack cannot be prepared: {error}"),
        }
    }
}

fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}
