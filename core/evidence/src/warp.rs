//! Comparison of the CPUs' counters: every pair at a start, one CPU with all others while a publisher runs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::exchange::{self, Effort, Pairing};
use crate::{Offsets, counter, cpus, offsets};

/// Timeouts of a comparison. Idle CPUs take about 50 us a round, and there are as many rounds as CPUs; the rest is for
/// CPUs that are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout for all pairs.
    pub in_all: Duration,
    /// Timeout for a pair. Virtual CPUs that a busy host runs in turn do run at once now and then.
    pub for_a_pair: Duration,
    /// Timeout for one answer. A scheduler's slice is 3 ms, and there can be many in a queue.
    pub for_an_answer: Duration,
}

/// Number of exchanges of a pair: 20 us on idle CPUs.
const EXCHANGES: u64 = 128;
/// Limits of one comparison of a patrol. A few exchanges give bounds as tight as many, unless all of them are
/// interrupted.
const CHEAP: Effort = Effort {
    exchanges: 12,
    timeout: Duration::from_micros(500),
    limit: Duration::from_millis(1),
};
/// Time for which the asker sleeps until the worker arrives on a busy CPU.
const ARRIVAL: Duration = Duration::from_millis(5);
/// Time for which two threads that were woken up for the same moment spin for each other, before one sleeps and the
/// other wakes it up, which costs more.
const SOON: Duration = Duration::from_micros(30);
/// Time after which the CPUs that this process may use are looked up again.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);
/// Most rounds of a start (2 MiB of memory for 128 CPUs). On hosts with more CPUs, each is compared with so many others.
pub(crate) const MOST_ROUNDS: usize = 128;

/// Distance of one CPU's counter ahead of another's: between `least_cycles` and `most_cycles`, whatever interrupted the
/// comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// The CPU that the other is compared with.
    pub cpu: usize,
    /// The other CPU.
    pub other: usize,
    /// Least distance, in counts; negative if the other may be behind.
    pub least_cycles: i64,
    /// Most distance, in counts; negative if the other is behind.
    pub most_cycles: i64,
}

impl Pair {
    /// Returns by how many counts the two are certainly apart; 0 if they may be equal.
    pub fn apart_cycles(&self) -> u64 {
        self.least_cycles
            .max(self.most_cycles.saturating_neg())
            .max(0)
            .unsigned_abs()
    }

    /// Returns the pair with so many counts subtracted from its bounds.
    pub(crate) fn less(self, least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            least_cycles: self.least_cycles.saturating_sub(least_cycles),
            most_cycles: self.most_cycles.saturating_sub(most_cycles),
            ..self
        }
    }

    /// Returns the same bounds for the other CPU as the one that is compared with.
    pub(crate) fn turned(self) -> Pair {
        Pair {
            cpu: self.other,
            other: self.cpu,
            least_cycles: self.most_cycles.saturating_neg(),
            most_cycles: self.least_cycles.saturating_neg(),
        }
    }

    /// Returns by how many counts the two are apart at most: a smaller difference could have been missed.
    pub fn within_cycles(&self) -> u64 {
        self.least_cycles.unsigned_abs().max(self.most_cycles.unsigned_abs())
    }
}

/// A CPU that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Its number.
    pub cpu: usize,
    /// The reason.
    pub why: String,
}

/// A pair that was not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Missed {
    /// One of the two CPUs.
    pub cpu: usize,
    /// The other CPU.
    pub other: usize,
    /// The reason.
    pub why: String,
}

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warp {
    /// CPUs that this process may use (sched_getaffinity(2)). Others are not compared.
    pub cpus: Vec<usize>,
    /// The pairs that were compared.
    pub pairs: Vec<Pair>,
    /// The pairs that should have been compared and were not.
    pub missed: Vec<Missed>,
    /// The CPU that all others were compared with, if there was one: two others can then be apart by the sum of their
    /// bounds.
    pub hub: Option<usize>,
    /// CPUs that could not be compared with any.
    pub left_out: Vec<LeftOut>,
    /// Duration, in microseconds.
    pub took_us: u64,
}

