//! The reasons for which a process is left as it was.

use std::time::Duration;

use super::watchdog::StoppedTooLong;
use crate::error::Error;

/// Reason for which an attach or a detach was refused. The process is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No process has this number.
    #[error("there is no such process{hint}")]
    NoSuchProcess {
        /// Explanation if the number is a thread's; else empty.
        hint: String,
    },
    /// A kernel thread has no memory of its own.
    #[error("it is a kernel thread")]
    KernelThread,
    /// The process has ended.
    #[error("it has ended, and its parent has not waited for it yet (a zombie)")]
    Zombie,
    /// /proc does not show the memory of a process whose first thread has ended.
    #[error("its first thread has ended, though others run: /proc does not show its memory any more")]
    FirstThreadEnded,
    /// The process is frozen by its control group.
    #[error("it is frozen (its control group's cgroup.freeze); thaw it, and try again")]
    Frozen,
    /// A process cannot have two tracers.
    #[error("it is being traced by process {by} ({name}); end that first")]
    Traced {
        /// Process id of the tracer.
        by: i32,
        /// Name of the tracer.
        name: String,
    },
    /// The system does not permit it.
    #[error("it may not be changed by this user: {why}")]
    NotPermitted {
        /// The system's answer, and what to do.
        why: String,
    },
    /// The process was attached by an earlier call, or started by `fastpath run`.
    #[error("it is on the fast path already (`fastpath detach {pid}` takes it off)")]
    AttachedAlready {
        /// Process id.
        pid: i32,
    },
    /// The program was started with addresses of the region, and keeps them.
    #[error(
        "`fastpath run` started it, without the kernel's vDSO or as a 32-bit program, and it keeps its clocks' path until it ends: start it again to change that"
    )]
    UnderRun,
    /// It would publish what it reads.
    #[error("it is a publisher of fastpath, which must read the kernel's clocks")]
    Publisher,
    /// The program is of another kind.
    #[error("{what}: only 64-bit programs of this host's own instruction set can be attached")]
    OtherPrograms {
        /// Kind of the program.
        what: String,
    },
    /// There is nothing to redirect.
    #[error("it has no vDSO whose functions it could be using (`fastpath doctor {pid}` says why)")]
    NoVdso {
        /// Process id.
        pid: i32,
    },
    /// A filter would have to be suspended, and cannot be.
    #[error("it has a seccomp filter, which cannot be suspended for the remote system calls: {why}")]
    Seccomp {
        /// The system's answer.
        why: String,
    },
    /// The code of its vDSO cannot be written.
    #[error(
        "the kernel does not let fastpath write the code of its vDSO (sealed mappings, or proc_mem.force_override): {why}"
    )]
    Sealed {
        /// The system's answer.
        why: String,
    },
    /// The program has forbidden itself to read it.
    #[error("it may not read the counter (PR_SET_TSC)")]
    CounterForbidden,
    /// A thread is in the middle of a vfork, for example.
    #[error("thread {tid} of it does not stop (it waits in the kernel, in {place}, or is frozen); try again later")]
    DoesNotStop {
        /// Thread id.
        tid: i32,
        /// Kernel function in which it waits.
        place: String,
    },
    /// The deadline passed: nothing was changed, and all threads were let go.
    #[error(
        "{threads} threads of it were stopped for {} ms, which was not enough to stop and examine all of them; they were released; try again \
         when the machine is less busy", super::watchdog::DEADLINE.as_millis()
    )]
    StoppedTooLong {
        /// Number of threads that were stopped.
        threads: usize,
    },
    /// The process was in the middle of an exec at each try.
    #[error("it executes one program after another, too fast to be attached in between; try again later")]
    KeepsExecuting,
    /// A thread is in a handler that has not returned yet, or was stopped in the code.
    #[error(
        "thread {tid} of it is in the code that must be changed, or will return there from a signal handler; try again later (if the thread is stopped: once it continues)"
    )]
    InTheWay {
        /// Thread id.
        tid: i32,
    },
    /// Readers were shown times that the kernel's clocks have not reached.
    #[error(
        "the times that it was shown are {} us ahead of the kernel's clock, which is being slewed, and would go back; it stays attached; \
         try again later", ahead.as_micros()
    )]
    KernelBehind {
        /// By how much.
        ahead: Duration,
    },
    /// The stack may contain signal frames, which must be known before code is changed.
    #[error(
        "the stack of thread {tid} of it is in memory that cannot be read (memfd_secret(2)), so the addresses to which the thread returns are unknown"
    )]
    StackNotReadable {
        /// Thread id.
        tid: i32,
    },
    /// The process shares what would be changed.
    #[error("it shares its {what} with process {with}, which would be changed as well; try again when that has ended")]
    Shares {
        /// What it shares.
        what: Shared,
        /// The other process.
        with: i32,
    },
    /// A policy excludes it.
    #[error("{why}")]
    Forbidden {
        /// The policy's answer.
        why: String,
    },
    /// There is nothing to detach.
    #[error("it is not attached")]
    NotAttached,
    /// Another program changed the code that fastpath wrote.
    #[error("its code at {address:#x} is neither as it was nor as fastpath left it; nothing was changed")]
    ChangedSince {
        /// Address of the code.
        address: u64,
    },
    /// Another error.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What the remote calls change. Their process may share it with another one (clone(2)); what else it may share, they
