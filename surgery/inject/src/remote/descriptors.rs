//! Passes file descriptors to a stopped program without a path that both processes can see: through a socket pair made
//! in the program. pidfd_getfd(2) takes one end, and the descriptors are sent into it (unix(7), SCM_RIGHTS).

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use super::{RemoteCall, RemoteCalls, counter};
use crate::abi::Call;
use crate::error::{Error, Result, tried};

/// Offset in the scratch memory of the control message with the numbers of the received descriptors.
pub const CONTROL_AT: u64 = 128;
/// Offset of the answer whether the program may read the counter, behind the numbers of the socket pair.
const COUNTER_AT: u64 = 8;

/// Passes `fds`. Returns their numbers in the program, and those of the socket pair: all are open there until the caller
/// closes them. Refuses a program that may not read the counter: the first stop serves that question, too.
pub fn pass<const N: usize>(calls: &mut RemoteCalls<'_>, fds: [&OwnedFd; N]) -> Result<([u64; N], [u64; 2])> {
    let scratch = calls.scratch();
    let flags = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    let socketpair = RemoteCall {
        what: "socketpair",
        call: Call::Socketpair,
        arguments: [libc::AF_UNIX as u64, flags, 0, scratch, 0, 0],
        expected: 0,
    };
    let may_read = counter::with_question(calls, scratch + COUNTER_AT, socketpair)?;
    let pair = calls.tracee().read_words(scratch, 2, 4)?;
    let pair = [pair[0], pair[1]];
    let passed = (|| {
        calls.policy.record(calls.tracee, scratch, pair)?;
        if !may_read {
            return Err(Error::CounterForbidden);
        }
        send(calls, pair[0], fds)?;
        let receive = RemoteCall {
            what: "recvmsg",
            call: Call::Recvmsg,
            arguments: prepare_to_receive::<N>(calls, pair[1])?,
            expected: 1,
        };
        calls.call_all(&[receive])?;
        received(calls)
    })();
    if passed.is_err() {
        pair.into_iter().try_for_each(|fd| calls.close(fd))?;
    }
    Ok((passed?, pair))
}

/// Sends the descriptors into the program's socket `a`.
fn send<const N: usize>(calls: &mut RemoteCalls<'_>, a: u64, fds: [&OwnedFd; N]) -> Result<()> {
    let ours = calls.tracee().take_fd(a as i32)?;
    let raw = fds.map(AsRawFd::as_raw_fd);
    sendmsg::<UnixAddr>(
        ours.as_raw_fd(),
        &[IoSlice::new(b"f")],
        &[ControlMessage::ScmRights(&raw)],
        MsgFlags::MSG_DONTWAIT,
        None,
    )
    .map_err(tried("sendmsg"))
    .map(drop)
}

/// Returns the size in bytes of the control message with `N` descriptors, and of its header.
fn control_bytes<const N: usize>(calls: &RemoteCalls<'_>) -> (usize, usize) {
    let header = calls.abi().word() + 8;
    (header + 4 * N, header)
}

/// Writes what recvmsg reads to the scratch memory, and returns the arguments of the call.
fn prepare_to_receive<const N: usize>(calls: &mut RemoteCalls<'_>, b: u64) -> Result<[u64; 6]> {
    // struct msghdr at +0, struct iovec at +64, the byte at +96, then the control message: a cmsghdr (a word and two
    // ints), the ints. Every field of msghdr is a word, or an int padded to one.
    let scratch = calls.scratch();
    let word = calls.abi().word();
    let control = CONTROL_AT;
    let length = control_bytes::<N>(calls).0 as u64;
    let message = [0, 0, scratch + 64, 1, scratch + control, length, 0];
    let iovec = [scratch + 96, 1];
    for (at, words) in [(0, &message[..]), (64, &iovec[..])] {
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|w| w.to_le_bytes().into_iter().take(word))
            .collect();
        calls.tracee().write(scratch + at, &bytes)?;
    }
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    Ok([b, scratch, flags, 0, 0, 0])
}

/// Returns the numbers of the descriptors that the program has received.
fn received<const N: usize>(calls: &mut RemoteCalls<'_>) -> Result<[u64; N]> {
    let (length, header) = control_bytes::<N>(calls);
    let word = calls.abi().word();
    let mut message = vec![0u8; length];
    let at = calls.scratch() + CONTROL_AT;
    calls.tracee().read(at, &mut message)?;
    let int = |i: usize| u32::from_le_bytes([message[i], message[i + 1], message[i + 2], message[i + 3]]);
    let descriptor = |i: usize| u64::from(int(header + 4 * i));
    // cmsg_len counts the header and all descriptors; fewer arrive if the program may open no more.
    let level_and_type = [int(word), int(word + 4)];
    let arrived = (int(0) as usize).min(length).saturating_sub(header) / 4;
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
