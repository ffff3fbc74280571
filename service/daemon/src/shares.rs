//! Fair shares: limits each user's connections and requests per second, so that the others have enough.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::account::Account;

/// Limit of connections of one user at a time. Each serves one request, of some hundred microseconds.
const CONNECTIONS: usize = 64;
/// Limit of connections of all users at a time. As many as one user may have are reserved for root.
const CONNECTIONS_IN_ALL: usize = 1024;
/// Limit of connections of all containers at a time.
const CONNECTIONS_OF_CONTAINERS: usize = CONNECTIONS_IN_ALL / 2;
/// Sustained requests per second of one user. A shell that starts programs makes some hundred.
const REQUESTS_A_SECOND: f64 = 500.0;
/// Number of requests that a user may save up.
const SAVED: f64 = 500.0;
/// Time after which a user that sends no request is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

struct Share {
    connections: usize,
    saved: f64,
    counted: Instant,
}

/// Usage of each user.
pub(crate) struct Shares {
    of_user: HashMap<Account, Share>,
    connections: usize,
    of_containers: usize,
}

impl Shares {
    /// Creates shares without any usage.
    pub(crate) fn new() -> Shares {
        Shares {
            of_user: HashMap::new(),
            connections: 0,
            of_containers: 0,
        }
    }

    fn share(&mut self, account: Account, now: Instant) -> &mut Share {
        self.of_user.entry(account).or_insert(Share {
            connections: 0,
            saved: SAVED,
            counted: now,
        })
    }

    /// Takes a connection of this user's share; returns false if it may have no more.
    pub(crate) fn connect(&mut self, account: Account, now: Instant) -> bool {
        let most = CONNECTIONS_IN_ALL - if account.is_root() { 0 } else { CONNECTIONS };
        let is_full =
            self.connections >= most || account.is_container() && self.of_containers >= CONNECTIONS_OF_CONTAINERS;
        let share = self.share(account, now);
        if is_full || share.connections >= CONNECTIONS {
            return false;
        }
        share.connections += 1;
        self.connections += 1;
        self.of_containers += usize::from(account.is_container());
        true
    }

    /// Gives a connection back.
    pub(crate) fn disconnect(&mut self, account: Account, now: Instant) {
        self.share(account, now).connections -= 1;
        self.connections -= 1;
        self.of_containers -= usize::from(account.is_container());
    }

    /// Takes a request of this user's share; returns false if the user has to wait.
    pub(crate) fn ask(&mut self, account: Account, now: Instant) -> bool {
        let share = self.share(account, now);
        let passed = now.saturating_duration_since(share.counted);
        share.counted = now;
        share.saved = (share.saved + passed.as_secs_f64() * REQUESTS_A_SECOND).min(SAVED);
        if share.saved < 1.0 {
            return false;
        }
        share.saved -= 1.0;
        true
    }

    /// Forgets users without connections and recent requests.
    pub(crate) fn tidy(&mut self, now: Instant) {
        self.of_user
            .retain(|_, share| share.connections > 0 || now.saturating_duration_since(share.counted) < FORGOTTEN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_connections_leave_room_for_others() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        let taken = (0..2 * CONNECTIONS)
            .filter(|_| shares.connect(Account::User(1), now))
            .count();
        assert_eq!(taken, CONNECTIONS);
        assert!(shares.connect(Account::User(2), now));
        shares.disconnect(Account::User(1), now);
        assert!(shares.connect(Account::User(1), now));
    }

    #[test]
    fn all_users_together_have_a_limit_too() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        let mut taken = |account: fn(u32) -> Account| {
            let all = 1..2 * CONNECTIONS_IN_ALL as u32;
            all.filter(|of| shares.connect(account(*of), now)).count()
        };
        assert_eq!(taken(|of| Account::Container(of.into())), CONNECTIONS_OF_CONTAINERS);
        let others = CONNECTIONS_IN_ALL - CONNECTIONS - CONNECTIONS_OF_CONTAINERS;
        assert_eq!(taken(Account::User), others);
        assert_eq!(taken(|_| Account::Root), CONNECTIONS);
        // Returned connections are free for others again.
        shares.disconnect(Account::Container(1), now);
        shares.disconnect(Account::Root, now);
        assert!(!shares.connect(Account::User(9_999), now));
        assert!(shares.connect(Account::Root, now));
    }

    #[test]
    fn who_asks_too_fast_waits_and_others_do_not() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        let asked = (0..10_000).filter(|_| shares.ask(Account::User(1), now)).count();
        assert_eq!(asked, SAVED as usize);
        assert!(shares.ask(Account::User(2), now));
        assert!(shares.ask(Account::User(1), now + Duration::from_secs(1)));
    }

    #[test]
    fn who_has_nothing_is_forgotten() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        shares.ask(Account::User(1), now);
        shares.connect(Account::User(2), now);
        shares.tidy(now + FORGOTTEN_AFTER);
        assert!(!shares.of_user.contains_key(&Account::User(1)) && shares.of_user.contains_key(&Account::User(2)));
    }
}
