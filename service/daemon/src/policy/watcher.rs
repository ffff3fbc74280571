//! Carries the policy out: one thread notices processes, and a few threads have those attached that a rule selects,
//! each in a child process (`attacher.rs`). So slow work, such as a process that does not stop, delays no client.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fastpath_os::Stat;
use fastpath_page::ClockSet;
use fastpath_protocol::{Code, RequestRefusal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::attacher::Attacher;
use super::queue::{AT_A_TIME, Queue};
use super::source::Source;
use super::task::{Done, Task};
use super::{Action, Clocks, Decision, Policy, ProcessFacts, is_ours};
use crate::account::Account;
use crate::log::{Priority, say};
use crate::peer::Process;
use crate::record::Requester;
use crate::{DaemonOptions, Service};

/// The policy in force, shared by all its users.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<Shared>);

struct Shared {
    policy: Mutex<Arc<Policy>>,
    tasks: Queue,
    /// How processes are noticed at present.
    notices: Mutex<Option<&'static str>>,
    /// The policy has changed, or clocks have become slow.
    changed: EventFd,
    /// The clocks of a rule that leaves the choice to the daemon.
    slow: AtomicU32,
    /// The processes that are being attached.
    under_way: Mutex<HashMap<i32, Attached>>,
    /// The trees with an attendant.
    trees: Mutex<Vec<Weak<Account>>>,
}

/// Why a page is given by this daemon itself. It exists as long as the page is published.
#[derive(Clone)]
pub(crate) struct Attached {
    /// Rule by which, unless root asked for it.
    rule: Option<usize>,
    /// Whether the process is attached by now.
    is_done: Arc<AtomicBool>,
    /// The account that is charged for an attendant, if there is one.
    _tree_of: Option<Arc<Account>>,
}

impl Attached {
    /// Returns the rule by which the process is attached.
    pub(crate) fn rule(&self) -> Option<usize> {
        self.rule.filter(|_| self.is_done.load(Ordering::Acquire))
    }
}

/// Limit of trees with an attendant of one user other than root, and of all users other than root. An attendant is one
/// task, and two more while its programs execute others: `TasksMax` of the unit has room for three such users, the
/// daemon and root.
const TREES_OF_ONE_USER: usize = 96;
const TREES_OF_USERS: usize = 3 * TREES_OF_ONE_USER;

/// Returns whether this account may have another tree, beside those of these accounts.
fn may_have_a_tree(account: Account, trees: impl Iterator<Item = Account>) -> bool {
    let of_users: Vec<Account> = trees.filter(|of| !of.is_root()).collect();
    let own = of_users.iter().filter(|of| **of == account).count();
    account.is_root() || own < TREES_OF_ONE_USER && of_users.len() < TREES_OF_USERS
}

impl Watcher {
    /// Starts with a policy, and with the clocks of rules that leave the choice to the daemon.
    pub(crate) fn start(policy: Policy, slow: ClockSet, options: &DaemonOptions) -> io::Result<Watcher> {
        let watcher = Watcher(Arc::new(Shared::new(policy, slow)?));
        for _ in 0..AT_A_TIME {
            let (attacher, theirs) = (Attacher::new(options), watcher.0.clone());
            spawn("fastpath-attach", move || theirs.attach_those(&attacher))?;
        }
        let theirs = watcher.0.clone();
        spawn("fastpath-policy", move || theirs.watch())?;
        Ok(watcher)
    }

    /// Queues a process that a client names. Never waits.
    pub(crate) fn attach(
        &self,
        process: Process,
        account: Account,
        clocks: ClockSet,
        by: Requester,
    ) -> Result<(), RequestRefusal> {
        let ended = |_| RequestRefusal::new(Code::Process, format!("process {} has ended", process.pid));
        let task = Task {
            pid: process.pid,
            account,
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
            by,
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

    /// Sets the clocks of rules that leave the choice to the daemon.
    pub(crate) fn choose(&self, slow: ClockSet) {
        self.0.choose(slow);
    }

    /// Returns why a process is being attached now; `None` if it is not.
    pub(crate) fn attaches(&self, pid: i32) -> Option<Attached> {
        locked(&self.0.under_way).get(&pid).cloned()
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
    fn new(policy: Policy, slow: ClockSet) -> io::Result<Shared> {
        Ok(Shared {
            policy: Mutex::new(Arc::new(policy)),
            tasks: Queue::new(),
            notices: Mutex::new(None),
            changed: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            slow: AtomicU32::new(slow.0),
            under_way: Mutex::default(),
            trees: Mutex::default(),
        })
    }

    /// Sets the clocks, and looks at all processes again if there are new ones: those that had only fast clocks until now
    /// were left alone.
    fn choose(&self, slow: ClockSet) {
        let before = ClockSet(self.slow.swap(slow.0, Ordering::Relaxed));
        if !before.contains(slow) {
            let _ = self.changed.write(1);
        }
    }

    fn attach_those(&self, attacher: &Attacher) {
        super::attacher::keep_clients_descriptors_out();
        loop {
            let mut task = self.tasks.take();
            task.tries += 1;
            let done = match self.still_fitting(&task) {
                Some(facts) => self.attach(&task, &facts, attacher),
                None => Done::InTime,
            };
            self.tasks.give_back(task, done);
        }
    }

    fn attach(&self, task: &Task, facts: &ProcessFacts, attacher: &Attacher) -> Done {
        let mut service = task.decision.service;
        if service.clocks == Clocks::Auto {
            service.clocks = Clocks::Set(ClockSet(self.slow.load(Ordering::Relaxed)));
        }
        // Every clock is fast here.
        if service.set().is_empty() {
            return Done::InTime;
        }
        let tree_of = service.children.then(|| self.new_tree(task)).flatten();
        service.children = tree_of.is_some();
        let attached = Attached {
            rule: task.rule(),
            is_done: Arc::default(),
            _tree_of: tree_of,
        };
        locked(&self.under_way).insert(task.pid, attached.clone());
        let done = attacher.attach(task, service, facts);
        locked(&self.under_way).remove(&task.pid);
        attached.is_done.store(true, Ordering::Release);
        done
    }

    /// Counts a tree for a task's process, if it may have an attendant; logs why not.
    fn new_tree(&self, task: &Task) -> Option<Arc<Account>> {
        let mut trees = locked(&self.trees);
        trees.retain(|tree| tree.strong_count() > 0);
        if may_have_a_tree(task.account, trees.iter().filter_map(Weak::upgrade).map(|of| *of)) {
            let tree = Arc::new(task.account);
            trees.push(Arc::downgrade(&tree));
            return Some(tree);
        }
        drop(trees);
        say(
            Priority::Notice,
            format_args!(
                "process {}: the programs that it executes will not be served: too many trees of its user, or of all, are",
                task.pid
            ),
        );
        None
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

    /// Waits for another policy or slow clocks, or for processes; returns which of them came.
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
        && let Ok(account) = Account::of_pid(pid, process.uid)
    {
        tasks.put(Task {
            pid,
            account,
            decision,
            asked_for: None,
            by: Requester::this_process(),
            tries: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clocksource can become slow for good while a process runs.
    #[test]
    fn processes_are_looked_at_again_when_a_clock_becomes_slow() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let rule = format!(
            "[[rule]]\nexecutable = \"{}\"\naction = \"attach\"\n",
            std::fs::read_link(format!("/proc/{}/exe", child.id()))
                .unwrap()
                .display()
        );
        let shared = Arc::new(Shared::new(Policy::parse(&rule).unwrap(), ClockSet::NONE).unwrap());
        let theirs = shared.clone();
        spawn("watch", move || theirs.watch()).unwrap();
        let queued = Arc::new(Mutex::new(0));
        let (theirs, count) = (shared.clone(), queued.clone());
        let pid = child.id() as i32;
        spawn("take", move || {
            loop {
                let task = theirs.tasks.take();
                *locked(&count) += u32::from(task.pid == pid);
                theirs.tasks.give_back(task, Done::InTime);
            }
        })
        .unwrap();
        let until = |times| {
            let begun = std::time::Instant::now();
            while *locked(&queued) < times {
                assert!(begun.elapsed().as_secs() < 20, "{times} times");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until(1);
        shared.choose(ClockSet::of_id(0));
        until(2);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_users_trees_leave_room_for_others_and_all_users_for_root() {
        let mut trees = Vec::new();
        for uid in 1..5 {
            let before = trees.len();
            while may_have_a_tree(Account::User(uid), trees.iter().copied()) {
                trees.push(Account::User(uid));
            }
            let taken = trees.len() - before;
            assert_eq!(taken, if uid < 4 { TREES_OF_ONE_USER } else { 0 });
        }
        assert!(may_have_a_tree(Account::Root, trees.iter().copied()));
        // Root's do not count for others.
        let roots = [Account::Root; 2 * TREES_OF_USERS];
        assert!(may_have_a_tree(Account::User(1), roots.into_iter()));
    }
}
