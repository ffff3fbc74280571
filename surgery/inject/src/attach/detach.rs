//! Takes a process off the fast path: restores the bytes of its entry points, and unmaps the region once no thread is
//! in it.

use std::ops::Range;
use std::time::Duration;

use fastpath_evidence::PageCopy;

use super::calling_thread::with_calls;
use super::checks;
use super::execs;
use super::floor::Floors;
use super::inside::{interrupted_at, thread_in, until_no_thread_is_in};
use super::leftovers;
use super::refusal::{Answer, Refusal, Shared};
use super::regions::{FoundRegion, find};
use super::session::{self, Pauses, Session};
use super::sharers;
use super::threads::AllStopped;
use super::watchdog::LastResort;
use crate::abi;
use crate::plan::redirection::{Journal, JournalRecord, JournalState, Purpose};
use crate::plan::region;
use crate::remote::mapping;
use crate::target::maps;

/// Result of a detach.
#[derive(Debug)]
pub struct Detached {
    /// Number of places in its code that were restored.
    pub sites: usize,
    /// Time that its threads were stopped.
    pub pauses: Pauses,
    /// Reason why the region stays mapped, and unused: a thread is still in it, or may be.
    pub region_stays_for: Option<Refusal>,
}

/// Detaches an attached process. See [`super::attach`] for `last_resort`.
pub fn detach(pid: i32, last_resort: LastResort) -> Answer<Detached> {
    execs::outside(pid, || {
        checks::is_reachable(pid)?;
        session::hold(pid, last_resort, detach_held)
    })
}

pub(super) fn detach_held(session: &Session<'_>) -> Answer<Detached> {
    let pid = session.pid();
    let maps = maps::read(pid)?;
    let Some(found) = find(pid, &maps)? else {
        leftovers::clear(session)?;
        return Err(match PageCopy::mapping(&maps) {
            Some(_) => Refusal::UnderRun,
            None => Refusal::NotAttached,
        });
    };
    if found.journal.state == JournalState::Kept {
        return Err(Refusal::UnderRun);
    }
    // Its remote call opens nothing.
    sharers::refuse(session, &[Shared::Memory])?;
    let (is_unused, sites) = take_back(session, &found)?;
    leftovers::clear(session)?;
    let cleared = match is_unused {
        true => unmap_unused(session, &found),
        false => clear(session, &found),
    };
    let region_stays_for = match cleared {
        Ok(()) => None,
        Err(
            refusal @ (Refusal::InTheWay { .. }
            | Refusal::KernelBehind { .. }
            | Refusal::StackNotReadable { .. }
            | Refusal::Shares { .. }),
        ) => Some(refusal),
        Err(refusal) => return Err(refusal),
    };
    Ok(Detached {
        sites,
        pauses: session.pauses(),
        region_stays_for,
    })
}

/// Restores the original bytes. Returns whether no thread is in the region any more: then the threads need not be stopped
/// again for it; and the number of restored places.
///
/// If a thread may return into the middle of the image's code in the vDSO, that code stays, and so does the region.
fn take_back(session: &Session<'_>, found: &FoundRegion) -> Answer<(bool, usize)> {
    let may_be_cleared = !found.is_before_entry()?;
    let (code, entry) = code_of(found)?;
    let (mut all, sites) = match restore(session, found, |_| true) {
        Err(Refusal::InTheWay { .. } | Refusal::StackNotReadable { .. }) if found.has_entry_body()? => {
            restore(session, found, |record| record.purpose != Purpose::EntryBody)?
        }
        restored => restored?,
    };
    let state = (JournalState::Withdrawn as u32).to_le_bytes();
    let tracee = all.threads[0].tracee();
    tracee.write(found.at + region::JOURNAL + Journal::STATE_AT, &state)?;
    if !may_be_cleared || session.stop_time.is_over() {
        return Ok((false, sites));
    }
    leave_thunks(&mut all, found)?;
    let is_unused = matches!(thread_in(&all, &code, entry), Ok(None)) && !found.has_entry_body()?;
    Ok((is_unused, sites))
}

/// Restores the original bytes of those changes that are `wanted`, once the kernel's clocks have reached what readers were
/// shown. Returns the threads, which are all still stopped, and the number of places.
fn restore<'s>(
    session: &'s Session<'s>,
    found: &FoundRegion,
    wanted: impl Fn(&JournalRecord) -> bool,
) -> Answer<(AllStopped<'s>, usize)> {
    let (mut all, in_force) = AllStopped::stop(session, |all| {
        let in_force: Vec<(JournalRecord, Vec<u8>)> = found
            .in_force()?
            .into_iter()
            .filter(|(record, _)| wanted(record))
            .map(|(record, now)| (record.clone(), now))
            .collect();
        if let Some(tid) = thread_inside(all, &in_force)? {
            return Ok(Err(Refusal::InTheWay { tid }));
        }
        let ahead = ahead_at_last(session, found)?;
        Ok(match ahead.is_zero() {
            true => Ok(in_force),
            false => Err(Refusal::KernelBehind { ahead }),
        })
    })?;
    // Before the bytes change: if fastpath dies in between, these threads are where they may be as well.
    for thread in &mut all.threads {
        if let Some(place) = in_image(&in_force, thread.registers.pc()) {
            thread.move_to(place)?;
        }
    }
    let tracee = all.threads[0].tracee();
    // In the reverse order of the attach.
    for (record, now) in in_force.iter().rev() {
        for (address, bytes) in record.restored(now) {
            let written = tracee.write(address, &bytes);
            written.map_err(|e| Refusal::Sealed { why: e.to_string() })?;
        }
    }
    Ok((all, in_force.len()))
}

