//! A private daemon: publishes for the process that starts it, where no `fastpathd` runs.
//!
//! It serves one client, on a socket pair, by the code of `fastpathd`. It has no policy, finds no pages of another
//! daemon, and its pages end with its process: no other daemon can take them up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fastpath_page::ClockSet;
use fastpath_protocol::Client;
use fastpath_publisher::News;
use fastpath_publisher::Publisher;
use fastpath_publisher::evidence::{self, Trust};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::book::{Book, Limits};
use crate::closing::Closer;
use crate::lease;
use crate::payer::Payer;
use crate::peer::Peer;
use crate::server::{Connection, State};

/// Time between two checks whether pages are in use. There are few, and each check wakes up a CPU.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Starts a private daemon in threads of this process, and returns its client. It examines
/// the counter first, and publishes until this process ends.
///
/// `clocks` are those that any page will answer; `program` is the process that pages are for, unless a request names
/// another one; `hear` is called for every withdrawal, and when clocks are served again.
///
/// # Errors
/// A sentence that says why this host, or this process, cannot publish.
pub fn private(
    clocks: ClockSet,
    trust: Trust,
    program: i32,
    hear: impl FnMut(&News) + Send + 'static,
) -> Result<Client, String> {
    evidence::examine(trust).map_err(|e| e.refusal())?;
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    lease::outlive_breaks().map_err(failed("signals"))?;
    let (mut publisher, handle) = Publisher::new(clocks, trust).map_err(failed("the publisher"))?;
    publisher.watch_for_steps();
    publisher
        .compare_cpus()
        .map_err(failed("a thread that compares the CPUs' counters"))?;
    publisher.on_news(hear);
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| format!("socketpair: {e}"))?;
    let book = Book::new(handle, Limits::of_this_process(usize::MAX), None);
    thread("fastpath-pages", move || publisher.run(&AtomicBool::new(false)))?;
    thread("fastpath-grants", move || serve(ours, program, book))?;
    Ok(Client::over(theirs))
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10);
    thread.spawn(work).map(drop).map_err(|e| format!("a thread: {e}"))
}

/// Serves the client, and releases pages that no process maps any more.
fn serve(socket: OwnedFd, program: i32, book: Book) {
    let client = Peer {
        pid: program,
        uid: 0,
        payer: Payer::Root,
    };
    let mut connection = Some(Connection::new(socket, client));
    let (mut state, closer) = (State::private(book), Closer::default());
    let mut swept = Instant::now();
    loop {
        let mut fds: Vec<_> = connection
            .iter()
            .map(|connection| PollFd::new(connection.socket().as_fd(), PollFlags::POLLIN))
            .collect();
        // In whole milliseconds, rounded up: rounded down, it would wake up too soon, and once more.
        let left = SWEEP_EVERY.saturating_sub(swept.elapsed()) + Duration::from_millis(1);
        let ready =
            poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)).is_ok_and(|ready| ready > 0);
        let now = Instant::now();
        if ready
            && let Some(client) = &mut connection
            && !client.serve(&mut state, &closer, now)
        {
            connection = None;
        }
        if now.duration_since(swept) >= SWEEP_EVERY {
            swept = now;
            state.book.sweep(state.book.size());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use fastpath_evidence::PageCopy;
    use fastpath_publisher::SharedPage;

    use super::*;

    #[test]
    fn a_private_daemons_page_answers_and_is_taken_up_by_no_other() {
        let own = std::process::id() as i32;
        let client = private(ClockSet::ALL, Trust::AllowNonInvariant, own, |_| {}).unwrap();
        let grant = client.page(ClockSet::HRES, None, None).unwrap();
        assert_eq!(grant.clocks, ClockSet::HRES);
        let page = File::from(grant.page);
        let begun = Instant::now();
        loop {
            let copy = PageCopy::read(&page, 0).unwrap().expect("a page");
            if copy.stats.refreshes.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never published");
            std::thread::sleep(Duration::from_millis(1));
        }
        // 0 is the mark of a page that no daemon made.
        for keeper in [0, 1] {
            assert!(SharedPage::take_up(&page, keeper).is_err());
        }
    }
}
