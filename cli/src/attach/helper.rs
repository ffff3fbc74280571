//! The helper that publishes the page of attached processes where no daemon runs, and serves the programs that they
//! execute. It is left behind like `run`'s helper, and ends when no process maps the mailbox any more.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use fastpath_inject::attendant::Attendant;
use fastpath_inject::{Cache, InjectionConfig, Shared};
use fastpath_publisher::Publisher;
use fastpath_publisher::evidence;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use super::goods::{self, DaemonsPolicy, TimeNamespace, Wanted};
use crate::page_source::PageSource;
use crate::run::helper::{self, Surroundings};

/// Timeout for the helper's answer: comparing the CPUs' counters and making a page takes milliseconds, on a busy
/// machine some hundred.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a helper; returns page, mailbox, the attendant that clients must declare, and the channel that keeps the
/// helper until a process maps the mailbox.
pub fn start(
    wanted: &Wanted,
    pid: i32,
    namespace: Option<&TimeNamespace>,
    surroundings: &Surroundings,
) -> Result<(OwnedFd, OwnedFd, u32, UnixStream), String> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| format!("socketpair: {e}"))?;
    let child = helper::fork_without_signal().map_err(|e| format!("clone: {e}"))?;
    if child == 0 {
        // SAFETY: the process that was just made has one thread.
        if unsafe { libc::fork() } == 0 {
            drop(ours);
            live(wanted, pid, namespace, surroundings, theirs);
        }
        // SAFETY: _exit ends the process without running anything of the parent's.
        unsafe { libc::_exit(0) }
    }
    drop(theirs);
    // SAFETY: waits for the child just made, which exits at once and sends no signal; a null status is allowed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    let (page, mailbox, ptracer) = receive(&ours)?;
    Ok((page, mailbox, ptracer, ours))
}

/// Receives the two descriptors and the number that comes with them, or the reason why there are none.
fn receive(channel: &UnixStream) -> Result<(OwnedFd, OwnedFd, u32), String> {
    channel.set_read_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
    let mut bytes = [0; 4];
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let mut control = nix::cmsg_space!([i32; 2]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(channel.as_raw_fd(), &mut iov, Some(&mut control), flags)
        .map_err(|e| format!("the publisher did not start: {e}"))?;
    let mut fds = Vec::new();
    for one in message.cmsgs().map_err(|e| e.to_string())? {
        if let ControlMessageOwned::ScmRights(given) = one {
            // SAFETY: recvmsg has just given these descriptors to this process, and nothing else owns them.
            fds.extend(given.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let length = message.bytes;
    if let Ok([page, mailbox]) = <[OwnedFd; 2]>::try_from(fds) {
        return Ok((page, mailbox, u32::from_le_bytes(bytes)));
    }
    let mut why = bytes[..length].to_vec();
    let _ = (&*channel).read_to_end(&mut why);
    let why = String::from_utf8_lossy(&why).into_owned();
    Err(if why.is_empty() {
        "the publisher ended before it was ready".into()
    } else {
        why
    })
}

fn live(
    wanted: &Wanted,
    pid: i32,
    namespace: Option<&TimeNamespace>,
    surroundings: &Surroundings,
    channel: UnixStream,
) -> ! {
    helper::settle(surroundings);
    helper::let_go_of_standard_error();
    let status = match serve(wanted, pid, namespace, &channel) {
        Ok(()) => 0,
        Err(why) => {
            let _ = (&channel).write_all(why.as_bytes());
            1
        }
    };
    // SAFETY: _exit ends the process without running anything of the parent's.
    unsafe { libc::_exit(status) }
}

fn serve(wanted: &Wanted, pid: i32, namespace: Option<&TimeNamespace>, channel: &UnixStream) -> Result<(), String> {
    // First: the counters must be sampled with the clocks that those processes see, and a process with threads may not
    // enter a time namespace.
    if let Some(TimeNamespace(file)) = namespace {
        // SAFETY: setns takes integers.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWTIME) } != 0 {
            let e = std::io::Error::last_os_error();
            return Err(format!(
                "its time namespace cannot be entered, for its clocks to be read: setns: {e}; run as root"
            ));
        }
    }
    let mailbox = Arc::new(Shared::create().map_err(|e| e.to_string())?);
    let given = mailbox.reopen().map_err(|e| e.to_string())?;
    let mut source = source(wanted, pid, &mailbox)?;
    let page = source.reader().map_err(|e| format!("the page: {e}"))?;
    if wanted.children {
        attend(&page, &mailbox, wanted.policy.clone())?;
    }
    let fds = [page.as_raw_fd(), given.as_raw_fd()];
    let ptracer = helper::ptracer();
    let rights = [ControlMessage::ScmRights(&fds)];
    let sent = sendmsg::<UnixAddr>(
        channel.as_raw_fd(),
        &[IoSlice::new(&ptracer.to_le_bytes())],
        &rights,
        MsgFlags::empty(),
        None,
    );
    sent.map_err(|e| format!("sendmsg: {e}"))?;
    // If it stayed open here, it would count as a process that maps it.
    drop(given);
    source.run(|| !is_closed(channel) || mailbox.in_use());
    Ok(())
}

/// Returns a daemon's page if this helper only serves descendants; else one of its own.
fn source(wanted: &Wanted, pid: i32, mailbox: &Shared) -> Result<PageSource, String> {
    let process = goods::pidfd(pid).filter(|_| wanted.children);
    let of_daemon =
        process.and_then(|process| PageSource::daemon(wanted.clocks, Some(process.as_fd()), mailbox.descriptor()));
    if let Some(source) = of_daemon {
        return Ok(source);
    }
    evidence::examine(wanted.trust).map_err(|e| e.refusal())?;
    let mut publisher = Publisher::new(wanted.clocks, wanted.trust).map_err(|e| format!("the page: {e}"))?;
    publisher.watch_for_steps();
    publisher
        .compare_cpus()
        .map_err(|e| format!("a thread that compares the CPUs' counters: {e}"))?;
    Ok(PageSource::Own(Box::new(publisher)))
}

/// Serves the descendants of attached processes.
fn attend(page: &OwnedFd, mailbox: &Arc<Shared>, policy: Option<DaemonsPolicy>) -> Result<(), String> {
    let config = InjectionConfig {
        page: page.try_clone().map_err(|e| format!("the page: {e}"))?,
        mailbox: Box::new({
            let mailbox = mailbox.clone();
            move || mailbox.reopen()
        }),
        without_vdso: false,
        serve: true,
        allows: Box::new(move |pid| policy.as_ref().is_none_or(|policy| policy.against(pid).is_none())),
        filters: 0,
        refuses_32_bit: None,
        ptracer: helper::ptracer(),
        scans: Cache::default(),
    };
    let attendant = Attendant::new(config, mailbox.clone());
    helper::spawn(move || attendant.serve())
}

/// Returns whether the process that asked is done, or has ended.
fn is_closed(channel: &UnixStream) -> bool {
    let mut poll = libc::pollfd {
        fd: channel.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: the pointer is to one pollfd, a local.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}