impl Warp {
    /// Returns the pair with the largest certain distance.
    pub fn furthest_apart(&self) -> Option<&Pair> {
        let apart = self.pairs.iter().filter(|pair| pair.apart_cycles() > 0);
        apart.max_by_key(|pair| pair.apart_cycles())
    }

    /// Returns the bound on the distance of any two CPUs that were compared, in counts: a smaller warp can have been
    /// missed. `None` if none were compared.
    pub fn within_cycles(&self) -> Option<u64> {
        let within = |pair: &Pair| pair.within_cycles();
        let widest = self.pairs.iter().map(within).max()?;
        if self.hub.is_none() {
            return Some(widest);
        }
        let mut all: Vec<_> = self.pairs.iter().map(within).collect();
        all.sort_unstable();
        Some(all.iter().rev().take(2).fold(0, |sum, each| sum.saturating_add(*each)))
    }

    /// Returns how many pairs there are to compare.
    pub fn pairs_in_all(&self) -> usize {
        self.cpus.len() * self.cpus.len().saturating_sub(1) / 2
    }

    /// Makes the result of the `planned` pairings.
    fn from_pairs(
        cpus: Vec<usize>,
        planned: &[(usize, usize)],
        pairs: Vec<Pair>,
        obstacles: &[LeftOut],
        begun: Instant,
    ) -> Warp {
        let known = |cpu: usize| obstacles.iter().find(|obstacle| obstacle.cpu == cpu);
        let why = |cpu: usize| known(cpu).map_or(TOO_BUSY, |obstacle| &obstacle.why).to_owned();
        let met: BTreeSet<usize> = pairs.iter().flat_map(|pair| [pair.cpu, pair.other]).collect();
        let alone = cpus.iter().filter(|cpu| cpus.len() > 1 && !met.contains(cpu));
        let left_out = alone
            .map(|cpu| LeftOut {
                cpu: *cpu,
                why: why(*cpu),
            })
            .collect();
        let compared: BTreeSet<_> = pairs.iter().map(|pair| (pair.cpu, pair.other)).collect();
        let missed = planned.iter().filter(|pair| !compared.contains(pair));
        let missed = missed
            .map(|&(cpu, other)| Missed {
                cpu,
                other,
                why: why(if known(cpu).is_some() { cpu } else { other }),
            })
            .collect();
        Warp {
            left_out,
            missed,
            cpus,
            pairs,
            hub: None,
            took_us: begun.elapsed().as_micros() as u64,
        }
    }
}

const TOO_BUSY: &str = "too busy to answer in time";

