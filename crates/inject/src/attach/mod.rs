//! Puts a running process on the fast path, and takes it off again.
//!
//! Until the last step, no code of the target points to what is being put there, and all threads but one run. The last
//! step writes some bytes for each entry point, while all threads are stopped. Every single write leaves a working
//! process, so fastpath may be killed at any point.

mod calls;
mod carrier;
mod checks;
mod detach;
mod execs;
mod frames;
mod leftovers;
mod refusal;
mod regions;
mod session;
mod threads;
mod watchdog;

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use fastpath_page::ClockSet;
use nix::errno::Errno;

use crate::abi::Call;
use crate::error::{Error, Result, tried};
use crate::mailbox_layout::HookState;
use crate::redirection::{LeftAlone, REGION_NAME, Record, RegionPlan, region_for};
use crate::remote::Remote;
use crate::sites::Cache;
use crate::{handover, maps, region};
use calls::Calls;
use carrier::Carrier;
use frames::{Frames, Stacks};
use session::Session;
use threads::{AllStopped, Stopped};

pub use detach::{Detached, detach};
pub use refusal::{Answer, Refusal};
pub use regions::Found;
use regions::find;
pub use session::Pauses;
pub use watchdog::{LastResort, StandsTooLong};

/// Grant: the page and the mailbox for a target, and options.
pub struct Goods<'a> {
    /// The page, to be mapped read-only.
    pub page: &'a OwnedFd,
    /// Page, to be mapped read-only.
    pub mailbox: &'a OwnedFd,
    /// Mailbox.
    pub clocks: ClockSet,
    /// Scans of libraries. Present if the programs that the target executes must be served too: then a process attends
    /// to the mailbox.
    pub children: Option<&'a Cache>,
    /// Process that must be allowed to trace the target (PR_SET_PTRACER), where Yama requires that; 0: none.
    pub ptracer: u32,
}

/// Result of an attach.
#[derive(Debug)]
pub struct Attached {
    /// Number of threads that were stopped.
    pub threads: usize,
    /// Time that they were stopped.
    pub pauses: Pauses,
    /// Functions that stay on the kernel's path.
    pub left_alone: Vec<LeftAlone>,
    /// Reason why the programs that the target executes will not be served, though that was asked for.
    pub without_children: Option<&'static str>,
}

/// PR_TSC_ENABLE, prctl(2).
const TSC_ENABLED: u32 = 1;

/// Returns the region of a process, if it has one.
pub fn find_in(pid: i32) -> Answer<Option<Found>> {
    find(pid, &maps::of(pid)?)
}

/// Looks at a process without changing anything, and refuses one that cannot be attached.
pub fn may_attach(pid: i32) -> Answer<()> {
    execs::outside(pid, || checks::may_attach(pid))
}

/// Attaches a process that [`may_attach`] does not refuse. Its threads are stopped for at most 100 ms: see
/// [`LastResort`].
pub fn attach(pid: i32, goods: &Goods<'_>, last_resort: LastResort) -> Answer<Attached> {
    execs::outside(pid, || {
        checks::may_attach(pid)?;
        session::hold(pid, last_resort, |session| attach_held(session, goods))
    })
}

fn attach_held(session: &Session<'_>, goods: &Goods<'_>) -> Answer<Attached> {
    let pid = session.pid();
    // Checked again: from here on no other tracer can change the target.
    checks::look_at(pid)?;
    leftovers::clear(session)?;
    let target = checks::look_at(pid)?;
    if let Some(leftover) = &target.leftover {
        detach::clear(session, leftover)?;
    }
    let at = region::place_near(&target.maps, target.vdso_base)?;
    let mut plan = region_for(&target.vdso, target.vdso_base, at, goods.clocks)?;
    let calls = match goods.children {
        // The target's filter may kill it for the system calls of the hook.
        Some(scans) if !target.is_filtered => Calls::of(pid, &target.maps, at, scans)?,
        _ => Calls::default(),
    };
    plan.add(&calls.records, &calls.moved)?;
    let mut carrier = Carrier::of(session, &target.maps)?;
    let prepared = prepare(&mut carrier, &plan, at, &calls, goods);
    carrier.finish()?;
    prepared?;
    let in_force = put_in_force(session, &plan, at);
    if in_force.is_err() {
        // No code points to the region: it only takes up room.
        if let Ok(Some(found)) = find(pid, &maps::of(pid)?) {
            let _ = match in_force {
                // Refused before any code pointed to the region, so no thread can be in it.
                Err(Refusal::StackNotReadable { .. }) => detach::unmap_unused(session, &found),
                _ => detach::clear(session, &found),
            };
        }
    }
    let without = match goods.children {
        Some(_) if target.is_filtered => Some("it has a seccomp filter"),
        Some(_) if calls.records.is_empty() => Some("none of its system calls was recognised"),
        _ => None,
    };
    in_force.map(|attached| Attached {
        without_children: without,
        ..attached
    })
}

