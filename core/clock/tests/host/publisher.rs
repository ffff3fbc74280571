//! A publisher on such a host, and a reader that reads continuously.

use fastpath_clock::{AnchorDecision, Config, Discipline, Reason};
use fastpath_page::{Anchor, Page, PublishError, Reader, Writer};

use super::Host;

const MONOTONIC: u32 = 1;
/// Lead of an anchor over its sample.
const LEAD_NS: f64 = 50_000.0;
/// Attempts of a refresh, as in core/publish/src/host.
const ATTEMPTS: u32 = 5;
const IDS: [u32; 5] = [0, 1, 7, 11, 4];

/// The result of one refresh.
pub struct Refresh {
    pub decision: AnchorDecision,
    /// Whether the anchor reached the page.
    pub published: bool,
    /// Whether readers fall back to the kernel, for which the anchor was too old, or begins too late.
    was_late: bool,
}

pub struct Publisher {
    pub host: Host,
    pub discipline: Discipline,
    page: Box<Page>,
    /// Errors of MONOTONIC against the kernel's clock, in nanoseconds.
    pub errors_ns: Vec<i64>,
    /// The greatest error of each clock against the kernel's, in the order of `IDS`.
    pub worst_ns_of: [u64; 5],
    pub reads: u64,
    pub kernel_reads: u64,
    pub withdrawals: Vec<Reason>,
    /// Probability that the publisher is preempted between the sample and the page.
    pub late: f64,
    /// Whether the kernel set REALTIME back, by a leap second, since the last anchor.
    pub was_set_back: bool,
    /// A program's answers right before each anchor is published.
    pub before_anchors: Vec<[(u64, bool); 5]>,
}

impl Publisher {
    pub fn new(host: Host) -> Publisher {
        Publisher::with(Config::default(), host)
    }

    pub fn with(config: Config, host: Host) -> Publisher {
        Publisher {
            host,
            discipline: Discipline::new(config),
            page: Box::new(Page::zeroed()),
            errors_ns: Vec::new(),
            worst_ns_of: [0; 5],
            reads: 0,
            kernel_reads: 0,
            withdrawals: Vec::new(),
            late: 0.0,
            was_set_back: false,
            before_anchors: Vec::new(),
        }
    }

    pub fn read(&self, id: u32, counter: u64) -> Option<u64> {
        let (sec, nsec) = Reader::new(&self.page).read(id, || counter)?;
        Some(sec * 1_000_000_000 + u64::from(nsec))
    }

    /// Returns the earliest and the latest UTC that a program reads from the page.
    pub fn utc(&self) -> Option<(u64, u64)> {
        Reader::new(&self.page).utc(|| self.host.count())
    }

    /// Returns the latest time that a reader can have had.
    pub fn floor(&self, id: u32) -> Option<(u64, u32)> {
        Reader::new(&self.page).floor(id, || self.host.count())
    }

    /// Returns what a program reads: from the page, or the later of the kernel's time and the page's floor. True: from
    /// the page.
    pub fn answer(&self, id: u32) -> (u64, bool) {
        let counter = self.host.count();
        let kernel_ns = self.host.clock_ns(id).expect("the kernel has all of them");
        let kernel = || (kernel_ns / 1_000_000_000, (kernel_ns % 1_000_000_000) as u32);
        let (sec, nsec) = Reader::new(&self.page).answer(id, || counter, kernel);
        let is_by_page = self.read(id, counter).is_some();
        (sec * 1_000_000_000 + u64::from(nsec), is_by_page)
    }

    /// Returns the served MONOTONIC less the kernel's now.
    pub fn error_ns(&self) -> Option<i64> {
        let served = self.read(MONOTONIC, self.host.count())?;
        Some(served.wrapping_sub(self.host.mono_ns()) as i64)
    }

    pub fn real_error_ns(&self) -> Option<i64> {
        let served = self.read(0, self.host.count())?;
        Some(served.wrapping_sub(self.host.real_ns()) as i64)
    }