/// Compares every pair, within the time limits, by a round-robin tournament. In each round all CPUs work, two by two,
/// and after the last each has met every other, unless there are more than `most_rounds`.
pub(super) fn of_every_pair(timeouts: Timeouts, most_rounds: usize) -> Warp {
    let begun = Instant::now();
    let cpus = cpus::allowed();
    if cpus.len() < 2 {
        return Warp::from_pairs(cpus, &[], Vec::new(), &[], begun);
    }
    let slots = cpus.len().next_multiple_of(2);
    let rounds = (slots - 1).min(most_rounds);
    let pairings: Vec<Pairing> = (0..rounds * slots).map(|_| Pairing::default()).collect();
    let gone: Vec<AtomicBool> = (0..slots).map(|_| AtomicBool::new(false)).collect();
    let obstacles = Mutex::new(Vec::new());
    let is_out_of_play = |slot: usize, why: String| {
        if let Ok(mut obstacles) = obstacles.lock() {
            obstacles.push(LeftOut { cpu: cpus[slot], why });
        }
    };
    let effort = || {
        let left = timeouts.in_all.saturating_sub(begun.elapsed());
        (!left.is_zero()).then_some(Effort {
            exchanges: EXCHANGES,
            timeout: timeouts.for_an_answer.min(left),
            limit: timeouts.for_a_pair.min(left),
        })
    };
    let play = |slot: usize| {
        let mut pairs = Vec::new();
        let bound = cpus::run_on(cpus[slot]);
        for round in 0..rounds {
            let partner = partner(slot, round, slots);
            if partner >= cpus.len() {
                continue;
            }
            let pairing = &pairings[round * slots + slot.min(partner)];
            let effort = effort().filter(|_| bound.is_ok() && !gone[partner].load(Ordering::Acquire));
            let Some(effort) = effort else {
                // The partner must not wait.
                exchange::leave(pairing);
                continue;
            };
            if slot < partner {
                let bounds = exchange::ask(pairing, &effort, counter::read_raw);
                pairs.extend(bounds.map(|(least_cycles, most_cycles)| Pair {
                    cpu: cpus[slot],
                    other: cpus[partner],
                    least_cycles,
                    most_cycles,
                }));
            } else {
                exchange::answer(pairing, &effort, counter::read_raw);
            }
        }
        if let Err(error) = bound {
            is_out_of_play(slot, format!("sched_setaffinity: {error}"));
        }
        pairs
    };
    let pairs = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (slot, gone) in gone.iter().enumerate().take(cpus.len()) {
            let play = &play;
            match small_thread().spawn_scoped(scope, move || play(slot)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    gone.store(true, Ordering::Release);
                    is_out_of_play(slot, format!("no thread could be started: {error}"));
                }
            }
        }
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_default())
            .collect()
    });
    let obstacles = obstacles.into_inner().unwrap_or_default();
    let planned = pairs_of(&cpus, rounds);
    let mut warp = Warp::from_pairs(cpus, &planned, pairs, &obstacles, begun);
    if planned.len() < warp.pairs_in_all() {
        warp.missed.extend(beyond_memory(&warp.cpus, &planned));
    }
    warp
}

/// Returns the pairs of so many rounds.
pub(crate) fn pairs_of(cpus: &[usize], rounds: usize) -> Vec<(usize, usize)> {
    let slots = cpus.len().next_multiple_of(2);
    let in_round = |round| {
        let pairs = (0..cpus.len()).map(move |slot| (slot, partner(slot, round, slots)));
        pairs.filter(|(slot, partner)| slot < partner && *partner < cpus.len())
    };
    let all = (0..rounds).flat_map(in_round);
    all.map(|(slot, partner)| (cpus[slot], cpus[partner])).collect()
}

/// Returns the pairs for which there are no rounds.
fn beyond_memory(cpus: &[usize], planned: &[(usize, usize)]) -> Vec<Missed> {
    let planned: BTreeSet<_> = planned.iter().collect();
    let every = pairs_of(cpus, cpus.len().next_multiple_of(2) - 1);
    let beyond = every.into_iter().filter(|pair| !planned.contains(pair));
    let why = format!(
        "with {} CPUs, each is compared with {MOST_ROUNDS} others only",
        cpus.len()
    );
    beyond
        .map(|(cpu, other)| Missed {
            cpu,
            other,
            why: why.clone(),
        })
        .collect()
}

/// Returns the partner of a slot in a round, by the circle method: the last slot stays and the others move on by one.
fn partner(slot: usize, round: usize, slots: usize) -> usize {
    let circle = slots - 1;
    if slot == circle {
        // This slot would be paired with itself: 2 s = round (mod circle), and circle is odd.
        return (round * (circle + 1) / 2) % circle;
    }
    let other = (round + circle - slot) % circle;
    if other == slot { circle } else { other }
}

fn small_thread() -> thread::Builder {
    thread::Builder::new().name("fastpath-warp".into()).stack_size(64 << 10)
}

/// Compares the CPUs regularly while a publisher runs.
///
/// Most of the cost is that threads wake up. So both threads of a patrol sleep until the same moment, each on its CPU,
/// and none wakes the other.
#[derive(Debug, Default)]
pub struct Patrol {
    rounds: usize,
    /// The CPUs that this thread may use when it is not bound to one, and when that was looked up.
    cpus: Option<(Vec<usize>, Instant)>,
    online: cpus::Online,
    /// All CPUs that it could ever use.
    everywhere: Vec<usize>,
    /// Whether those are others than the ones with an offset.
    have_changed: bool,
    /// See [`Patrol::noticed`].
    noticed: Vec<Pair>,
    /// The index of the CPU on which this thread stays.
    hub: usize,
    bound: Bound,
    /// CPU time of this thread at the end of the last round.
    cpu_time: Duration,
    /// The worker thread, kept from round to round because starting a thread takes as long as a pairing.
    worker: Option<Worker>,
}