/// Maps the whole region in the target.
fn prepare(calls: &mut Carrier, plan: &RegionPlan, at: u64, thunks: &Calls, goods: &Goods<'_>) -> Answer<()> {
    calls.map_scratch()?;
    let mapped = counter_is_readable(calls).and_then(|()| map_region(calls, plan, at, thunks, goods));
    let unmapped = calls.unmap_scratch();
    mapped?;
    unmapped?;
    Ok(())
}

fn counter_is_readable(calls: &mut Carrier) -> Answer<()> {
    let at = calls.scratch();
    match calls.call(
        "prctl(PR_GET_TSC)",
        Call::Prctl,
        [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0],
    ) {
        // A kernel that does not know PR_GET_TSC does not forbid the counter.
        Err(Error::Remote {
            errno: Errno::EINVAL, ..
        }) => return Ok(()),
        asked => asked?,
    };
    let mut mode = [0; 4];
    calls.tracee().read(at, &mut mode)?;
    match u32::from_le_bytes(mode) {
        TSC_ENABLED => Ok(()),
        _ => Err(Refusal::CounterForbidden),
    }
}

fn map_region(calls: &mut Carrier, plan: &RegionPlan, at: u64, thunks: &Calls, goods: &Goods<'_>) -> Answer<()> {
    let thunk_pages: Vec<u8> = thunks.pages.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let state = HookState {
        ptracer: goods.ptracer,
        ..HookState::default()
    };
    let state = state.bytes();
    let mut code = [&plan.code[..], &thunk_pages].concat();
    code[region::STATE as usize..][..state.len()].copy_from_slice(&state);
    let code = region_file(&code)?;
    let [page, mailbox, code] = handover::give(calls, [goods.page, goods.mailbox, &code])?;
    let mapped = map_parts(calls, at, thunks, [page, mailbox, code]);
    for fd in [page, mailbox, code] {
        calls.call("close", Call::Close, [fd, 0, 0, 0, 0, 0])?;
    }
    mapped
}

fn map_parts(calls: &mut Carrier, at: u64, thunks: &Calls, [page, mailbox, code]: [u64; 3]) -> Answer<()> {
    let read = libc::PROT_READ as u64;
    let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let private = libc::MAP_PRIVATE as u64;
    let fixed = libc::MAP_FIXED as u64;
    let shared = libc::MAP_SHARED as u64 | fixed;
    let new = private | libc::MAP_FIXED_NOREPLACE as u64;
    let mut map = |at, size, protection, flags, fd, offset| {
        calls.call("mmap", Call::Mmap, [at, size, protection, flags, fd, offset])
    };
    // The whole region first; the parts are mapped over it.
    let mapped = map(at, region::ATTACHED_SIZE, execute, new, code, 0)?;
    let parts = if mapped == at {
        map(at + region::STATE, 4096, write, private | fixed, code, region::STATE)
            .and_then(|_| map(at + region::PAGE, 4096, read, shared, page, 0))
            .and_then(|_| map(at + region::MAILBOX, 4096, write, shared, mailbox, 0))
            .and_then(|_| {
                (region::ATTACHED_SIZE..)
                    .step_by(calls::PAGE as usize)
                    .zip(&thunks.pages)
                    .try_for_each(
                        |(offset, (at, _))| match map(*at, calls::PAGE, execute, new, code, offset)? {
                            mapped if mapped == *at => Ok(()),
                            _ => Err(Error::Unsupported("there is no room near its libraries".into())),
                        },
                    )
            })
    } else {
        // A kernel before 4.17 takes the address for a hint.
        Err(Error::Unsupported("there is no room near its vDSO".into()))
    };
    if parts.is_err() {
        detach::unmap(calls, mapped)?;
    }
    Ok(parts?)
}

/// Returns a file with the region's bytes.
fn region_file(bytes: &[u8]) -> Result<OwnedFd> {
    /// MFD_EXEC, include/uapi/linux/memfd.h (Linux 6.3); older kernels refuse unknown flags.
    const EXECUTABLE: libc::c_uint = 0x10;
    let name = std::ffi::CString::new(REGION_NAME).map_err(|e| Error::Unsupported(e.to_string()))?;
    // SAFETY: memfd_create with a C string; the result is a new descriptor.
    let make = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
    let fd = match make(libc::MFD_CLOEXEC | EXECUTABLE) {
        -1 => make(libc::MFD_CLOEXEC),
        fd => fd,
    };
    if fd < 0 {
        return Err(tried("memfd_create")(Errno::last()));
    }
    // SAFETY: memfd_create has just returned this descriptor, and nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all_at(bytes, 0).map_err(|e| Error::io("memfd", e))?;
    Ok(file.into())
}

