//! A small daemon for these tests, which answers correctly, or as incorrectly as a test wants.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use fastpath_image::own_vdso;
use fastpath_inject::redirection::region_for;
use fastpath_inject::{Shared, region};
use fastpath_page::{ClockSet, Reader};
use fastpath_publish::SharedPage;
use fastpath_publish::evidence::Trust;
use fastpath_publish::{Member, Offsets, Publisher};
use nix::fcntl::{FcntlArg, SealFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, listen, recvmsg,
    sendmsg, socket,
};

/// The packet that is sent back.
pub struct Reply {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// The correct answer to a request, in parts that a test can change.
pub struct Plan {
    pub answer: fastpath_protocol::Answer,
    pub patches: Vec<fastpath_protocol::Patch>,
    pub page: OwnedFd,
    pub mailbox: OwnedFd,
    /// Bytes of the region.
    pub code: Vec<u8>,
}

/// The behaviour of a server; `None`: it does not answer.
type Behaviour = dyn Fn(Plan) -> Option<Reply> + Send + Sync;

/// Listens as long as this value lives.
pub struct Server {
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that answers as fastpathd does.
    pub fn start() -> Server {
        Server::that(|plan| Some(plan.reply()))
    }

    /// Starts a server whose CLOCK_MONOTONIC is behind the kernel's, so that reads by the page are recognized. (A clock
    /// that is ahead would delay programs that wait until a moment which they have read.)
    pub fn behind_by(ns: i64) -> Server {
        let offsets = Offsets {
            monotonic_ns: -ns,
            ..Offsets::default()
        };
        Server::start_with(offsets, |plan| Some(plan.reply()))
    }

    /// Starts a server that changes each correct answer.
    pub fn that(behaviour: impl Fn(Plan) -> Option<Reply> + Send + Sync + 'static) -> Server {
        Server::start_with(Offsets::default(), behaviour)
    }

    fn start_with(offsets: Offsets, behaviour: impl Fn(Plan) -> Option<Reply> + Send + Sync + 'static) -> Server {
        let directory = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::chown(directory.path(), None, None).expect("chown");
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let listener = listen_at(&directory.path().join("socket"));
        let (mut publisher, handle) = Publisher::new(ClockSet::ALL, Trust::Invariant).expect("a publisher");
        let member = Arc::new(Member {
            page: SharedPage::create().expect("a page"),
            clocks: ClockSet::ALL,
            offsets,
        });
        member.page.writer().init(&fastpath_publish::host::init::of_this_host());
        let page = member.page.reader().expect("the page");
        handle.add(1, member.clone());
        let until = stop.clone();
        let publishing = std::thread::spawn(move || publisher.run(|| !until.load(Ordering::Relaxed)));
        super::wait_until("the page's first anchor", || {
            Reader::new(member.page.page()).clocks() == ClockSet::ALL
                && Reader::new(member.page.page()).stats().refreshes > 0
        });
        let answering = std::thread::spawn({
            let (stop, requests) = (stop.clone(), requests.clone());
            let mailbox = Shared::create().expect("a mailbox");
            move || {
                // A client without an answer stays connected.
                let mut connections = Vec::new();
                while !stop.load(Ordering::Acquire) {
                    if let Some(connection) = next_connection(&listener) {
                        requests.fetch_add(1, Ordering::AcqRel);
                        let given = page.try_clone().expect("dup");
                        answer(&connection, given, &mailbox, &behaviour);
                        connections.push(connection);
                    }
                }
            }
        });
        Server {
            directory,
            stop,
            requests,
            threads: vec![publishing, answering],
        }
    }

