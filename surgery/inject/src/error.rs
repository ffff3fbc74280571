//! The errors of an injection, in words for users.

use std::io;

use nix::errno::Errno;

/// Reason why a program was left as it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call of this process failed.
    #[error("{what}: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its errno.
        errno: Errno,
    },
    /// A system call made in the target failed there.
    #[error("{what} in the program: {errno}")]
    Remote {
        /// The call.
        what: &'static str,
        /// Its errno.
        errno: Errno,
    },
    /// Another thread of the program mapped memory where fastpath was about to.
    #[error("it maps memory faster than fastpath finds room beside its code; try again later")]
    PlaceTaken,
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The program is of a kind that this version cannot serve.
    #[error("{0}")]
    Unsupported(String),
    /// A policy excludes the program.
    #[error("{0}")]
    Forbidden(String),
    /// The program has forbidden itself to read the counter.
    #[error("the counter may not be read there (PR_SET_TSC)")]
    CounterForbidden,
    /// The process does not exist any more.
    #[error("the process ended")]
    Gone,
}

impl Error {
    /// Names the cause of an error at an exec stop: there, nothing but the kernel can prevent a write.
    pub fn at_exec(self) -> Error {
        match &self {
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::EIO) => Error::Unsupported(format!(
                "the kernel does not let fastpath write a program's code (proc_mem.force_override): {self}"
            )),
            _ => self,
        }
    }

    /// Returns the stable word for it in records.
    pub fn word(&self) -> &'static str {
        match self {
            Error::Forbidden(_) => "forbidden",
            Error::Unsupported(_) => "unsupported",
            Error::CounterForbidden => "counter-forbidden",
            Error::Gone => "ended",
            Error::System { .. } | Error::Remote { .. } | Error::PlaceTaken | Error::Io { .. } => "failed",
        }
    }

    /// Returns an error on a file.
    pub fn io(path: impl Into<String>, source: io::Error) -> Error {
        Error::Io {
            path: path.into(),
            source,
        }
    }
}

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// Names the system call that failed.
pub fn tried<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Error {
    move |e| match Errno::from_raw(e.into().raw_os_error().unwrap_or(0)) {
        Errno::ESRCH => Error::Gone,
        errno => Error::System { what, errno },
    }
}
