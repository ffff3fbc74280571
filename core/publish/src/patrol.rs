//! Compares the CPUs' counters while a publisher runs: in a separate thread, because a busy CPU must not delay a
//! refresh.
//!
//! Where the counters differ by offsets that were measured (`fastpath_evidence::offsets`), a difference is a change of one.
//! Then the thread measures them anew, while readers use the kernel. Counters that need that again and again drift.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use fastpath_clock::Config;
use fastpath_evidence::{Offsets, Warp, offsets};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// When to compare.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// Least time from one comparison to the next.
    pub every: Duration,
    /// Least rest after a comparison, in multiples of the CPU time that it took.
    pub rests: u32,
}

impl Rhythm {
    /// Returns the rhythm of these settings.
    pub fn from_config(config: &Config) -> Rhythm {
        Rhythm {
            every: Duration::from_nanos(config.compare_every_ns),
            rests: config.compare_rests,
        }
    }

    /// Returns the time from a comparison to the next, if one takes so much CPU time.
    pub fn rest_after(self, cost: Duration) -> Duration {
        self.every.max(cost.saturating_mul(self.rests))
    }
}

/// The thread, which ends when this is dropped. Its descriptor becomes readable when the counters of two CPUs disagree:
/// that cannot wait, and all else is taken at the next refresh.
pub(crate) struct PatrolThread(Arc<Post>);

struct Post {
    found: Mutex<Option<Warp>>,
    /// Offsets to put in force.
    measured: Mutex<Option<Offsets>>,
    /// Whether the machine was suspended since offsets were measured. Set while `measured` is locked.
    is_void: AtomicBool,
    wake: EventFd,
}

