//! Code that reads the CPU's counter itself, with the search of `fastpath audit`: in the files that a process executes,
//! and in those of the programs that run here.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use fastpath_os::{Mapping, Stat};
use fastpath_tools::audit::{Judged, OnDisk};

use super::code_files;
use super::facts::{CounterProgram, CounterPrograms, CounterReads, ExecutedRead};
use super::root::Root;

/// A sample counts as one of a read if its address is the read's, or at most this many bytes behind it. An interrupt that
/// comes during a read is taken behind it.
const NEAR: u64 = 8;

/// Most places that are listed of a file.
const MOST_EXECUTED: usize = 16;

/// Returns the reads of a file, of which one part is mapped there; `None` if there are none.
pub(super) fn of_file(judged: &Judged, mapping: &Mapping, maps: &[Mapping], is_program: bool) -> Option<CounterReads> {
    let about_reads = judged.findings.iter().find(|found| found.rule.is_about_counter())?;
    let parts: Vec<&Mapping> = maps.iter().filter(|other| is_of_same_file(other, mapping)).collect();
    let address_of = |offset: u64| {
        let part = parts
            .iter()
            .find(|part| part.executable && (part.offset..part.offset + part.len()).contains(&offset))?;
        Some(part.start + (offset - part.offset))
    };
    let reads = judged.counter_reads.iter();
    let mut mapped: Vec<_> = reads
        .filter_map(|read| Some((address_of(read.offset)?, *read)))
        .collect();
    mapped.sort_unstable_by_key(|(address, _)| *address);
    Some(CounterReads {
        file: mapping.name.clone(),
        is_program,
        families: about_reads.families.iter().map(|family| family.name.into()).collect(),
        is_checked: about_reads.families.iter().any(|family| family.is_checked),
        places: judged.counter_reads.len(),
        clocks: judged.counter_reads.iter().filter(|read| read.is_scaled).count(),
        executed: Vec::new(),
        mapped,
    })
}

fn is_of_same_file(one: &Mapping, other: &Mapping) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Counts the samples at the reads of each file, by the samples' addresses.
pub(super) fn count(files: &mut [CounterReads], samples: &[u64]) {
    for file in files {
        let mut counts: HashMap<usize, u64> = HashMap::new();
        for sample in samples {
            let behind = file.mapped.partition_point(|(address, _)| address <= sample);
            if let Some(at) = behind.checked_sub(1).filter(|at| sample - file.mapped[*at].0 <= NEAR) {
                *counts.entry(at).or_default() += 1;
            }
        }
        let executed = |(at, samples): (usize, u64)| ExecutedRead {
            address: file.mapped[at].1.address,
            is_scaled: file.mapped[at].1.is_scaled,
            samples,
        };
        let mut found: Vec<ExecutedRead> = counts.into_iter().map(executed).collect();
        found.sort_by_key(|read| (Reverse(read.samples), read.address));
        found.truncate(MOST_EXECUTED);
        file.executed = found;
    }
}

/// Limits of the search among all running programs.
#[derive(Clone, Copy)]
struct Bounds {
    time: Duration,
    bytes: u64,
}

/// About a third of a second's work.
const BOUNDS: Bounds = Bounds {
    time: Duration::from_millis(300),
    bytes: 384 << 20,
};

/// Time after which the search is given up: a file's server may not answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Returns all processes, those first that have used most CPU time.
fn busiest() -> Vec<i32> {
    let mut processes: Vec<(i32, Stat)> = fastpath_os::processes()
        .into_iter()
        .flatten()
        .filter_map(|pid| Some((pid, Stat::read(pid).ok()?)))
        .filter(|(_, stat)| !stat.is_kernel_thread() && !stat.has_ended())
        .collect();
    processes.sort_by_key(|(_, stat)| Reverse(stat.cpu_time));
    processes.into_iter().map(|(pid, _)| pid).collect()
}

/// Returns the running programs whose code reads the counter as a clock, those first that have used most CPU time.
/// `None` if some file of theirs is never read.
pub(super) fn running(root: &Root) -> Option<CounterPrograms> {
    let look = |_| serde_json::to_vec(&among(root, busiest(), BOUNDS)).unwrap_or_default();
    let looked = fastpath_os::look_at_all(&[0], TIMEOUT, look);
    serde_json::from_slice(&looked.into_iter().find_map(|(_, json)| json)?).ok()
}

