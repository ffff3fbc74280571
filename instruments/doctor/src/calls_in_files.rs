//! Finds the clock reads that a process's own code makes by system call, and its reads of the CPU's counter, with the
//! search of `fastpath audit` in the files that the process executes.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use fastpath_code::rescue::Analysis;
use fastpath_os::Mapping;
use fastpath_tools::audit::{AuditRule, OnDisk};

use super::facts::{CounterReads, OwnCalls, Process};
use super::root::Root;
use super::{code_files, counter_reads};

/// Most bytes of files that are searched for a process: about a quarter of a second's work.
const SEARCHED: u64 = 512 << 20;

/// Adds the files with such code, the program first, then those with the most places.
pub(super) fn look(root: &Root, directory: &str, process: &mut Process, maps: &[Mapping]) {
    let mut seen = BTreeSet::new();
    let mut searched = 0;
    for mapping in maps {
        if !code_files::is_code_of_file(mapping) || !seen.insert((mapping.device, mapping.inode)) {
            continue;
        }
        let is_program = process.program.as_deref() == Some(mapping.name.as_str());
        match of_file(root, directory, mapping, maps, is_program, &mut searched) {
            Ok((calls, reads)) => {
                process.own_calls.extend(calls);
                process.counter_reads.extend(reads);
            }
            Err(why) => root.miss(
                "system calls and reads of the counter in the process's own code",
                &mapping.name,
                &why,
                "run `fastpath audit FILE` as a user who may read it",
            ),
        }
    }
    let calls = &mut process.own_calls;
    calls.sort_by_key(|own| (!own.is_program, std::cmp::Reverse(own.places)));
    let reads = &mut process.counter_reads;
    reads.sort_by_key(|file| (!file.is_program, std::cmp::Reverse(file.places)));
}

fn of_file(
    root: &Root,
    directory: &str,
    mapping: &Mapping,
    maps: &[Mapping],
    is_program: bool,
    searched: &mut u64,
) -> Result<(Vec<OwnCalls>, Option<CounterReads>), String> {
    let (file, length) = code_files::open(root, directory, mapping, is_program).map_err(|error| error.to_string())?;
    *searched += length;
    if *searched > SEARCHED {
        return Err(format!("the process's files have more than {} MiB", SEARCHED >> 20));
    }
    let bytes = OnDisk::new(file, length);
    let Some(judged) = fastpath_tools::audit::judge(&bytes)? else {
        return Ok((Vec::new(), None));
    };
    let reads = counter_reads::of_file(&judged, mapping, maps, is_program);
    let counts = |rule: AuditRule| matches!(rule, AuditRule::OwnSystemCall | AuditRule::Vsyscall | AuditRule::Libc);
    let findings: Vec<_> = judged.findings.iter().filter(|found| counts(found.rule)).collect();
    let rescue = match findings.is_empty() {
        true => None,
        false => judged
            .analyse(&bytes)
            .ok()
            .and_then(|analysis| Rescue::count(root, directory, mapping, maps, &analysis)),
    };
    let calls = findings
        .into_iter()
        .map(|found| {
            let calls: BTreeSet<_> = found
                .sites
                .iter()
                .filter_map(|site| Some(site.call?.name().into()))
                .collect();
            OwnCalls {
                file: mapping.name.clone(),
                is_program,
                rule: found.rule.id().into(),
                calls: calls.into_iter().collect(),
                places: found.site_count,
                rescuable: rescue.as_ref().map(|rescue| rescue.rescuable),
                rescued: rescue.as_ref().map_or(0, |rescue| rescue.rescued),
            }
        })
        .collect();
    Ok((calls, reads))
}

/// What `--rescue` can do, or has done, for the places in a file.
struct Rescue {
    rescuable: usize,
    rescued: usize,
}

impl Rescue {
    /// Returns `None` if the file is not mapped.
    fn count(root: &Root, directory: &str, mapping: &Mapping, maps: &[Mapping], analysis: &Analysis) -> Option<Rescue> {
        let with_number = analysis
            .sites
            .iter()
            .filter(|site| site.calls != fastpath_code::rescue::Calls::Any);
        let windows: Vec<_> = with_number.filter_map(|site| site.window.as_ref().ok()).collect();
        // The file's lowest mapping is that of its lowest address, which is 0 unless the program has a fixed place.
        let is_same = |m: &&Mapping| (m.device, m.inode) == (mapping.device, mapping.inode);
        let start = maps.iter().filter(is_same).map(|m| m.start).min()?;
        let bias = start.wrapping_sub(analysis.lowest);
        let memory = File::open(root.path_of(&format!("{directory}/mem"))).ok();
        let is_rescued = |window: &&&fastpath_code::rescue::Window| {
            let mut found = vec![0; window.bytes.len()];
            let read = memory
                .as_ref()
                .map(|memory| memory.read_exact_at(&mut found, bias.wrapping_add(window.address)));
            matches!(read, Some(Ok(()))) && found != window.bytes
        };
        Some(Rescue {
            rescuable: windows.len(),
            rescued: windows.iter().filter(is_rescued).count(),
        })
    }
}