impl Patrol {
    /// Compares one CPU with each of the others, one after the other: this thread stays on one, and a worker thread
    /// visits the others. Counters that are equal to the same one are equal to each other; so it costs as many
    /// exchanges as there are CPUs, not as there are pairs. CPUs that are busy for longer are left out this time, and
    /// then the next round begins from another CPU.
    ///
    /// `next` is when the caller will call again: the worker sleeps until then. This thread remains bound to a CPU, with a
    /// timer slack of 1 ns.
    ///
    /// Returns the result and the CPU time that it took, waking up included.
    pub fn round(&mut self, next: Instant) -> (Warp, Duration) {
        let begun = Instant::now();
        let cpus = self.cpus(begun);
        if self.rounds == 0 {
            be_on_time();
            self.cpu_time = cpu_time();
        }
        self.rounds = self.rounds.wrapping_add(1);
        if cpus.len() < 2 {
            return (Warp::from_pairs(cpus, &[], Vec::new(), &[], begun), Duration::ZERO);
        }
        let at = self.hub % cpus.len();
        let hub = cpus[at];
        let others: Vec<usize> = [&cpus[at + 1..], &cpus[..at]].concat();
        let planned: Vec<_> = others.iter().map(|other| (hub, *other)).collect();
        let tour = Arc::new(Tour {
            stops: others.iter().map(|_| Stop::default()).collect(),
            others,
            asker: thread::current(),
            next,
        });
        let is_bound = self.bound.run_on(hub).is_ok();
        let (pairs, travelled) = match self.send_off(&tour) {
            Ok(worker) => {
                let pairs = stay(is_bound.then_some(hub), &tour);
                (pairs, soon(&worker.back))
            }
            Err(error) => (Vec::new(), Err(error)),
        };
        let (obstacles, travel_cost) = travelled.unwrap_or_else(|error| {
            self.worker = None;
            let why = format!("no thread could be started: {error}");
            let all = cpus.iter().map(|&cpu| LeftOut { cpu, why: why.clone() });
            (all.collect(), Duration::ZERO)
        });
        self.noticed.clear();
        let pairs = match offsets::in_force() {
            Some(offsets) => pairs.into_iter().map(|pair| self.check(offsets, pair)).collect(),
            None => pairs,
        };
        let warp = Warp::from_pairs(cpus, &planned, pairs, &obstacles, begun);
        if !warp.missed.is_empty() {
            self.hub = at + 1;
        }
        let until_now = std::mem::replace(&mut self.cpu_time, cpu_time());
        let cost = self.cpu_time.saturating_sub(until_now) + travel_cost;
        (Warp { hub: Some(hub), ..warp }, cost)
    }

    /// Returns whether other CPUs than those with an offset are there: their readers use the kernel, or an offset may be of
    /// a counter that has started anew.
    pub fn cpus_have_changed(&self) -> bool {
        self.have_changed
    }

    /// Returns the bounds of the last round that prove that an offset has changed, in the counters' own counts.
    pub fn noticed(&self) -> &[Pair] {
        &self.noticed
    }

    fn check(&mut self, offsets: &Offsets, pair: Pair) -> Pair {
        let checked = offsets.check(pair);
        if checked.apart_cycles() > 0 {
            self.noticed.extend(offsets.added_to(pair));
        }
        checked
    }

    /// Lets this thread run on all CPUs again, until the next round.
    pub fn leave_cpu(&mut self) {
        if !self.everywhere.is_empty() {
            // The kernel leaves out those that are off, and those that the process has lost meanwhile (cpuset(7)).
            let _ = cpus::run_on_any(&self.everywhere);
            self.bound = Bound::default();
        }
    }