/// Returns those of some processes whose code reads the counter as a clock. Programs that test it all the time are left
/// out.
fn among(root: &Root, processes: Vec<i32>, bounds: Bounds) -> CounterPrograms {
    let begun = Instant::now();
    let mut known = HashMap::new();
    let mut left = bounds.bytes;
    let mut found = CounterPrograms::default();
    for pid in processes {
        let directory = format!("/proc/{pid}");
        let maps = (begun.elapsed() < bounds.time).then(|| root.text(&format!("{directory}/maps")));
        let Some(Ok(text)) = maps else {
            found.unexamined += 1;
            continue;
        };
        let maps = fastpath_os::maps::parse(&text);
        let program = root.link(&format!("{directory}/exe")).ok();
        let mut seen = BTreeSet::new();
        let (mut reads, mut is_whole) = (Vec::new(), true);
        for mapping in maps.iter().filter(|mapping| code_files::is_code_of_file(mapping)) {
            let file = (mapping.device, mapping.inode);
            if !seen.insert(file) {
                continue;
            }
            let is_program = program.as_deref() == Some(&mapping.name);
            let result = known.entry(file).or_insert_with(|| {
                let (file, length) = code_files::open(root, &directory, mapping, is_program).ok()?;
                left = left.checked_sub(length).filter(|_| begun.elapsed() < bounds.time)?;
                let judged = fastpath_tools::audit::judge(&OnDisk::new(file, length)).ok()?;
                Some(judged.and_then(|judged| of_file(&judged, mapping, &maps, is_program)))
            });
            match result {
                Some(Some(file)) if file.is_clock() && !file.is_checked => reads.push(CounterReads {
                    is_program,
                    ..file.clone()
                }),
                Some(_) => {}
                None => is_whole = false,
            }
        }
        if let Some(file) = reads.into_iter().max_by_key(|file| file.is_program) {
            found.programs.push(CounterProgram {
                pid: pid.cast_unsigned(),
                name: fastpath_os::comm(pid).unwrap_or_default(),
                file: file.file,
                families: file.families,
            });
        } else if !is_whole {
            found.unexamined += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Tree;
    use super::*;
    use fastpath_tools::audit::CounterRead;
    use std::process::Command;

    fn read(address: u64, is_scaled: bool) -> (u64, CounterRead) {
        let read = CounterRead {
            address,
            offset: address,
            is_scaled,
        };
        (0x7000_0000 + address, read)
    }

    #[test]
    fn a_sample_counts_for_the_last_read_at_or_just_before_it() {
        let mut files = [CounterReads {
            mapped: vec![read(0x100, true), read(0x104, false), read(0x200, false)],
            ..CounterReads::default()
        }];
        let samples = [0xff, 0x100, 0x102, 0x104, 0x106, 0x10c, 0x10d, 0x1ff].map(|at| 0x7000_0000 + at);
        count(&mut files, &samples);
        let counts: Vec<_> = files[0]
            .executed
            .iter()
            .map(|read| (read.address, read.samples))
            .collect();
        assert_eq!(counts, [(0x104, 3), (0x100, 2)]);
    }

    #[test]
    fn a_search_names_programs_that_read_the_counter_as_a_clock() {
        let tree = Tree::new(&[]);
        let program = tree.root().path_of("counter");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cli/tests/e2e/helpers/own-counter.c");
        let compiled = Command::new("cc").args(["-O2", source, "-o"]).arg(&program).status();
        if !compiled.is_ok_and(|status| status.success()) {
            return crate::skip::skip("cc builds nothing here");
        }
        let mut running = Command::new(&program).spawn().unwrap();
        let own = std::process::id().cast_signed();
        let pids = || vec![own, running.id().cast_signed()];
        let root = Root::at(std::path::Path::new("/"));
        let slowly = Bounds {
            time: Duration::from_secs(60),
            bytes: u64::MAX,
        };
        let found = among(&root, pids(), slowly);
        let unread = among(&root, pids(), Bounds { bytes: 0, ..slowly });
        running.kill().unwrap();
        running.wait().unwrap();
        // This test has fastpath's own reads.
        let named: Vec<&str> = found.programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!((named, found.unexamined), (vec!["counter"], 0));
        assert_eq!((unread.programs, unread.unexamined), (Vec::new(), 2));
    }
}
