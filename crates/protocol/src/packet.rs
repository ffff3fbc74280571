//! One packet, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

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
/// other side has closed.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_TRUNC;
    let message = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut fds = Vec::new();
    // More than there is room for: those that fit have arrived all the same, and are ours to close.
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: just received, and nobody else's.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes != 0 || !fds.is_empty()).then_some((message.bytes, fds)))
}
