//! The answers to requests.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fastpath_image::own_vdso;
use fastpath_inject::redirection::{JournalRecord, REGION_NAME, RegionPlan, region_for};
use fastpath_inject::region;
use fastpath_page::{ClockSet, MEMFD_NAME, PAGE_SIZE};
use fastpath_protocol::{
    Answer, CLOCK_NAME, Code, FOR_CLOCK, Operation, PATCH_BYTES, Patch, REGION_ROOM, Request, RequestRefusal, SECTIONS,
    Section, Source, TEXT, WITH_MAILBOX, WITH_PROCESS,
};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::lease::Plan;
use crate::peer::{Peer, Process};
use crate::record::What;
use crate::registry::Owner;
use crate::state::DaemonState;

/// An answer and what is sent with it.
pub(crate) struct Answered {
    /// Fixed part of the packet.
    pub answer: Answer,
    /// Bytes that follow it in the packet.
    pub text: Vec<u8>,
    /// Descriptors that are sent with it.
    pub fds: Vec<OwnedFd>,
}

impl Answered {
    fn with(answer: Answer, fds: Vec<OwnedFd>) -> Answered {
        let text = Vec::new();
        Answered { answer, text, fds }
    }

    /// Returns the packet.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.answer.bytes();
        bytes.extend_from_slice(&self.text);
        bytes
    }
}

/// Largest distance of a region from the vDSO. A jump reaches 2 GiB on x86-64 and 128 MiB on AArch64; no plan can use a
/// larger distance.
const REACH: u64 = 1 << 31;
/// End of user addresses, also with five levels of page tables (Documentation/arch/x86/x86_64/mm.rst).
const ADDRESSES: u64 = 1 << 56;

/// What is known about a request for its record.
#[derive(Default)]
struct Subject {
    /// The process that it is about.
    process: Option<Process>,
    /// Whether a child of this daemon asks, for an attach that has a record of its own.
    is_own_attach: bool,
}

/// Answers one packet.
pub(crate) fn answer(state: &mut DaemonState, peer: Peer, packet: &[u8], fds: Vec<OwnedFd>) -> Answered {
    let (operation, answered) = match Request::parse(packet) {
        Ok((operation, request)) => {
            let mut subject = Subject::default();
            let answered = match operation {
                Operation::Page => page(state, peer, &request, fds, &mut subject),
                Operation::Prepare => prepare(state, peer, &request, &mut subject),
                Operation::Status => status(state, peer, &request),
                Operation::Attach => attach(state, peer, &request, fds, &mut subject),
            };
            let request = match operation {
                Operation::Page | Operation::Prepare => Some(What::Grant),
                // The attach that follows has a record of its own.
                Operation::Attach => answered.is_err().then_some(What::Attach),
                Operation::Status => None,
            };
            if let Some(request) = request.filter(|_| !subject.is_own_attach) {
                state.record(request, peer, subject.process, answered.as_ref().map(drop));
            }
            (operation as u32, answered)
        }
        Err(refusal) => (0, Err(refusal)),
    };
    match answered {
        Ok(mut answered) => {
            answered.answer.descriptors = answered.fds.len() as u32;
            answered.answer.text_size = answered.text.len() as u64;
            answered
        }
        Err(refusal) => {
            state.refused += 1;
            Answered::with(Answer::refusing(operation, &refusal), Vec::new())
        }
    }
}

/// Returns the refusal of a descriptor that no request has.
pub(crate) fn refuse_descriptors(state: &mut DaemonState) -> Answered {
    state.refused += 1;
    let refusal = RequestRefusal::new(Code::Malformed, "a descriptor is neither a pidfd nor a memfd");
    Answered::with(Answer::refusing(0, &refusal), Vec::new())
}

/// Returns the descriptors that were sent with a request, according to its flags: pidfd and mailbox.
fn descriptors(request: &Request, fds: Vec<OwnedFd>) -> Result<[Option<OwnedFd>; 2], RequestRefusal> {
    let mut fds = fds.into_iter();
    let mut take = |flag: u32| match request.flags & flag {
        0 => Ok(None),
        _ => fds.next().map(Some).ok_or_else(|| {
            RequestRefusal::new(Code::Malformed, "a descriptor that the request speaks of is not there")
        }),
    };
    Ok([take(WITH_PROCESS)?, take(WITH_MAILBOX)?])
}

