//! Clock reads in user space, which no system call shows: samples of a process's CPU time.

use crate::trace::call::{Abi, Function, Sample, Site};
use crate::trace::process::Processes;
use crate::trace::symbols::{self, Symbols};
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
}

impl ReadCaller {
    /// Returns whether it is a function of a C library or a runtime that only reads a clock, whose caller was not found.
    pub fn is_clock_function(&self) -> bool {
        self.function.as_deref().is_some_and(symbols::is_clock_function)
    }
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
                    samples.extend(isa::sample(pid, &sample));
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
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(isa::REGISTERS)
        .sample_stack_user(STACK)
        .build()?
        .sampled(RING)
}

/// Returns the number of samples in clock reads, and the callers, the most frequent first.
fn callers(samples: &[Sample]) -> (u64, Vec<ReadCaller>) {
    let mut processes = Processes::default();
    let mut symbols = Symbols::default();
    let others = other_functions();
    let mut counts: HashMap<_, u64> = HashMap::new();
    for sample in samples {
        let image = processes.at(&sample.site, 0, "");
        let Some(mapping) = image.mapping(sample.site.ip) else {
            continue;
        };
        let offset = sample.site.ip - mapping.range.start;
        let is_other = mapping.path == "[vdso]" && others.iter().any(|function| function.contains(&offset));
        if !symbols::is_vdso(&mapping.path) || is_other {
            continue;
        }
        let frames = symbols.callers(sample, image);
        let mut outside = frames.into_iter().filter(|frame| !frame.is_go_between()).peekable();
        let nearest = outside.peek().cloned();
        let mut named = outside.filter_map(|frame| Some((frame.function.clone()?, frame)));
        let own = named.find(|(name, _)| !symbols::is_clock_function(name));
        let caller = own.map(|(_, frame)| frame).or(nearest);
        *counts.entry(caller).or_default() += 1;
    }
    let total: u64 = counts.values().sum();
    let mut callers: Vec<ReadCaller> = counts
        .into_iter()
        .map(|(caller, count)| {
            let (function, file) = caller.map(|frame| (frame.function, frame.library)).unwrap_or_default();
            ReadCaller {
                function,
                file,
                share: count as f64 / total as f64,
            }
        })
        .collect();
    callers.sort_by(|a, b| b.share.total_cmp(&a.share));
    callers.truncate(MOST_CALLERS);
    (total, callers)
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

/// The user's registers in a sample (`enum perf_event_x86_regs`, `perf_event_arm_regs` of the kernel's uapi).
mod isa {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const ORDER: [u64; 3] = [6, 7, 8]; // bp, sp, ip
    #[cfg(target_arch = "aarch64")]
    const ORDER: [u64; 3] = [29, 31, 32]; // x29, sp, pc

    pub(super) const REGISTERS: u64 = 1 << ORDER[0] | 1 << ORDER[1] | 1 << ORDER[2];

    /// Returns a sample as the unwinder takes it. A sample of a thread that has no user registers has none.
    pub(super) fn sample(pid: u32, record: &data::Sample) -> Option<Sample> {
        let registers = record.regs_user()?;
        let &[frame, sp, ip] = &registers.regs[..] else {
            return None;
        };
        let abi = match registers.abi {
            data::SampleRegsAbi::ABI_32 => Abi::Compat,
            _ => Abi::Native,
        };
        Some(Sample {
            site: Site {
                pid,
                function: Function::ClockGettime,
                abi,
                clock: 0,
                ip,
            },
            time_ns: 0,
            calls: 1,
            sp,
            frame,
            stack: record.stack_user().unwrap_or_default().to_vec(),
        })
    }
}
