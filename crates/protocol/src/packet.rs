//! One packet, with descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg, setsockopt, sockopt};

/// Descriptors that travel with one packet at most: the kernel drops what is sent besides.
pub const MOST_DESCRIPTORS: usize = 3;

/// Sends one packet. It waits only as long as the socket lets it, and raises no signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    uninterrupted(|| sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None))?;
    Ok(())
}

/// Waits until there is something to receive.
pub fn wait_for(socket: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let answered = uninterrupted(|| {
        let left = PollTimeout::try_from(patience.saturating_sub(begun.elapsed())).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], left)
    })?;
    match answered {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// What waits with a timeout is interrupted even by being stopped, or attached to (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Receives one packet into `bytes`: how long it was, which may be more than there was room for, and what came with it. Nothing: the
/// other side has closed. An error of kind `InvalidData`: more descriptors came than [`MOST_DESCRIPTORS`], or there was no room for
/// them; those that did arrive are closed.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let received = receive_any(socket, bytes)?;
    if received.is_cut_short {
        let why = "more descriptors came with a packet than there is room for";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let Received { length, fds, .. } = received;
    Ok((length != 0 || !fds.is_empty()).then_some((length, fds)))
}

/// A packet, whatever it is.
pub struct Received {
    /// How long it was, which may be more than there was room for. 0: the other side has closed, or sent nothing.
    pub length: usize,
    /// What came with it.
    pub fds: Vec<OwnedFd>,
    /// There were more, or more than a packet of ours has.
    pub is_cut_short: bool,
}

/// The same, for who must not close what came, because that may wait.
pub fn receive_any(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; CONTROL_SIZE]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: msghdr is plain old data for which all zeroes is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_SIZE as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC;
    // SAFETY: every buffer outlives the call, and has the size that the header says.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // Before anything is judged: the kernel has installed what fits, truncated or not.
    let fds = installed(&message);
    Ok(Received {
        length: length as usize,
        is_cut_short: message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MOST_DESCRIPTORS,
        fds,
    })
}

/// Whether a packet that waits to be received has descriptors with it. Those before it are received, and dropped. For a connection that is
/// over: after shutdown(2), no packet comes any more.
pub fn descriptors_wait(socket: BorrowedFd<'_>) -> bool {
    // Then each packet has its sender's credentials with it: what has none is the end, and no packet without bytes.
    if setsockopt(&socket, sockopt::PassCred, &true).is_err() {
        return true;
    }
    for _ in 0..MOST_THAT_WAIT {
        let mut control = Credentials([0; CREDENTIALS_SIZE]);
        // SAFETY: msghdr is plain old data for which all zeroes is valid: room for nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CREDENTIALS_SIZE as _;
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: the header names one buffer, which outlives the call, with its size.
        let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if length < 0 || message.msg_controllen == 0 {
            return false;
        }
        // What there is no room for is told.
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return true;
        }
        // SAFETY: no bytes are stored.
        unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }
    true
}

/// Packets that a socket has room for by default are some hundred.
const MOST_THAT_WAIT: usize = 4096;
/// Bytes of a control message with credentials.
const CREDENTIALS_SIZE: usize = {
    // SAFETY: arithmetic on an integer.
    unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as usize }
};

/// Room for them, aligned as the header is.
#[repr(C, align(8))]
struct Credentials([u8; CREDENTIALS_SIZE]);

/// Descriptors that one packet can have (SCM_MAX_FD, include/net/scm.h). There is room for all: those that there is none for the kernel
/// closes at once, and that can wait.
const MOST_THAT_COME: usize = 253;
/// Bytes of a control message with so many.
const CONTROL_SIZE: usize = {
    // SAFETY: arithmetic on an integer.
    unsafe { libc::CMSG_SPACE((MOST_THAT_COME * size_of::<RawFd>()) as u32) as usize }
};

/// Room for control messages, aligned as their headers are.
#[repr(C, align(8))]
struct Control([u8; CONTROL_SIZE]);

/// The descriptors that a call of recvmsg(2) has installed.
fn installed(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the header was filled in by the kernel, over a buffer that is still there; CMSG_LEN is arithmetic.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                #[allow(clippy::unnecessary_cast, reason = "musl's cmsg_len is a u32")]
                let bytes = (control.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first: *const RawFd = libc::CMSG_DATA(header).cast();
                for index in 0..bytes / size_of::<RawFd>() {
                    // Just received, and nobody else's.
                    fds.push(OwnedFd::from_raw_fd(first.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn descriptors_that_there_is_no_room_for_are_refused_and_none_stays_open() {
        let kind = SockType::SeqPacket;
        let (here, there) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        for many in [MOST_DESCRIPTORS + 1, MOST_DESCRIPTORS + 2, 20] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            send(here.as_fd(), b"x", &vec![writer.as_fd(); many]).unwrap();
            drop(writer);
            let refused = receive(there.as_fd(), &mut [0; 8]);
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
            let flags = nix::fcntl::OFlag::O_NONBLOCK;
            nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
            let end = reader.read(&mut [0]);
            assert!(matches!(end, Ok(0)), "of {many} descriptors one is still open: {end:?}");
        }
    }

    #[test]
    fn descriptors_that_wait_are_seen_behind_any_packets_and_after_the_end_too() {
        let others: [&[&[u8]]; 4] = [&[], &[b"x"], &[b"", b""], &[b"x", b"", b"xyz", b""]];
        for before in others {
            for bytes in [&b"x"[..], b""] {
                let kind = SockType::SeqPacket;
                let (here, there) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
                for other in before {
                    send(here.as_fd(), other, &[]).unwrap();
                }
                send(here.as_fd(), bytes, &[here.as_fd()]).unwrap();
                send(here.as_fd(), b"behind", &[]).unwrap();
                nix::sys::socket::shutdown(there.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
                assert!(descriptors_wait(there.as_fd()), "{bytes:?} behind {before:?}");
                receive(there.as_fd(), &mut [0; 8]).unwrap();
                assert!(!descriptors_wait(there.as_fd()), "{bytes:?} behind {before:?}");
            }
        }
    }

    #[test]
    fn descriptors_that_fit_arrive() {
        let kind = SockType::SeqPacket;
        let (here, there) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        send(here.as_fd(), b"xyz", &[here.as_fd(); MOST_DESCRIPTORS]).unwrap();
        let (length, fds) = receive(there.as_fd(), &mut [0; 8]).unwrap().unwrap();
        assert_eq!((length, fds.len()), (3, MOST_DESCRIPTORS));
    }
}
