//! Clock reads in user space, which no system call shows: samples of a process's CPU time.

use crate::trace::arch;
use crate::trace::call::{CallAbi, CallSample, CallSite};
use crate::trace::clock_ids::{ClockIds, GeneralRegisters};
use crate::trace::process::Processes;
use crate::trace::symbols::{self, Frame, Symbols};
use fastpath_code::TimeCall;
use fastpath_measure::Clock;
use fastpath_os::Stat;
use object::{Object, ObjectSymbol};
use perf_event::data::{self, Record};
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// CPU time of a thread between two samples.
const PERIOD_NS: u64 = 1_000_000;
/// Bytes of each thread's stack in a sample.
const STACK: u32 = 2048;
/// Frames of a sample that the kernel finds by frame pointers.
const DEEPEST: u16 = 16;
/// Bytes of a thread's ring: some 60 samples, three times what a turn needs.
const RING: usize = 128 << 10;
const TURN: Duration = Duration::from_millis(20);
/// Threads that are sampled: with their rings, within what the kernel lets a user lock (4 of 8 MiB).
const MOST_THREADS: usize = 32;
/// Callers that are reported.
const MOST_CALLERS: usize = 5;

/// Clock reads of a process through a vDSO, by samples of its CPU time.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Reads {
    /// Duration of the sampling.
    pub elapsed_ns: u64,
    /// CPU time that the sampled threads used meanwhile.
    pub cpu_ns: u64,
    /// The part of it within functions of a vDSO that read clocks.
    pub reads_ns: u64,
    /// Number of samples.
    pub samples: u64,
    /// Whether time in the kernel is among the samples: that of a vDSO's function that makes a system call.
    pub includes_kernel: bool,
    /// Number of threads that were not sampled: those that had used the least CPU time.
    pub unsampled_threads: usize,
    /// The callers, the most frequent first.
    pub callers: Vec<ReadCaller>,
    /// The samples' addresses in user space.
    #[serde(skip)]
    pub addresses: Vec<u64>,
}

impl Reads {
    /// Returns the share of the CPU time that is spent in reads: 0 to 1.
    pub fn share(&self) -> f64 {
        self.reads_ns as f64 / self.cpu_ns.max(1) as f64
    }
}

/// A function that calls a vDSO's, itself or by libc.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ReadCaller {
    /// Its name; nothing if its file has no symbol for it, or if the stack could not be unwound.
    pub function: Option<String>,
    /// The file that contains it.
    pub file: Option<String>,
    /// Its share of the time in reads: 0 to 1.
    pub share: f64,
    /// The clocks that it reads, the most frequent first; none if they could not be determined.
    #[serde(default)]
    pub clocks: Vec<ReadClock>,
}

/// A clock that a caller reads.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ReadClock {
    /// The clock.
    pub clock: Clock,
    /// Its share of the caller's time in reads, by those samples that show the clock: 0 to 1.
    pub share: f64,
}

impl ReadCaller {
    /// Returns whether it is a function of a C library or a runtime that only reads a clock, whose caller was not found.
    pub fn is_clock_function(&self) -> bool {
        self.function.as_deref().is_some_and(symbols::is_clock_function)
    }
}

/// A sample of a thread's CPU time.
struct Read {
    sample: CallSample,
    /// Those of a 64-bit program, where they are known.
    registers: Option<GeneralRegisters>,
    /// Return addresses, found by frame pointers.
    chain: Vec<u64>,
}

/// Samples the CPU time of a process, and returns how much of it is spent in clock reads and who makes them. Threads
/// that begin meanwhile are not sampled.
pub fn reads(pid: u32, duration: Duration) -> io::Result<Reads> {
    let threads = busiest_threads(pid)?;
    // Without the privilege to see the kernel (perf_event_paranoid of 2 and more), user space is sampled alone.
    let includes_kernel = sampler(threads[0], true).is_ok();
    let mut samplers = Vec::new();
    for &thread in threads.iter().take(MOST_THREADS) {
        match sampler(thread, includes_kernel) {
            Ok(sampler) => samplers.push(sampler),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if samplers.is_empty() => return Err(error),
            // No more memory may be locked.
            Err(_) => break,
        }
    }
    let begun = Instant::now();
    for sampler in &mut samplers {
        sampler.as_counter_mut().enable()?;
    }
    let mut samples = Vec::new();
    while begun.elapsed() < duration {
        std::thread::sleep(TURN);
        for sampler in &mut samplers {
            while let Some(record) = sampler.next_record() {
                if let Ok(Record::Sample(sample)) = record.parse_record() {
                    samples.extend(to_read(pid, &sample));
                }
            }
        }
    }
    let elapsed_ns = begun.elapsed().as_nanos() as u64;
    let mut cpu_ns = 0;
    for sampler in &mut samplers {
        cpu_ns += sampler.as_counter_mut().read().unwrap_or(0);
    }
    let (in_reads, callers) = callers(&samples);
    Ok(Reads {
        elapsed_ns,
        cpu_ns,
        reads_ns: (in_reads * PERIOD_NS).min(cpu_ns),
        samples: samples.len() as u64,
        includes_kernel,
        unsampled_threads: threads.len() - samplers.len().min(threads.len()),
        callers,
        addresses: samples.iter().map(|read| read.sample.site.ip).collect(),
    })
}

/// Returns the threads of a process, those first that have used most CPU time.
fn busiest_threads(pid: u32) -> io::Result<Vec<libc::pid_t>> {
    let mut threads: Vec<libc::pid_t> = fastpath_os::threads(pid)?.collect();
    threads.sort_by_cached_key(|thread| Reverse(Stat::read(thread).map_or(0, |stat| stat.cpu_time)));
    if threads.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(threads)
}

