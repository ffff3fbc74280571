//! One run of the command, from the preparations to the report.

use crate::trace::bpf::Counter;
use crate::trace::report::{LostRecords, Method, TraceReport};
use crate::trace::session::{Observer, TraceOptions, TraceOutcome, UnwatchedCommand, Whom, ended, monotonic_ns};
use crate::trace::sideband::Sideband;
use crate::trace::tally::{HostCosts, Tally};
use crate::trace::{call::CallSample, command, process::Processes, ptrace};
use std::time::{Duration, Instant};

/// Interval between reads of the counts.
const LOOK: Duration = Duration::from_secs(1);
/// Interval between reads of the process events and samples.
const GLANCE_MS: libc::c_int = 20;

/// Counts until the command has ended, the time is over, or the observer stops it.
pub fn run(options: &TraceOptions, observer: &mut dyn Observer) -> Result<TraceOutcome, String> {
    proc_is_of_our_pids()?;
    if let Whom::Process(pid) = options.whom
        && !std::path::Path::new(&format!("/proc/{pid}")).exists()
    {
        return Err(format!("there is no process {pid}"));
    }
    let is_command = matches!(options.whom, Whom::Command(_));
    if options.method == Some(Method::Ptrace) && !is_command {
        return Err("ptrace can only watch a command that is started for it (-- CMD)".to_owned());
    }
    // This must precede the counting, because measuring makes such calls itself.
    let host = HostCosts::look();
    if options.method == Some(Method::Ptrace) {
        return ptrace::run(options, host, observer);
    }
    match Watch::start(options) {
        Ok(watch) => watch.run(options, host, observer),
        Err(error) if options.method.is_none() && is_command => {
            observer.note(format!(
                "calls cannot be counted in the kernel ({error}); the program is stopped at each call instead, which takes it \
                 some 10 us a call; set-user-ID programs that it starts gain no privileges"
            ));
            ptrace::run(options, host, observer)
        }
        Err(error) => Err(format!(
            "calls cannot be counted in the kernel: {error}. It takes root, or CAP_BPF and CAP_PERFMON, and Linux 5.8; without \
             them `fastpath trace -- CMD` watches a program by ptrace"
        )),
    }
}

/// Checks that /proc shows this PID namespace. Names, programs and mappings are looked up there by number, and another
/// namespace's numbers belong to other processes.
fn proc_is_of_our_pids() -> Result<(), String> {
    let own = std::fs::read_link("/proc/self").map_err(|error| {
        format!("/proc, which has the names of processes, cannot be read: {error}; mount it: mount -t proc proc /proc")
    })?;
    if own.as_os_str() == std::process::id().to_string().as_str() {
        return Ok(());
    }
    Err("/proc shows the processes of another PID namespace; mount this one's: mount -t proc proc /proc, or unshare --mount-proc".to_owned())
}

/// A running BPF and perf session.
struct Watch {
    counter: Counter,
    sideband: Sideband,
}

impl Watch {
    fn start(options: &TraceOptions) -> Result<Watch, String> {
        let counter = Counter::start(options.sites, options.stacks).map_err(|error| format!("BPF: {error}"))?;
        let sideband = Sideband::start().map_err(|error| format!("perf events: {error}"))?;
        Ok(Watch { counter, sideband })
    }

    fn run(
        mut self,
        options: &TraceOptions,
        host: HostCosts,
        observer: &mut dyn Observer,
    ) -> Result<TraceOutcome, String> {
        let mut tally = Tally::default();
        tally.processes = Processes::look();
        let mut started = match &options.whom {
            Whom::Command(command) => Some(command::start(command, || 0)?.go()),
            _ => None,
        };
        let root = match options.whom {
            Whom::All => None,
            Whom::Process(pid) => Some(pid),
            Whom::Command(_) => started.as_ref().map(|started| started.pid),
        };
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut end = None;
        let mut samples = Vec::new();
        loop {
            // SAFETY: poll of no descriptors only waits.
            unsafe { libc::poll(std::ptr::null_mut(), 0, GLANCE_MS) };
            end = end.or_else(|| started.as_mut().and_then(|started| ended(started, false)));
            let is_over = end.is_some()
                || observer.is_to_stop()
                || options.duration.is_some_and(|limit| begun.elapsed() >= limit)
                || matches!(options.whom, Whom::Process(pid) if tally.processes.has_ended(pid));
            if is_over {
                break;
            }
            self.glance(&mut tally, &mut samples);
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look(&mut tally, false);
                if observer.is_looking() {
                    observer.show(self.report(&mut tally, &host, begun.elapsed(), root));
                }
            }
        }
        let elapsed = begun.elapsed();
        self.counter.stop();
        samples.extend(self.counter.samples());
        self.sideband.pass_events(&mut tally.processes, u64::MAX);
        self.look(&mut tally, true);
        for sample in samples {
            tally.sample(&sample);
        }
        let report = self.report(&mut tally, &host, elapsed, root);
        let running = started.filter(|_| end.is_none()).map(UnwatchedCommand);
        Ok(TraceOutcome { report, end, running })
    }

    fn glance(&mut self, tally: &mut Tally, waiting: &mut Vec<CallSample>) {
        let now_ns = monotonic_ns();
        self.sideband.pass_events(&mut tally.processes, now_ns);
        waiting.extend(self.counter.samples());
        let is_due = |sample: &CallSample| sample.time_ns <= now_ns;
        for sample in waiting.extract_if(.., |sample| is_due(sample)) {
            tally.sample(&sample);
        }
    }

    /// Reads the counts. A site that began after the read of the process events waits for the next time: its process
    /// may not be known yet.
    fn look(&mut self, tally: &mut Tally, is_last: bool) {
        let now_ns = monotonic_ns();
        if !is_last {
            self.sideband.pass_events(&mut tally.processes, now_ns);
        }
        let counts = self.counter.read(|site| tally.processes.has_ended(site.pid));
        for count in counts {
            if !is_last && count.first_ns > now_ns && !tally.processes.has_ended(count.site.pid) {
                continue;
            }
            tally.set(count.site, count.first_ns, &count.comm, count.calls);
        }
        tally.forget_the_dead();
    }

    fn report(&mut self, tally: &mut Tally, host: &HostCosts, elapsed: Duration, root: Option<u32>) -> TraceReport {
        let (calls, stacks) = self.counter.lost();
        let lost = LostRecords {
            calls,
            stacks,
            process_events: self.sideband.lost(),
        };
        let rows = tally.rows(host, elapsed, root);
        TraceReport {
            method: Method::Bpf,
            seconds: (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
            calls: rows.iter().map(|row| row.calls).sum(),
            lost,
            rows,
        }
    }
}
