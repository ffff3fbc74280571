//! `fastpathd`: one publisher for all processes of a host.
//!
//! Two threads matter. One publishes ([`fastpath_publish`]) and never waits for another thread; it gets its
//! pages through a queue. The other serves clients (`server`): it answers each request at once or not at all, and keeps
//! nothing for a client that does not read. Work that may take long, such as a search of /proc or a change of a
//! process, has threads of its own.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod account;
mod cgroup_namespace;
mod closing;
mod finding;
mod lease;
pub mod log;
mod options;
mod peer;
mod policy;
pub mod record;
mod record_limit;
mod registry;
mod requests;
mod search;
mod server;
mod service;
mod shares;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod sockets;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastpath_measure::Comparison;
use fastpath_page::ClockSet;
use fastpath_publish::Publisher;
use fastpath_publish::SharedPage;
use fastpath_publish::evidence::{self, Trust};

pub use options::DaemonOptions;
pub use policy::{Action, Decision, Fit, Policy, Preview, ProcessFacts, TRY_AGAIN};
use record::{Record, Target};
use registry::{Limits, Registry};
use server::Server;
pub use service::Service;

/// Reason why a daemon does not run.
#[derive(Debug)]
pub enum ServeError {
    /// This host cannot be served: starting again does not help.
    Host(String),
    /// The policy has a mistake, or cannot be read.
    Policy(String),
    /// Another error.
    Start(String),
}

/// Serves until SIGTERM or SIGINT.
pub fn serve(options: &DaemonOptions) -> Result<(), ServeError> {
    let trust = options.trust;
    // A mistake in the policy is reported before the policy is applied.
    let policy = Policy::read(&options.policy)
        .map_err(ServeError::Policy)?
        .unwrap_or_default();
    evidence::is_promising(trust).map_err(|e| ServeError::Host(e.refusal()))?;
    // Before any thread is started, so that all threads inherit the namespace and the blocked signals.
    let entered = cgroup_namespace::enter_that_of_the_first_process();
    let signals = server::Signals::block().map_err(|e| start("signals", e))?;
    fastpath_inject::lease::outlive_breaks().map_err(|e| start("signals", e))?;
    raise_descriptor_limit();
    // Most of the time until it ends is that of the examination.
    let comparison = (trust == Trust::Invariant).then(Comparison::begin_quickly);
    evidence::examine_with_offsets(trust).map_err(ServeError::Host)?;
    let refusal = comparison.and_then(Comparison::refusal);
    refusal.map_or(Ok(()), |why| Err(ServeError::Host(why)))?;

    // A process that maps a page is never attached: a daemon that read the clocks that it publishes would follow
    // itself.
    let _own = SharedPage::create().map_err(|e| start("a page", e))?;
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, trust).map_err(|e| start("the publisher", e))?;
    publisher.watch_for_steps();
    publisher
        .compare_cpus()
        .map_err(|e| start("a thread that compares the CPUs' counters", e))?;
    log::start().map_err(|e| start("a thread that writes the log", e))?;
    publisher.on_news(|news| log::record(Record::of_news(news, Target::default())));
    if let Err(error) = entered {
        log::say(
            log::Priority::Warning,
            format_args!("cgroups are seen relative to this container's, in rules of the policy too: setns: {error}"),
        );
    }
    let over = Arc::new(AtomicBool::new(false));
    let publishing = {
        let over = over.clone();
        let thread = std::thread::Builder::new().name("fastpath-pages".into());
        thread
            .spawn(move || publisher.run(|| !over.load(Ordering::Relaxed)))
            .map_err(|e| start("the publisher's thread", e))?
    };

    // Last, so that every client that connects gets an answer at once.
    let socket = sockets::listen(&options.socket).map_err(ServeError::Start)?;
    let limits = Limits::of_this_process(options.pages_per_user);
    let registry = Registry::new(handle, limits, socket.keeper());
    let served = Server::new(options, policy, socket, signals, registry)
        .map_err(|e| start("the server", e))?
        .run(&|| publishing.is_finished());
    over.store(true, Ordering::Relaxed);
    let _ = publishing.join();
    log::flush();
    served.map_err(ServeError::Start)
}

fn start(what: &str, error: impl std::fmt::Display) -> ServeError {
    ServeError::Start(format!("{what}: {error}"))
}

/// Raises the descriptor limit as far as this process may: a page takes two descriptors, and there may be thousands of
/// pages.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid rlimit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
