//! Counts in the kernel: programs at its tracepoints add up calls in a map, which is read at intervals.

mod program;

use crate::trace::call::{CallAbi, CallSample, CallSite};
use program::{KEY_SIZE, Parameters, SAMPLE_HEAD, VALUE_SIZE};
use std::collections::HashMap;
use std::io;

use fastpath_code::TimeCall;
use fastpath_image::Isa;
use fastpath_os::bpf::{AttachedProgram, Map, MapKind, PidNamespace, Ring, attach};

/// Interval of the random samples, in calls. A power of two.
const SAMPLE_ONE_IN: u32 = 64;
/// Bytes of the ring: 4 MiB, some two thousand samples.
const RING_SIZE: u32 = 4 << 20;

/// Count of a site's calls.
pub(crate) struct Count {
    pub site: CallSite,
    pub calls: u64,
    /// CLOCK_MONOTONIC.
    pub first_ns: u64,
    /// Name of the first thread that called.
    pub comm: String,
}

/// The running programs. Dropping it stops them.
pub(crate) struct Counter {
    counts: Map,
    lost: Map,
    ring: Option<Ring>,
    _ring_map: Option<Map>,
    /// Number of calls of a site at its last sample.
    sampled: HashMap<CallSite, u64>,
    attached: Vec<AttachedProgram>,
}

impl Counter {
    /// Starts counting. `sites` is how many can be counted at once.
    pub(crate) fn start(sites: u32, stacks: bool) -> io::Result<Counter> {
        let counts = Map::new(MapKind::Hash, KEY_SIZE, VALUE_SIZE, sites)?;
        let lost = Map::new(MapKind::Array, 4, 8, 2)?;
        let ring_map = stacks.then(|| Map::new(MapKind::Ring, 0, 0, RING_SIZE)).transpose()?;
        let parameters = Parameters {
            own_pid: std::process::id(),
            namespace: PidNamespace::own()?,
            counts: counts.fd(),
            lost: lost.fd(),
            samples: ring_map.as_ref().map(|map| (map.fd(), SAMPLE_ONE_IN)),
        };
        let ring = ring_map.as_ref().map(|map| Ring::new(map, RING_SIZE)).transpose()?;
        let mut attached = vec![attach(c"sys_enter", &program::at_system_call(&parameters))?];
        // Only x86 has a vsyscall page.
        if Isa::HOST.is_x86() {
            let attach = |sees_callers| attach(c"emulate_vsyscall", &program::at_vsyscall(&parameters, sees_callers));
            // Older kernels reject the program that sees callers.
            match attach(true).or_else(|_| attach(false)) {
                Ok(program) => attached.push(program),
                // The kernel has no vsyscall page.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Counter {
            counts,
            lost,
            ring,
            _ring_map: ring_map,
            sampled: HashMap::new(),
            attached,
        })
    }

    /// Stops counting.
    pub(crate) fn stop(&mut self) {
        self.attached.clear();
    }

    /// Returns the counts. Sites for which `is_over` is true are removed; if they are seen again, they start from zero.
    pub(crate) fn read(&self, is_over: impl Fn(&CallSite) -> bool) -> Vec<Count> {
        let mut counts = Vec::new();
        for key in self.counts.keys() {
            let Some(site) = site_of(&key) else { continue };
            let value = if is_over(&site) {
                self.counts.take(&key)
            } else {
                self.counts.get(&key)
            };
            let Some(value) = value else { continue };
            let comm = value[16..].split(|byte| *byte == 0).next().unwrap_or_default();
            counts.push(Count {
                site,
                calls: word(&value, 0),
                first_ns: word(&value, 8),
                comm: String::from_utf8_lossy(comm).into_owned(),
            });
        }
        counts
    }

    /// Returns the numbers of calls that were not counted and of samples that were not stored, for lack of room.
    pub(crate) fn lost(&self) -> (u64, u64) {
        let of = |which: u32| self.lost.get(&which.to_ne_bytes()).map_or(0, |value| word(&value, 0));
        (of(0), of(1))
    }

    pub(crate) fn samples(&mut self) -> Vec<CallSample> {
        let mut samples = Vec::new();
        let (Some(ring), sampled) = (&mut self.ring, &mut self.sampled) else {
            return samples;
        };
        ring.drain(|record| {
            let Some(site) = site_of(record) else { return };
            let (so_far, before) = (word(record, 24), sampled.entry(site).or_default());
            // A removed site has started from zero. Threads that call at once may have read the same number.
            let calls = if so_far < *before { so_far } else { so_far - *before };
            *before = so_far;
            let stack = &record[SAMPLE_HEAD as usize..][..word(record, 48) as usize];
            samples.push(CallSample {
                site,
                time_ns: word(record, 56),
                calls,
                sp: word(record, 32),
                frame: word(record, 40),
                stack: stack.to_vec(),
            });
        });
        samples
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn site_of(key: &[u8]) -> Option<CallSite> {
    Some(CallSite {
        pid: half(key, 0),
        function: *TimeCall::ALL.get(half(key, 4) as usize)?,
        abi: *CallAbi::ALL.get(half(key, 8) as usize)?,
        clock: half(key, 12) as i32,
        ip: word(key, 16),
    })
}
