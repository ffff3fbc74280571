//! Gives a stopped program file descriptors of ours without a path that both can see: a socket pair made in the program, one
//! end taken by pidfd_getfd(2), the descriptors sent into it (unix(7), SCM_RIGHTS).

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use crate::error::{Error, Result, tried};
use crate::remote::RemoteCalls;

/// Two descriptors, as numbers in the program. They are open there until the caller closes them.
pub fn give(calls: &mut RemoteCalls<'_>, fds: [&OwnedFd; 2]) -> Result<[u64; 2]> {
    let scratch = calls.scratch();
    let flags = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    calls.call(
        "socketpair",
        libc::SYS_socketpair,
        [libc::AF_UNIX as u64, flags, 0, scratch, 0, 0],
    )?;
    let mut pair = [0u8; 8];
    calls.tracee().read(scratch, &mut pair)?;
    let [a, b] = [0, 4].map(|i| u64::from(u32::from_le_bytes([pair[i], pair[i + 1], pair[i + 2], pair[i + 3]])));
    let given = send_and_receive(calls, a, b, fds);
    for fd in [a, b] {
        calls.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    }
    given
}

fn send_and_receive(calls: &mut RemoteCalls<'_>, a: u64, b: u64, fds: [&OwnedFd; 2]) -> Result<[u64; 2]> {
    let ours = calls.tracee().take_fd(a as i32)?;
    let raw = fds.map(AsRawFd::as_raw_fd);
    sendmsg::<UnixAddr>(
        ours.as_raw_fd(),
        &[IoSlice::new(b"f")],
        &[ControlMessage::ScmRights(&raw)],
        MsgFlags::MSG_DONTWAIT,
        None,
    )
    .map_err(tried("sendmsg"))?;

    // struct msghdr at +0 (56 bytes), struct iovec at +64, the byte at +96, control at +128 (cmsghdr 16 + two ints).
    let scratch = calls.scratch();
    let control = 128;
    let words: [u64; 10] = [0, 0, scratch + 64, 1, scratch + control, 24, 0, 0, scratch + 96, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    calls.tracee().write(scratch, &bytes)?;
    let receive = [
        b,
        scratch,
        (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64,
        0,
        0,
        0,
    ];
    calls.call("recvmsg", libc::SYS_recvmsg, receive)?;
    let mut message = [0u8; 24];
    calls.tracee().read(scratch + control, &mut message)?;
    let word = |i: usize| u32::from_le_bytes([message[i], message[i + 1], message[i + 2], message[i + 3]]);
    // cmsg_len counts the header and both descriptors; fewer arrive where the program may open no more.
    if word(0) != 24 || word(8) != libc::SOL_SOCKET as u32 || word(12) != libc::SCM_RIGHTS as u32 {
        if word(0) == 20 {
            calls.call("close", libc::SYS_close, [u64::from(word(16)), 0, 0, 0, 0, 0])?;
        }
        return Err(Error::Remote {
            what: "recvmsg",
            errno: Errno::EMFILE,
        });
    }
    Ok([u64::from(word(16)), u64::from(word(20))])
}
