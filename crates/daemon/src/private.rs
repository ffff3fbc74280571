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

/// When the counter is examined, which takes milliseconds.
pub enum Examination {
    /// First: a refusal is an error.
    First,
    /// While the first pages are in use; their readers fall back to the kernel until then, and after a refusal.
    Meanwhile {
        /// Returns when the examination may begin: it takes time on all CPUs.
        begin: Box<dyn FnOnce() + Send>,
        /// Called with the result.
        examined: Box<dyn FnOnce(Result<(), String>) + Send>,
    },
}

/// Starts a private daemon in threads of this process, and returns its client. It publishes until this process ends.
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
    examination: Examination,
    hear: impl FnMut(&News) + Send + 'static,
) -> Result<Client, String> {
    let examine = move || evidence::examine_with_offsets(trust);
    let meanwhile = match examination {
        Examination::First => {
            examine()?;
            None
        }
        Examination::Meanwhile { begin, examined } => Some((begin, examined)),
    };
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    lease::outlive_breaks().map_err(failed("signals"))?;
    let (mut publisher, handle) = Publisher::new(clocks, trust).map_err(failed("the publisher"))?;
    publisher.on_news(hear);
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| format!("socketpair: {e}"))?;
    let book = Book::new(handle, Limits::of_this_process(usize::MAX), None);
    thread("fastpath-pages", move || {
        let mut result = Ok(());
        let examined = meanwhile.map(|(begin, examined)| {
            begin();
            result = examine();
            examined
        });
        let result = result.and_then(|()| {
            publisher.watch_for_steps();
            let failed = failed("a thread that compares the CPUs' counters");
            publisher.compare_cpus().map_err(failed)
        });
        let is_refused = result.is_err();
        if let Some(examined) = examined {
            examined(result);
        }
        if !is_refused {
            publisher.run(&AtomicBool::new(false));
        }
    })?;
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

    fn refreshes(page: &File) -> u64 {
        let copy = PageCopy::read(page, 0).unwrap().expect("a page");
        copy.stats.refreshes.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn wait_until_published(page: &File) {
        let begun = Instant::now();
        while refreshes(page) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never published");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_page_can_be_had_before_the_counter_is_examined_and_answers_only_after_that() {
        let (begin, may_begin) = std::sync::mpsc::channel::<()>();
        let (examined, result) = std::sync::mpsc::channel();
        let examination = Examination::Meanwhile {
            begin: Box::new(move || may_begin.recv().unwrap()),
            examined: Box::new(move |result| examined.send(result).unwrap()),
        };
        let own = std::process::id() as i32;
        let client = private(ClockSet::ALL, Trust::AllowNonInvariant, own, examination, |_| {}).unwrap();
        let page = File::from(client.page(ClockSet::HRES, None, None).unwrap().page);
        assert!(result.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(refreshes(&page), 0);
        begin.send(()).unwrap();
        assert_eq!(result.recv().unwrap(), Ok(()));
        wait_until_published(&page);
    }

    #[test]
    fn a_private_daemons_page_answers_and_is_taken_up_by_no_other() {
        let own = std::process::id() as i32;
        let client = private(ClockSet::ALL, Trust::AllowNonInvariant, own, Examination::First, |_| {}).unwrap();
        let grant = client.page(ClockSet::HRES, None, None).unwrap();
        assert_eq!(grant.clocks, ClockSet::HRES);
        let page = File::from(grant.page);
        wait_until_published(&page);
        // 0 is the mark of a page that no daemon made.
        for keeper in [0, 1] {
            assert!(SharedPage::take_up(&page, keeper).is_err());
        }
    }
}
