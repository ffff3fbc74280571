//! Examines many processes one after the other, although some of them may never answer.
//!
//! A worker thread examines them. If a process does not answer in time, its worker is left behind, and another one
//! continues with the next process; the worker that was left behind still reports what it finds. A user can have many
//! such processes: after [`Bounds::first`] of them the user's other processes are examined last and with a shorter
//! timeout, and after [`Bounds::most`] not at all.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long processes may take, and how many of a user may take longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Timeout for a process.
    pub timeout: Duration,
    /// Processes of a user that time out before the others of that user are examined last.
    pub first: usize,
    /// Timeout for those.
    pub late_timeout: Duration,
    /// Processes of a user that time out before the others of that user are skipped.
    pub most: usize,
}

/// What is done with each process.
pub(crate) trait Examine: Send + Sync + 'static {
    /// What is found in a process.
    type Found;

    /// Examines a process. May take forever.
    fn examine(&self, pid: i32) -> Option<Self::Found>;

    /// Passes on what was found. The time that this takes is not the process's.
    fn report(&self, found: Self::Found);
}

/// Examines each process, and calls `is_late` for each one that does not answer in time. `processes` has the process
/// and its user.
pub(crate) fn search<U: Copy + Eq + Hash>(
    processes: impl IntoIterator<Item = (i32, U)>,
    bounds: Bounds,
    examiner: impl Examine,
    mut is_late: impl FnMut(i32),
) -> io::Result<()> {
    let mut workers = Workers {
        examiner: Arc::new(examiner),
        free: None,
    };
    let mut late: HashMap<U, usize> = HashMap::new();
    let mut last = Vec::new();
    let mut look = |pid, user, timeout, late: &mut HashMap<U, usize>| {
        if !workers.examine(pid, timeout)? {
            *late.entry(user).or_default() += 1;
            is_late(pid);
        }
        io::Result::Ok(())
    };
    for (pid, user) in processes {
        if late.get(&user).is_some_and(|times| *times >= bounds.first) {
            last.push((pid, user));
        } else {
            look(pid, user, bounds.timeout, &mut late)?;
        }
    }
    for (pid, user) in last {
        if late.get(&user).is_none_or(|times| *times < bounds.most) {
            look(pid, user, bounds.late_timeout, &mut late)?;
        }
    }
    Ok(())
}

struct Workers<E> {
    examiner: Arc<E>,
    free: Option<Worker>,
}

impl<E: Examine> Workers<E> {
    /// Examines a process; returns false after the timeout.
    fn examine(&mut self, pid: i32, timeout: Duration) -> io::Result<bool> {
        let worker = match self.free.take() {
            Some(worker) => worker,
            None => Worker::start(self.examiner.clone())?,
        };
        let is_done = worker.pids.send(pid).is_ok() && worker.done.recv_timeout(timeout).is_ok();
        self.free = is_done.then_some(worker);
        Ok(is_done)
    }
}

/// A thread that examines the processes that are sent to it. It ends after the one at which it was left behind.
struct Worker {
    pids: Sender<i32>,
    done: Receiver<()>,
}

impl Worker {
    fn start(examiner: Arc<impl Examine>) -> io::Result<Worker> {
        let (pids, requested) = channel();
        let (reports_done, done) = channel();
        std::thread::Builder::new()
            .name("fastpath-finder".into())
            .stack_size(256 << 10)
            .spawn(move || {
                for pid in requested {
                    let found = examiner.examine(pid);
                    let is_left_behind = reports_done.send(()).is_err();
                    if let Some(found) = found {
                        examiner.report(found);
                    }
                    if is_left_behind {
                        return;
                    }
                }
            })?;
        Ok(Worker { pids, done })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        timeout: Duration::from_secs(2),
        first: 2,
        late_timeout: Duration::from_millis(500),
        most: 4,
    };

    /// Those with an even number never answer.
    struct Odd(Arc<Mutex<Vec<i32>>>);

    impl Examine for Odd {
        type Found = i32;

        fn examine(&self, pid: i32) -> Option<i32> {
            if pid % 2 == 0 {
                std::thread::sleep(Duration::from_secs(3600));
            }
            Some(pid)
        }

        fn report(&self, pid: i32) {
            self.0.lock().expect("no panic").push(pid);
        }
    }

    /// Searches processes; returns those that were reported, in order, and those that were late.
    fn searched(processes: impl IntoIterator<Item = (i32, u32)>) -> (Vec<i32>, Vec<i32>) {
        let reported = Arc::default();
        let mut late = Vec::new();
        search(processes, BOUNDS, Odd(Arc::clone(&reported)), |pid| late.push(pid)).expect("threads");
        // The last report follows the end of its examination.
        std::thread::sleep(Duration::from_millis(500));
        let mut reported = reported.lock().expect("no panic").clone();
        reported.sort_unstable();
        (reported, late)
    }

    #[test]
    fn processes_that_do_not_answer_keep_no_others_from_being_examined() {
        let (examined, late) = searched([(2, 7), (4, 7), (5, 7), (3, 8), (7, 7)]);
        assert_eq!((examined, late), (vec![3, 5, 7], vec![2, 4]));
    }

    #[test]
    fn a_user_with_many_such_processes_delays_the_search_within_a_limit() {
        let hostile = (1..100).map(|number| (2 * number, 7));
        let begun = Instant::now();
        let (examined, late) = searched(hostile.chain([(3, 8), (5, 7)]));
        assert_eq!((examined, late), (vec![3], vec![2, 4, 6, 8]));
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    struct Slow(Sender<i32>);

    impl Examine for Slow {
        type Found = i32;

        fn examine(&self, pid: i32) -> Option<i32> {
            std::thread::sleep(Duration::from_millis(100));
            Some(pid)
        }

        fn report(&self, pid: i32) {
            self.0.send(pid).expect("the test waits");
        }
    }

    #[test]
    fn what_is_found_after_the_timeout_is_reported() {
        let (sender, found) = channel();
        let bounds = Bounds {
            timeout: Duration::from_millis(1),
            ..BOUNDS
        };
        let mut late = Vec::new();
        search([(1, 7)], bounds, Slow(sender), |pid| late.push(pid)).expect("threads");
        assert_eq!((late, found.recv()), (vec![1], Ok(1)));
    }
}