/// Returns by how much the times that the stopped threads were shown are ahead of the kernel's clocks, after a short wait:
/// a publisher that follows a slewed clock is ahead by microseconds for as long as that goes on.
fn ahead_at_last(session: &Session<'_>, found: &FoundRegion) -> Answer<Duration> {
    /// Longer waits are made while the threads run.
    const LONGEST: Duration = Duration::from_millis(1);
    let Some(floors) = Floors::read(found.pid, found.at + region::PAGE)? else {
        return Ok(LONGEST);
    };
    let mut ahead = floors.ahead();
    while !ahead.is_zero() && ahead <= LONGEST && !session.stop_time.is_over() {
        std::thread::sleep(ahead);
        ahead = floors.ahead();
    }
    Ok(ahead)
}

/// Returns a thread that is at an instruction of the changed code, or will return there from a signal handler, where the
/// original has none.
fn thread_inside(all: &AllStopped<'_>, in_force: &[(JournalRecord, Vec<u8>)]) -> Answer<Option<i32>> {
    let is_inside = |pc: &u64| in_force.iter().any(|(record, _)| record.is_inside(*pc));
    let stays = |pc: u64| is_inside(&pc) && in_image(in_force, pc).is_none();
    if let Some(thread) = all.threads.iter().find(|thread| stays(thread.registers.pc())) {
        return Ok(Some(thread.tid()));
    }
    if !in_force
        .iter()
        .any(|(record, _)| record.is_inside(record.change.address + 1))
    {
        return Ok(None);
    }
    let has_entry_body = in_force.iter().any(|(record, _)| record.purpose == Purpose::EntryBody);
    match interrupted_at(all, is_inside) {
        // Its region stays mapped, too.
        Err(Refusal::StackNotReadable { .. }) if !has_entry_body => Ok(None),
        found => found,
    }
}

/// Returns the same instruction in the image, for one of the image's code in the place of a kernel's function.
fn in_image(in_force: &[(JournalRecord, Vec<u8>)], pc: u64) -> Option<u64> {
    let mut bodies = in_force
        .iter()
        .filter(|(record, _)| record.purpose == Purpose::EntryBody);
    bodies.find_map(|(record, _)| {
        let offset = pc.checked_sub(record.change.address)?;
        (1..u64::from(record.in_thunk))
            .contains(&offset)
            .then(|| record.thunk + offset)
    })
}

/// Returns the region's code, and the address in it that the loader has used.
fn code_of(found: &FoundRegion) -> Answer<(Vec<Range<u64>>, Option<u64>)> {
    // The loader's copy of AT_ENTRY: it has jumped there.
    let (_, hook) = abi::of_this_build(abi::host::NATIVE)?;
    let entry = hook.entry.map(|entry| found.at + region::HOOK + entry);
    Ok((found.code()?, entry))
}

/// Moves threads that wait in a system call to where they would be without the thunk.
fn leave_thunks(all: &mut AllStopped<'_>, found: &FoundRegion) -> Answer<()> {
    for thread in &mut all.threads {
        let pc = thread.registers.pc();
        if let Some(place) = found.journal.records.iter().find_map(|record| place_of(record, pc)) {
            thread.move_to(place)?;
        }
    }
    Ok(())
}

/// Returns where in a library a thread would be whose `pc` is in a thunk, before its system call or after it.
fn place_of(record: &JournalRecord, pc: u64) -> Option<u64> {
    if record.thunk == 0 || matches!(record.purpose, Purpose::EntryBody | Purpose::SlowPath) {
        return None;
    }
    let behind = (record.thunk + u64::from(record.in_thunk)).checked_sub(pc)?;
    let is_at_call = behind == 0 || behind == u64::from(abi::CALL_BYTES);
    is_at_call.then(|| record.change.address + u64::from(record.in_place) - behind)
}

/// Unmaps a region that no code points to, once no thread is in it.
pub fn clear(session: &Session<'_>, found: &FoundRegion) -> Answer<()> {
    if found.is_before_entry()? {
        return Err(Refusal::InTheWay { tid: session.pid() });
    }
    if found.has_entry_body()? {
        drop(restore(session, found, |_| true)?);
    }
    let (code, entry) = code_of(found)?;
    until_no_thread_is_in(session, &code, entry, |all| leave_thunks(all, found))?;
    // No thread is in the region and no code points to it, so none enters it, though all run again.
    unmap_unused(session, found)
}

/// Unmaps a region that no code points to, and that no thread is in.
pub fn unmap_unused(session: &Session<'_>, found: &FoundRegion) -> Answer<()> {
    let maps = maps::read(found.pid)?;
    with_calls(session, &maps, |calls| Ok(mapping::unmap(calls, found.at)?))
}
