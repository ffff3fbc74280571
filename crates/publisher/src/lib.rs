//! Keeps a page true: samples this host's clocks, asks the discipline what follows, publishes, and owns the failure rules.

pub mod counter;
pub mod evidence;
mod sample;
mod shared_page;
mod steps;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastpath_clock::{Config, Discipline, Outcome};
use fastpath_page::writer::{Init, PublishError, Stats, publish_all};
use fastpath_page::{Anchor, ClockSet};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

pub use shared_page::SharedPage;
use steps::StepWatch;

/// How far ahead of the counter a new anchor takes effect: long enough to write it before (some 100 ns), short enough that
/// the prediction it was computed from holds.
const LEAD_NS: u64 = 50_000;
/// Left of it when the readers have been told: see [`publish_all`].
const SPARE_NS: u64 = 2_000;
/// How often to ask whether the page is still needed.
const QUESTIONS_EVERY: Duration = Duration::from_millis(250);
/// The reason on a page that was taken over and not yet published on; the others are [`fastpath_clock::Reason`]'s.
const NO_PUBLISHER: u32 = 1000;
/// Attempts to publish one anchor. Only a publisher that is preempted within [`LEAD_NS`] each time needs more than one.
const ATTEMPTS: u32 = 5;
/// CLOCK_REALTIME moved on so suddenly that the sample straddles it: try again at once.
const RETRY: Duration = Duration::from_micros(100);

/// Publishes this host's clocks on one page.
pub struct Publisher {
    page: Arc<SharedPage>,
    discipline: Discipline,
    steps: Option<StepWatch>,
    rate: Option<fastpath_page::Rate>,
    stats: Stats,
    next: Instant,
}

impl Publisher {
    /// Makes a page and takes the first sample. `clocks` are those that the page will answer.
    pub fn new(clocks: ClockSet) -> io::Result<Publisher> {
        let page = Arc::new(SharedPage::create()?);
        page.writer().init(&Init {
            hres_res_ns: resolution(libc::CLOCK_MONOTONIC),
            coarse_res_ns: resolution(libc::CLOCK_MONOTONIC_COARSE),
            flags: cpu_flags(),
        });
        let mut publisher = Publisher::on(page, clocks);
        publisher.refresh();
        Ok(publisher)
    }

    /// Takes over a page whose publisher is gone. Until the rate is known again, readers ask the kernel.
    pub fn take_over(page: Arc<SharedPage>, clocks: ClockSet) -> Publisher {
        // Whatever is in force was made by somebody else, from samples that are not here to go on from.
        page.writer().withdraw(NO_PUBLISHER);
        let mut publisher = Publisher::on(page, clocks);
        publisher.refresh();
        publisher
    }

    fn on(page: Arc<SharedPage>, clocks: ClockSet) -> Publisher {
        let config = Config {
            clocks,
            ..Config::default()
        };
        Publisher {
            page,
            discipline: Discipline::new(config),
            steps: None,
            rate: None,
            stats: Stats::default(),
            next: Instant::now(),
        }
    }

