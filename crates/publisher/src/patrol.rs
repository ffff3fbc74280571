//! Compares the CPUs' counters while a publisher runs: in a separate thread, because a busy CPU must not delay a
//! refresh.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fastpath_evidence::Warp;
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
    fn rest_after(self, cost: Duration) -> Duration {
        self.every.max(cost.saturating_mul(self.rests))
    }
}

/// The thread, which ends when this is dropped.
pub struct Patrol(Arc<Post>);

struct Post {
    found: Mutex<Option<Warp>>,
    wake: EventFd,
}

impl Patrol {
    /// Starts the thread.
    pub fn start(rhythm: Rhythm) -> io::Result<Patrol> {
        let post = Arc::new(Post {
            found: Mutex::new(None),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        });
        let theirs = Arc::downgrade(&post);
        std::thread::Builder::new()
            .name("fastpath-patrol".into())
            .stack_size(128 << 10)
            .spawn(move || go(&theirs, rhythm))?;
        Ok(Patrol(post))
    }

    /// Returns the result of the last comparison, if it was not taken yet.
    pub fn take(&self) -> Option<Warp> {
        // The eventfd may already have been read.
        let _ = self.0.wake.read();
        self.0.found.lock().ok()?.take()
    }
}

impl AsFd for Patrol {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

fn go(post: &Weak<Post>, rhythm: Rhythm) {
    let mut patrol = fastpath_evidence::Patrol::default();
    let mut rest = rhythm.every;
    loop {
        std::thread::sleep(rest);
        // The publisher has ended.
        let Some(post) = post.upgrade() else { return };
        let (warp, cost) = patrol.round();
        rest = rhythm.rest_after(cost);
        if let Ok(mut found) = post.found.lock() {
            *found = Some(warp);
        }
        // Fails only if the publisher has not read yet.
        let _ = post.wake.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, poll};

    #[test]
    fn comparisons_come_again_and_again_and_wake_who_waits() {
        let rhythm = Rhythm {
            every: Duration::from_millis(1),
            rests: 0,
        };
        let patrol = Patrol::start(rhythm).expect("a thread");
        for _ in 0..3 {
            let mut fds = [PollFd::new(patrol.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, 10_000_u16), Ok(1));
            let warp = patrol.take().expect("a comparison");
            assert_eq!(warp.furthest_apart(), None);
        }
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