    /// Reads a few times within `ns`, and continues to its end.
    pub fn live(&mut self, ns: f64) {
        let reads = 3;
        for _ in 0..reads {
            self.host.advance(ns / f64::from(reads));
            self.look();
        }
    }

    pub fn look(&mut self) {
        self.reads += 1;
        match self.error_ns() {
            Some(error_ns) => self.errors_ns.push(error_ns),
            None => self.kernel_reads += 1,
        }
        for (clock, id) in IDS.into_iter().enumerate() {
            if let (Some(served_ns), Some(kernel_ns)) = (self.read(id, self.host.count()), self.host.mean_clock_ns(id))
            {
                let error_ns = served_ns.wrapping_sub(kernel_ns) as i64;
                self.worst_ns_of[clock] = self.worst_ns_of[clock].max(error_ns.unsigned_abs());
            }
        }
    }

    /// Reports a comparison of the CPUs' counters.
    pub fn compared(&mut self, apart: bool) {
        let decision = self.discipline.compared(apart);
        self.carry_out(decision, [false; 5]);
    }

    /// Reports that the kernel's clocks run on another clocksource.
    #[allow(dead_code, reason = "not every test changes it")]
    pub fn clocksource_changed(&mut self) {
        let decision = self.discipline.clocksource_changed();
        self.carry_out(decision, [false; 5]);
    }

    /// Reports that the machine was suspended.
    #[allow(dead_code, reason = "not every test reports it")]
    pub fn suspended(&mut self) {
        let decision = self.discipline.suspended();
        self.carry_out(decision, [false; 5]);
    }

    /// Waits for the next window and refreshes.
    pub fn refresh(&mut self) -> Refresh {
        self.live(self.discipline.next_window_ns() as f64);
        self.refresh_now()
    }

    pub fn refresh_now(&mut self) -> Refresh {
        let mut refresh = self.try_to_refresh();
        // As core/publish/src/host does where readers wait for the anchor.
        for _ in 1..ATTEMPTS {
            if !refresh.was_late {
                break;
            }
            refresh = self.try_to_refresh();
        }
        refresh
    }

    fn try_to_refresh(&mut self) -> Refresh {
        let sample = self.host.sample();
        self.host.maybe_sleep();
        let effective_at = self.effective_at();
        self.host.maybe_sleep();
        let decision = self.discipline.observe(&sample, || effective_at);
        let may_go_back = [self.was_set_back, false, false, false, false];
        let refresh = self.carry_out(decision, may_go_back);
        self.was_set_back &= !refresh.published;
        refresh
    }

    /// Handles a cancelled timerfd: REALTIME, and TAI with it, may go back.
    pub fn step(&mut self) -> Refresh {
        let sample = self.host.sample();
        let effective_at = self.effective_at();
        let decision = self.discipline.step(&sample, || effective_at);
        self.carry_out(decision, [true, false, false, true, false])
    }

    fn effective_at(&self) -> u64 {
        let now = self.host.count();
        // Where no reader uses the anchors any more, the next ones may begin in the present.
        let may_answer = |anchor: Option<Anchor>| anchor.is_some_and(|anchor| anchor.may_answer_from(now));
        if !may_answer(self.discipline.hres()) && !may_answer(self.discipline.raw()) {
            return now;
        }
        self.host.count().wrapping_add((LEAD_NS * self.host.ghz) as u64)
    }

