//! What a fastpath that was killed in the middle of its remote calls left in a process: descriptors, a page of scratch memory, and the code
//! in the tail of a mapping. That code is written before anything else is made and removed after all else, so it tells.

use std::ops::Range;

use super::carrier::{self, Carrier, TAIL};
use super::refusal::Answer;
use super::session::Session;
use crate::abi::Call;
use crate::error::Result;
use crate::handover;
use crate::maps::{self, Mapping};
use crate::remote::Remote;

/// The name of the scratch memory, in /proc/PID/maps and /proc/PID/fd.
pub const SCRATCH_NAME: &std::ffi::CStr = c"fastpath-scratch";
const SCRATCH_SHOWN: &str = "/memfd:fastpath-scratch";
/// Where in the scratch memory it is noted which sockets were made: number and inode of each.
const NOTES_AT: u64 = 512;
const NOTES: usize = 4;

/// A descriptor of the process, as /proc/PID/fd shows it.
#[derive(PartialEq, Eq)]
struct Descriptor {
    number: u64,
    shown: String,
}

impl Descriptor {
    fn of(pid: i32, number: u64) -> Option<Descriptor> {
        let shown = std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        let shown = shown.to_string_lossy().into_owned();
        Some(Descriptor { number, shown })
    }

    fn is_of(&self, name: &str) -> bool {
        self.shown.starts_with(name)
    }
}

/// Notes, in the scratch memory of `calls`, sockets that it has made.
pub fn note(calls: &mut Carrier, numbers: [u64; 2]) -> Result<()> {
    let mut notes = Vec::new();
    for number in numbers {
        let shown = Descriptor::of(calls.process(), number)
            .map(|d| d.shown)
            .unwrap_or_default();
        notes.extend(number.to_le_bytes());
        notes.extend(inode_of(&shown).unwrap_or(0).to_le_bytes());
    }
    let at = calls.scratch() + NOTES_AT;
    calls.tracee().write(at, &notes)
}

/// socket:[123]
fn inode_of(shown: &str) -> Option<u64> {
    shown.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Removes all of it.
pub fn clear(session: &Session<'_>) -> Answer<()> {
    let pid = session.pid();
    let maps = maps::of(pid)?;
    let tails = carrier::tails_in_use(pid, &maps);
    if tails.is_empty() {
        return Ok(());
    }
    let ranges: Vec<Range<u64>> = tails.iter().map(|(at, _)| *at..*at + TAIL as u64).collect();
    // A thread may stand there yet: stopped by job control when it was to go back, for one.
    super::until_nobody_is_in(session, &ranges, |_| Ok(()))?;
    // Nothing leads there, so nobody comes.
    session.tails_are_free.set(true);
    let mut carrier = Carrier::of(session, &maps)?;
    let cleared = clear_by(&mut carrier, &maps);
    // The one that is in use is erased at the end.
    let own = carrier.tail();
    let mut others = tails.iter().filter(|(at, _)| *at != own);
    let erased = others.try_for_each(|(at, pad)| carrier.tracee().write(*at, &[*pad; TAIL]));
    carrier.finish()?;
    cleared?;
    Ok(erased?)
}

fn clear_by(carrier: &mut Carrier, maps: &[Mapping]) -> Result<()> {
    let pid = carrier.process();
    let scratches: Vec<_> = maps.iter().filter(|m| m.name.starts_with(SCRATCH_SHOWN)).collect();
    let mut descriptors = made_and_not_mapped(pid);
    for scratch in &scratches {
        descriptors.extend(made_by_way_of(carrier, scratch.start)?);
    }
    for descriptor in descriptors {
        // Its number may be the program's by now.
        if Descriptor::of(pid, descriptor.number).is_some_and(|now| now == descriptor) {
            carrier.call("close", Call::Close, [descriptor.number, 0, 0, 0, 0, 0])?;
        }
    }
    for scratch in scratches {
        let arguments = [scratch.start, scratch.end - scratch.start, 0, 0, 0, 0];
        carrier.call("munmap", Call::Munmap, arguments)?;
    }
    Ok(())
}

/// Scratch memory's own.
fn made_and_not_mapped(pid: i32) -> Vec<Descriptor> {
    let names = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    names
        .filter_map(|entry| Descriptor::of(pid, entry.file_name().to_str()?.parse().ok()?))
        .filter(|descriptor| descriptor.is_of(SCRATCH_SHOWN))
        .collect()
}

/// Those that the scratch memory at `scratch` knows the numbers of, and that are what was made then.
fn made_by_way_of(carrier: &mut Carrier, scratch: u64) -> Result<Vec<Descriptor>> {
    let pid = carrier.process();
    let tracee = carrier.tracee();
    let notes = tracee.read_words(scratch + NOTES_AT, NOTES, 8)?;
    let sockets = notes
        .chunks_exact(2)
        .filter_map(|note| Descriptor::of(pid, note[0]).filter(|d| inode_of(&d.shown) == Some(note[1])));
    // struct cmsghdr: its length, two ints, descriptors.
    const HEADER: u64 = 16;
    let length = tracee.read_words(scratch + handover::CONTROL_AT, 1, 8)?[0];
    let count = length.saturating_sub(HEADER).min(64) / 4;
    let numbers = tracee.read_words(scratch + handover::CONTROL_AT + HEADER, count as usize, 4)?;
    let given = numbers
        .into_iter()
        .filter_map(|number| Descriptor::of(pid, number).filter(|d| d.is_of("/memfd:fastpath-")));
    Ok(sockets.chain(given).collect())
}