/// Stops all threads and redirects the entry points to the region.
fn put_in_force(session: &Session<'_>, plan: &RegionPlan, at: u64) -> Answer<Attached> {
    let mut in_the_way = session.pid();
    let stopped = AllStopped::of(session, |all| match returns_into(all, &plan.journal.records)? {
        Some(tid) => {
            in_the_way = tid;
            Ok(None)
        }
        None => Ok(Some(())),
    });
    let (mut all, ()) = stopped.map_err(|refusal| match refusal {
        Refusal::InTheWay { .. } => Refusal::InTheWay { tid: in_the_way },
        other => other,
    })?;
    // Before the bytes change: if fastpath dies in between, a thread can go on in the copies as well, but not in the
    // middle of changed bytes.
    for thread in &mut all.threads {
        let pc = thread.registers.pc();
        if let Some(moved) = plan.moved.iter().find(|moved| moved.from == pc) {
            thread.move_to(moved.to)?;
        }
    }
    write(&mut all, plan, at)?;
    let threads = all.threads.len();
    drop(all);
    Ok(Attached {
        threads,
        pauses: session.pauses(),
        left_alone: plan.left_alone.clone(),
        without_children: None,
    })
}

/// Returns a thread that a signal interrupted inside an entry, and that has not returned there yet.
fn returns_into(all: &mut AllStopped<'_>, records: &[Record]) -> Answer<Option<i32>> {
    let is_inside = |pc: &u64| {
        records
            .iter()
            .any(|p| (p.address + 1..p.address + p.original.len() as u64).contains(pc))
    };
    let stacks = Stacks::of(all.pid())?;
    for thread in &all.threads {
        if frames_of(thread, &stacks)?.interrupted.iter().any(is_inside) {
            return Ok(Some(thread.tid()));
        }
    }
    Ok(None)
}

/// Writes the entries, if everything is as the plan found it: the target may have replaced its program meanwhile.
fn write(all: &mut AllStopped<'_>, plan: &RegionPlan, at: u64) -> Answer<()> {
    let tracee = all.threads.first_mut().map(Stopped::tracee).ok_or(Error::Gone)?;
    let mut journal = vec![0; plan.journal.bytes()?.len()];
    tracee.read(at + region::JOURNAL, &mut journal)?;
    if journal != plan.journal.bytes()? {
        return Err(Error::Unsupported("the process changed meanwhile".into()).into());
    }
    let records = &plan.journal.records;
    for record in records {
        let mut bytes = vec![0; record.original.len()];
        tracee.read(record.address, &mut bytes)?;
        if bytes != record.original {
            return Err(Refusal::ChangedSince {
                address: record.address,
            });
        }
    }
    for (done, record) in records.iter().enumerate() {
        if let Err(e) = tracee.write(record.address, &record.replacement) {
            for record in &records[..done] {
                tracee.write(record.address, &record.original)?;
            }
            return Err(Refusal::Sealed { why: e.to_string() });
        }
    }
    Ok(())
}

/// Waits until no thread is in `code`, to which nothing points any more. Calls `help` first each time, with all threads
/// stopped. Refuses if a thread does not leave `code`.
fn until_nobody_is_in(
    session: &Session<'_>,
    code: &[std::ops::Range<u64>],
    mut help: impl FnMut(&mut AllStopped<'_>) -> Answer<()>,
) -> Answer<()> {
    let mut in_the_way = session.pid();
    let stopped = AllStopped::of(session, |all| {
        help(all)?;
        let stands = stands_in(all, code)?;
        in_the_way = stands.unwrap_or(in_the_way);
        Ok(stands.is_none().then_some(()))
    });
    match stopped {
        Ok(_) => Ok(()),
        Err(Refusal::InTheWay { .. }) => Err(Refusal::InTheWay { tid: in_the_way }),
        Err(refusal) => Err(refusal),
    }
}

/// Returns a thread that is about to execute an instruction in `code`, or will return there.
fn stands_in(all: &mut AllStopped<'_>, code: &[std::ops::Range<u64>]) -> Answer<Option<i32>> {
    let stacks = Stacks::of(all.pid())?;
    for thread in &all.threads {
        let pc = thread.registers.pc();
        if code.iter().any(|range| range.contains(&pc)) || frames_of(thread, &stacks)?.mention(thread.look(), code) {
            return Ok(Some(thread.tid()));
        }
    }
    Ok(None)
}

/// Returns the frames of a thread; refuses a thread whose stack cannot be read.
fn frames_of(thread: &Stopped, stacks: &Stacks) -> Answer<Frames> {
    let frames = Frames::of(thread.look(), thread.registers.pc(), thread.registers.sp(), stacks);
    if frames.is_unreadable {
        return Err(Refusal::StackNotReadable { tid: thread.tid() });
    }
    Ok(frames)
}
