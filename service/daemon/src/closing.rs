//! Closes unrequested descriptors in separate threads, because close(2) can wait for the sender: on a file of FUSE for
//! its server, on a socket that lingers (SO_LINGER) for its other end.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::account::Account;
use crate::peer::is_pidfd;

/// Limit of closing threads of one user. At the limit, nothing more is received from the user.
const OF_ONE_USER: usize = 4;

type UnderWay = HashMap<Account, usize>;

/// Closes descriptors that may not close at once.
#[derive(Clone, Default)]
pub(crate) struct Closer(Arc<Mutex<UnderWay>>);

impl Closer {
    /// Returns whether this user has as many closing threads as it may.
    pub(crate) fn is_busy_for(&self, account: Account) -> bool {
        self.under_way()
            .get(&account)
            .is_some_and(|count| *count >= OF_ONE_USER)
    }

    /// Returns the descriptors of a packet if each is a pidfd or a memfd, as all are that a request may have; else
    /// closes them.
    pub(crate) fn known(&self, fds: Vec<OwnedFd>, account: Account) -> Option<Vec<OwnedFd>> {
        if fds.iter().all(is_known) {
            return Some(fds);
        }
        self.close(fds, account);
        None
    }

    /// Closes the descriptors in a thread of their own.
    pub(crate) fn close(&self, fds: Vec<OwnedFd>, account: Account) {
        if fds.is_empty() {
            return;
        }
        *self.under_way().entry(account).or_default() += 1;
        let fds = Arc::new(Mutex::new(fds));
        let (closer, theirs) = (self.clone(), fds.clone());
        let thread = std::thread::Builder::new()
            .name("fastpath-close".into())
            .stack_size(64 << 10);
        let started = thread.spawn(move || {
            let taken = std::mem::take(&mut *theirs.lock().unwrap_or_else(PoisonError::into_inner));
            drop(taken);
            closer.is_done(account);
        });
        if started.is_err() {
            // They stay open: closing them here could wait.
            let left = std::mem::take(&mut *fds.lock().unwrap_or_else(PoisonError::into_inner));
            std::mem::forget(left);
        }
    }

    fn is_done(&self, account: Account) {
        let mut under_way = self.under_way();
        if let Some(count) = under_way.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&account);
            }
        }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether it is a pidfd or memory, which close at once. Uses only questions that neither the file's server nor
/// its owner answers.
fn is_known(fd: &OwnedFd) -> bool {
    // SAFETY: fcntl without an argument; a file that is not memory of its own has no seals.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
        return true;
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| is_pidfd(&link.to_string_lossy()))
}
