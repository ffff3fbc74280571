//! What a thread of a running program has that remote calls must respect: restartable sequences, a dispatcher of its
//! own system calls, seccomp filters.

use nix::sys::ptrace::Options;

use super::refusal::{Answer, Refusal};
use super::threads::StopTimeout;
use crate::abi::Registers;
use crate::abi::host::running;
use crate::error::{Error, Result};
use crate::target::tracee::{Stop, Tracee};
use crate::target::{self, ThreadStatus};

/// Prepares a stopped thread for remote calls: refuses one that cannot make them, aborts a restartable sequence, and
/// suspends filters. Returns false if another thread is better, unless this is the last choice: it may be in a
/// restartable sequence, or seccomp's strict mode forbids it the counter.
pub fn prepare(tracee: &mut Tracee, program: &mut Registers, is_last_choice: bool) -> Answer<bool> {
    if program.is_32_bit() {
        return Err(Error::Unsupported("it runs 32-bit code".into()).into());
    }
    loop {
        refuse_dispatcher(tracee)?;
        if !is_last_choice && ThreadStatus::read(&tracee.pid().to_string())?.is_strict {
            return Ok(false);
        }
        if !abort_restartable_sequence(tracee, program)? && !is_last_choice {
            return Ok(false);
        }
        // Before the filters are suspended: they apply to the program's own call.
        if running::show_call(tracee, program, next_stop)? {
            break;
        }
    }
    suspend_filters(tracee)?;
    Ok(true)
}

/// Waits for a thread's next stop.
fn next_stop(tracee: &Tracee) -> Answer<Stop> {
    let timeout = StopTimeout::start();
    loop {
        match tracee.event(false)? {
            None => timeout.wait(tracee.process(), tracee.pid())?,
            Some(Stop::Exited | Stop::Exec) => return Err(Error::Gone.into()),
            Some(stop) => return Ok(stop),
        }
    }
}

/// Refuses a thread that handles its system calls itself: remote calls would go to its handler. If the thread blocks
/// SIGSYS, as in the handler, the kernel also resets the handler (force_sig_info_to_task in kernel/signal.c), and the
/// program's next call kills it.
fn refuse_dispatcher(tracee: &Tracee) -> Result<()> {
    match tracee.dispatches_calls()? {
        Some(false) => Ok(()),
        Some(true) => Err(dispatches_calls()),
        // A program without a handler does not dispatch, and one that does not block the signal loses no handler.
        None if running::HIDES_DISPATCHERS && ThreadStatus::read(&tracee.pid().to_string())?.blocks_handled_sigsys => {
            Err(dispatches_calls())
        }
        None => Ok(()),
    }
}

/// Returns the error for a thread that handles its system calls itself.
pub fn dispatches_calls() -> Error {
    Error::Unsupported("it handles system calls itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH)".into())
}

/// Suspends a thread's filters while it makes remote calls: each thread may have filters of its own.
fn suspend_filters(tracee: &Tracee) -> Answer<()> {
    /// PTRACE_O_SUSPEND_SECCOMP (ptrace(2)), which nix has no name for.
    const SUSPEND: Options = Options::from_bits_retain(1 << 21);
    let suspend = match ThreadStatus::read(&tracee.pid().to_string())?.filters {
        0 => Options::empty(),
        _ => SUSPEND,
    };
    let set = tracee.set_options(suspend | Options::PTRACE_O_TRACEEXEC);
    set.map_err(|e| Refusal::Seccomp {
        why: match target::why_filters_stay() {
            Some(why) => why,
            None => format!("{e} (PTRACE_O_SUSPEND_SECCOMP takes a kernel with CONFIG_CHECKPOINT_RESTORE)"),
        },
    })
}

/// Aborts a restartable sequence (rseq(2)): the thread was interrupted, and must not continue the sequence after calls
/// from elsewhere. Returns whether the thread is known to be in none.
fn abort_restartable_sequence(tracee: &mut Tracee, program: &mut Registers) -> Result<bool> {
    /// Offset of `start_ip` in struct rseq_cs (include/uapi/linux/rseq.h), after version and flags.
    const START_AT: u64 = 8;
    if program.is_in_call() {
        return Ok(true);
    }
    let Some(area) = tracee.rseq_area()? else {
        return Ok(false);
    };
    // No area is registered.
    if area == 0 {
        return Ok(true);
    }
    let section = tracee.read_words(area + 8, 1, 8)?[0];
    if section == 0 {
        return Ok(true);
    }
    let words = tracee.read_words(section + START_AT, 3, 8)?;
    if let [start, length, abort] = words[..]
        && program.pc().wrapping_sub(start) < length
    {
        program.set_pc(abort);
        tracee.set_registers(program)?;
    }
    Ok(true)
}
