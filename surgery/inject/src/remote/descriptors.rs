//! Passes file descriptors to a stopped program without a path that both processes can see: through a socket pair made
//! in the program. pidfd_getfd(2) takes one end, and the descriptors are sent into it (unix(7), SCM_RIGHTS).

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use super::{Indirect, RemoteCall, RemoteCalls, counter};
use crate::abi::Call;
use crate::error::{Error, Result, tried};

/// Offset in the scratch memory of the control message with the numbers of the received descriptors.
pub const CONTROL_AT: u64 = 128;
/// Offset of the answer whether the program may read the counter, behind the numbers of the socket pair.
const COUNTER_AT: u64 = 8;

/// Descriptors on their way into a program.
pub struct Passed<const N: usize> {
    /// Receives them in the program.
    pub receive: RemoteCall,
    /// What must be in the scratch memory before.
    pub message: Vec<u8>,
    /// Addresses where their numbers are stored then; until then, and for one that the program has no room for, -1 is
    /// there.
    pub stored_at: [u64; N],
    /// Numbers of the socket pair, which is open in the program until the caller closes it.
    pub pair: [u64; 2],
}

impl<const N: usize> Passed<N> {
    /// Returns whether the program has not received all of them.
    pub fn is_incomplete(&self, calls: &mut RemoteCalls<'_>) -> Result<bool> {
        const NONE: u64 = u32::MAX as u64;
        for at in &self.stored_at {
            if calls.tracee().read_words(*at, 1, 4)? == [NONE] {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Sends `fds` to the program. Refuses a program that may not read the counter: the stop for the socket pair serves that
/// question, too.
pub fn send<const N: usize>(calls: &mut RemoteCalls<'_>, fds: [&OwnedFd; N]) -> Result<Passed<N>> {
    let scratch = calls.scratch();
    let flags = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    let socketpair = RemoteCall {
        what: "socketpair",
        call: Call::Socketpair,
        arguments: [libc::AF_UNIX as u64, flags, 0, scratch, 0, 0],
        indirect: Indirect::None,
        expected: 0,
    };
    counter::with_question(calls, scratch + COUNTER_AT, socketpair)?;
    let found = calls.tracee().read_words(scratch, 3, 4)?;
    let pair = [found[0], found[1]];
    let sent = calls.policy.record(calls.tracee, scratch, pair).and_then(|()| {
        if found[2] != counter::ENABLED {
            return Err(Error::CounterForbidden);
        }
        send_into(calls, pair[0], fds)?;
        Ok(prepare_to_receive(calls, pair))
    });
    if sent.is_err() {
        pair.into_iter().try_for_each(|fd| calls.close(fd))?;
    }
    sent
}

/// Sends the descriptors into the program's socket `a`.
fn send_into<const N: usize>(calls: &mut RemoteCalls<'_>, a: u64, fds: [&OwnedFd; N]) -> Result<()> {
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

/// Returns how the program receives them, and what recvmsg reads.
fn prepare_to_receive<const N: usize>(calls: &RemoteCalls<'_>, pair: [u64; 2]) -> Passed<N> {
    // struct msghdr at +0, struct iovec at +64, the byte at +96, then the control message: a cmsghdr (a word and two
    // ints), the ints. Every field of msghdr is a word, or an int padded to one.
    let scratch = calls.scratch();
    let word = calls.abi().word();
    let header = word + 8;
    let length = header + 4 * N;
    let message = [0, 0, scratch + 64, 1, scratch + CONTROL_AT, length as u64, 0];
    let iovec = [scratch + 96, 1];
    let mut bytes = vec![0; CONTROL_AT as usize];
    for (at, words) in [(0, &message[..]), (64, &iovec[..])] {
        for (index, value) in words.iter().enumerate() {
            bytes[at + index * word..][..word].copy_from_slice(&value.to_le_bytes()[..word]);
        }
    }
    bytes.resize(CONTROL_AT as usize + length, 0xff);
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    let first = scratch + CONTROL_AT + header as u64;
    Passed {
        receive: RemoteCall {
            what: "recvmsg",
            call: Call::Recvmsg,
            arguments: [pair[1], scratch, flags, 0, 0, 0],
            indirect: Indirect::None,
            expected: 1,
        },
        message: bytes,
        stored_at: std::array::from_fn(|i| first + 4 * i as u64),
        pair,
    }
}
