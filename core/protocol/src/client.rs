//! The client's side of the protocol.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastpath_page::{ClockSet, Grant, PAGE_SIZE};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};

use crate::message::{
    Answer, Code, Operation, Request, RequestRefusal, SOCKET, SOCKET_VARIABLE, TEXT, WITH_MAILBOX, WITH_PROCESS,
};
use crate::packet;
use crate::status::DaemonStatus;

/// Timeout of the host's daemon's answer, which takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two attempts to connect while the daemon's queue is full.
const RETRY: Duration = Duration::from_micros(200);
/// Timeout of the answer of a daemon without which nothing can be done.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Most pages in a status. A daemon has at most half as many.
const MOST_PAGES: usize = 1 << 16;
/// User that a user namespace shows in place of one that it does not map (/proc/sys/kernel/overflowuid).
const UNMAPPED: u32 = 65534;

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens: continue without one.
    #[error("no fastpathd listens at {}: {error}", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// Another user listens.
    #[error(
        "{} is a socket of user {uid}: pages are accepted only from a fastpathd of root or of this user", path.display()
    )]
    AnotherUsers {
        /// The socket.
        path: PathBuf,
        /// The user.
        uid: u32,
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
    Refused(#[from] RequestRefusal),
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

/// Returns whether a daemon of this user gives pages that this process may use. In a user namespace, root of the host
/// is not mapped; only root can listen in the default directory.
fn is_trusted(path: &Path, uid: u32) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    uid == 0 || uid == own || uid == UNMAPPED && path.parent() == Path::new(SOCKET).parent()
}

/// Connects as soon as the daemon's queue has room. It does not wait in connect(2): threads that do are served in their
/// order, and another user may have thousands of them.
fn connect_when_possible(socket: &OwnedFd, address: &UnixAddr) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match packet::uninterrupted(|| connect(socket.as_raw_fd(), address)) {
            Err(Errno::EAGAIN) if begun.elapsed() < TIMEOUT => std::thread::sleep(RETRY),
            done => return Ok(done?),
        }
    }
}

/// Checks that no other process can shorten a memory that is mapped: a read beyond its end kills the reader (SIGBUS).
fn is_safe_to_map(fd: &OwnedFd) -> Result<(), String> {
    // A file that is not a memfd has no seals.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
    if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
        return Err("is not sealed against shrinking".into());
    }
    let size = nix::sys::stat::fstat(fd)
        .map_err(|e| format!("cannot be examined: {e}"))?
        .st_size;
    match size >= PAGE_SIZE as i64 {
        true => Ok(()),
        false => Err(format!("has {size} bytes")),
    }
}

impl Client {
    /// Connects to the daemon of this host, or of `FASTPATH_SOCKET`.
    pub fn connect() -> Result<Client, ClientError> {
        Client::connect_to(&socket_path())
    }

    /// Connects to the daemon at `path`, if it is root's or this user's: another one could hand out a page with any
    /// time, and change it.
    pub fn connect_to(path: &Path) -> Result<Client, ClientError> {
        let connected = (|| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            connect_when_possible(&socket, &UnixAddr::new(path)?)?;
            let uid = getsockopt(&socket, PeerCredentials)?.uid();
            io::Result::Ok((uid, socket))
        })();
        let path = path.to_owned();
        match connected {
            Ok((uid, socket)) if is_trusted(&path, uid) => Ok(Client {
                socket,
                path,
                timeout: TIMEOUT,
            }),
            Ok((uid, _)) => Err(ClientError::AnotherUsers { path, uid }),
            Err(error) => Err(ClientError::NoDaemon { path, error }),
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
    ) -> Result<Grant, ClientError> {
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
        for (fd, what) in [(&page, "page"), (&mailbox, "mailbox")] {
            is_safe_to_map(fd).map_err(|why| self.broken(io::Error::other(format!("its {what} {why}"))))?;
        }
        let clocks = ClockSet(answer.clocks);
        Ok(Grant { page, mailbox, clocks })
    }

    /// Makes a request with [`Operation::Prepare`]. Returns page, mailbox and plan, in this order.
    pub fn prepare(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        self.ask(request, &[])
    }

    /// Returns the daemon's state, and the pages that this user may see. The pages come a few at a time, and some may
    /// change meanwhile.
    pub fn status(&self) -> Result<DaemonStatus, ClientError> {
        let mut status = self.state()?;
        while let Some(after) = status.next {
            let more = self.status_after(after)?;
            let goes_on = more.next.is_none_or(|next| next > after && !more.pages.is_empty());
            status.pages.extend(more.pages);
            if !goes_on || status.pages.len() > MOST_PAGES {
                return Err(self.broken(io::Error::other("its status does not end")));
            }
            status.next = more.next;
        }
        Ok(status)
    }

    /// Returns the daemon's state, with some of the pages only.
    pub fn state(&self) -> Result<DaemonStatus, ClientError> {
        self.status_after(0)
    }

    fn status_after(&self, after: u64) -> Result<DaemonStatus, ClientError> {
        let request = Request {
            after,
            ..Request::new(Operation::Status)
        };
        let answered = self.exchange(&request, &[])?;
        serde_json::from_slice(&answered.text).map_err(|error| self.broken(error.into()))
    }

