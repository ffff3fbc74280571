//! Comparison of one CPU with all others, while a publisher runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::exchange::{self, Effort, Pairing};
use crate::offsets::table;
use crate::pair::Pair;
use crate::warp::{LeftOut, Warp, small_thread};
use crate::{counter, cpus};

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
        let pairs = match table::in_force() {
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

    fn check(&mut self, offsets: &table::Offsets, pair: Pair) -> Pair {
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
        let is_same = table::in_force().is_none() || !self.online.has_changed();
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
        if let Some(offsets) = table::in_force() {
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
    use crate::warp::{MOST_ROUNDS, Timeouts, of_every_pair};

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
