//! Comparison of two CPUs' counters, with bounds that only a wrong counter can violate.
//!
//! Two threads, each on its CPU, pass a turn back and forth. The asker notes its counter and passes the turn, the
//! answerer replies with its own count, the asker notes its counter again. The answer was read between the two notes:
//! the other counter is ahead by at least `answer - second note` and at most by `answer - first note`. Interruptions
//! make these bounds wider, never wrong. The distance between the tightest bounds is the resolution: about one round
//! trip of a cache line, 100 to 200 ns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::pause;

/// The shared memory of two CPUs. Alone on its cache lines (prefetchers work on pairs of them).
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct Pairing {
    /// Even: the asker's turn; odd: the answerer's; [`LEFT`]: one of them has left.
    turn: AtomicU64,
    answer: AtomicU64,
}

const LEFT: u64 = u64::MAX;
/// Width of the bounds beyond which the two CPUs count as not compared: they never ran at the same time.
const WORTHLESS_CYCLES: i64 = 200_000;
/// Exchanges between two looks at the time, which can cost microseconds on slow hosts.
const BETWEEN_LOOKS: u64 = 16;
const SPINS_BETWEEN_LOOKS: u32 = 2_000;
/// Time for which a side spins. A sleep in between lets other threads run, and the scheduler soon runs the sleeper
/// again, so that both soon run at the same time even if every CPU has a queue.
const AWAKE: Duration = Duration::from_micros(500);

/// Limits of one comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Number of exchanges, of which the tightest count.
    pub exchanges: u64,
    /// Timeout for an answerer whose CPU is busy.
    pub timeout: Duration,
    /// Time for all exchanges, once begun. CPUs that never run at once (a hypervisor's, overcommitted) answer in
    /// milliseconds.
    pub limit: Duration,
}

/// Runs the asker's side. Returns the least and the most by which the other's counter is ahead, in counts; `None` if
/// the other never answered or the bounds are too wide.
pub(super) fn ask(pairing: &Pairing, effort: &Effort, read: impl Fn() -> u64) -> Option<(i64, i64)> {
    let (mut least, mut most) = (i64::MIN, i64::MAX);
    let mut begun = None;
    for exchange in 0..effort.exchanges {
        let before = read();
        if !pass(pairing, 2 * exchange) || !wait_for(pairing, 2 * exchange + 2, effort.timeout) {
            break;
        }
        let after = read();
        let answer = pairing.answer.load(Ordering::Relaxed);
        least = least.max(answer.wrapping_sub(after) as i64);
        most = most.min(answer.wrapping_sub(before) as i64);
        if exchange % BETWEEN_LOOKS == 0 && begun.get_or_insert_with(Instant::now).elapsed() > effort.limit {
            break;
        }
    }
    leave(pairing);
    // Bounds that prove a difference are returned however wide they are.
    let worth_telling = least > 0 || most < 0 || most.saturating_sub(least) < WORTHLESS_CYCLES;
    (most < i64::MAX && worth_telling).then_some((least, most))
}

/// Runs the answerer's side.
pub(super) fn answer(pairing: &Pairing, effort: &Effort, read: impl Fn() -> u64) {
    for exchange in 0..effort.exchanges {
        if !wait_for(pairing, 2 * exchange + 1, effort.timeout) {
            return;
        }
        pairing.answer.store(read(), Ordering::Relaxed);
        if !pass(pairing, 2 * exchange + 1) {
            return;
        }
    }
}

/// Notifies the other side not to wait.
pub(super) fn leave(pairing: &Pairing) {
    pairing.turn.store(LEFT, Ordering::Release);
}

/// Passes the turn to the other side, unless that has left.
fn pass(pairing: &Pairing, turn: u64) -> bool {
    pairing
        .turn
        .compare_exchange(turn, turn + 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Waits for the turn. Returns false if it did not come; the other side is then notified not to wait either.
fn wait_for(pairing: &Pairing, turn: u64, timeout: Duration) -> bool {
    let mut begun = None;
    let mut slept = Duration::ZERO;
    loop {
        for _ in 0..SPINS_BETWEEN_LOOKS {
            match pairing.turn.load(Ordering::Acquire) {
                LEFT => return false,
                now if now == turn => return true,
                _ => std::hint::spin_loop(),
            }
        }
        let waited = begun.get_or_insert_with(Instant::now).elapsed();
        if waited > timeout {
            leave(pairing);
            return false;
        }
        if waited.saturating_sub(slept) > AWAKE {
            pause(Duration::from_millis(1));
            slept = begun.map_or(waited, |begun| begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::read;
    use std::thread;

    /// Timeout, longer than a busy machine needs.
    const TIMEOUT: Duration = Duration::from_secs(60);
    const EFFORT: Effort = Effort {
        exchanges: 256,
        timeout: TIMEOUT,
        limit: TIMEOUT,
    };

    fn bounds_where_the_other_is_ahead_by(ahead: i64) -> Option<(i64, i64)> {
        let pairing = Pairing::default();
        thread::scope(|scope| {
            scope.spawn(|| answer(&pairing, &EFFORT, || read().wrapping_add_signed(ahead)));
            ask(&pairing, &EFFORT, read)
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
    fn neither_side_waits_for_one_that_has_left() {
        let effort = Effort {
            timeout: Duration::from_millis(1),
            ..EFFORT
        };
        assert_eq!(ask(&Pairing::default(), &effort, read), None);
        answer(&Pairing::default(), &effort, read);
        // Neither side waits until its timeout after the other has left.
        let left = Pairing::default();
        leave(&left);
        let begun = Instant::now();
        assert_eq!(ask(&left, &EFFORT, read), None);
        answer(&left, &EFFORT, read);
        assert!(begun.elapsed() < TIMEOUT);
    }
}
