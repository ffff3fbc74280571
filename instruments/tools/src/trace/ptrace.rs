//! Counts by ptrace, which is slower but requires no privilege. A command is started under a seccomp filter that stops
//! it only at the calls that are counted; this process, its tracer, records the call and continues it.

use crate::trace::arch::{self, StoppedThread};
use crate::trace::call::{CallAbi, CallSample, CallSite};
use crate::trace::command;
use crate::trace::report::{LostRecords, Method, TraceReport};
use crate::trace::session::{CommandEnd, Observer, TraceOptions, TraceOutcome, Whom, monotonic_ns};
use crate::trace::tally::{HostCosts, Tally};
use fastpath_code::TimeCall;
use fastpath_image::Isa;
use nix::sys::ptrace;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bytes of stack per sample. Finding a caller seldom needs more.
const STACK_SIZE: usize = 4096;

pub(crate) fn run(
    options: &TraceOptions,
    host: HostCosts,
    observer: &mut dyn Observer,
) -> Result<TraceOutcome, String> {
    let Whom::Command(words) = &options.whom else {
        return Err("ptrace can only watch a command that is started for it (-- CMD)".to_owned());
    };
    let filter = filter();
    let waiting = command::start(words, || install(&filter))?;
    let pid = waiting.pid;
    let follow = ptrace::Options::PTRACE_O_TRACESECCOMP
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEEXEC
        // If the tracer dies, the filter would make every clock read fail.
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(Pid::from_raw(pid as i32), follow).map_err(|error| {
        format!(
            "the program cannot be traced (ptrace: {error}); a debugger or a container's seccomp profile may forbid it"
        )
    })?;
    let mut started = waiting.go();
    let mut tracer = Tracer {
        tally: Tally::default(),
        stacks: options.stacks,
        is_counting: true,
        processes: HashMap::new(),
    };
    let begun = Instant::now();
    let mut elapsed = None;
    let mut shown = Instant::now();
    let mut end = None;
    loop {
        let mut status = 0;
        // SAFETY: stores into a local variable. This process has no children but the program and its descendants.
        let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
        if tid < 0 {
            match std::io::Error::last_os_error().kind() {
                std::io::ErrorKind::Interrupted => {}
                // No traced process is left.
                _ => break,
            }
        } else if libc::WIFSTOPPED(status) {
            tracer.stopped(Pid::from_raw(tid), status);
        } else {
            tracer.processes.remove(&(tid as u32));
            tracer.tally.processes.exit(tid as u32);
            if tid as u32 == pid {
                end = Some(CommandEnd::from_status(status, &mut started));
            }
        }
        let is_over = observer.is_to_stop() || options.duration.is_some_and(|limit| begun.elapsed() >= limit);
        if is_over && tracer.is_counting {
            tracer.is_counting = false;
            elapsed = Some(begun.elapsed());
        }
        if shown.elapsed() >= Duration::from_secs(1) && observer.is_looking() && tracer.is_counting {
            shown = Instant::now();
            observer.show(report(&mut tracer.tally, &host, begun.elapsed()));
        }
    }
    let elapsed = elapsed.unwrap_or_else(|| begun.elapsed());
    Ok(TraceOutcome {
        report: report(&mut tracer.tally, &host, elapsed),
        end,
        running: None,
    })
}

