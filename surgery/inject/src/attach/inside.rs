//! Which of the stopped threads are in some code, or will return there.

use std::ops::Range;

use super::frames::{Frames, Stacks};
use super::refusal::{Answer, Refusal};
use super::session::Session;
use super::threads::{AllStopped, Stopped};
use crate::plan::redirection::JournalRecord;

/// Refuses if a thread is in the way.
pub fn free(thread: Option<i32>) -> Answer<Answer<()>> {
    Ok(thread.map_or(Ok(()), |tid| Err(Refusal::InTheWay { tid })))
}

/// Returns a thread that will return into the middle of an entry: from a signal handler, or from a function of the
/// kernel's vDSO that the entry has called.
pub fn returns_into(all: &AllStopped<'_>, records: &[JournalRecord]) -> Answer<Option<i32>> {
    let is_middle = |pc: &u64, record: &JournalRecord| record.range().contains(pc) && record.range().start != *pc;
    let is_inside = |pc: &u64| records.iter().any(|record| is_middle(pc, record));
    let returns = |_: &Stopped, frames: &Frames| {
        frames.interrupted.iter().any(is_inside) || frames.returned_to().any(|word| is_inside(&word))
    };
    find(all, |word| is_inside(&word), returns)
}

/// Returns a thread that will return from a signal handler to an address that `is_inside`.
pub fn interrupted_at(all: &AllStopped<'_>, is_inside: impl Fn(&u64) -> bool) -> Answer<Option<i32>> {
    find(all, |_| false, |_, frames| frames.interrupted.iter().any(&is_inside))
}

/// Returns a thread that is about to execute an instruction in `code`, or will return there. `used_up`: an address in it
/// that may be on a stack, and that no thread will use.
pub fn thread_in(all: &AllStopped<'_>, code: &[Range<u64>], used_up: Option<u64>) -> Answer<Option<i32>> {
    let is_ours = |address: u64| code.iter().any(|range| range.contains(&address));
    let is_in = |thread: &&Stopped| is_ours(thread.registers.pc()) || thread.registers.point_into(code);
    match all.threads.iter().find(is_in) {
        Some(thread) => Ok(Some(thread.tid())),
        None => find(all, is_ours, |thread, frames| {
            frames.mention(thread.look(), code, used_up)
        }),
    }
}

/// Waits until no thread is in `code`, to which nothing points any more. Calls `help` first each time, with all threads
/// stopped. Refuses if a thread does not leave `code`.
pub fn until_no_thread_is_in(
    session: &Session<'_>,
    code: &[Range<u64>],
    used_up: Option<u64>,
    mut help: impl FnMut(&mut AllStopped<'_>) -> Answer<()>,
) -> Answer<()> {
    let stopped = AllStopped::stop(session, |all| {
        help(all)?;
        free(thread_in(all, code, used_up)?)
    });
    stopped.map(drop)
}

/// Returns a thread with frames of this kind, among those whose stack has a signal frame or a word that `is_telling`.
/// Refuses if such a stack cannot be read.
fn find(
    all: &AllStopped<'_>,
    is_telling: impl Fn(u64) -> bool,
    is_it: impl Fn(&Stopped, &Frames) -> bool,
) -> Answer<Option<i32>> {
    let stacks = Stacks::read(all.pid())?;
    for thread in stacks.to_examine(&all.threads, is_telling) {
        let frames = Frames::read(thread.look(), thread.registers.pc(), thread.registers.sp(), &stacks);
        if frames.is_unreadable {
            return Err(Refusal::StackNotReadable { tid: thread.tid() });
        }
        if is_it(thread, &frames) {
            return Ok(Some(thread.tid()));
        }
    }
    Ok(None)
}
