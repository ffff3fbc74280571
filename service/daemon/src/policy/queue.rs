//! The processes that wait to be attached: a limited number of each user at a time, so that the others get their turn.

use std::collections::{HashMap, VecDeque};
use std::process::Child;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::task::{Done, MOST_TRIES, Task};
use crate::account::Account;

/// Number of processes that are attached at a time: one that does not stop must not keep the others waiting.
pub(super) const AT_A_TIME: usize = 4;
/// Limit for one user other than root. A child process that does not end counts as long as it exists.
const OF_ONE_USER: usize = 2;
/// Limit of waiting processes. When there are more, the watcher waits, and then looks at all processes again.
const WAITING: usize = 4096;
/// Limit of waiting processes of one user other than root. Others stay on the kernel's path.
const OF_ONE_USER_WAITING: usize = 512;
/// Time for which a user's processes are left alone after one took too long; multiplied by the number of such
/// processes, up to [`LEFT_ALONE_AT_MOST`].
const LEFT_ALONE: Duration = Duration::from_secs(60);
const LEFT_ALONE_AT_MOST: u32 = 10;
/// Time before the second try; doubled after each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Limit of processes that wait for their next try, of one user other than root.
const OF_ONE_USER_LATER: usize = 64;
/// Time between two checks whether abandoned children have ended, and processes are due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Task>,
    /// Tasks that are tried again, and when.
    later: Vec<(Instant, Task)>,
    under_way: HashMap<Account, usize>,
    /// Number of a user's processes that took too long, and the time until which the user's processes are left alone.
    too_long: HashMap<Account, (u32, Instant)>,
    given_up: Vec<(Account, Child)>,
}