fn report(tally: &mut Tally, host: &HostCosts, elapsed: Duration) -> TraceReport {
    let rows = tally.rows(host, elapsed, None);
    TraceReport {
        method: Method::Ptrace,
        seconds: (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        calls: rows.iter().map(|row| row.calls).sum(),
        lost: LostRecords::default(),
        rows,
    }
}

struct Tracer {
    tally: Tally,
    stacks: bool,
    is_counting: bool,
    /// The process of each thread.
    processes: HashMap<u32, u32>,
}

impl Tracer {
    /// Handles a stop. A ptrace request here fails only if the thread was killed meanwhile.
    fn stopped(&mut self, thread: Pid, status: i32) {
        let signal = libc::WSTOPSIG(status);
        let deliver = match status >> 16 {
            libc::PTRACE_EVENT_SECCOMP => {
                if self.is_counting {
                    self.count(thread);
                }
                None
            }
            libc::PTRACE_EVENT_EXEC => {
                let pid = thread.as_raw() as u32;
                let comm = fastpath_os::comm(pid).unwrap_or_default();
                self.processes.insert(pid, pid);
                self.tally.processes.exec_seen(pid, comm, monotonic_ns());
                None
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => None,
            // A group stop lasts until SIGCONT; a new thread's first stop does not.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                // SAFETY: ptrace with integers only.
                unsafe { libc::ptrace(libc::PTRACE_LISTEN, thread.as_raw(), 0, 0) };
                return;
            }
            libc::PTRACE_EVENT_STOP => None,
            _ => Some(signal),
        };
        // SAFETY: ptrace with integers only. Real-time signals have no name in nix.
        unsafe { libc::ptrace(libc::PTRACE_CONT, thread.as_raw(), 0, deliver.unwrap_or(0)) };
    }

    fn process_of(&mut self, thread: u32) -> u32 {
        *self.processes.entry(thread).or_insert_with(|| {
            let status = fastpath_os::Status::read(thread).ok();
            status.and_then(|status| status.number("Tgid")).unwrap_or(thread)
        })
    }

    fn count(&mut self, thread: Pid) {
        let Some(call) = StoppedThread::read(thread) else {
            return;
        };
        let pid = self.process_of(thread.as_raw() as u32);
        let Some(site) = call.site(pid) else { return };
        let now_ns = monotonic_ns();
        self.tally.add(site, now_ns);
        if self.stacks {
            self.tally.sample(&CallSample {
                site,
                time_ns: now_ns,
                calls: 1,
                sp: call.sp,
                frame: call.frame,
                stack: stack(thread, call.sp),
            });
        }
    }
}

/// Returns the bytes from `sp` on, up to the end of the mapping.
fn stack(thread: Pid, sp: u64) -> Vec<u8> {
    let mut bytes = vec![0; STACK_SIZE];
    let mut size = STACK_SIZE;
    // The top of a stack is the end of a mapping, so a long read may fail.
    while size >= 64 {
        let mut local = [std::io::IoSliceMut::new(&mut bytes[..size])];
        let remote = [nix::sys::uio::RemoteIoVec {
            base: sp as usize,
            len: size,
        }];
        if let Ok(read) = nix::sys::uio::process_vm_readv(thread, &mut local, &remote) {
            bytes.truncate(read);
            return bytes;
        }
        size /= 2;
    }
    Vec::new()
}

impl StoppedThread {
    fn site(&self, pid: u32) -> Option<CallSite> {
        let isa = if self.is_compat { arch::COMPAT } else { Isa::HOST };
        let (_, function) = TimeCall::numbers(isa).find(|(number, _)| u64::from(*number) == self.number)?;
        Some(CallSite {
            pid,
            function,
            abi: match (self.is_vsyscall, self.is_compat) {
                (true, _) => CallAbi::Vsyscall,
                (_, true) => CallAbi::Compat,
                _ => CallAbi::Native,
            },
            clock: if function.takes_a_clock() {
                self.argument as i32
            } else {
                0
            },
            ip: self.ip,
        })
    }
}

/// Returns a filter that stops at the calls that are counted and allows all others.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |k: u32, jt: usize, jf: usize| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    // struct seccomp_data: the number, then the architecture.
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |with| statement(libc::BPF_RET | libc::BPF_K, with);
    let mut code = vec![load(4)];
    for isa in [Isa::HOST, arch::COMPAT] {
        let numbers = counted(isa);
        let count = numbers.len();
        // Skip the load, the comparisons and both answers.
        code.push(jump(isa.audit_arch(), 0, count + 3));
        code.push(load(0));
        // Skip the other comparisons and the first answer.
        code.extend(
            numbers
                .iter()
                .enumerate()
                .map(|(at, number)| jump(*number, count - at, 0)),
        );
        code.push(answer(libc::SECCOMP_RET_ALLOW));
        code.push(answer(libc::SECCOMP_RET_TRACE));
    }
    code.push(answer(libc::SECCOMP_RET_ALLOW));
    code
}

/// Returns the numbers of the calls that are counted, with those of x32 programs.
fn counted(isa: Isa) -> Vec<u32> {
    let own = || TimeCall::numbers(isa).map(|(number, _)| number);
    match isa == Isa::HOST && arch::FOREIGN_BIT != 0 {
        true => own().chain(own().map(|number| number | arch::FOREIGN_BIT)).collect(),
        false => own().collect(),
    }
}

/// Installs the filter in the new process. Returns 0 or an errno.
fn install(filter: &[libc::sock_filter]) -> i32 {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: system calls only; `program` outlives them.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        {
            return *libc::__errno_location();
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the filter's verdict.
    fn verdict(filter: &[libc::sock_filter], audit: u32, number: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let one = filter[at];
            at += 1;
            match u32::from(one.code) & 7 {
                libc::BPF_LD => accumulator = if one.k == 4 { audit } else { number },
                libc::BPF_RET => return one.k,
                _ => at += usize::from(if accumulator == one.k { one.jt } else { one.jf }),
            }
        }
    }

    #[test]
    fn exactly_the_calls_that_are_counted_stop_a_program() {
        let filter = filter();
        for isa in [Isa::HOST, arch::COMPAT] {
            let (audit, numbers) = (isa.audit_arch(), counted(isa));
            for number in (0..500).chain([0x4000_00e4, 0x4000_0000]) {
                let stops = verdict(&filter, audit, number) == libc::SECCOMP_RET_TRACE;
                assert_eq!(stops, numbers.contains(&number), "{audit:x} {number}");
            }
        }
        assert_eq!(verdict(&filter, 1, counted(Isa::HOST)[0]), libc::SECCOMP_RET_ALLOW);
    }
}