    /// Returns the CPUs that this thread may use, except that it is bound to one of them.
    fn cpus(&mut self, now: Instant) -> Vec<usize> {
        // A CPU that comes back may have another counter, so that its offset must be forgotten while it is off.
        let is_same = offsets::in_force().is_none() || !self.online.has_changed();
        if let Some((cpus, at)) = &self.cpus
            && now.duration_since(*at) < LOOK_UP_EVERY
            && is_same
        {
            return cpus.clone();
        }
        self.leave_cpu();
        let mut cpus = cpus::allowed();
        let come = cpus.iter().filter(|cpu| !self.everywhere.contains(cpu));
        self.everywhere.extend(come.copied().collect::<Vec<_>>());
        if let Some(offsets) = offsets::in_force() {
            let known = |cpu: &usize| offsets.get(*cpu).is_some();
            self.have_changed = !cpus.iter().all(known) || cpus.len() != offsets.of.len();
            cpus.retain(known);
        }
        self.cpus = Some((cpus.clone(), now));
        cpus
    }

    fn send_off(&mut self, tour: &Arc<Tour>) -> std::io::Result<&Worker> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start()?,
        };
        worker.orders.send(tour.clone()).map_err(std::io::Error::other)?;
        Ok(self.worker.insert(worker))
    }
}

/// The CPU that a thread is bound to.
#[derive(Debug, Default)]
struct Bound(Option<usize>);

impl Bound {
    /// Binds this thread to a CPU, unless it is and runs there: the kernel lets it run elsewhere when the process's set
    /// of CPUs changes.
    fn run_on(&mut self, cpu: usize) -> std::io::Result<()> {
        // SAFETY: sched_getcpu accesses no memory of the caller.
        let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok();
        if self.0 == Some(cpu) && here == Some(cpu) {
            return Ok(());
        }
        self.0 = None;
        cpus::run_on(cpu)?;
        self.0 = Some(cpu);
        Ok(())
    }
}

/// Makes this thread's sleeps end on time, and not up to 50 us later, together with other timers (prctl(2),
/// PR_SET_TIMERSLACK): two threads must wake up at once.
fn be_on_time() {
    // SAFETY: this call of prctl accesses no memory of the caller.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Receives a message that is about to be sent: spins at first.
fn soon<T>(receiver: &Receiver<T>) -> std::io::Result<T> {
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        if let Ok(message) = receiver.try_recv() {
            return Ok(message);
        }
        std::hint::spin_loop();
    }
    receiver.recv().map_err(std::io::Error::other)
}

/// A worker thread that visits the CPUs of each tour, until its sender is dropped.
#[derive(Debug)]
struct Worker {
    orders: Sender<Arc<Tour>>,
    /// Receives the CPUs that the worker could not visit, and the CPU time that it took.
    back: Receiver<(Vec<LeftOut>, Duration)>,
}

impl Worker {
    fn start() -> std::io::Result<Worker> {
        let (orders, taken) = mpsc::channel::<Arc<Tour>>();
        let (sender, back) = mpsc::channel();
        small_thread().spawn(move || {
            be_on_time();
            let (mut until_now, mut bound) = (cpu_time(), Bound::default());
            while let Ok(tour) = soon(&taken) {
                let obstacles = go_round(&tour, &mut bound);
                let now = cpu_time();
                if sender.send((obstacles, now.saturating_sub(until_now))).is_err() {
                    return;
                }
                until_now = now;
                thread::sleep(tour.next.saturating_duration_since(Instant::now()));
            }
        })?;
        Ok(Worker { orders, back })
    }
}

/// The visits of one round.
#[derive(Debug)]
struct Tour {
    others: Vec<usize>,
    /// One stop for each of `others`.
    stops: Vec<Stop>,
    asker: Thread,
    /// When the next tour begins.
    next: Instant,
}

/// One pairing of a patrol.
#[derive(Debug, Default)]
struct Stop {
    arrived: AtomicBool,
    pairing: Pairing,
}

impl Stop {
    fn arrive(&self, asker: &Thread) {
        self.arrived.store(true, Ordering::Release);
        asker.unpark();
    }