/// leave alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// CLONE_VM.
    Memory,
    /// CLONE_FILES: the other process would see descriptors of fastpath, and might close them.
    Descriptors,
}

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Shared::Memory => "memory",
            Shared::Descriptors => "file descriptors",
        })
    }
}

/// Shorthand for this module's results.
pub type Answer<T> = std::result::Result<T, Refusal>;

impl Refusal {
    /// Returns the stable word for it in records.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::NoSuchProcess { .. } => "no-process",
            Refusal::KernelThread => "kernel-thread",
            Refusal::Zombie => "ended",
            Refusal::FirstThreadEnded => "first-thread-ended",
            Refusal::Frozen => "frozen",
            Refusal::Traced { .. } => "traced",
            Refusal::NotPermitted { .. } => "not-permitted",
            Refusal::AttachedAlready { .. } => "attached-already",
            Refusal::UnderRun => "under-run",
            Refusal::Publisher => "publisher",
            Refusal::OtherPrograms { .. } => "other-instruction-set",
            Refusal::NoVdso { .. } => "no-vdso",
            Refusal::Seccomp { .. } => "seccomp",
            Refusal::Sealed { .. } => "sealed",
            Refusal::CounterForbidden => "counter-forbidden",
            Refusal::DoesNotStop { .. } | Refusal::KeepsExecuting => "does-not-stop",
            Refusal::StoppedTooLong { .. } => StoppedTooLong::WORD,
            Refusal::InTheWay { .. } => "in-the-way",
            Refusal::KernelBehind { .. } => "kernel-behind",
            Refusal::StackNotReadable { .. } => "stack-not-readable",
            Refusal::Shares { .. } => "shares",
            Refusal::Forbidden { .. } => "forbidden",
            Refusal::NotAttached => "not-attached",
            Refusal::ChangedSince { .. } => "changed-since",
            Refusal::Failed(why) => why.word(),
        }
    }

    /// Returns whether the same request may succeed later, without a change of anything for it.
    pub fn is_passing(&self) -> bool {
        match self {
            Refusal::Frozen
            | Refusal::Traced { .. }
            | Refusal::DoesNotStop { .. }
            | Refusal::StoppedTooLong { .. }
            | Refusal::KeepsExecuting
            | Refusal::InTheWay { .. }
            | Refusal::Shares { .. }
            | Refusal::ChangedSince { .. } => true,
            Refusal::Failed(why) => !matches!(why, Error::Unsupported(_)),
            _ => false,
        }
    }
}
