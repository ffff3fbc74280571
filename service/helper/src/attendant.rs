//! The attendant of a helper, which installs in the programs that are executed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fastpath_daemon::Service;
use fastpath_inject::attendant::Attendant;
use fastpath_inject::{Cache, InjectionConfig, Permissions, Shared};
use fastpath_page::ClockSet;

use crate::policy::DaemonsPolicy;
use crate::process;
use crate::trial::Trial;

/// Lets an attendant serve in threads of its own. The calling thread must live as long as this process.
pub(crate) fn start(attendant: Arc<Attendant>, mailbox: &Shared) -> Result<Arc<Attendant>, String> {
    // Two: the thread that answers a request leaves another for the next.
    for _ in 0..2 {
        let serving = attendant.clone();
        process::spawn(move || serving.serve())?;
    }
    mailbox.answer_until_this_thread_ends();
    attendant.prepare();
    Ok(attendant)
}

/// Returns an attendant that gives programs `page`, which answers `clocks`, and serves those that ask in `mailbox`.
/// Without clocks, they only get the hook.
pub(crate) fn new(
    page: OwnedFd,
    clocks: ClockSet,
    mailbox: &Arc<Shared>,
    service: &Service,
    policy: Option<DaemonsPolicy>,
    trial: Trial,
    without_vdso: bool,
) -> Arc<Attendant> {
    let config = InjectionConfig {
        page,
        clocks,
        without_vdso,
        serve: clocks != ClockSet::NONE,
        rescue: service.rescue,
        allows: DaemonsPolicy::check(policy),
        filters: trial.filters,
        permissions: Permissions::default(),
        refuses_32_bit: trial.refuses_32_bit,
        ptracer: process::ptracer(),
        scans: Cache::default(),
    };
    Attendant::new(config, mailbox.clone())
}
