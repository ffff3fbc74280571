//! Detects that a process sets or slews the kernel's clocks. All ways to do so first check the caller's CAP_SYS_TIME,
//! which the kernel's tracepoint `cap_capable` (Linux 6.14) reports without cost to other processes. Tracepoints of the
//! system calls themselves, which older kernels have too, make every call of the whole host cost a third more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use fastpath_os::bpf::asm::{Assembler, FP, R1, R2, R3, R4, Width};
use fastpath_os::bpf::{AttachedProgram, Map, MapKind, Ring, attach};

use crate::ntp::is_allowed;

/// include/uapi/linux/capability.h
const CAP_SYS_TIME: i32 = 25;
/// The tracepoint's arguments, 8 bytes each (include/trace/events/capability.h): cred, target_ns, capable_ns, cap, ret.
const CAP: i16 = 3 * 8;
const RET: i16 = 4 * 8;
/// `bpf_ringbuf_output`, include/uapi/linux/bpf.h
const RINGBUF_OUTPUT: i32 = 130;
/// Size of a record, which has no contents.
const RECORD_BYTES: i32 = 8;
/// Size of the ring: 64 KiB, the largest page size.
const RING_BYTES: u32 = 64 << 10;

/// A descriptor that is readable when a process is about to change the clocks.
pub(crate) struct SettingsWatch {
    _program: AttachedProgram,
    ring: Ring,
    map: Map,
}

impl SettingsWatch {
    /// Starts the watch. Needs CAP_BPF and CAP_PERFMON. A child first tries whether a seccomp filter kills for bpf(2).
    pub(crate) fn new() -> io::Result<SettingsWatch> {
        if !is_allowed(|| SettingsWatch::map().is_ok()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let map = SettingsWatch::map()?;
        let ring = Ring::new(&map, RING_BYTES)?;
        let mut asm = Assembler::default();
        // An int: the upper half is undefined.
        asm.load(Width::Word, R2, R1, CAP);
        asm.if_is_not(R2, CAP_SYS_TIME, "end");
        asm.load(Width::Word, R3, R1, RET);
        // A caller without the capability changes nothing, however often it tries.
        asm.if_is_not(R3, 0, "end");
        asm.store_value(Width::Double, FP, -8, 0);
        asm.map(R1, map.fd());
        asm.mov(R2, FP);
        asm.add(R2, -8);
        asm.set(R3, RECORD_BYTES);
        asm.set(R4, 0);
        asm.call(RINGBUF_OUTPUT);
        asm.label("end");
        asm.exit();
        let _program = attach(c"cap_capable", &asm.finish())?;
        Ok(SettingsWatch { _program, ring, map })
    }

    fn map() -> io::Result<Map> {
        Map::new(MapKind::Ring, 0, 0, RING_BYTES)
    }

    /// Discards all records. The caller calls it when the watch is readable.
    pub(crate) fn take(&mut self) {
        self.ring.drain(|_| {});
    }
}

impl AsFd for SettingsWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, poll};

    #[test]
    fn who_may_change_the_clocks_is_reported_and_who_only_reads_them_is_not() {
        let mut watch = match SettingsWatch::new() {
            Ok(watch) => watch,
            // Without the privilege, or on a kernel without the tracepoint.
            Err(e) => return crate::skip::skip(format_args!("the kernel reports no settings of its clock: {e}")),
        };
        let is_readable = |watch: &SettingsWatch, timeout: u16| {
            let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
        };
        let adjtimex = |modes| {
            // SAFETY: a timex of zeros is valid; the call fills it in.
            unsafe {
                let mut timex: libc::timex = std::mem::zeroed();
                timex.modes = modes;
                libc::adjtimex(&mut timex) >= 0
            }
        };
        // Other processes may set the clock as well.
        while is_readable(&watch, 0) {
            watch.take();
        }
        // ADJ_STATUS would change something; ADJ_MAXERROR with the present value changes nothing.
        // SAFETY: as above.
        let changed = unsafe {
            let mut timex: libc::timex = std::mem::zeroed();
            libc::adjtimex(&mut timex);
            timex.modes = libc::ADJ_MAXERROR;
            libc::adjtimex(&mut timex) >= 0
        };
        if !changed {
            return crate::skip::skip("this process may not set clocks");
        }
        assert!(is_readable(&watch, 60_000));
        watch.take();
        assert!(adjtimex(0));
    }
}