fn page(
    state: &mut DaemonState,
    peer: Peer,
    request: &Request,
    fds: Vec<OwnedFd>,
    subject: &mut Subject,
) -> Result<Answered, RequestRefusal> {
    let [process, mailbox] = descriptors(request, fds)?;
    let of_another = process.is_some();
    let (process, account) = match &process {
        Some(pidfd) => peer.process_of(pidfd.as_fd())?,
        None => (peer.process()?, peer.account),
    };
    let attached = of_another.then(|| state.attaches(peer, process)).flatten();
    *subject = Subject {
        process: Some(process),
        is_own_attach: attached.is_some(),
    };
    match of_another {
        true => state.policy_allows(process)?,
        false => state.policy_allows_itself(process)?,
    }
    let clocks = clocks_of(state, request)?;
    let offsets = process.offsets()?;
    let is_theirs = mailbox.is_some();
    let name = match request.flags & FOR_CLOCK {
        0 => MEMFD_NAME,
        _ => CLOCK_NAME,
    };
    let owner = Owner {
        process,
        account,
        attached,
    };
    let grant = state.registry.open(name, owner, clocks, offsets, mailbox, None)?;
    let answer = Answer {
        clocks: clocks.0,
        ..Answer::new(Operation::Page as u32)
    };
    let mailbox = (!is_theirs).then_some(grant.mailbox);
    let fds = std::iter::once(grant.page).chain(mailbox).collect();
    Ok(Answered::with(answer, fds))
}

/// Returns the clocks that a request asks for, or those that are slow here.
fn clocks_of(state: &DaemonState, request: &Request) -> Result<ClockSet, RequestRefusal> {
    let asked = match request.clocks {
        0 => state.slow_clocks(),
        bits => ClockSet(bits).intersection(ClockSet::ALL),
    };
    if asked.is_empty() {
        return Err(RequestRefusal::new(
            Code::Nothing,
            "every clock is on its fast path here: nothing needs fixing",
        ));
    }
    Ok(asked)
}

fn prepare(
    state: &mut DaemonState,
    peer: Peer,
    request: &Request,
    subject: &mut Subject,
) -> Result<Answered, RequestRefusal> {
    let process = peer.process()?;
    subject.process = Some(process);
    state.policy_allows(process)?;
    let clocks = clocks_of(state, request)?;
    let unsupported = |why: &dyn std::fmt::Display| RequestRefusal::new(Code::Unsupported, why.to_string());
    let is_placed = |address: u64| address.is_multiple_of(PAGE_SIZE as u64) && (1..ADDRESSES).contains(&address);
    if !is_placed(request.vdso) || !is_placed(request.region) || request.vdso.abs_diff(request.region) > REACH {
        return Err(unsupported(
            &"the region is not at a page's start within a jump of the vDSO",
        ));
    }
    // The same kernel gives all its programs of one kind the same vDSO; the client compares before it writes.
    let own = match own_vdso() {
        Ok(Some(own)) => own,
        Ok(None) => return Err(unsupported(&"this kernel gives programs no vDSO")),
        Err(error) => return Err(unsupported(&format_args!("the kernel's vDSO: {error}"))),
    };
    if u32::from(own.vdso.machine()) != request.machine {
        return Err(unsupported(
            &"only programs of this kernel's own kind (64-bit) are prepared",
        ));
    }
    let offsets = process.offsets()?;
    let plan = region_for(&own.bytes, request.vdso, request.region, clocks, false).map_err(|e| unsupported(&e))?;
    let mut answer = Answer {
        clocks: clocks.0,
        region_size: region::SIZE as u32,
        section: sections(),
        ..Answer::new(Operation::Prepare as u32)
    };
    let contents = contents(&plan, &mut answer)?;
    let (kept, contents) = contents;
    let owner = Owner {
        process,
        account: peer.account,
        attached: None,
    };
    let grant = state
        .registry
        .open(MEMFD_NAME, owner, clocks, offsets, None, Some(kept))?;
    Ok(Answered::with(answer, vec![grant.page, grant.mailbox, contents]))
}

const _: () = assert!(region::SIZE <= REGION_ROOM as u64);

