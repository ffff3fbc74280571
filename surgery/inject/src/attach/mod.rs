//! Puts a running process on the fast path, and takes it off again.
//!
//! Until the last step, no code of the target points to what is being put there, and all threads but one run. The last
//! step writes some bytes for each entry point, while all threads are stopped. Every single write leaves a working
//! process, so fastpath may be killed at any point.

mod calling_thread;
mod checks;
mod detach;
mod execs;
mod filters;
mod floor;
mod frames;
mod inside;
mod leftovers;
mod listing;
mod mapping_at;
mod notes;
mod priority;
mod refusal;
mod regions;
mod session;
mod sharers;
mod thread_state;
mod threads;
mod watchdog;

use fastpath_page::Grant;

use crate::abi;
use crate::error::Error;
use crate::plan::mailbox_layout::HookState;
use crate::plan::redirection::{LeftAlone, RegionPlan, region_for};
use crate::plan::rescued_calls::Rescued;
use crate::plan::{Plan, Seen, Withhold};
use crate::plan::{hooked_files, region};
use crate::remote::apply::{NotApplied, apply};
use crate::remote::mapping::Region;
use crate::target::maps;
use crate::target::memory::{CodePages, Memory};
use crate::target::sites::{Cache, Site, WATCHED};
use calling_thread::with_calls;
use inside::{free, returns_into};
use session::Session;
use threads::{AllStopped, Stopped};

pub use detach::{Detached, detach};
pub use execs::end_of;
pub use refusal::{Answer, Refusal, Shared};
pub use regions::{FoundRegion, find};
pub use session::Pauses;
pub use watchdog::{LastResort, StoppedTooLong};

/// What a target gets.
pub struct AttachConfig<'a> {
    /// Page and mailbox.
    pub grant: &'a Grant,
    /// Scans of libraries. Present if the programs that the target executes must be served too: then a process attends
    /// to the mailbox.
    pub children: Option<&'a Cache>,
    /// Process that must be allowed to trace the target (PR_SET_PTRACER), where Yama requires that; 0: none.
    pub ptracer: u32,
    /// Whether the program's own system calls for time are redirected too.
    pub rescue: bool,
    /// Decides whether the process may get it, just before the first change, while the process cannot execute another
    /// program. The error says why not.
    pub allows: &'a (dyn Fn(i32) -> Result<(), String> + Sync),
}

/// Result of an attach.
#[derive(Debug)]
pub struct Attached {
    /// Number of places in its code that were changed.
    pub sites: usize,
    /// Number of threads that were stopped.
    pub threads: usize,
    /// Time that they were stopped.
    pub pauses: Pauses,
    /// Functions that stay on the kernel's path.
    pub left_alone: Vec<LeftAlone>,
    /// Reason why the programs that the target executes will not be served, though that was asked for.
    pub without_children: Option<String>,
    /// Whether that is because another tool has changed the program's code.
    pub is_changed_by_others: bool,
    /// The program's own system calls for time, if they were to be redirected.
    pub rescued: Option<Rescued>,
}

/// Looks at a process without changing anything, and refuses one that cannot be attached.
pub fn may_attach(pid: i32) -> Answer<()> {
    execs::outside(pid, || checks::may_attach(pid))
}

/// Attaches a process that [`may_attach`] does not refuse. Its threads are stopped for at most 100 ms: see
/// [`LastResort`].
pub fn attach(pid: i32, config: &AttachConfig<'_>, last_resort: LastResort) -> Answer<Attached> {
    fastpath_evidence::counter::choose_read();
    execs::outside(pid, || {
        checks::is_reachable(pid)?;
        session::hold(pid, last_resort, |session| attach_held(session, config))
    })
}

