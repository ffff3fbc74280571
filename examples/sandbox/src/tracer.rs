//! The loop that handles every stop of every guest.

use std::collections::HashMap;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::getevent;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::arch;
use crate::auxv;
use crate::call::Call;
use crate::guest::Outcome;
use crate::memory::Memory;
use crate::policy::Policy;
use crate::ptrace::{self, SystemCall};
use crate::report::Report;
use crate::vdso::{Advice, HostedVdso};

/// One thread of a guest.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// Address of the image in its process.
    image: Option<u64>,
    /// The clock that it is reading by a system call, from the entry to the exit.
    clock: Option<i32>,
    /// A new program has been loaded; the exit of that execve comes next, and then its first instruction.
    new_program: bool,
    /// It stopped before the event of its parent's fork, and waits for that event.
    early: bool,
}

/// A running sandbox.
pub struct Tracer {
    first: Pid,
    policy: Policy,
    vdso: Option<HostedVdso>,
    log: bool,
    threads: HashMap<Pid, Thread>,
    report: Report,
}

impl Tracer {
    /// Makes a tracer for a guest that is seized and waits for its exec.
    pub fn new(first: Pid, policy: Policy, vdso: Option<HostedVdso>, log: bool) -> Tracer {
        Tracer {
            first,
            policy,
            vdso,
            log,
            threads: HashMap::from([(first, Thread::default())]),
            report: Report::default(),
        }
    }

    /// Returns the counters so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Runs until the last guest has ended. Returns how the first did.
    pub fn run(&mut self) -> nix::Result<Outcome> {
        let mut outcome = Outcome::Killed(Signal::SIGKILL);
        loop {
            let status = match ptrace::wait() {
                Err(Errno::ECHILD) => return Ok(outcome),
                Err(Errno::EINTR) => continue,
                status => status?,
            };
            match status {
                WaitStatus::Exited(guest, code) => {
                    self.threads.remove(&guest);
                    if guest == self.first {
                        outcome = Outcome::Exited(code as u8);
                    }
                }
                WaitStatus::Signaled(guest, signal, _) => {
                    self.threads.remove(&guest);
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

    fn stopped(&mut self, status: WaitStatus) -> nix::Result<()> {
        match status {
            WaitStatus::PtraceSyscall(guest) => {
                self.at_system_call(guest)?;
                ptrace::resume(guest, None)
            }
            WaitStatus::Stopped(guest, signal) => ptrace::resume(guest, Some(signal)),
            WaitStatus::PtraceEvent(guest, signal, event) => self.at_event(guest, signal, event),
            _ => Ok(()),
        }
    }

    fn at_event(&mut self, guest: Pid, signal: Signal, event: libc::c_int) -> nix::Result<()> {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                // Only this thread of its process is left, and it has taken the first thread's number.
                let former = Pid::from_raw(getevent(guest)? as i32);
                self.threads.remove(&former);
                let new = Thread {
                    new_program: true,
                    ..Thread::default()
                };
                self.threads.insert(guest, new);
                ptrace::resume(guest, None)
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let child = Pid::from_raw(getevent(guest)? as i32);
                let inherited = Thread {
                    image: self.threads.get(&guest).and_then(|thread| thread.image),
                    ..Thread::default()
                };
                if self.threads.insert(child, inherited).is_some_and(|child| child.early) {
                    ptrace::resume(child, None)?;
                }
                ptrace::resume(guest, None)
            }
            libc::PTRACE_EVENT_STOP if !self.threads.contains_key(&guest) => {
                let early = Thread {
                    early: true,
                    ..Thread::default()
                };
                self.threads.insert(guest, early);
                Ok(())
            }
            libc::PTRACE_EVENT_STOP if is_job_control(signal) => ptrace::listen(guest),
            _ => ptrace::resume(guest, None),
        }
    }

    fn at_system_call(&mut self, guest: Pid) -> nix::Result<()> {
        match ptrace::system_call(guest)? {
            SystemCall::Entry { audit_arch, nr, args } => {
                let known = if audit_arch == arch::AUDIT_ARCH {
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
            SystemCall::Exit { pc } => {
                let thread = self.threads.entry(guest).or_default();
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
        self.threads.entry(guest).or_default().clock = clock;
        if let Some(errno) = self.policy.refusal(call, guest) {
            self.report.refused += 1;
            if self.log {
                let name = call.sysno.map_or("unknown system call", |sysno| sysno.name());
                eprintln!("sandbox: {guest}: {name} refused: {}", errno.desc());
            }
            arch::refuse(guest, errno)?;
        }
        Ok(())
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
            let memory = Memory::of(guest)?;
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
            Ok(image) => self.threads.entry(guest).or_default().image = image,
            Err(error) => eprintln!("sandbox: {guest}: its stack cannot be prepared: {error}"),
        }
    }
}

fn is_job_control(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU
    )
}
