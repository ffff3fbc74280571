//! Two CPUs' counters against each other, with bounds that nothing but a wrong counter can break.
//!
//! Two threads, each on its CPU, pass a turn back and forth. One notes its counter and passes the turn, the other answers with its
//! own count, the first notes again. The answer was read between the two notes: the other's counter is ahead by at least
//! `answer - second note` and at most by `answer - first note`. Whoever is interrupted makes these bounds wider, never wrong. What
//! is left between the tightest of them is what could not be told: about one round trip of a cache line, 100 to 200 ns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counter;
use crate::pause;

/// Where two CPUs meet. Alone on its cache lines (prefetchers work on pairs of them).
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct Meeting {
    /// Even: it is the asker's; odd: the answerer's; [`LEFT`]: one of them has gone.
    turn: AtomicU64,
    answer: AtomicU64,
}

const LEFT: u64 = u64::MAX;
/// Two that could not do better than this many counts were never awake together: they were not compared.
const WORTHLESS_CYCLES: i64 = 200_000;
/// Exchanges between two looks at the time, which can cost microseconds on the hosts that this is for.
const BETWEEN_LOOKS: u64 = 16;
const SPINS_BETWEEN_LOOKS: u32 = 2_000;
/// How long one waits awake. Who sleeps in between lets others work, and is let in again soon, so that both are awake together
/// before long even where every CPU has a queue.
const AWAKE: Duration = Duration::from_micros(500);

/// How long the two may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Of which the tightest count.
    pub exchanges: u64,
    /// To wait for one whose CPU does something else.
    pub patience: Duration,
    /// For all exchanges, once begun. CPUs that never run at once (a hypervisor's, overcommitted) answer in milliseconds.
    pub limit: Duration,
}

/// The side that notes twice: at least and at most so many counts is the other's counter ahead. `None`: it never answered.
pub(super) fn ask(meeting: &Meeting, effort: &Effort, read: impl Fn() -> u64) -> Option<(i64, i64)> {
    let (mut least, mut most) = (i64::MIN, i64::MAX);
    let mut begun = None;
    for exchange in 0..effort.exchanges {
        let before = read();
        if !pass(meeting, 2 * exchange) || !wait_for(meeting, 2 * exchange + 2, effort.patience) {
            break;
        }
        let after = read();
        let answer = meeting.answer.load(Ordering::Relaxed);
        least = least.max(answer.wrapping_sub(after) as i64);
        most = most.min(answer.wrapping_sub(before) as i64);
        if exchange % BETWEEN_LOOKS == 0 && begun.get_or_insert_with(Instant::now).elapsed() > effort.limit {
            break;
        }
    }
    leave(meeting);
    // What leaves no doubt is worth telling, however wide.
    let worth_telling = least > 0 || most < 0 || most.saturating_sub(least) < WORTHLESS_CYCLES;
    (most < i64::MAX && worth_telling).then_some((least, most))
}

/// The side that is asked.
pub(super) fn answer(meeting: &Meeting, effort: &Effort, read: impl Fn() -> u64) {
    for exchange in 0..effort.exchanges {
        if !wait_for(meeting, 2 * exchange + 1, effort.patience) {
            return;
        }
        meeting.answer.store(read(), Ordering::Relaxed);
        if !pass(meeting, 2 * exchange + 1) {
            return;
        }
    }
}

/// Tells the other not to wait.
pub(super) fn leave(meeting: &Meeting) {
    meeting.turn.store(LEFT, Ordering::Release);
}

/// Hands the turn to the other, if he is still there.
fn pass(meeting: &Meeting, turn: u64) -> bool {
    meeting
        .turn
        .compare_exchange(turn, turn + 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Whether the turn came. If not, the other is told not to wait either.
fn wait_for(meeting: &Meeting, turn: u64, patience: Duration) -> bool {
    let mut begun = None;
    let mut slept = Duration::ZERO;
    loop {
        for _ in 0..SPINS_BETWEEN_LOOKS {
            match meeting.turn.load(Ordering::Acquire) {
                LEFT => return false,
                now if now == turn => return true,
                _ => std::hint::spin_loop(),
            }
        }
        let waited = begun.get_or_insert_with(Instant::now).elapsed();
        if waited > patience {
            leave(meeting);
            return false;
        }
        if waited.saturating_sub(slept) > AWAKE {
            pause(Duration::from_millis(1));
            slept = begun.map_or(waited, |begun| begun.elapsed());
        }
    }
}

/// What [`ask`] and [`answer`] read outside of tests.
pub(super) fn read() -> u64 {
    counter::read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// More than it takes on a machine that is busy with much else.
    const PATIENCE: Duration = Duration::from_secs(60);
    const EFFORT: Effort = Effort {
        exchanges: 256,
        patience: PATIENCE,
        limit: PATIENCE,
    };

    fn bounds_where_the_other_is_ahead_by(ahead: i64) -> Option<(i64, i64)> {
        let meeting = Meeting::default();
        thread::scope(|scope| {
            scope.spawn(|| answer(&meeting, &EFFORT, || read().wrapping_add_signed(ahead)));
            ask(&meeting, &EFFORT, read)
        })
    }

    #[test]
    fn an_offset_between_two_counters_lies_within_the_bounds() {
        for ahead in [0, 1_000_000_000_000, -1_000_000_000_000] {
            // Equal counters on a machine too busy for both to run at once are not compared.
            let Some((least, most)) = bounds_where_the_other_is_ahead_by(ahead) else {
                assert_eq!(ahead, 0);
                continue;
            };
            assert!(least <= ahead && ahead <= most, "{least} {ahead} {most}");
        }
    }

    #[test]
    fn nobody_waits_for_one_who_is_not_there() {
        let effort = Effort {
            patience: Duration::from_millis(1),
            ..EFFORT
        };
        assert_eq!(ask(&Meeting::default(), &effort, read), None);
        answer(&Meeting::default(), &effort, read);
        // Nor is anybody for as long as that is patience, after the other has left.
        let left = Meeting::default();
        leave(&left);
        let begun = Instant::now();
        assert_eq!(ask(&left, &EFFORT, read), None);
        answer(&left, &EFFORT, read);
        assert!(begun.elapsed() < PATIENCE);
    }
}