    /// The socket's path.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Makes a socket like fastpathd's.
pub fn listen_at(path: &Path) -> OwnedFd {
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("socket");
    bind(listener.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("bind");
    listen(&listener, Backlog::new(16).expect("a backlog")).expect("listen");
    super::permit(path, 0o666);
    listener
}

fn next_connection(listener: &OwnedFd) -> Option<OwnedFd> {
    use std::os::fd::AsFd;
    let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ready, PollTimeout::from(50u8)).expect("poll") == 0 {
        return None;
    }
    let connection = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).expect("accept");
    // SAFETY: just made, and has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(connection) })
}

fn answer(connection: &OwnedFd, page: OwnedFd, mailbox: &Shared, behaviour: &Behaviour) {
    let mut bytes = [0; 128];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let fd = connection.as_raw_fd();
    let Ok(received) = recvmsg::<()>(fd, &mut parts, None, MsgFlags::empty()) else {
        return;
    };
    let size = received.bytes;
    if size == 0 {
        // A filter killed the client before it sent anything.
        return;
    }
    let (operation, request) = fastpath_protocol::Request::parse(&bytes[..size]).expect("a request");
    assert_eq!(operation, fastpath_protocol::Operation::Prepare);
    let plan = Plan::for_request(&request, page, mailbox.reopen().expect("the mailbox"));
    if let Some(reply) = behaviour(plan) {
        let descriptors: Vec<RawFd> = reply.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if descriptors.is_empty() { &[][..] } else { &rights };
        let parts = [IoSlice::new(&reply.bytes)];
        let _ = sendmsg::<()>(fd, &parts, control, MsgFlags::MSG_NOSIGNAL, None);
    }
}

impl Plan {
    fn for_request(request: &fastpath_protocol::Request, page: OwnedFd, mailbox: OwnedFd) -> Plan {
        use fastpath_protocol::{Answer, PATCH_BYTES, Patch, Section, Source};
        let own = own_vdso().expect("a vDSO").expect("a vDSO");
        let plan = region_for(&own.bytes, request.vdso, request.region, ClockSet::ALL, false).expect("a plan");
        let section = |source: Source, from: u64, to: u64, protection: i32| Section {
            source: source as u32,
            offset: from as u32,
            size: (to - from) as u32,
            protection: protection as u32,
            file_offset: if source == Source::Bytes { from as u32 } else { 0 },
            file_size: if source == Source::Bytes { (to - from) as u32 } else { 0 },
        };
        let zeros = |section: Section| Section {
            file_size: 0,
            ..section
        };
        let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let mut answer = Answer::new(request.operation);
        answer.descriptors = 3;
        answer.clocks = ClockSet::ALL.0;
        answer.region_size = region::SIZE as u32;
        answer.section[..5].copy_from_slice(&[
            section(Source::Page, region::PAGE, region::IMAGE, read),
            section(Source::Bytes, region::IMAGE, region::STATE, code),
            zeros(section(Source::Bytes, region::STATE, region::MAILBOX, write)),
            section(Source::Mailbox, region::MAILBOX, region::JOURNAL, write),
            section(Source::Bytes, region::JOURNAL, region::SIZE, code),
        ]);
        let bytes = |given: &[u8]| {
            let mut all = [0; PATCH_BYTES];
            all[..given.len()].copy_from_slice(given);
            all
        };
        let changes = plan.journal.records.iter().map(|record| &record.change);
        let patches = changes.map(|patch| Patch {
            address: patch.address,
            size: patch.original.len() as u32,
            reserved: 0,
            original: bytes(&patch.original),
            replacement: bytes(&patch.replacement),
        });
        Plan {
            answer,
            patches: patches.collect(),
            page,
            mailbox,
            code: plan.code,
        }
    }

    /// The answer, unchanged.
    pub fn reply(mut self) -> Reply {
        self.answer.patches_offset = self.code.len() as u32;
        self.answer.patches = self.patches.len() as u32;
        let mut file = self.code;
        file.extend(self.patches.iter().flat_map(fastpath_protocol::Patch::bytes));
        Reply {
            bytes: self.answer.bytes(),
            descriptors: vec![self.page, self.mailbox, memfd(&file)],
        }
    }
}

/// Returns a file with these contents.
pub fn memfd(bytes: &[u8]) -> OwnedFd {
    let fd = unsealed(bytes);
    nix::fcntl::fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("seal");
    fd
}

/// A memfd that its maker can shorten.
pub fn unsealed(bytes: &[u8]) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"fastpath-region", flags).expect("memfd_create"));
    std::io::Write::write_all(&mut file, bytes).expect("write");
    file.into()
}
