//! Limits the records that one user's requests cause: the journal takes a limited number from one service
//! (RateLimitBurst=, journald.conf(5)), and other users' records must be among them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::log;
use crate::record::{self, Record, What};

/// Limit of records of one user other than root in a window. `RateLimitBurst=` is 10,000 in as long, by default.
const OF_ONE_USER: u32 = 200;
const WINDOW: Duration = Duration::from_secs(30);
/// Limit of users that are counted one by one. Others have a count together.
const MOST_USERS: usize = 1024;

struct Window {
    begun: Instant,
    count: u32,
    left_out: u64,
}

static LIMIT: LazyLock<Mutex<RecordLimit>> = LazyLock::new(Mutex::default);

/// Puts a change, or a refusal, on record that a user's request or process causes; if that user has as many records as
/// it may, only counts it.
pub(crate) fn put(account: Account, what: What, result: &str, record: impl FnOnce() -> Record) {
    let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = limit.take(account, Instant::now());
    drop(limit);
    match taken {
        None => record::count(what, result),
        Some(left_out) => log::record(Record {
            left_out: (left_out > 0).then_some(left_out),
            ..record()
        }),
    }
}

/// The records of each user.
#[derive(Default)]
struct RecordLimit(HashMap<Account, Window>);

impl RecordLimit {
    /// Returns how many of a user's records were left out before this one; `None`: this one must be, too.
    fn take(&mut self, account: Account, now: Instant) -> Option<u64> {
        if account.is_root() {
            return Some(0);
        }
        let is_over = |window: &Window| now.saturating_duration_since(window.begun) >= WINDOW;
        if self.0.len() >= MOST_USERS && !self.0.contains_key(&account) {
            self.0.retain(|_, window| !is_over(window));
        }
        let account = match self.0.len() >= MOST_USERS && !self.0.contains_key(&account) {
            true => Account::Unseen,
            false => account,
        };
        let window = self.0.entry(account).or_insert(Window {
            begun: now,
            count: 0,
            left_out: 0,
        });
        if is_over(window) {
            (window.begun, window.count) = (now, 0);
        }
        if window.count >= OF_ONE_USER {
            window.left_out += 1;
            return None;
        }
        window.count += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_records_leave_room_for_others_and_the_next_says_how_many_were_left_out() {
        let (mut limit, now, user) = (RecordLimit::default(), Instant::now(), Account::User(1));
        let taken = (0..1000).filter(|_| limit.take(user, now).is_some()).count();
        assert_eq!(taken, OF_ONE_USER as usize);
        assert_eq!(limit.take(Account::User(2), now), Some(0));
        assert_eq!((0..1000).filter_map(|_| limit.take(Account::Root, now)).sum::<u64>(), 0);
        let later = now + WINDOW;
        assert_eq!(limit.take(user, later), Some(1000 - u64::from(OF_ONE_USER)));
        assert_eq!(limit.take(user, later), Some(0));
    }

    #[test]
    fn many_users_take_a_limited_amount_of_memory() {
        let (mut limit, now) = (RecordLimit::default(), Instant::now());
        for uid in 0..10 * MOST_USERS as u32 {
            limit.take(Account::User(uid), now);
        }
        assert!(limit.0.len() <= MOST_USERS + 1);
        limit.take(Account::User(0), now + WINDOW);
        limit.take(Account::User(u32::MAX), now + WINDOW);
        assert!(limit.0.len() <= MOST_USERS + 1);
    }
}