impl Post {
    fn new() -> io::Result<Post> {
        Ok(Post {
            found: Mutex::new(None),
            measured: Mutex::new(None),
            is_void: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// Leaves a result for the publisher, and wakes it if two counters disagree. A difference is not replaced before the
    /// publisher has taken it.
    fn leave(&self, warp: Warp) {
        let are_apart = warp.furthest_apart().is_some();
        if let Ok(mut found) = self.found.lock()
            && (are_apart || found.as_ref().is_none_or(|found| found.furthest_apart().is_none()))
        {
            *found = Some(warp);
        }
        if are_apart {
            // Fails only if the publisher has not read yet.
            let _ = self.wake.write(1);
        }
    }

    fn leave_offsets(&self, offsets: Offsets) {
        if let Ok(mut measured) = self.measured.lock()
            && !self.is_void.load(Ordering::Relaxed)
        {
            *measured = Some(offsets);
        }
        let _ = self.wake.write(1);
    }

    fn has_offsets(&self) -> bool {
        self.measured.lock().is_ok_and(|measured| measured.is_some())
    }
}

impl PatrolThread {
    /// Starts the thread. With `may_measure`, it measures offsets as well where counters turn out to differ that seemed to
    /// agree: bounds are wide at a start on a busy machine.
    pub(crate) fn start(rhythm: Rhythm, may_measure: bool) -> io::Result<PatrolThread> {
        let post = Arc::new(Post::new()?);
        let theirs = Arc::downgrade(&post);
        std::thread::Builder::new()
            .name("fastpath-patrol".into())
            .stack_size(128 << 10)
            .spawn(move || go(&theirs, rhythm, may_measure))?;
        Ok(PatrolThread(post))
    }

    /// Returns the result of the last comparison, if it was not taken yet. `was_woken` says that the descriptor was
    /// readable.
    pub(crate) fn take(&self, was_woken: bool) -> Option<Warp> {
        if was_woken {
            let _ = self.0.wake.read();
        }
        self.0.found.lock().ok()?.take()
    }

    /// Returns offsets that were measured and not taken yet. No comparison is made until they are.
    pub(crate) fn take_offsets(&self) -> Option<Offsets> {
        self.0.measured.lock().ok()?.take()
    }

    /// Has the offsets measured anew, and drops those that were measured and not taken: firmware may have changed the
    /// counters.
    pub(crate) fn measure_anew(&self) {
        if let Ok(mut measured) = self.0.measured.lock() {
            *measured = None;
            self.0.is_void.store(true, Ordering::Relaxed);
        }
    }
}

impl AsFd for PatrolThread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

fn go(post: &Weak<Post>, rhythm: Rhythm, may_measure: bool) {
    let mut patrol = fastpath_evidence::Patrol::default();
    let mut changes = offsets::Changes::default();
    let mut rest = rhythm.every;
    let mut next = Instant::now() + rest;
    loop {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // The publisher has ended.
        let Some(post) = post.upgrade() else { return };
        // The worker must know it before this round: it costs as much as the last.
        next = Instant::now() + rest;
        if post.has_offsets() {
            continue;
        }
        if post.is_void.swap(false, Ordering::Relaxed) {
            patrol.leave_cpu();
            Offsets::forget();
            match changes.measure(Instant::now, || Offsets::measure(&[])) {
                Some(measured) => post.leave_offsets(measured),
                None => post.is_void.store(true, Ordering::Relaxed),
            }
            continue;
        }
        let generation = offsets::generation();
        let (warp, cost) = patrol.round(next);
        rest = rhythm.rest_after(cost);
        if offsets::generation() != generation {
            continue;
        }
        let must_measure = warp.furthest_apart().is_some() || patrol.cpus_have_changed();
        post.leave(warp);
        if must_measure && may_measure {
            patrol.leave_cpu();
            if let Some(measured) = changes.measure(Instant::now, || Offsets::measure(patrol.noticed())) {
                post.leave_offsets(measured);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, poll};

    #[test]
    fn comparisons_come_again_and_again_and_wake_nothing_while_counters_agree() {
        let rhythm = Rhythm {
            every: Duration::from_millis(1),
            rests: 0,
        };
        let patrol = PatrolThread::start(rhythm, false).expect("a thread");
        let begun = Instant::now();
        for _ in 0..3 {
            let warp = loop {
                if let Some(warp) = patrol.take(false) {
                    break warp;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "no comparison");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(warp.furthest_apart(), None);
        }
        let mut fds = [PollFd::new(patrol.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, 0_u16), Ok(0));
    }

    #[test]
    fn a_difference_wakes_the_publisher_and_is_not_replaced_before_it_is_taken() {
        let patrol = PatrolThread(Arc::new(Post::new().expect("an eventfd")));
        let is_readable = || {
            let mut fds = [PollFd::new(patrol.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, 0_u16) == Ok(1)
        };
        let apart = Warp {
            pairs: vec![fastpath_evidence::Pair {
                cpu: 0,
                other: 1,
                least_cycles: 500,
                most_cycles: 700,
            }],
            ..Warp::default()
        };
        patrol.0.leave(Warp::default());
        assert!(!is_readable());
        patrol.0.leave(apart.clone());
        // The next comparison could not be made: both CPUs were busy.
        patrol.0.leave(Warp::default());
        assert!(is_readable());
        assert_eq!(patrol.take(true), Some(apart));
        assert!(!is_readable());
        assert_eq!(patrol.take(false), None);
    }

    #[test]
    fn offsets_that_were_measured_before_a_suspend_are_never_taken() {
        let patrol = PatrolThread(Arc::new(Post::new().expect("an eventfd")));
        let offsets = || {
            Warp {
                cpus: vec![0],
                ..Warp::default()
            }
            .offsets()
            .expect("one CPU")
        };
        patrol.0.leave_offsets(offsets());
        patrol.measure_anew();
        assert_eq!(patrol.take_offsets(), None, "left before");
        patrol.0.leave_offsets(offsets());
        assert_eq!(patrol.take_offsets(), None, "measured before, and left after");
        // As the thread does before it measures.
        patrol.0.is_void.store(false, Ordering::Relaxed);
        patrol.0.leave_offsets(offsets());
        assert!(patrol.take_offsets().is_some());
    }

    #[test]
    fn a_comparison_that_costs_more_is_followed_by_a_longer_rest() {
        let rhythm = Rhythm {
            every: Duration::from_millis(100),
            rests: 1_000,
        };
        assert_eq!(rhythm.rest_after(Duration::from_micros(10)), Duration::from_millis(100));
        assert_eq!(rhythm.rest_after(Duration::from_millis(5)), Duration::from_secs(5));
    }
}
