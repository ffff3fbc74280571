//! Leftovers of a fastpath that was killed in the middle of its remote calls: descriptors, a page of scratch
//! memory, and the code in the tail of a mapping. That code is written before anything else is made and removed after
//! everything else, so it shows that there are leftovers.

use std::ops::Range;

use super::carrier::{self, Carrier, TAIL};
use super::refusal::Answer;
use super::session::Session;
use crate::abi::Call;
use crate::error::Result;
use crate::handover;
use crate::maps::{self, Mapping};
use crate::remote::Remote;

/// Name of the scratch memory, in /proc/PID/maps and /proc/PID/fd.
pub const SCRATCH_NAME: &std::ffi::CStr = c"fastpath-scratch";
const SCRATCH_SHOWN: &str = "/memfd:fastpath-scratch";
/// Offset in the scratch memory of the notes on sockets that were made: number and inode of each.
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

/// Records in the scratch memory of `calls` the sockets that it has made.
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

/// Returns 123 for `socket:[123]`.
fn inode_of(shown: &str) -> Option<u64> {
    shown.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Removes all leftovers.
pub fn clear(session: &Session<'_>) -> Answer<()> {
    let pid = session.pid();
    let maps = maps::of(pid)?;
    let tails = carrier::tails_in_use(pid, &maps);
    if tails.is_empty() {
        return Ok(());
    }
    let ranges: Vec<Range<u64>> = tails.iter().map(|(at, _)| *at..*at + TAIL as u64).collect();
    // A thread may still be there: for example, job control stopped it when it was about to go back.
    super::until_nobody_is_in(session, &ranges, |_| Ok(()))?;
    // No code points there, so no thread enters it.
    session.tails_are_free.set(true);
    let mut carrier = Carrier::of(session, &maps)?;
    let cleared = clear_by(&mut carrier, &maps);
    // The tail that the carrier uses is erased at the end.
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
        // The program may use the number for another descriptor by now.
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

/// Returns the descriptors of scratch memory.
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

/// Returns the descriptors that the scratch memory at `scratch` has the numbers of, and that still are what was made
/// then.
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