fn sampler(thread: libc::pid_t, includes_kernel: bool) -> io::Result<Sampler> {
    Builder::new(Software::TASK_CLOCK)
        .observe_pid(thread)
        .any_cpu()
        .exclude_kernel(!includes_kernel)
        .sample_period(PERIOD_NS)
        .exclude_callchain_kernel(true)
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER | SampleFlag::CALLCHAIN)
        .sample_max_stack(DEEPEST)
        .sample_regs_user(arch::SAMPLED)
        .sample_stack_user(STACK)
        .build()?
        .sampled(RING)
}

/// Returns the number of samples in clock reads, and the callers, the most frequent first.
fn callers(samples: &[Read]) -> (u64, Vec<ReadCaller>) {
    let mut processes = Processes::default();
    let mut symbols = Symbols::default();
    let others = other_functions();
    let mut clock_ids = None;
    let mut reads: HashMap<_, Vec<Option<Clock>>> = HashMap::new();
    for Read {
        sample,
        registers,
        chain,
    } in samples
    {
        let image = processes.at(&sample.site, 0, "");
        let Some(mapping) = image.mapping(sample.site.ip) else {
            continue;
        };
        let offset = sample.site.ip - mapping.range.start;
        let is_other = mapping.path == "[vdso]" && others.iter().any(|function| function.contains(&offset));
        if !symbols::is_vdso(&mapping.path) || is_other {
            continue;
        }
        let clock_ids = clock_ids.get_or_insert_with(|| ClockIds::read(sample.site.pid, image));
        let clock = registers.and_then(|registers| clock_ids.clock(sample, &registers));
        let frames = symbols.callers(sample, image);
        let mut outside = frames.into_iter().filter(|frame| !frame.is_go_between()).peekable();
        let nearest = outside.peek().cloned();
        // Go reads clocks on another stack, and a goroutine's is not in the sample. The kernel follows Go's frame pointers.
        let is_go = nearest
            .as_ref()
            .is_some_and(|frame| frame.function.as_deref().is_some_and(symbols::is_of_go));
        let chain = chain.iter().filter(|_| is_go);
        let mut on_chain = chain.map(|address| symbols.frame(sample.site.pid, image, address - 1));
        let is_own = |frame: &Frame| {
            let name = frame.function.as_deref();
            !frame.is_go_between() && name.is_some_and(|name| !symbols::is_clock_function(name))
        };
        let own = outside.find(is_own).or_else(|| on_chain.find(is_own));
        let caller = own.or(nearest);
        reads.entry(caller).or_default().push(clock);
    }
    let total: usize = reads.values().map(Vec::len).sum();
    let mut callers: Vec<ReadCaller> = reads
        .into_iter()
        .map(|(caller, clocks)| {
            let (function, file) = caller.map(|frame| (frame.function, frame.library)).unwrap_or_default();
            ReadCaller {
                function,
                file,
                share: clocks.len() as f64 / total as f64,
                clocks: shares(&clocks),
            }
        })
        .collect();
    callers.sort_by(|a, b| b.share.total_cmp(&a.share));
    callers.truncate(MOST_CALLERS);
    (total as u64, callers)
}

/// Returns the clocks of a caller's samples. A sample at an instruction that no longer has the clock's id counts as the
/// others do.
fn shares(clocks: &[Option<Clock>]) -> Vec<ReadClock> {
    let count = |clock: &Clock| clocks.iter().filter(|other| **other == Some(*clock)).count();
    let known = clocks.iter().flatten().count();
    let share = |clock: &Clock| ReadClock {
        clock: *clock,
        share: count(clock) as f64 / known as f64,
    };
    let mut shares: Vec<ReadClock> = Clock::ALL.iter().filter(|clock| count(clock) > 0).map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// Returns the functions of the kernel's vDSO that read no clock, by their offsets in it. It is the same in every
/// process of this ISA.
fn other_functions() -> Vec<Range<u64>> {
    let Some(file) = symbols::kernels_vdso().and_then(|bytes| object::File::parse(bytes).ok()) else {
        return Vec::new();
    };
    let reads_clock = |name: &str| ["time", "clock"].iter().any(|word| name.contains(word));
    file.dynamic_symbols()
        .filter(|symbol| symbol.size() > 0 && symbol.name().is_ok_and(|name| !reads_clock(name)))
        .map(|symbol| symbol.address()..symbol.address().saturating_add(symbol.size()))
        .collect()
}

/// Returns a record as the unwinder takes it. A thread that has no user registers has none.
fn to_read(pid: u32, record: &data::Sample) -> Option<Read> {
    /// The first of the chain's marks of a context (`enum perf_callchain_context`).
    const FIRST_MARK: u64 = 4095u64.wrapping_neg();
    let registers = record.regs_user()?;
    let ([frame, sp, ip], general) = arch::split(&registers.regs)?;
    let abi = match registers.abi {
        data::SampleRegsAbi::ABI_32 => CallAbi::Compat,
        _ => CallAbi::Native,
    };
    let sample = CallSample {
        site: CallSite {
            pid,
            function: TimeCall::ClockGettime,
            abi,
            clock: 0,
            ip,
        },
        time_ns: 0,
        calls: 1,
        sp,
        frame,
        stack: record.stack_user().unwrap_or_default().to_vec(),
    };
    let addresses = record.callchain().unwrap_or_default().iter().copied();
    Some(Read {
        sample,
        registers: general.filter(|_| abi == CallAbi::Native),
        // Behind the sample's own address.
        chain: addresses
            .filter(|address| (1..FIRST_MARK).contains(address))
            .skip(1)
            .collect(),
    })
}
