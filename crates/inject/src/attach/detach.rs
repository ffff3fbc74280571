//! Takes a process off the fast path: restores the bytes of its entry points, and unmaps the region once no thread is
//! in it.

use super::calling_thread::with_calls;
use super::checks;
use super::execs;
use super::leftovers;
use super::refusal::{Answer, Refusal};
use super::regions::{Found, find};
use super::session::{self, Session};
use super::threads::AllStopped;
use super::until_no_thread_is_in;
use super::watchdog::LastResort;
use crate::abi;
use crate::maps;
use crate::redirection::{Journal, Record, State, mapping};
use crate::region;

/// Result of a detach.
#[derive(Debug)]
pub struct Detached {
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

fn detach_held(session: &Session<'_>) -> Answer<Detached> {
    let pid = session.pid();
    let maps = maps::of(pid)?;
    let Some(found) = find(pid, &maps)? else {
        leftovers::clear(session)?;
        let is_served = maps.iter().any(|m| m.name.starts_with("/memfd:fastpath-page"));
        return Err(if is_served {
            Refusal::UnderRun
        } else {
            Refusal::NotAttached
        });
    };
    if found.journal.state == State::Kept {
        return Err(Refusal::UnderRun);
    }
    take_back(session, &found)?;
    leftovers::clear(session)?;
    match clear(session, &found) {
        Ok(()) => Ok(Detached { region_stays_for: None }),
        Err(refusal @ (Refusal::InTheWay { .. } | Refusal::StackNotReadable { .. })) => Ok(Detached {
            region_stays_for: Some(refusal),
        }),
        Err(refusal) => Err(refusal),
    }
}

/// Restores the original bytes.
fn take_back(session: &Session<'_>, found: &Found) -> Answer<()> {
    let (mut all, ()) = AllStopped::of(session, |_| Ok(Some(())))?;
    let in_force: Vec<Record> = found.in_force()?.into_iter().cloned().collect();
    let tracee = all.threads[0].tracee();
    // In the reverse order of the attach.
    for record in in_force.iter().rev() {
        let written = tracee.write(record.address, &record.original);
        written.map_err(|e| Refusal::Sealed { why: e.to_string() })?;
    }
    let state = (State::Withdrawn as u32).to_le_bytes();
    tracee.write(found.at + region::JOURNAL + Journal::STATE_AT, &state)?;
    Ok(())
}

/// Returns where in a library a thread would be whose `pc` is in a thunk, before its system call or after it.
fn place_of(record: &Record, pc: u64) -> Option<u64> {
    if record.thunk == 0 {
        return None;
    }
    let behind = (record.thunk + u64::from(record.in_thunk)).checked_sub(pc)?;
    let is_at_call = behind == 0 || behind == u64::from(abi::CALL_BYTES);
    is_at_call.then(|| record.address + u64::from(record.in_place) - behind)
}

/// Unmaps a region that no code points to, once no thread is in it.
pub fn clear(session: &Session<'_>, found: &Found) -> Answer<()> {
    if found.is_before_entry()? {
        return Err(Refusal::InTheWay { tid: session.pid() });
    }
    let code = found.memory()?;
    until_no_thread_is_in(session, &code, |all| {
        // Threads that wait in a system call continue where they would be without the thunk.
        for thread in &mut all.threads {
            let pc = thread.registers.pc();
            if let Some(place) = found.journal.records.iter().find_map(|record| place_of(record, pc)) {
                thread.move_to(place)?;
            }
        }
        Ok(())
    })?;
    // No thread is in the region and no code points to it, so none enters it, though all run again.
    unmap_unused(session, found)
}

/// Unmaps a region that no code points to, and that no thread is in.
pub fn unmap_unused(session: &Session<'_>, found: &Found) -> Answer<()> {
    let maps = maps::of(found.pid)?;
    with_calls(session, &maps, |calls| Ok(mapping::unmap(calls, found.at)?))
}