/// Queue that one thread fills and several threads empty.
pub(super) struct Queue {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

impl Queue {
    /// Creates an empty queue.
    pub(super) fn new() -> Queue {
        Queue {
            tasks: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, tasks: MutexGuard<'a, Tasks>) -> MutexGuard<'a, Tasks> {
        let waited = self.changed.wait_timeout(tasks, LOOK_EVERY);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until there is room, and adds a task.
    pub(super) fn put(&self, task: Task) {
        let mut tasks = self.tasks();
        while tasks.waiting.len() >= WAITING {
            tasks = self.wait(tasks);
        }
        if let Err(task) = self.add(tasks, task) {
            task.refuse("limit", "too many of its user wait");
        }
    }

    /// Adds a task if there is room, and returns whether there was.
    pub(super) fn offer(&self, task: Task) -> bool {
        let tasks = self.tasks();
        tasks.waiting.len() < WAITING && self.add(tasks, task).is_ok()
    }

    /// Adds a task; returns it if too many of its user wait.
    fn add(&self, mut tasks: MutexGuard<'_, Tasks>, task: Task) -> Result<(), Task> {
        let account = task.account;
        let of_account = || tasks.waiting.iter().filter(|task| task.account == account).count();
        if !account.is_root() && of_account() >= OF_ONE_USER_WAITING {
            return Err(task);
        }
        tasks.waiting.push_back(task);
        drop(tasks);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for the next task. It is in progress until it is given back.
    pub(super) fn take(&self) -> Task {
        let mut tasks = self.tasks();
        loop {
            tasks.look_after_given_up();
            tasks.add_due(Instant::now());
            if let Some(task) = tasks.next(Instant::now()) {
                *tasks.under_way.entry(task.account).or_default() += 1;
                drop(tasks);
                self.changed.notify_all();
                return task;
            }
            tasks = self.wait(tasks);
        }
    }

    /// Records that a task is not in progress any more.
    pub(super) fn give_back(&self, task: Task, done: Done) {
        let account = task.account;
        let mut tasks = self.tasks();
        match done {
            Done::InTime => tasks.is_done(account),
            Done::TryAgain => {
                tasks.is_done(account);
                tasks.try_later(task, Instant::now());
            }
            Done::TooLate(child) => {
                tasks.took_too_long(account, Instant::now());
                match child {
                    Some(child) => tasks.given_up.push((account, child)),
                    None => tasks.is_done(account),
                }
            }
        }
        drop(tasks);
        self.changed.notify_all();
    }
}

impl Tasks {
    /// Returns the first task that may be attached now. Drops tasks of users whose processes are left alone.
    fn next(&mut self, now: Instant) -> Option<Task> {
        let too_long = &self.too_long;
        self.waiting.retain(|task| {
            let is_left_alone = too_long.get(&task.account).is_some_and(|(_, until)| now < *until);
            if is_left_alone {
                task.refuse("limit", "others of its user took too long");
            }
            !is_left_alone
        });
        let under_way = |account: &Account| self.under_way.get(account).copied().unwrap_or(0);
        let may = |task: &Task| {
            // Root's services must be attached soon, but leave one thread to the others.
            let most = if task.account.is_root() {
                AT_A_TIME - 1
            } else {
                OF_ONE_USER
            };
            under_way(&task.account) < most
        };
        let at = self.waiting.iter().position(may)?;
        self.waiting.remove(at)
    }

    /// Keeps a task for its next try, if there is one.
    fn try_later(&mut self, task: Task, now: Instant) {
        let of_account = || {
            self.later
                .iter()
                .filter(|(_, other)| other.account == task.account)
                .count()
        };
        if task.tries >= MOST_TRIES {
            return;
        }
        if !task.account.is_root() && of_account() >= OF_ONE_USER_LATER {
            return task.refuse("limit", "too many of its user wait to be tried again");
        }
        let pause = FIRST_PAUSE * 2u32.pow(task.tries.saturating_sub(1));
        self.later.push((now + pause, task));
    }

    /// Adds the tasks whose next try is due.
    fn add_due(&mut self, now: Instant) {
        let due = self.later.extract_if(.., |(at, _)| *at <= now);
        self.waiting.extend(due.map(|(_, task)| task));
    }

    fn is_done(&mut self, account: Account) {
        if let Some(under_way) = self.under_way.get_mut(&account) {
            *under_way -= 1;
            if *under_way == 0 {
                self.under_way.remove(&account);
            }
        }
    }

    fn took_too_long(&mut self, account: Account, now: Instant) {
        // A user without such processes for a while starts again from zero.
        let forgotten = LEFT_ALONE * 2 * LEFT_ALONE_AT_MOST;
        self.too_long
            .retain(|_, (_, until)| now.saturating_duration_since(*until) < forgotten);
        if account.is_root() {
            return;
        }
        let (times, until) = self.too_long.entry(account).or_insert((0, now));
        *times = (*times + 1).min(LEFT_ALONE_AT_MOST);
        *until = now + LEFT_ALONE * *times;
    }

    fn look_after_given_up(&mut self) {
        let mut ended = Vec::new();
        self.given_up.retain_mut(|(account, child)| {
            let is_there = matches!(child.try_wait(), Ok(None));
            if !is_there {
                ended.push(*account);
            }
            is_there
        });
        ended.into_iter().for_each(|account| self.is_done(account));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Decision};
    use super::*;
    use crate::Service;
    use crate::record::Requester;

    fn task(pid: i32, account: Account) -> Task {
        let decision = Decision {
            action: Action::Attach,
            service: Service::default(),
            rule: 1,
        };
        Task {
            pid,
            account,
            decision,
            asked_for: None,
            by: Requester::this_process(),
            tries: 1,
        }
    }

    #[test]
    fn a_user_whose_processes_never_answer_leaves_room_for_others() {
        let queue = Queue::new();
        let (hostile, other) = (Account::User(1), Account::User(2));
        for pid in 0..10 {
            queue.put(task(pid, hostile));
        }
        queue.put(task(10, other));
        let first = [queue.take(), queue.take()];
        assert_eq!(first.each_ref().map(|task| task.account), [hostile; 2]);
        let third = queue.take();
        assert_eq!(third.account, other);
        queue.give_back(third, Done::InTime);
        let [first, _second] = first;
        queue.give_back(first, Done::TooLate(None));
        queue.put(task(11, other));
        assert_eq!(queue.take().pid, 11);
        assert!(queue.tasks().waiting.is_empty(), "the others of the hostile user");
    }

    #[test]
    fn a_process_that_may_be_attached_later_is_tried_again_for_a_minute() {
        let (mut tasks, user, now) = (Tasks::default(), Account::User(1), Instant::now());
        let mut begun = now;
        for tries in 1..MOST_TRIES {
            tasks.try_later(Task { tries, ..task(1, user) }, begun);
            let due = tasks.later[0].0;
            tasks.add_due(due - Duration::from_millis(1));
            assert!(tasks.waiting.is_empty());
            tasks.add_due(due);
            assert_eq!(tasks.waiting.pop_front().map(|task| task.tries), Some(tries));
            begun = due;
        }
        assert_eq!(begun - now, Duration::from_secs(63));
        let last = Task {
            tries: MOST_TRIES,
            ..task(1, user)
        };
        tasks.try_later(last, begun);
        assert!(tasks.later.is_empty());
        for pid in 0..2 * OF_ONE_USER_LATER as i32 {
            tasks.try_later(task(pid, user), now);
        }
        tasks.try_later(task(1, Account::User(2)), now);
        assert_eq!(tasks.later.len(), OF_ONE_USER_LATER + 1);
    }

    #[test]
    fn a_child_that_was_given_up_counts_until_it_ends() {
        let queue = Queue::new();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(child.try_wait().unwrap().is_none());
        queue.put(task(1, Account::Root));
        let first = queue.take();
        queue.give_back(first, Done::TooLate(Some(child)));
        assert_eq!(queue.tasks().under_way.get(&Account::Root), Some(&1));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        let begun = Instant::now();
        while queue.tasks().under_way.contains_key(&Account::Root) {
            assert!(begun.elapsed().as_secs() < 60);
            queue.tasks().look_after_given_up();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