/// Returns the parts of the region, at their offsets in the plan's bytes.
fn sections() -> [Section; SECTIONS] {
    let read = libc::PROT_READ as u32;
    let write = read | libc::PROT_WRITE as u32;
    let execute = read | libc::PROT_EXEC as u32;
    let page = PAGE_SIZE as u64;
    let parts = [
        (Source::Page, region::PAGE, page, read, false),
        (
            Source::Bytes,
            region::IMAGE,
            region::STATE - region::IMAGE,
            execute,
            true,
        ),
        (Source::Bytes, region::STATE, page, write, true),
        (Source::Mailbox, region::MAILBOX, page, write, false),
        (
            Source::Bytes,
            region::JOURNAL,
            region::SIZE - region::JOURNAL,
            execute,
            true,
        ),
    ];
    let mut sections = [Section::default(); SECTIONS];
    for (section, (source, offset, size, protection, from_plan)) in sections.iter_mut().zip(parts) {
        *section = Section {
            source: source as u32,
            offset: offset as u32,
            size: size as u32,
            protection,
            file_offset: if from_plan { offset as u32 } else { 0 },
            file_size: if from_plan { size as u32 } else { 0 },
        };
    }
    sections
}

/// Makes the plan's memfd: the region's bytes, then the patches. Returns one descriptor that shows whether the client
/// still has it, and one for the client.
fn contents(plan: &RegionPlan, answer: &mut Answer) -> Result<(Plan, OwnedFd), RequestRefusal> {
    let mut bytes = plan.code.clone();
    answer.patches_offset = bytes.len() as u32;
    answer.patches = plan.journal.records.len() as u32;
    for JournalRecord { change: patch, .. } in &plan.journal.records {
        let padded = |from: &[u8]| {
            let mut to = [0; PATCH_BYTES];
            to.get_mut(..from.len())?.copy_from_slice(from);
            Some(to)
        };
        let both = padded(&patch.original).zip(padded(&patch.replacement));
        let (original, replacement) =
            both.ok_or_else(|| RequestRefusal::new(Code::Internal, "a patch is longer than the protocol allows"))?;
        let encoded = Patch {
            address: patch.address,
            size: patch.replacement.len() as u32,
            reserved: 0,
            original,
            replacement,
        };
        bytes.extend(encoded.bytes());
    }
    // The client maps it, and a detach recognizes the region by this name.
    let name = std::ffi::CString::new(REGION_NAME).map_err(|e| RequestRefusal::new(Code::Internal, e.to_string()))?;
    let made = sealed(&name, &bytes)?;
    Plan::new(&made).map_err(|e| RequestRefusal::new(Code::Internal, format!("memory for the answer: {e}")))
}

/// Answers in the packet itself: a memfd would be charged to this process for as long as the client keeps it.
fn status(state: &DaemonState, peer: Peer, request: &Request) -> Result<Answered, RequestRefusal> {
    let trouble = |why: &dyn std::fmt::Display| RequestRefusal::new(Code::Internal, format!("the status: {why}"));
    let mut most = PAGES_AT_A_TIME;
    loop {
        let text = serde_json::to_vec(&state.status(peer, request.after, most)).map_err(|e| trouble(&e))?;
        if text.len() <= TEXT {
            return Ok(Answered {
                text,
                ..Answered::with(Answer::new(Operation::Status as u32), Vec::new())
            });
        }
        if most == 1 {
            return Err(trouble(&"it is too long"));
        }
        most /= 2;
    }
}

/// Number of pages in one status; each takes some 300 bytes.
const PAGES_AT_A_TIME: usize = 64;

/// Queues a process to be attached, as if a rule of the policy selected it. Only the host's root may ask for that: the
/// daemon has more privileges over a process than its user may have.
fn attach(
    state: &DaemonState,
    peer: Peer,
    request: &Request,
    fds: Vec<OwnedFd>,
    subject: &mut Subject,
) -> Result<Answered, RequestRefusal> {
    let [process, _] = descriptors(request, fds)?;
    if peer.uid != 0 || !peer.account.is_root() {
        return Err(RequestRefusal::new(
            Code::Denied,
            "only root may have processes attached",
        ));
    }
    let process = process.ok_or_else(|| RequestRefusal::new(Code::Malformed, "the request names no process"))?;
    let (process, account) = peer.process_of(process.as_fd())?;
    subject.process = Some(process);
    state.policy_allows(process)?;
    let clocks = clocks_of(state, request)?;
    state.attach(peer, process, account, clocks)?;
    Ok(Answered::with(Answer::new(Operation::Attach as u32), Vec::new()))
}

/// Returns a memfd with these bytes, sealed against every change.
fn sealed(name: &std::ffi::CStr, bytes: &[u8]) -> Result<OwnedFd, RequestRefusal> {
    let made = (|| {
        let mut file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.write_all(bytes)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: fcntl with an int argument.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(file.into()),
            _ => Err(io::Error::last_os_error()),
        }
    })();
    made.map_err(|e| RequestRefusal::new(Code::Internal, format!("memory for the answer: {e}")))
}