fn attach_held(session: &Session<'_>, config: &AttachConfig<'_>) -> Answer<Attached> {
    let pid = session.pid();
    // From here on no other tracer can change the target.
    let mut target = checks::look_at(pid)?;
    let has_waited = sharers::refuse(session, &[Shared::Memory, Shared::Descriptors])?;
    if leftovers::clear(session)? || has_waited {
        target = checks::look_at(pid)?;
    }
    if let Some(leftover) = target.leftover.take() {
        match leftover.is_in_force()? {
            true => detach::detach_held(session).map(drop)?,
            false => detach::clear(session, &leftover)?,
        }
        target = checks::look_at(pid)?;
    }
    let own_scans = Cache::default();
    let at = region::place_near(&target.maps, target.vdso_base)?;
    let region = region_for(&target.vdso, target.vdso_base, at, config.grant.clocks, config.rescue)?;
    let abi = abi::host::NATIVE;
    let known_filters = filters::are_on(pid).then(|| filters::read_all(session)).transpose()?;
    // A filter may kill the target for the system calls of the hook.
    let obstacle = known_filters
        .as_ref()
        .and_then(|known| filters::obstacle(known, abi.isa()));
    let memory = Memory::open(pid)?;
    let seen = Seen {
        pid,
        maps: &target.maps,
        code: &CodePages::new(&memory),
        scans: config.children.unwrap_or(&own_scans),
    };
    let is_wanted = |site: &Site| config.children.is_some() || may_enter_namespaces(site);
    let files = match obstacle {
        None => hooked_files::find(pid, &target.maps, seen.scans, is_wanted),
        Some(_) => Vec::new(),
    };
    let withhold = |routines: &mut Vec<_>| {
        let known = known_filters.as_ref();
        known.map_or_else(Vec::new, |known| filters::remove_answered(known, abi.isa(), routines))
    };
    let withhold = config.rescue.then_some(&withhold as Withhold<'_>);
    let plan = Plan::make(&seen, region, abi::of_this_build(abi)?.1, &files, withhold)?;
    let state = HookState {
        ptracer: config.ptracer,
        silent: u32::from(config.children.is_none()),
        ..HookState::default()
    };
    let region = Region {
        plan: &plan,
        page: &config.grant.page,
        mailbox: &config.grant.mailbox,
        state,
    };
    with_calls(session, &target.maps, |calls| {
        // This thread is stopped: if the process executes a program from here on, the calls fail.
        (config.allows)(pid).map_err(|why| Refusal::Forbidden { why })?;
        leftovers::with_scratch(calls, |calls| match region.map(calls) {
            Err(Error::CounterForbidden) => Err(Refusal::CounterForbidden),
            mapped => Ok(mapped?),
        })
    })?;
    let in_force = put_in_force(session, &plan.region);
    let Plan { calls, rescued, .. } = plan;
    if let Err(refusal) = &in_force {
        remove_unused(session, refusal)?;
    }
    let without_children = match config.children {
        Some(_) if obstacle.is_some() => obstacle,
        Some(_) if !calls.left_alone.is_empty() => calls.left_alone.into_iter().next(),
        Some(_) if calls.records.is_empty() => Some("none of its system calls was recognised".into()),
        _ => None,
    };
    in_force.map(|attached| Attached {
        without_children,
        is_changed_by_others: config.children.is_some() && calls.changed_by_others.is_some(),
        rescued,
        ..attached
    })
}

/// Unmaps a region that was not put in force: it only takes up room.
fn remove_unused(session: &Session<'_>, why: &Refusal) -> Answer<()> {
    let pid = session.pid();
    if let Ok(Some(found)) = find(pid, &maps::read(pid)?) {
        let _ = match why {
            // Refused before any code pointed to the region, so no thread can be in it.
            Refusal::StackNotReadable { .. } | Refusal::Shares { .. } => detach::unmap_unused(session, &found),
            _ => detach::clear(session, &found),
        };
    }
    Ok(())
}

/// Returns whether a process may enter another time namespace by a site, or have its children enter one, without an exec:
/// the page would show them the clocks of this one. Go's programs cannot: they have threads, with which setns(2) fails,
/// and do not fork without an exec.
fn may_enter_namespaces(site: &Site) -> bool {
    let calls = [libc::SYS_unshare, libc::SYS_setns].map(|call| call as u32);
    let is_for_another = |nr: &u32| !calls.contains(nr) && site.shape.is_for(*nr);
    !site.shape.is_go() && !WATCHED.iter().any(is_for_another)
}

/// Stops all threads and redirects the entry points to the region.
fn put_in_force(session: &Session<'_>, plan: &RegionPlan) -> Answer<Attached> {
    let records = &plan.journal.records;
    let (mut all, ()) = AllStopped::stop(session, |all| free(returns_into(all, records)?))?;
    // Before the bytes change: if fastpath dies in between, a thread can go on in the copies as well, but not in the
    // middle of changed bytes.
    for thread in &mut all.threads {
        let pc = thread.registers.pc();
        if let Some(moved) = plan.moved.iter().find(|moved| moved.from == pc) {
            thread.move_to(moved.to)?;
        }
    }
    write(&mut all, plan)?;
    let threads = all.threads.len();
    drop(all);
    Ok(Attached {
        sites: records.len(),
        threads,
        pauses: session.pauses(),
        left_alone: plan.left_alone.clone(),
        without_children: None,
        is_changed_by_others: false,
        rescued: None,
    })
}

/// Writes the entries, if everything is as the plan found it: the target may have replaced its program meanwhile.
fn write(all: &mut AllStopped<'_>, plan: &RegionPlan) -> Answer<()> {
    let tracee = all.threads.first_mut().map(Stopped::tracee).ok_or(Error::Gone)?;
    let mut journal = vec![0; plan.journal.bytes()?.len()];
    tracee.read(plan.at + region::JOURNAL, &mut journal)?;
    if journal != plan.journal.bytes()? {
        return Err(Error::Unsupported("the process changed meanwhile".into()).into());
    }
    apply(tracee, &plan.journal.records).map_err(|e| match e {
        NotApplied::Changed { address } => Refusal::ChangedSince { address },
        NotApplied::Sealed { why } => Refusal::Sealed { why },
        NotApplied::Failed(e) => e.into(),
    })
}
