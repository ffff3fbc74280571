//! Why a process was left as it was.

use crate::error::Error;

/// What an attach or a detach says no with. The process is untouched then.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is none of this number.
    #[error("there is no such process{hint}")]
    NoSuchProcess {
        /// What else the number is.
        hint: String,
    },
    /// It has no memory of its own.
    #[error("it is a thread of the kernel's")]
    KernelThread,
    /// It has ended.
    #[error("it has ended, and waits for its parent to look (a zombie)")]
    Zombie,
    /// /proc shows nothing of its memory then.
    #[error("its first thread has ended, though others run: /proc does not show its memory any more")]
    FirstThreadEnded,
    /// By its control group.
    #[error("it is frozen (its control group's cgroup.freeze); thaw it, and try again")]
    Frozen,
    /// Two tracers cannot be.
    #[error("it is being traced by process {by} ({name}); end that first")]
    Traced {
        /// The tracer.
        by: i32,
        /// Its name.
        name: String,
    },
    /// The system says no.
    #[error("it may not be changed by this user: {why}")]
    NotPermitted {
        /// What the system said, and what to do.
        why: String,
    },
    /// By an earlier call.
    #[error("it is attached already (`fastpath detach {pid}` takes it off)")]
    AttachedAlready {
        /// The process.
        pid: i32,
    },
    /// By `fastpath run`, or by a process that is attached.
    #[error("it was started on the fast path, by `fastpath run` or by a process attached with --children")]
    UnderRun,
    /// Of another kind.
    #[error("{what}: only 64-bit programs of this host's own instruction set can be attached")]
    OtherPrograms {
        /// What it is.
        what: String,
    },
    /// Nothing to redirect.
    #[error("it has no vDSO whose functions it could be using (`fastpath doctor {pid}` says why)")]
    NoVdso {
        /// The process.
        pid: i32,
    },
    /// A filter that would have to be suspended.
    #[error("it has a seccomp filter, and the filter cannot be suspended for what has to be done there: {why}")]
    Seccomp {
        /// What the system said.
        why: String,
    },
    /// Its vDSO cannot be written.
    #[error("the kernel lets nobody write the code of its vDSO (sealed mappings, or proc_mem.force_override): {why}")]
    Sealed {
        /// What the system said.
        why: String,
    },
    /// It asked for that itself.
    #[error("it may not read the counter (PR_SET_TSC)")]
    CounterForbidden,
    /// In the middle of a vfork, for one.
    #[error("thread {tid} of it does not stop (it waits in the kernel, in {place}, or is frozen); try again later")]
    DoesNotStop {
        /// The thread.
        tid: i32,
        /// Where in the kernel it waits.
        place: String,
    },
    /// Nothing is changed then, and nobody kept waiting any longer.
    #[error(
        "{threads} threads of it stood for {} ms, and not all could be stopped and looked at within that time; they were let go; try again when \
         the machine is less busy", super::watchdog::DEADLINE.as_millis()
    )]
    StandsTooLong {
        /// Those that stood.
        threads: usize,
    },
    /// In the middle of an exec, each time that it was looked at.
    #[error("it executes one program after another, and was never found between two of them; try again later")]
    KeepsExecuting,
    /// A handler that has not returned yet, or a thread that was stopped there.
    #[error(
        "thread {tid} of it stands in the very code that changes, or returns there from a signal handler; try again later, if it is stopped: once it goes on"
    )]
    InTheWay {
        /// The thread.
        tid: i32,
    },
    /// There may be signal frames, which have to be known before code is changed.
    #[error(
        "the stack of thread {tid} of it lies in memory that cannot be read (memfd_secret(2)), so it is not known where the thread returns to"
    )]
    StackNotReadable {
        /// The thread.
        tid: i32,
    },
    /// It shares its memory.
    #[error("it shares its memory with process {with}, which would be changed under way")]
    SharesMemory {
        /// The other.
        with: i32,
    },
    /// Nothing to be taken back.
    #[error("it is not attached")]
    NotAttached,
    /// Somebody else changed what we did.
    #[error("its code at {address:#x} is neither as it was nor as fastpath left it; nothing was changed")]
    ChangedSince {
        /// Where.
        address: u64,
    },
    /// Something else.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Shorthand for what this module answers.
pub type Answer<T> = std::result::Result<T, Refusal>;
