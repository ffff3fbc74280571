//! One packet, with descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg, setsockopt, sockopt};

/// Most descriptors with one packet: the kernel drops any others.
pub const MOST_DESCRIPTORS: usize = 3;

/// Sends one packet. Waits only as long as the socket's timeout allows, and raises no signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    uninterrupted(|| sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None))?;
    Ok(())
}

/// Waits until there is something to receive.
pub fn wait_for(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let answered = uninterrupted(|| {
        let left = PollTimeout::try_from(timeout.saturating_sub(begun.elapsed())).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], left)
    })?;
    match answered {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Returns whether the other side has closed its end.
pub fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_ok()
        && fds[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// Repeats a call while it returns EINTR. A call with a timeout is interrupted even when the process is stopped, or
/// attached to (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Receives one packet into `bytes`. Returns its length, which may exceed `bytes`, and its descriptors; `None` if the
/// other side has closed. An error of kind `InvalidData` means that more descriptors came than [`MOST_DESCRIPTORS`], or
/// that there was no room for them; those that did arrive are closed.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let received = receive_any(socket, bytes)?;
    if received.is_cut_short {
        let why = "more descriptors came with a packet than there is room for";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let Received { length, fds, .. } = received;
    Ok((length != 0 || !fds.is_empty()).then_some((length, fds)))
}

/// Any packet.
pub struct Received {
    /// Length, which may exceed the buffer. 0: the other side has closed, or sent nothing.
    pub length: usize,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// Whether more descriptors came than were received, or than a packet of this protocol has.
    pub is_cut_short: bool,
}

/// Does the same for a caller that must not close the descriptors, because closing may block.
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
    // Before any check: the kernel has installed the descriptors that fit, truncated or not.
    let fds = installed(&message);
    Ok(Received {
        length: length as usize,
        is_cut_short: message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MOST_DESCRIPTORS,
        fds,
    })
}

/// Returns whether a packet that waits to be received has descriptors. The packets before it are received and dropped.
/// For a connection that has ended: after shutdown(2), no further packet arrives.
pub fn descriptors_wait(socket: BorrowedFd<'_>) -> bool {
    // With PassCred each packet has its sender's credentials: a message without them is the end, and not an empty
    // packet.
    if setsockopt(&socket, sockopt::PassCred, &true).is_err() {
        return true;
    }
    for _ in 0..MOST_THAT_WAIT {
        let mut control = Credentials([0; CREDENTIALS_SIZE]);
        // SAFETY: msghdr is plain old data for which all zeroes is valid, with room for nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CREDENTIALS_SIZE as _;
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: the header names one buffer, which outlives the call, with its size.
        let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if length < 0 && Errno::last() != Errno::EAGAIN {
            // The kernel reports an error once, in front of the packets: ECONNRESET if the other side has closed without
            // having received everything.
            continue;
        }
        if length < 0 || message.msg_controllen == 0 {
            return false;
        }
        // The flag reports control messages for which there is no room.
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return true;
        }
        // SAFETY: a length of 0 stores no bytes.
        unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }
    true
}

/// Most packets that are checked. A socket's default buffer has room for some hundred.
const MOST_THAT_WAIT: usize = 4096;
/// Size of a control message with credentials.
const CREDENTIALS_SIZE: usize = {
    // SAFETY: CMSG_SPACE is arithmetic on an integer.
    unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as usize }
};

/// Buffer for credentials, aligned as the header.
#[repr(C, align(8))]
struct Credentials([u8; CREDENTIALS_SIZE]);

/// Most descriptors of one packet (SCM_MAX_FD, include/net/scm.h). The buffer has room for all, because the kernel
/// immediately closes those without room, which may block.
const MOST_THAT_COME: usize = 253;
/// Size of a control message with so many descriptors.
const CONTROL_SIZE: usize = {
    // SAFETY: CMSG_SPACE is arithmetic on an integer.
    unsafe { libc::CMSG_SPACE((MOST_THAT_COME * size_of::<RawFd>()) as u32) as usize }
};

/// Buffer for control messages, aligned as their headers.
#[repr(C, align(8))]
struct Control([u8; CONTROL_SIZE]);

/// Returns the descriptors that a call of recvmsg(2) has installed.
fn installed(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the header in, over a buffer that is still alive; CMSG_LEN is arithmetic.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                #[allow(clippy::unnecessary_cast, reason = "musl's cmsg_len is a u32")]
                let bytes = (control.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first: *const RawFd = libc::CMSG_DATA(header).cast();
                for index in 0..bytes / size_of::<RawFd>() {
                    // Just received, so nothing else owns it.
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
                let (sent, _) = std::io::pipe().unwrap();
                for other in before {
                    send(here.as_fd(), other, &[]).unwrap();
                }
                send(here.as_fd(), bytes, &[sent.as_fd()]).unwrap();
                send(here.as_fd(), b"behind", &[]).unwrap();
                // It is closed with an answer that it has not received.
                send(there.as_fd(), b"answer", &[]).unwrap();
                drop(here);
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
