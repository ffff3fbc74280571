//! Passes file descriptors to a stopped program without a path that both processes can see: through a socket pair made
//! in the program. pidfd_getfd(2) takes one end, and the descriptors are sent into it (unix(7), SCM_RIGHTS).

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use super::RemoteCalls;
use crate::abi::Call;
use crate::error::{Error, Result, tried};

/// Offset in the scratch memory of the control message with the numbers of the received descriptors.
pub const CONTROL_AT: u64 = 128;

/// Passes `fds`, and returns their numbers in the program. They are open there until the caller closes them.
pub fn pass<const N: usize>(calls: &mut RemoteCalls<'_>, fds: [&OwnedFd; N]) -> Result<[u64; N]> {
    let scratch = calls.scratch();
    let flags = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    calls.call(
        "socketpair",
        Call::Socketpair,
        [libc::AF_UNIX as u64, flags, 0, scratch, 0, 0],
    )?;
    let mut pair = [0u8; 8];
    calls.tracee().read(scratch, &mut pair)?;
    let [a, b] = [0, 4].map(|i| u64::from(u32::from_le_bytes([pair[i], pair[i + 1], pair[i + 2], pair[i + 3]])));
    let recorded = calls.policy.record(calls.tracee, scratch, [a, b]);
    let passed = recorded.and_then(|()| send_and_receive(calls, a, b, fds));
    for fd in [a, b] {
        calls.close(fd)?;
    }
    passed
}

fn send_and_receive<const N: usize>(
    calls: &mut RemoteCalls<'_>,
    a: u64,
    b: u64,
    fds: [&OwnedFd; N],
) -> Result<[u64; N]> {
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

    // struct msghdr at +0, struct iovec at +64, the byte at +96, then the control message: a cmsghdr (a word and two
    // ints), the ints. Every field of msghdr is a word, or an int padded to one.
    let scratch = calls.scratch();
    let word = calls.abi().word();
    let control = CONTROL_AT;
    let header = word + 8;
    let length = (header + 4 * N) as u64;
    let message = [0, 0, scratch + 64, 1, scratch + control, length, 0];
    let iovec = [scratch + 96, 1];
    for (at, words) in [(0, &message[..]), (64, &iovec[..])] {
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|w| w.to_le_bytes().into_iter().take(word))
            .collect();
        calls.tracee().write(scratch + at, &bytes)?;
    }
    let receive = [
        b,
        scratch,
        (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64,
        0,
        0,
        0,
    ];
    calls.call("recvmsg", Call::Recvmsg, receive)?;
    let mut message = vec![0u8; length as usize];
    calls.tracee().read(scratch + control, &mut message)?;
    let int = |i: usize| u32::from_le_bytes([message[i], message[i + 1], message[i + 2], message[i + 3]]);
    let descriptor = |i: usize| u64::from(int(header + 4 * i));
    // cmsg_len counts the header and all descriptors; fewer arrive if the program may open no more.
    let level_and_type = [int(word), int(word + 4)];
    let arrived = (u64::from(int(0)).min(length) as usize).saturating_sub(header) / 4;
    if arrived < N || level_and_type != [libc::SOL_SOCKET as u32, libc::SCM_RIGHTS as u32] {
        for i in 0..arrived {
            calls.close(descriptor(i))?;
        }
        return Err(Error::Remote {
            what: "recvmsg",
            errno: Errno::EMFILE,
        });
    }
    Ok(std::array::from_fn(descriptor))
}
