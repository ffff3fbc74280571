//! What the kernel reports about a stopped thread, besides its registers.

use nix::errno::Errno;
use nix::sys::{ptrace, uio::RemoteIoVec};

use super::Tracee;
use crate::error::{Error, Result, tried};
use crate::target::memory::PAGE;
use crate::target::seccomp_filter::{Instruction, MOST_INSTRUCTIONS};

/// Result of a system call.
pub type CallResult = std::result::Result<u64, Errno>;

/// A system call that a thread is leaving.
pub struct LeavingCall {
    /// Program counter: the address after the system call instruction.
    pub pc: u64,
    /// Result of the call.
    pub result: CallResult,
}

impl Tracee {
    /// Reads one of its seccomp filters into `buffer`, which must have room for the largest
    /// (PTRACE_SECCOMP_GET_FILTER). The errno is ENOENT for an index behind the last.
    pub fn seccomp_filter<'b>(
        &self,
        index: usize,
        buffer: &'b mut [Instruction],
    ) -> std::result::Result<&'b [Instruction], Errno> {
        /// include/uapi/linux/ptrace.h
        const SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
        if buffer.len() < MOST_INSTRUCTIONS {
            return Err(Errno::ENOBUFS);
        }
        // SAFETY: the kernel writes a filter as an array of struct sock_filter, whose layout `Instruction` has. No filter
        // has more instructions than the buffer (`bpf_check_basics_ok` in net/core/filter.c).
        let length = unsafe { libc::ptrace(SECCOMP_GET_FILTER, self.pid(), index, buffer.as_mut_ptr()) };
        let length = Errno::result(length)?;
        buffer.get(..length as usize).ok_or(Errno::ENOBUFS)
    }

    /// Returns the system call that it is leaving; `None` if it is not stopped at the exit of one. The thread must be in
    /// a syscall-stop (PTRACE_GET_SYSCALL_INFO, Linux 5.3).
    pub fn leaving_call(&self) -> Result<Option<LeavingCall>> {
        /// include/uapi/linux/ptrace.h: struct ptrace_syscall_info is the kind of stop (one byte), the architecture,
        /// the program counter and the stack pointer; at an exit, then the result, and whether it is an error (one
        /// byte).
        const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
        const INFO_EXIT: u8 = 2;
        let info: [u64; 11] = match self.describe(GET_SYSCALL_INFO) {
            Ok(info) => info,
            Err(Errno::EIO) if states_syscall_stops() => return self.leaving_call_by_message(),
            Err(errno) => return Err(tried("PTRACE_GET_SYSCALL_INFO")(errno)),
        };
        let [kind, pc, _, value, is_error, ..] = info;
        if kind as u8 != INFO_EXIT {
            return Ok(None);
        }
        let result = match is_error as u8 {
            0 => Ok(value),
            _ => Err(Errno::from_raw((value as i64).unsigned_abs() as i32)),
        };
        Ok(Some(LeavingCall { pc, result }))
    }

    /// The same where an architecture of the kernel lacks that request (it takes CONFIG_HAVE_ARCH_TRACEHOOK, which User
    /// Mode Linux has not): by the event message of the stop, and the registers.
    fn leaving_call_by_message(&self) -> Result<Option<LeavingCall>> {
        /// include/uapi/linux/ptrace.h: PTRACE_EVENTMSG_SYSCALL_ENTRY and PTRACE_EVENTMSG_SYSCALL_EXIT.
        const ENTRY: i64 = 1;
        const EXIT: i64 = 2;
        let message = ptrace::getevent(self.pid).map_err(tried("PTRACE_GETEVENTMSG"))?;
        let registers = self.registers()?;
        match (message, registers.call_result()) {
            (ENTRY, _) => Ok(None),
            (EXIT, Some(result)) => Ok(Some(LeavingCall {
                pc: registers.pc(),
                result,
            })),
            _ => Err(Error::Unsupported(
                "this kernel does not tell a system call's entry from its exit (PTRACE_GET_SYSCALL_INFO)".into(),
            )),
        }
    }
}

/// Returns whether this kernel states in the event message of a syscall-stop whether it is an entry or an exit: Linux 5.3
/// and newer, on every architecture (include/linux/ptrace.h: ptrace_report_syscall). An older one leaves the message of
/// an earlier event there.
fn states_syscall_stops() -> bool {
    fastpath_os::kernel_version() >= (5, 3)
}