    fn carry_out(&mut self, decision: AnchorDecision, may_go_back: [bool; 5]) -> Refresh {
        let mut published = false;
        match &decision {
            AnchorDecision::Wait => {}
            AnchorDecision::Withdraw(reason) => {
                let counter = self.host.count();
                Writer::new(&self.page).withdraw(*reason, || counter);
                self.discipline.end_at(counter);
                self.withdrawals.push(*reason);
            }
            AnchorDecision::Publish { hres, raw, .. } => {
                let delay_ns = if self.host.random.chance(self.late) {
                    3e6
                } else {
                    2_000.0
                };
                self.host.advance(delay_ns);
                self.host.maybe_sleep();
                if self.host.has_raw {
                    self.before_anchors.push(IDS.map(|id| self.answer(id)));
                }
                if self.discipline.is_late(self.host.count()) {
                    self.discipline.retract();
                    return Refresh {
                        decision,
                        published: false,
                        was_late: true,
                    };
                }
                self.host.maybe_sleep();
                match self.publish(hres, raw.as_ref(), may_go_back) {
                    Ok(()) => published = true,
                    Err(error) => {
                        assert!(
                            self.late > 0.0 || matches!(error, PublishError::TooEarly { .. }),
                            "{error}"
                        );
                        self.discipline.retract();
                        if matches!(error, PublishError::TooEarly { .. }) {
                            self.host.advance(LEAD_NS);
                            return Refresh {
                                decision,
                                published,
                                was_late: true,
                            };
                        }
                    }
                }
                // As good as between the two phases: no program runs meanwhile.
                self.host.maybe_sleep();
            }
        }
        Refresh {
            decision,
            published,
            was_late: false,
        }
    }

    /// Publishes, and checks that no clock goes back across the change, at any value of the counter around it.
    fn publish(&mut self, hres: &Anchor, raw: Option<&Anchor>, may_go_back: [bool; 5]) -> Result<(), PublishError> {
        let base = hres.base_cycles;
        let around = || (0..8).map(|count| base.wrapping_add(count).wrapping_sub(4));
        let before: Vec<Vec<Option<u64>>> = IDS
            .iter()
            .map(|id| around().map(|counter| self.read(*id, counter)).collect())
            .collect();
        let ended = self.end_of_reads();
        let counter = self.host.count();
        let writer = Writer::new(&self.page);
        fastpath_page::publish_all([&writer], Some(hres), raw, 0, || counter, || false)?;
        for (clock, id) in IDS.iter().enumerate() {
            if may_go_back[clock] {
                continue;
            }
            let mut last = ended[clock];
            for (count, counter) in around().enumerate() {
                let now = self.read(*id, counter);
                if (counter.wrapping_sub(base) as i64) < 0 {
                    assert_eq!(
                        now, before[clock][count],
                        "clock {id}: before the base the old anchor answers"
                    );
                }
                if let (Some(last), Some(now)) = (last, now) {
                    assert!(
                        now >= last,
                        "clock {id} goes back from {last} to {now} at the base {:+}",
                        count as i64 - 4
                    );
                }
                last = now.or(last);
            }
        }
        Ok(())
    }

    /// Returns the last value of each clock if the anchors in force end before the present.
    fn end_of_reads(&self) -> [Option<u64>; 5] {
        let writer = Writer::new(&self.page);
        let (hres, raw) = (writer.hres(), writer.raw());
        std::array::from_fn(|clock| {
            let anchor = if IDS[clock] == 4 { raw } else { hres }?;
            let end = anchor.base_cycles.wrapping_add(u64::from(anchor.cap_cycles));
            if (self.host.count().wrapping_sub(end) as i64) < 0 {
                return None;
            }
            self.read(IDS[clock], end)
        })
    }

    pub fn run_for(&mut self, seconds: f64) {
        let end_ns = self.host.elapsed_ns + seconds * 1e9;
        while self.host.elapsed_ns < end_ns {
            self.refresh();
        }
    }

    pub fn run_between(&mut self, low_seconds: f64, high_seconds: f64) {
        let seconds = self.host.random.between(low_seconds, high_seconds);
        self.run_for(seconds);
    }

    /// Forgets the errors so far.
    pub fn settle(&mut self, seconds: f64) {
        self.run_for(seconds);
        self.errors_ns.clear();
        self.worst_ns_of = [0; 5];
        self.reads = 0;
        self.kernel_reads = 0;
    }

    pub fn worst_ns(&self) -> i64 {
        self.errors_ns.iter().map(|error_ns| error_ns.abs()).max().unwrap_or(0)
    }

    pub fn rms_ns(&self) -> f64 {
        let sum: f64 = self.errors_ns.iter().map(|error_ns| (error_ns * error_ns) as f64).sum();
        (sum / self.errors_ns.len().max(1) as f64).sqrt()
    }
}