    /// Has the daemon attach the process of a pidfd with its descendants, and serve it `clocks` (none: those that are slow
    /// here). Only for root. The daemon answers before it attaches the process, and logs the result.
    pub fn attach(&self, process: BorrowedFd<'_>, clocks: ClockSet) -> Result<(), ClientError> {
        let request = Request {
            clocks: clocks.0,
            flags: WITH_PROCESS,
            ..Request::new(Operation::Attach)
        };
        self.ask(&request, &[process]).map(drop)
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        let answered = self.exchange(request, fds)?;
        Ok((answered.answer, answered.fds))
    }

    fn exchange(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answered, ClientError> {
        let operation = Operation::from_number(request.operation)
            .ok_or_else(|| RequestRefusal::new(Code::Malformed, "an operation that does not exist"))?;
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

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken {
            path: self.path.clone(),
            error,
        }
    }

    fn incomplete(&self) -> ClientError {
        self.broken(io::Error::other(
            "descriptors did not arrive: there may be no room for them (ulimit -n)",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{Backlog, accept, bind, listen, socketpair};

    use super::*;

    /// A client of a daemon that answers each request by what `reply` returns.
    fn client_of(reply: impl Fn(&Request) -> (Answer, Vec<u8>, Vec<OwnedFd>) + Send + 'static) -> Client {
        let kind = SockType::SeqPacket;
        let (here, there) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; Request::SIZE];
            while let Ok(Some(_)) = packet::receive(there.as_fd(), &mut bytes) {
                let (answer, text, fds) = reply(&Request::parse(&bytes).unwrap().1);
                let answer = Answer {
                    descriptors: fds.len() as u32,
                    text_size: text.len() as u64,
                    ..answer
                };
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                packet::send(there.as_fd(), &[answer.bytes(), text].concat(), &fds).unwrap();
            }
        });
        Client::over(here)
    }

    fn memory(size: usize, seals: SealFlag) -> OwnedFd {
        let mut file = File::from(memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all(&vec![0; size]).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file.into()
    }

    #[test]
    fn memory_that_could_be_shortened_is_not_accepted() {
        let sealed = || memory(PAGE_SIZE, SealFlag::F_SEAL_SHRINK);
        let unsealed = || memory(PAGE_SIZE, SealFlag::F_SEAL_GROW);
        let short = || memory(PAGE_SIZE - 1, SealFlag::F_SEAL_SHRINK);
        let file = || File::open("/dev/zero").unwrap().into();
        let page = |page: OwnedFd, mailbox: OwnedFd| {
            let fds = std::sync::Mutex::new(vec![page, mailbox]);
            let reply = move |request: &Request| {
                let fds = std::mem::take(&mut *fds.lock().unwrap());
                (Answer::new(request.operation), Vec::new(), fds)
            };
            client_of(reply).page(ClockSet::ALL, None, None)
        };
        assert!(page(sealed(), sealed()).is_ok());
        for (one, other, why) in [
            (unsealed(), sealed(), "its page is not sealed"),
            (sealed(), unsealed(), "its mailbox is not sealed"),
            (file(), sealed(), "its page is not sealed"),
            (short(), sealed(), "its page has 4095 bytes"),
        ] {
            let failure = page(one, other).map(drop).unwrap_err().to_string();
            assert!(failure.contains(why), "{failure}");
        }
    }

    #[test]
    fn a_client_does_not_wait_behind_others_for_a_full_queue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = UnixAddr::new(&path).unwrap();
        let one = || {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
        };
        let listener = one();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let sockets = std::iter::repeat_with(one);
        let full: Vec<_> = sockets
            .take_while(|socket| connect(socket.as_raw_fd(), &address).is_ok())
            .collect();
        let (tell, told) = std::sync::mpsc::channel();
        let connecting = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            Client::connect_to(&path).map(drop)
        });
        let current = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
        let sleeps = format!("{} ", libc::SYS_clock_nanosleep);
        while !std::fs::read_to_string(&current)
            .unwrap_or_default()
            .starts_with(&sleeps)
        {
            assert!(
                !connecting.is_finished(),
                "it waited in another call than clock_nanosleep"
            );
        }
        drop(full);
        while !connecting.is_finished() {
            let _ = accept(listener.as_raw_fd()).map(nix::unistd::close);
        }
        connecting.join().unwrap().unwrap();
    }

    #[test]
    fn a_status_without_an_end_is_an_error() {
        const PAGE: &str = r#"{"pid":1,"uid":0,"inode":1,"clocks":[],"is_offset":false,"refreshes":0,"residual_ns":0,
            "age_ns":null,"withdrawn":null,"was_found_again":false}"#;
        for (pages, least) in [(0, 1), (60, 1 << 16)] {
            let reply = move |request: &Request| {
                let (all, next) = (vec![PAGE; pages].join(","), request.after + 1);
                let text = format!(
                    r#"{{"version":"","pid":1,"uptime_seconds":0,"slow_clocks":[],"rules":0,"policy":null,"policy_error":null,
                    "notices":null,"pages":[{all}],"pages_in_all":1,"next":{next}}}"#
                );
                assert!(request.after <= 1 + least / 60, "it continues");
                (Answer::new(request.operation), text.into_bytes(), Vec::new())
            };
            let failure = client_of(reply).status().unwrap_err().to_string();
            assert!(failure.contains("does not end"), "{failure}");
        }
    }
}
