//! Fair shares: no user has more connections, nor more requests a second, than leaves enough for the others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Connections of one user at a time. Each is there for one request, of some hundred microseconds.
const CONNECTIONS: usize = 64;
/// Connections of all users at a time.
const CONNECTIONS_IN_ALL: usize = 1024;
/// Requests a second of one user, when he has been asking for a while. A shell that starts programs makes some hundred.
const REQUESTS_A_SECOND: f64 = 500.0;
/// Requests that he may save up.
const SAVED: f64 = 500.0;
/// Users who have asked for nothing for so long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

struct Share {
    connections: usize,
    saved: f64,
    counted: Instant,
}

/// What each user has taken.
pub struct Shares {
    of_user: HashMap<u32, Share>,
    connections: usize,
}

impl Shares {
    /// Nobody has taken anything.
    pub fn new() -> Shares {
        Shares {
            of_user: HashMap::new(),
            connections: 0,
        }
    }

    fn of(&mut self, uid: u32, now: Instant) -> &mut Share {
        self.of_user.entry(uid).or_insert(Share {
            connections: 0,
            saved: SAVED,
            counted: now,
        })
    }

    /// Whether this user may have one more connection; it is then his until he gives it back.
    pub fn connect(&mut self, uid: u32, now: Instant) -> bool {
        let is_full = self.connections >= CONNECTIONS_IN_ALL;
        let share = self.of(uid, now);
        if is_full || share.connections >= CONNECTIONS {
            return false;
        }
        share.connections += 1;
        self.connections += 1;
        true
    }

    /// One of his connections is gone.
    pub fn disconnect(&mut self, uid: u32, now: Instant) {
        self.of(uid, now).connections -= 1;
        self.connections -= 1;
    }

    /// Whether he may ask now; else he waits.
    pub fn ask(&mut self, uid: u32, now: Instant) -> bool {
        let share = self.of(uid, now);
        let passed = now.saturating_duration_since(share.counted);
        share.counted = now;
        share.saved = (share.saved + passed.as_secs_f64() * REQUESTS_A_SECOND).min(SAVED);
        if share.saved < 1.0 {
            return false;
        }
        share.saved -= 1.0;
        true
    }

    /// Forgets those who have nothing and ask for nothing.
    pub fn tidy(&mut self, now: Instant) {
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
        let taken = (0..2 * CONNECTIONS).filter(|_| shares.connect(1, now)).count();
        assert_eq!(taken, CONNECTIONS);
        assert!(shares.connect(2, now));
        shares.disconnect(1, now);
        assert!(shares.connect(1, now));
    }

    #[test]
    fn all_users_together_have_a_limit_too() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        let taken = (0..2 * CONNECTIONS_IN_ALL as u32)
            .filter(|uid| shares.connect(*uid, now))
            .count();
        assert_eq!(taken, CONNECTIONS_IN_ALL);
    }

    #[test]
    fn who_asks_too_fast_waits_and_others_do_not() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        let asked = (0..10_000).filter(|_| shares.ask(1, now)).count();
        assert_eq!(asked, SAVED as usize);
        assert!(shares.ask(2, now));
        assert!(shares.ask(1, now + Duration::from_secs(1)));
    }

    #[test]
    fn who_has_nothing_is_forgotten() {
        let (mut shares, now) = (Shares::new(), Instant::now());
        shares.ask(1, now);
        shares.connect(2, now);
        shares.tidy(now + FORGOTTEN_AFTER);
        assert!(!shares.of_user.contains_key(&1) && shares.of_user.contains_key(&2));
    }
}
