//! `fastpathd`: one publisher for all processes of a host.
//!
//! Two threads matter. One publishes ([`fastpath_publisher::many`]) and never waits for anybody; it hears of pages through a queue. The
//! other serves clients (`server`): each request is answered at once or not at all, and nothing is kept for a client that does not
//! read. What may take long, looking through /proc and changing processes, is done in threads of their own.

mod book;
mod closing;
mod finding;
mod lease;
mod log;
mod payer;
mod peer;
mod policy;
mod requests;
mod server;
mod shares;
mod sockets;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastpath_inject::target;
use fastpath_measure::Clocks;
use fastpath_page::ClockSet;
use fastpath_publisher::SharedPage;
use fastpath_publisher::evidence::{self, Trust};
use fastpath_publisher::many::Publisher;

use book::{Book, Limits};
pub use policy::{Action, Decision, Facts, Fit, Policy, Preview};
use server::Server;

/// The environment variable by which a process that attaches one for the daemon knows where `fastpath` is.
pub const BESIDE: &str = "FASTPATHD_BESIDE";

/// What a daemon does.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// What clients get who leave it to the daemon; nothing: what is slow by the kernel's own path.
    pub clocks: Option<ClockSet>,
    /// How much the counter has to show.
    pub trust: Trust,
    /// Where the policy is; it may be missing.
    pub policy: PathBuf,
    /// `fastpath`, which attaches whole trees of processes where the policy says so.
    pub fastpath: PathBuf,
    /// Pages that one user may have; root may have as many as there is room for.
    pub pages_per_user: usize,
}

/// Why a daemon does not run.
#[derive(Debug)]
pub enum Failure {
    /// This host is not one that can be served: to start again does not help.
    Host(String),
    /// The policy has a mistake, or cannot be read.
    Policy(String),
    /// Something else is in the way.
    Start(String),
}

/// Serves until SIGTERM or SIGINT.
pub fn serve(options: &Options) -> Result<(), Failure> {
    let trust = options.trust;
    // A mistake in the policy is told before anything is done by it.
    let policy = Policy::read(&options.policy)
        .map_err(Failure::Policy)?
        .unwrap_or_default();
    target::kernels_pages_suit().map_err(|e| Failure::Host(e.to_string()))?;
    evidence::is_promising(trust).map_err(|e| Failure::Host(e.refusal()))?;
    // Before any thread is started, so that all of them inherit what is blocked.
    let signals = server::Signals::block().map_err(|e| start("signals", e))?;
    lease::outlive_breaks().map_err(|e| start("signals", e))?;
    raise_descriptor_limit();
    evidence::examine(trust).map_err(|e| Failure::Host(e.refusal()))?;

    // What maps a page is never attached, and a daemon that read the clocks that it publishes would follow itself.
    let _own = SharedPage::create().map_err(|e| start("a page", e))?;
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, trust).map_err(|e| start("the publisher", e))?;
    publisher.watch_for_steps();
    publisher
        .compare_cpus()
        .map_err(|e| start("a thread that compares the CPUs' counters", e))?;
    log::start().map_err(|e| start("a thread that writes the log", e))?;
    publisher.on_news(log::say_news);
    let over = Arc::new(AtomicBool::new(false));
    let publishing = {
        let over = over.clone();
        let thread = std::thread::Builder::new().name("fastpath-pages".into());
        thread
            .spawn(move || publisher.run(&over))
            .map_err(|e| start("the publisher's thread", e))?
    };

    // Last: who connects is answered at once.
    let socket = sockets::listen(&options.socket).map_err(Failure::Start)?;
    let limits = Limits::of_this_process(options.pages_per_user);
    let book = Book::new(handle, limits, socket.keeper());
    let served = Server::new(options, policy, socket, signals, book)
        .map_err(|e| start("the server", e))?
        .run(&|| publishing.is_finished());
    over.store(true, Ordering::Relaxed);
    let _ = publishing.join();
    log::flush();
    served.map_err(Failure::Start)
}

/// Attaches one process by a rule, as a client of the daemon that started this process for it ([`serve`]). The inode of the page that it has got.
pub fn attach_one(
    options: &Options,
    pid: i32,
    executable: Option<String>,
    clocks: Clocks,
    children: bool,
) -> Option<u64> {
    let decision = Decision {
        action: Action::Attach,
        clocks,
        children,
        rule: 0,
    };
    let payer = payer::Payer::Unseen;
    policy::Attacher::new(options).attach_here(&policy::Task {
        pid,
        payer,
        decision,
        executable,
    })
}

fn start(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Start(format!("{what}: {error}"))
}

/// A page takes two descriptors, and thousands are wanted: as many as this process may have.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid rlimit for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
