//! Forks, execs, mappings and exits of processes, in order, which the kernel reports through perf events. Thus even a
//! process that lives for less than a millisecond has a name, a program and mappings.

use crate::trace::process::{ImageMapping, Processes};
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use std::io;

/// Bytes per CPU: some thousand records between two reads.
const BUFFER: usize = 512 << 10;

/// The rings, one per CPU.
pub(crate) struct Sideband {
    rings: Vec<Sampler>,
    /// Records that are younger than the beginning of the last read: other CPUs may have older ones that are not read
    /// yet.
    waiting: Vec<(u64, Event)>,
    lost: u64,
}

enum Event {
    Fork { parent: u32, child: u32 },
    Exec { pid: u32, comm: String },
    Rename { pid: u32, comm: String },
    Map { pid: u32, mapping: ImageMapping },
    Exit { pid: u32 },
}

impl Sideband {
    pub(crate) fn start() -> io::Result<Sideband> {
        let mut rings = Vec::new();
        for cpu in online_cpus()? {
            let ring = Builder::new(Software::DUMMY)
                .any_pid()
                .one_cpu(cpu)
                .mmap(true)
                .mmap2(true)
                .comm(true)
                .comm_exec(true)
                .task(true)
                .sample_id_all(true)
                .sample(SampleFlag::TID | SampleFlag::TIME)
                .clockid(Clock::MONOTONIC)
                .build()
                .and_then(|counter| counter.sampled(BUFFER))?;
            rings.push(ring);
        }
        for ring in &mut rings {
            ring.as_counter_mut().enable()?;
        }
        Ok(Sideband {
            rings,
            waiting: Vec::new(),
            lost: 0,
        })
    }

    /// Returns how many records were lost for lack of room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes the events up to `now_ns` (CLOCK_MONOTONIC, read before the call) to `processes`.
    pub(crate) fn pass_events(&mut self, processes: &mut Processes, now_ns: u64) {
        for ring in &mut self.rings {
            while let Some(record) = ring.next_record() {
                read(&record, &mut self.waiting, &mut self.lost);
            }
        }
        self.waiting.sort_by_key(|(time, _)| *time);
        let due = self.waiting.partition_point(|(time, _)| *time <= now_ns);
        for (time, event) in self.waiting.drain(..due) {
            match event {
                Event::Fork { parent, child } => processes.fork(parent, child, time),
                Event::Exec { pid, comm } => processes.exec(pid, comm, time),
                Event::Rename { pid, comm } => processes.rename(pid, comm),
                Event::Map { pid, mapping } => processes.map(pid, mapping),
                Event::Exit { pid } => processes.exit(pid),
            }
        }
    }
}

fn read(record: &perf_event::Record, events: &mut Vec<(u64, Event)>, lost: &mut u64) {
    const COMM_EXEC: u16 = 1 << 13;
    let misc = record.misc();
    // The time is the last field of the trailer of every record (sample_id_all).
    let time = record
        .to_contiguous()
        .last_chunk()
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let Ok(record) = record.parse_record() else {
        *lost += 1;
        return;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let event = match record {
        Record::Lost(record) => {
            *lost += record.lost;
            return;
        }
        // The fork of a new thread makes no new process.
        Record::Fork(fork) if fork.pid != fork.ppid => Event::Fork {
            parent: fork.ppid,
            child: fork.pid,
        },
        Record::Exit(exit) if exit.pid == exit.tid => Event::Exit { pid: exit.pid },
        Record::Comm(comm) if misc & COMM_EXEC != 0 => Event::Exec {
            pid: comm.pid,
            comm: text(&comm.comm),
        },
        Record::Comm(comm) if comm.pid == comm.tid => Event::Rename {
            pid: comm.pid,
            comm: text(&comm.comm),
        },
        Record::Mmap2(map) => Event::Map {
            pid: map.pid,
            mapping: ImageMapping {
                range: map.addr..map.addr.saturating_add(map.len),
                offset: map.pgoff,
                path: text(&map.filename),
            },
        },
        _ => return,
    };
    events.push((time, event));
}

fn online_cpus() -> io::Result<Vec<usize>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    Ok(parse_cpu_list(list.trim()))
}

/// Parses a list like `0-3,8`.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(super::parse_cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(super::parse_cpu_list("0"), [0]);
    }
}
