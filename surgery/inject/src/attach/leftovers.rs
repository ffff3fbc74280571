//! Scratch memory of remote calls in a running program, and the leftovers of a fastpath that was killed in the middle
//! of its calls: descriptors, the scratch memory, and the code in the tail of a mapping. That code is written before
//! anything else is made and removed after everything else, so it shows that there are leftovers.

use std::ops::Range;

use super::calling_thread::with_calls;
use super::inside::until_no_thread_is_in;
use super::notes::{Descriptor, recorded};
use super::refusal::Answer;
use super::session::Session;
use crate::abi::Call;
use crate::error::{Error, Result};
use crate::remote::{RemoteCalls, tail};
use crate::target::maps::{self, Mapping};

/// Name of the scratch memory, in /proc/PID/maps and /proc/PID/fd.
const SCRATCH_SHOWN: &str = "/memfd:fastpath-scratch";
const SCRATCH_BYTES: u64 = 4096;
/// Does `work` with scratch memory for what the remote calls pass by pointer. Its name identifies it if fastpath dies.
pub fn with_scratch(calls: &mut RemoteCalls<'_>, work: impl FnOnce(&mut RemoteCalls<'_>) -> Answer<()>) -> Answer<()> {
    let scratch = map_scratch(calls)?;
    calls.set_scratch(scratch);
    let done = work(calls);
    let unmapped = calls.munmap(scratch, SCRATCH_BYTES);
    done?;
    Ok(unmapped?)
}

fn map_scratch(calls: &mut RemoteCalls<'_>) -> Result<u64> {
    /// MFD_NOEXEC_SEAL, include/uapi/linux/memfd.h (Linux 6.3), which vm.memfd_noexec may require; older kernels do
    /// not know it.
    const NOT_EXECUTABLE: libc::c_uint = 8;
    let name = calls.tail().name();
    let mut make = |flags: libc::c_uint| {
        let arguments = [name, u64::from(flags), 0, 0, 0, 0];
        calls.call("memfd_create", Call::MemfdCreate, arguments)
    };
    let fd = match make(libc::MFD_CLOEXEC | NOT_EXECUTABLE) {
        Err(Error::Remote {
            errno: nix::errno::Errno::EINVAL,
            ..
        }) => make(libc::MFD_CLOEXEC)?,
        made => made?,
    };
    let sized = calls.tracee().take_fd(fd as i32).and_then(|file| {
        let sized = std::fs::File::from(file).set_len(SCRATCH_BYTES);
        sized.map_err(|e| Error::io("memfd", e))
    });
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = sized.and_then(|()| {
        let arguments = [0, SCRATCH_BYTES, write as u64, libc::MAP_PRIVATE as u64, fd, 0];
        calls.call("mmap", Call::Mmap, arguments)
    });
    calls.close(fd)?;
    mapped
}

/// Removes all leftovers. Returns whether there were some.
pub fn clear(session: &Session<'_>) -> Answer<bool> {
    let pid = session.pid();
    let maps = maps::read(pid)?;
    let tails = tail::Tail::in_use(pid, &maps)?;
    if tails.is_empty() {
        return Ok(false);
    }
    let ranges: Vec<Range<u64>> = tails.iter().map(tail::Tail::range).collect();
    // A thread may still be there: for example, job control stopped it when it was about to return.
    until_no_thread_is_in(session, &ranges, None, |_| Ok(()))?;
    // No code points there, so no thread enters it.
    session.tails_are_free.set(true);
    with_calls(session, &maps, |calls| {
        let cleared = remove(calls, &maps);
        // The tail that the calls are made from is erased at the end.
        let own = calls.tail().range();
        let mut others = tails.iter().filter(|tail| tail.range() != own);
        let erased = others.try_for_each(tail::Tail::erase);
        cleared?;
        erased?;
        Ok(true)
    })
}

fn remove(calls: &mut RemoteCalls<'_>, maps: &[Mapping]) -> Result<()> {
    let pid = calls.tracee().process();
    let scratches: Vec<_> = maps.iter().filter(|m| m.name.starts_with(SCRATCH_SHOWN)).collect();
    let mut descriptors = unmapped_scratch(pid);
    for scratch in &scratches {
        descriptors.extend(recorded(calls.tracee(), scratch.start)?);
    }
    for descriptor in descriptors {
        // The program may use the number for another descriptor by now.
        if Descriptor::read(pid, descriptor.number).is_some_and(|now| now == descriptor) {
            calls.close(descriptor.number)?;
        }
    }
    for scratch in scratches {
        calls.munmap(scratch.start, scratch.end - scratch.start)?;
    }
    Ok(())
}

/// Returns the descriptors of scratch memory.
fn unmapped_scratch(pid: i32) -> Vec<Descriptor> {
    let names = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    names
        .filter_map(|entry| Descriptor::read(pid, entry.file_name().to_str()?.parse().ok()?))
        .filter(|descriptor| descriptor.is_of(SCRATCH_SHOWN))
        .collect()
}