    /// Waits until the worker has arrived. Sleeps, because its CPU may be busy, unless it comes soon.
    fn wait_for_arrival(&self) -> bool {
        let begun = Instant::now();
        let until = begun + ARRIVAL;
        while !self.arrived.load(Ordering::Acquire) {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            if now.duration_since(begun) < SOON {
                std::hint::spin_loop();
            } else {
                thread::park_timeout(until - now);
            }
        }
        true
    }
}

/// Pairs with the worker at each of its stops. `hub`: the CPU that this thread is bound to.
fn stay(hub: Option<usize>, tour: &Tour) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (other, stop) in tour.others.iter().zip(&tour.stops) {
        let Some(cpu) = hub.filter(|_| stop.wait_for_arrival()) else {
            exchange::leave(&stop.pairing);
            continue;
        };
        let bounds = exchange::ask(&stop.pairing, &CHEAP, counter::read);
        pairs.extend(bounds.map(|(least_cycles, most_cycles)| Pair {
            cpu,
            other: *other,
            least_cycles,
            most_cycles,
        }));
    }
    pairs
}

fn go_round(tour: &Tour, bound: &mut Bound) -> Vec<LeftOut> {
    let mut obstacles = Vec::new();
    for (cpu, stop) in tour.others.iter().zip(&tour.stops) {
        if let Err(error) = bound.run_on(*cpu) {
            exchange::leave(&stop.pairing);
            obstacles.push(LeftOut {
                cpu: *cpu,
                why: format!("sched_setaffinity: {error}"),
            });
        }
        stop.arrive(&tour.asker);
        exchange::answer(&stop.pairing, &CHEAP, counter::read);
    }
    obstacles
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pair(other: usize, least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            cpu: 0,
            other,
            least_cycles,
            most_cycles,
        }
    }

    #[test]
    fn counters_are_apart_only_where_the_bounds_leave_no_doubt() {
        assert_eq!(pair(1, -80, 90).apart_cycles(), 0);
        assert_eq!(pair(1, 0, 90).apart_cycles(), 0);
        assert_eq!(pair(1, 500, 700).apart_cycles(), 500);
        assert_eq!(pair(1, -700, -500).apart_cycles(), 500);
        let warp = Warp {
            pairs: vec![pair(1, -1, 1), pair(2, 5, 9), pair(3, -900, -800)],
            ..Warp::default()
        };
        assert_eq!(warp.furthest_apart(), Some(&pair(3, -900, -800)));
    }

    #[test]
    fn bounds_add_up_if_two_met_a_third_only() {
        let mut warp = Warp {
            pairs: vec![pair(1, -80, 90), pair(2, -120, 70), pair(3, -30, 30)],
            ..Warp::default()
        };
        assert_eq!(warp.within_cycles(), Some(120));
        warp.hub = Some(0);
        assert_eq!(warp.within_cycles(), Some(210));
        assert_eq!(Warp::default().within_cycles(), None);
    }

    #[test]
    fn every_cpu_meets_every_other_exactly_once() {
        for slots in [2, 4, 6, 8, 64, 130] {
            let mut met = BTreeSet::new();
            for round in 0..slots - 1 {
                for slot in 0..slots {
                    let other = partner(slot, round, slots);
                    assert!(other != slot && other < slots, "{slot} in round {round} of {slots}");
                    assert_eq!(partner(other, round, slots), slot, "round {round} of {slots}");
                    if slot < other {
                        assert!(met.insert((slot, other)), "{slot} and {other} met twice");
                    }
                }
            }
            assert_eq!(met.len(), slots * (slots - 1) / 2);
        }
    }

    const GENEROUS: Timeouts = Timeouts {
        in_all: Duration::from_secs(1),
        for_a_pair: Duration::from_millis(500),
        for_an_answer: Duration::from_millis(100),
    };

    /// Repeats a comparison up to ten times: on a machine that is busy with other tests a CPU may not take part, but
    /// most often it does.
    fn in_one_of_ten(mut compare: impl FnMut() -> Warp) -> Warp {
        let mut warp = compare();
        for _ in 0..9 {
            if warp.left_out.is_empty() {
                break;
            }
            warp = compare();
        }
        warp
    }

    #[test]
    fn the_cpus_of_this_host_agree_within_a_bound() {
        let mut patrol = Patrol::default();
        for warp in [
            in_one_of_ten(|| of_every_pair(GENEROUS, MOST_ROUNDS)),
            in_one_of_ten(|| patrol.round(Instant::now()).0),
        ] {
            println!("{warp:?}");
            assert_eq!(warp.furthest_apart(), None);
            let planned = match warp.hub {
                Some(_) => warp.cpus.len() - 1,
                None => warp.pairs_in_all(),
            };
            assert_eq!(warp.pairs.len() + warp.missed.len(), planned);
            if warp.left_out.is_empty() && warp.cpus.len() > 1 {
                assert!(warp.within_cycles().is_some_and(|cycles| cycles > 0));
            }
        }
    }

    #[test]
    fn no_time_leaves_every_cpu_out_and_says_so() {
        let none = Timeouts {
            in_all: Duration::ZERO,
            ..GENEROUS
        };
        let warp = of_every_pair(none, MOST_ROUNDS);
        if warp.cpus.len() > 1 {
            assert_eq!(warp.left_out.len(), warp.cpus.len());
            assert_eq!(warp.missed.len(), warp.pairs_in_all());
            assert_eq!(warp.missed[0].why, TOO_BUSY);
            assert_eq!(warp.within_cycles(), None);
        }
    }

    #[test]
    fn a_pair_that_was_not_compared_is_named_with_its_reason() {
        let obstacles = [LeftOut {
            cpu: 2,
            why: "sched_setaffinity: EPERM".to_owned(),
        }];
        let planned = [(0, 1), (0, 2), (1, 2)];
        let warp = Warp::from_pairs(
            vec![0, 1, 2],
            &planned,
            vec![pair(1, -9, 9)],
            &obstacles,
            Instant::now(),
        );
        assert_eq!(warp.left_out, obstacles);
        let missed: Vec<_> = warp
            .missed
            .iter()
            .map(|pair| (pair.cpu, pair.other, pair.why.as_str()))
            .collect();
        assert_eq!(
            missed,
            [(0, 2, "sched_setaffinity: EPERM"), (1, 2, "sched_setaffinity: EPERM")]
        );
    }

    #[test]
    fn with_more_cpus_than_there_are_rounds_for_the_rest_is_named() {
        let cpus: Vec<usize> = (0..200).collect();
        let planned = pairs_of(&cpus, MOST_ROUNDS);
        let beyond = beyond_memory(&cpus, &planned);
        assert_eq!(planned.len() + beyond.len(), 200 * 199 / 2);
        assert!(beyond[0].why.contains("200 CPUs"), "{:?}", beyond[0]);
        assert_eq!(pairs_of(&cpus[..5], 5).len(), 10);
    }

    #[test]
    fn a_patrol_stays_on_its_cpu_until_a_comparison_there_fails() {
        let mut patrol = Patrol::default();
        let cpus = cpus::allowed();
        if cpus.len() < 2 {
            return crate::skip::skip("one CPU only");
        }
        let mut hub = cpus[0];
        for _ in 0..10 {
            let warp = patrol.round(Instant::now()).0;
            assert_eq!((warp.hub, &warp.cpus), (Some(hub), &cpus));
            if !warp.missed.is_empty() {
                let at = cpus.iter().position(|cpu| *cpu == hub).unwrap_or(0);
                hub = cpus[(at + 1) % cpus.len()];
            }
        }
    }

    #[test]
    fn a_worker_that_sleeps_until_the_next_round_comes_to_it() {
        let mut patrol = Patrol::default();
        let begun = Instant::now();
        // The first round starts the worker; a busy CPU may miss some.
        let mut complete = 0;
        while complete < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{complete} complete rounds");
            let next = Instant::now() + Duration::from_millis(2);
            let warp = patrol.round(next).0;
            complete += u32::from(warp.left_out.is_empty());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}