/// State that only a thread of a running program has: an exec resets it.
impl Tracee {
    /// Returns where the thread has registered struct rseq (rseq(2)); 0: nowhere. `None`: this kernel does not report
    /// it (before Linux 5.13).
    pub fn rseq_area(&self) -> Result<Option<u64>> {
        /// include/uapi/linux/ptrace.h, with struct ptrace_rseq_configuration: the area, and two words about it.
        const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        match self.describe::<3>(GET_RSEQ_CONFIGURATION) {
            Ok([area, ..]) => Ok(Some(area)),
            Err(Errno::EIO | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(tried("PTRACE_GET_RSEQ_CONFIGURATION")(errno)),
        }
    }

    /// Returns whether the thread handles its system calls itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH). `None`:
    /// this kernel does not report it (before Linux 6.4).
    pub fn dispatches_calls(&self) -> Result<Option<bool>> {
        /// include/uapi/linux/ptrace.h, with struct ptrace_sud_config: mode, selector, offset, len.
        const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
        /// PR_SYS_DISPATCH_OFF, include/uapi/linux/prctl.h
        const OFF: u64 = 0;
        match self.describe::<4>(GET_SYSCALL_USER_DISPATCH_CONFIG) {
            Ok([mode, ..]) => Ok(Some(mode != OFF)),
            Err(Errno::EIO | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(tried("PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG")(errno)),
        }
    }

    /// Reads as many whole words of 8 bytes as the program could read, up to `bytes`. A guard page ends the read.
    pub fn read_present(&self, address: u64, bytes: usize) -> Vec<u64> {
        let bytes = bytes / 8 * 8;
        let mut buffer = vec![0; bytes];
        let end = address + bytes as u64;
        // Page by page: a piece that is only partly present is not read at all (process_vm_readv(2)).
        let mut pieces = Vec::new();
        let mut at = address;
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            pieces.push(RemoteIoVec {
                base: at as usize,
                len: (next - at) as usize,
            });
            at = next;
        }
        let read = self.read_pieces(&mut buffer, &pieces);
        let (words, _) = buffer[..read].as_chunks();
        words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// Reads pieces of its memory, one behind the other, up to the first that is not readable. Returns the number of
    /// bytes.
    pub fn read_pieces(&self, buffer: &mut [u8], pieces: &[RemoteIoVec]) -> usize {
        let local = &mut [std::io::IoSliceMut::new(buffer)];
        nix::sys::uio::process_vm_readv(self.pid, local, pieces).unwrap_or(0)
    }

    /// Returns whether the SIGSYS that is about to be delivered is for a call by the instruction before `after_call`,
    /// which the program's own dispatcher would handle. A SIGSYS for another call is the program's: it may have been
    /// pending when the thread was stopped.
    pub fn dispatched_call(&self, after_call: u64) -> Result<bool> {
        /// include/uapi/asm-generic/siginfo.h
        const SYS_USER_DISPATCH: i32 = 2;
        /// Offset of si_call_addr, which libc has no name for: after si_signo, si_errno, si_code and padding.
        const CALL_ADDRESS_AT: usize = 16;
        let information = ptrace::getsiginfo(self.pid).map_err(tried("PTRACE_GETSIGINFO"))?;
        // SAFETY: siginfo_t is 128 bytes of plain data on every 64-bit Linux; the kernel has written all of them, and
        // the word at this offset lies within them.
        let call_address = unsafe {
            let start = (&raw const information).cast::<u8>();
            start.add(CALL_ADDRESS_AT).cast::<u64>().read_unaligned()
        };
        Ok(information.si_code == SYS_USER_DISPATCH && call_address == after_call)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::target::tracee::{Stop, Until};

    #[test]
    fn entry_and_exit_of_a_call_are_told_apart_with_and_without_the_request_for_it() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id() as i32;
        let tracee = Tracee::seize(pid, pid, ptrace::Options::empty()).unwrap();
        tracee.interrupt().unwrap();
        tracee.wait_for_interrupt::<Error>(None).unwrap();
        let mut told = Vec::new();
        // The call that was interrupted is made again and again; each interrupt ends it.
        while told.len() < 6 {
            tracee.resume(Until::Syscall, 0).unwrap();
            let Some(Stop::Syscall) = tracee.event(true).unwrap() else {
                continue;
            };
            let [by_request, by_message] = [tracee.leaving_call(), tracee.leaving_call_by_message()]
                .map(|left| left.unwrap().map(|left| (left.pc, left.result)));
            assert_eq!(by_request, by_message);
            told.push(by_message.is_some());
            if by_message.is_none() {
                tracee.interrupt().unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(told, [false, true, false, true, false, true]);
    }
}
