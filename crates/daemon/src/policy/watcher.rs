//! Carries the policy out: one thread notices processes, and a few threads have those attached that a rule selects,
//! each in a child process (`attacher.rs`). So slow work, such as a process that does not stop, delays no client.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastpath_os::Stat;
use fastpath_page::ClockSet;
use fastpath_protocol::{Code, RequestRefusal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::attacher::{Attacher, Done, Task};
use super::queue::AT_A_TIME;
use super::queue::Queue;
use super::source::Source;
use super::{Action, Clocks, Decision, Policy, ProcessFacts, is_ours};
use crate::payer::Payer;
use crate::peer::Process;
use crate::{DaemonOptions, Service};

/// The policy in force, shared by all its users.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<Shared>);

struct Shared {
    policy: Mutex<Arc<Policy>>,
    tasks: Arc<Queue>,
    /// How processes are noticed at present.
    notices: Mutex<Option<&'static str>>,
    changed: EventFd,
    /// Rule by which a page was given, by the page's inode.
    rules: Mutex<HashMap<u64, usize>>,
}

impl Watcher {
    /// Starts with a policy.
    pub(crate) fn start(policy: Policy, options: &DaemonOptions) -> io::Result<Watcher> {
        let tasks = Arc::new(Queue::new());
        let watcher = Watcher(Arc::new(Shared {
            policy: Mutex::new(Arc::new(policy)),
            tasks: tasks.clone(),
            notices: Mutex::new(None),
            changed: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            rules: Mutex::default(),
        }));
        for _ in 0..AT_A_TIME {
            let (attacher, theirs) = (Attacher::new(options), watcher.0.clone());
            spawn("fastpath-attach", move || theirs.attach_those(&attacher))?;
        }
        let theirs = watcher.0.clone();
        spawn("fastpath-policy", move || theirs.watch())?;
        Ok(watcher)
    }

    /// Queues a process that a client names. Never waits.
    pub(crate) fn attach(&self, process: Process, payer: Payer, clocks: ClockSet) -> Result<(), RequestRefusal> {
        let ended = |_| RequestRefusal::new(Code::Process, format!("process {} has ended", process.pid));
        let task = Task {
            pid: process.pid,
            payer,
            decision: Decision {
                action: Action::Attach,
                service: Service {
                    clocks: Clocks::Set(clocks),
                    children: true,
                    ..Service::default()
                },
                rule: 0,
            },
            asked_for: Some(Stat::read(process.pid).map_err(ended)?.start_time),
            tries: 0,
        };
        match self.0.tasks.offer(task) {
            true => Ok(()),
            false => Err(RequestRefusal::new(
                Code::Limit,
                "too many processes wait to be attached",
            )),
        }
    }

    /// Returns the policy in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.0.policy()
    }

    /// Puts another policy in force, also for existing processes. Attached processes stay attached.
    pub(crate) fn replace(&self, policy: Policy) {
        *locked(&self.0.policy) = Arc::new(policy);
        let _ = self.0.changed.write(1);
    }

    /// Returns how processes are noticed; `None` if that is not necessary.
    pub(crate) fn notices(&self) -> Option<&'static str> {
        *locked(&self.0.notices)
    }

    /// Returns the rule by which the page with this inode was given.
    pub(crate) fn rule_of(&self, inode: u64) -> Option<usize> {
        locked(&self.0.rules).get(&inode).copied()
    }

    /// Forgets the rules of pages that do not exist any more.
    pub(crate) fn forget_all_but(&self, is_there: impl Fn(u64) -> bool) {
        locked(&self.0.rules).retain(|inode, _| is_there(*inode));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
    thread.spawn(work).map(drop)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn attach_those(&self, attacher: &Attacher) {
        super::attacher::keep_clients_descriptors_out();
        loop {
            let mut task = self.tasks.take();
            task.tries += 1;
            let done = match self.still_fitting(&task) {
                Some(facts) => attacher.attach(&task, &facts),
                None => Done::InTime(None),
            };
            if let Done::InTime(Some(inode)) = &done
                && task.asked_for.is_none()
            {
                locked(&self.rules).insert(*inode, task.decision.rule);
            }
            self.tasks.give_back(task, done);
        }
    }

    /// Returns the facts about a task's process if the reason for the task still holds: while it waited, the policy may
    /// have changed, and the number may have been given to another process.
    fn still_fitting(&self, task: &Task) -> Option<ProcessFacts> {
        let facts = ProcessFacts::of_pid(task.pid)?;
        let decision = self.policy().decide(&facts);
        let fits = match task.asked_for {
            Some(start_time) => {
                Stat::read(task.pid).is_ok_and(|stat| stat.start_time == start_time)
                    && decision.is_none_or(|decision| decision.action != Action::Never)
            }
            None => decision == Some(task.decision),
        };
        fits.then_some(facts)
    }

    fn policy(&self) -> Arc<Policy> {
        locked(&self.policy).clone()
    }

    /// Runs for as long as the daemon.
    fn watch(&self) {
        loop {
            let policy = self.policy();
            let mut source = policy.attaches().then(Source::open);
            *locked(&self.notices) = source.as_ref().map(Source::name);
            let mut noticed = source.as_mut().map(Source::all).unwrap_or_default();
            loop {
                for pid in noticed {
                    consider(&policy, pid, &self.tasks);
                }
                let (changed, ready) = self.wait(source.as_ref());
                if changed {
                    break;
                }
                noticed = source.as_mut().map(|source| source.news(ready)).unwrap_or_default();
            }
        }
    }

    /// Waits for a new policy, or for processes; returns which of them came.
    fn wait(&self, source: Option<&Source>) -> (bool, bool) {
        let socket = source.and_then(Source::socket);
        let mut fds: Vec<_> = std::iter::once(self.changed.as_fd())
            .chain(socket)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let timeout = source.and_then(Source::look_every);
        let timeout = timeout.map_or(PollTimeout::NONE, |every| {
            PollTimeout::try_from(every).unwrap_or(PollTimeout::MAX)
        });
        let _ = poll(&mut fds, timeout);
        let ready = |at: usize| fds.get(at).is_some_and(|fd| fd.any().unwrap_or(false));
        let (changed, ready) = (ready(0), ready(1));
        if changed {
            let _ = self.changed.read();
        }
        (changed, ready)
    }
}

/// Queues a process to be attached if a rule says so.
fn consider(policy: &Policy, pid: i32, tasks: &Queue) {
    // The process may have ended.
    let Ok(process) = Process::read(pid) else { return };
    let facts = ProcessFacts::read(process);
    if facts.executable.as_deref().is_some_and(is_ours) {
        return;
    }
    let decision = policy.decide(&facts);
    if let Some(decision) = decision.filter(|decision| decision.action == Action::Attach)
        && let Ok(payer) = Payer::of_pid(pid, process.uid)
    {
        tasks.put(Task {
            pid,
            payer,
            decision,
            asked_for: None,
            tries: 0,
        });
    }
}
