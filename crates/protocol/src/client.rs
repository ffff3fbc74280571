//! The client's side of the protocol.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastpath_page::{ClockSet, Grant};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt::SendTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::message::{
    Answer, Code, Operation, Refusal, Request, SOCKET, SOCKET_VARIABLE, TEXT, WITH_MAILBOX, WITH_PROCESS,
};
use crate::packet;
use crate::status::Status;

/// Timeout of the host's daemon's answer, which takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the answer of a daemon without which nothing can be done.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No daemon listens: continue without one.
    #[error("no fastpathd listens at {}: {error}", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// A daemon listens, and the conversation broke off.
    #[error("fastpathd at {} does not answer: {error}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// The daemon refused the request.
    #[error("fastpathd: {0}")]
    Refused(#[from] Refusal),
}

/// An answer with its text and descriptors.
struct Answered {
    answer: Answer,
    text: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A connection to a daemon.
pub struct Client {
    socket: OwnedFd,
    path: PathBuf,
    timeout: Duration,
}

/// Returns the path of the daemon's socket.
pub fn socket_path() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => SOCKET.into(),
    }
}

impl Client {
    /// Connects to the daemon of this host, or of `FASTPATH_SOCKET`.
    pub fn connect() -> Result<Client, Failure> {
        Client::connect_to(&socket_path())
    }

    /// Connects to the daemon at `path`.
    pub fn connect_to(path: &Path) -> Result<Client, Failure> {
        let connected = (|| {
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
            let timeout = TimeVal::milliseconds(TIMEOUT.as_millis() as i64);
            setsockopt(&socket, SendTimeout, &timeout)?;
            let address = UnixAddr::new(path)?;
            packet::uninterrupted(|| connect(socket.as_raw_fd(), &address))?;
            Ok(socket)
        })();
        let path = path.to_owned();
        match connected {
            Ok(socket) => Ok(Client {
                socket,
                path,
                timeout: TIMEOUT,
            }),
            Err(error) => Err(Failure::NoDaemon { path, error }),
        }
    }

    /// Returns the client of a daemon at the other end of `socket`, of type SOCK_SEQPACKET.
    pub fn over(socket: OwnedFd) -> Client {
        Client {
            socket,
            path: "a socket pair".into(),
            timeout: LONG_TIMEOUT,
        }
    }

    /// Requests a page that answers `clocks` (none: those that are slow here), for the process of a pidfd or this one.
    /// `mailbox`, if given, keeps the page; otherwise the daemon makes one.
    pub fn page(
        &self,
        clocks: ClockSet,
        process: Option<BorrowedFd<'_>>,
        mailbox: Option<OwnedFd>,
    ) -> Result<Grant, Failure> {
        let mut flags = 0;
        flags |= if process.is_some() { WITH_PROCESS } else { 0 };
        flags |= if mailbox.is_some() { WITH_MAILBOX } else { 0 };
        let fds: Vec<_> = process.into_iter().chain(mailbox.as_ref().map(AsFd::as_fd)).collect();
        let request = Request {
            clocks: clocks.0,
            flags,
            ..Request::new(Operation::Page)
        };
        let (answer, fds) = self.ask(&request, &fds)?;
        let mut fds = fds.into_iter().chain(mailbox);
        let (Some(page), Some(mailbox)) = (fds.next(), fds.next()) else {
            return Err(self.incomplete());
        };
        let clocks = ClockSet(answer.clocks);
        Ok(Grant { page, mailbox, clocks })
    }

    /// Makes a request with [`Operation::Prepare`]. Returns page, mailbox and plan, in this order.
    pub fn prepare(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        self.ask(request, &[])
    }

    /// Returns the daemon's state, and the pages that this user may see. The pages come a few at a time, and some may
    /// change meanwhile.
    pub fn status(&self) -> Result<Status, Failure> {
        let mut status = self.status_after(0)?;
        while let Some(after) = status.next {
            let more = self.status_after(after)?;
            let goes_on = more.next.is_none_or(|next| next > after);
            if !goes_on {
                return Err(self.broken(io::Error::other("its status does not go on")));
            }
            status.pages.extend(more.pages);
            status.next = more.next;
        }
        Ok(status)
    }

    fn status_after(&self, after: u64) -> Result<Status, Failure> {
        let request = Request {
            after,
            ..Request::new(Operation::Status)
        };
        let answered = self.exchange(&request, &[])?;
        serde_json::from_slice(&answered.text).map_err(|error| self.broken(error.into()))
    }

    /// Takes the clocks off the pages of the process of a pidfd, or of this one.
    pub fn withdraw(&self, process: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        let request = Request {
            flags: if process.is_some() { WITH_PROCESS } else { 0 },
            ..Request::new(Operation::Withdraw)
        };
        let fds: Vec<_> = process.into_iter().collect();
        self.ask(&request, &fds).map(drop)
    }

    /// Has the daemon attach the process of a pidfd with its descendants, and serve it `clocks` (none: those that are slow
    /// here). Only for root. The daemon answers before it attaches the process, and logs the result.
    pub fn attach(&self, process: BorrowedFd<'_>, clocks: ClockSet) -> Result<(), Failure> {
        let request = Request {
            clocks: clocks.0,
            flags: WITH_PROCESS,
            ..Request::new(Operation::Attach)
        };
        self.ask(&request, &[process]).map(drop)
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        let answered = self.exchange(request, fds)?;
        Ok((answered.answer, answered.fds))
    }

    fn exchange(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answered, Failure> {
        let operation = Operation::from_number(request.operation)
            .ok_or_else(|| Refusal::new(Code::Malformed, "an operation that does not exist"))?;
        let mut bytes = vec![0; Answer::SIZE + TEXT];
        let answered = packet::send(self.socket.as_fd(), &request.bytes(), fds)
            .and_then(|()| packet::wait_for(self.socket.as_fd(), self.timeout))
            .and_then(|()| packet::receive(self.socket.as_fd(), &mut bytes))
            .map_err(|error| self.broken(error))?;
        let Some((length, fds)) = answered else {
            return Err(self.broken(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")));
        };
        let whole = bytes.get(..length).unwrap_or_default();
        let (answer, text) = whole.split_at_checked(Answer::SIZE).unwrap_or((whole, &[]));
        let answer = Answer::parse(answer, operation)?;
        if fds.len() != answer.descriptors as usize {
            return Err(self.incomplete());
        }
        if text.len() as u64 != answer.text_size {
            return Err(self.broken(io::Error::other("its answer is longer or shorter than it says")));
        }
        let text = text.to_vec();
        Ok(Answered { answer, text, fds })
    }

    fn broken(&self, error: io::Error) -> Failure {
        Failure::Broken {
            path: self.path.clone(),
            error,
        }
    }

    fn incomplete(&self) -> Failure {
        self.broken(io::Error::other(
            "descriptors did not arrive: there may be no room for them (ulimit -n)",
        ))
    }
}