    /// A descriptor of the page for those who only read.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        self.page.reader()
    }

    /// The page.
    pub fn page(&self) -> Arc<SharedPage> {
        self.page.clone()
    }

    /// Tells, from any thread, whether the page has been seeded.
    pub fn seeded(&self) -> Box<dyn Fn() -> bool + Send> {
        let page = self.page.clone();
        Box::new(move || page.page().hres.copy[0].seq.load(Ordering::Acquire) != 0)
    }

    /// From now on, a step of CLOCK_REALTIME wakes [`Publisher::run`] at once. Without it (no timerfd) a step is noticed at the
    /// next refresh.
    pub fn watch_for_steps(&mut self) {
        self.steps = StepWatch::new().ok();
        self.stats.publisher_pid = std::process::id();
    }

    /// Publishes for as long as `needed`, asked from time to time, says so.
    pub fn run(&mut self, mut needed: impl FnMut() -> bool) {
        let mut asked = Instant::now();
        loop {
            if asked.elapsed() >= QUESTIONS_EVERY {
                if !needed() {
                    return;
                }
                asked = Instant::now();
            }
            let timeout = self.next.saturating_duration_since(Instant::now());
            if self.sleep(timeout) {
                self.follow_step();
            }
            if Instant::now() >= self.next {
                self.refresh();
            }
        }
    }

    /// Sleeps; true if a step of CLOCK_REALTIME ended it.
    fn sleep(&self, timeout: Duration) -> bool {
        let mut fds: Vec<_> = self
            .steps
            .iter()
            .map(|steps| PollFd::new(steps.as_fd(), PollFlags::POLLIN))
            .collect();
        let ready = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None).is_ok();
        ready && fds.iter().any(|fd| fd.any().unwrap_or(false))
    }

    fn follow_step(&mut self) {
        if let Some(steps) = &mut self.steps {
            steps.rearm();
        }
        for _ in 0..ATTEMPTS {
            let Some(sample) = sample::careful_sample() else { return };
            let outcome = self.discipline.step(&sample, self.effective_at());
            // Nothing to publish: no clock was stepped after all, or the step fell into the sample.
            if outcome != Outcome::Wait && self.carry_out(outcome) {
                return;
            }
            std::thread::sleep(RETRY);
        }
    }

    /// One sample and what follows from it.
    fn refresh(&mut self) {
        for _ in 0..ATTEMPTS {
            let Some(sample) = sample::sample() else { break };
            let outcome = self.discipline.observe(&sample, self.effective_at());
            if self.carry_out(outcome) {
                break;
            }
        }
        self.next = Instant::now() + Duration::from_nanos(self.discipline.next_window_ns());
    }

    fn effective_at(&self) -> u64 {
        counter::read() + self.rate.map_or(0, |rate| rate.cycles_for_ns(LEAD_NS))
    }

    /// False: the moment was missed, and another sample is wanted at once.
    fn carry_out(&mut self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Wait => true,
            Outcome::Withdraw(reason) => {
                self.stats.withdrawn_reason = reason.code();
                self.page.writer().withdraw(reason.code());
                true
            }
            Outcome::Publish { hres, raw, residual_ns } => self.publish(&hres, raw.as_ref(), residual_ns),
        }
    }

    fn publish(&mut self, hres: &Anchor, raw: Option<&Anchor>, residual_ns: i64) -> bool {
        let writer = self.page.writer();
        match publish_all(
            [&writer],
            Some(hres),
            raw,
            hres.rate.cycles_for_ns(SPARE_NS),
            counter::read,
        ) {
            Ok(()) => {
                self.rate = Some(hres.rate);
                self.stats.refreshes += 1;
                self.stats.residual_ns = residual_ns;
                self.stats.withdrawn_reason = 0;
                writer.set_stats(&self.stats);
                true
            }
            Err(PublishError::TooLate { .. } | PublishError::TooEarly { .. }) => {
                self.discipline.retract();
                std::thread::sleep(Duration::from_nanos(LEAD_NS));
                false
            }
            Err(PublishError::OutOfLimits(_)) => {
                self.discipline.retract();
                true
            }
        }
    }
}

/// clock_getres(2) as the kernel answers it here; 0 if it has no answer that the page can hold.
fn resolution(clock: libc::clockid_t) -> u32 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    match unsafe { libc::clock_getres(clock, &mut resolution) } {
        0 if resolution.tv_sec == 0 => u32::try_from(resolution.tv_nsec).unwrap_or(0),
        _ => 0,
    }
}

/// Whether the per-CPU segment says where this thread runs, as the kernel sets it up (arch/x86/kernel/cpu/common.c,
/// setup_getcpu): compared with getcpu(2) on the CPU that we happen to be on.
#[cfg(target_arch = "x86_64")]
fn cpu_flags() -> u32 {
    /// arch/x86/include/asm/segment.h: __CPUNODE_SEG
    const CPUNODE_SEG: u32 = 0x7b;
    for _ in 0..ATTEMPTS {
        let (mut cpu, mut node) = (0u32, 0u32);
        let segment = |limit: &mut u32| -> bool {
            let valid: u8;
            // SAFETY: LSL only reads a descriptor; for a selector that is not valid it clears ZF.
            unsafe {
                std::arch::asm!("lsl {limit:e}, {selector:e}", "setz {valid}", limit = inout(reg) *limit,
                    selector = in(reg) CPUNODE_SEG, valid = out(reg_byte) valid, options(nomem, nostack));
            }
            valid == 1
        };
        let (mut before, mut after) = (0, 0);
        let valid = segment(&mut before);
        // SAFETY: getcpu stores two ints.
        let asked = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, 0) } == 0;
        if !valid || !segment(&mut after) || !asked {
            return 0;
        }
        if before == after {
            // arch/x86/include/asm/segment.h: VDSO_CPUNODE_BITS
            return if before & 0xfff == cpu && before >> 12 == node {
                fastpath_page::layout::FLAG_CPU_SEGMENT
            } else {
                0
            };
        }
    }
    0
}
