//! Whatever adjtimex(2) does to the kernel's clock, and however late the publisher is, no read is earlier than one
//! before it. Also measures how far the kernel's clock is from the reads, in both directions.
//!
//! A reader reads every clock all the time, and gets what a program would: the page's time, or the later of the
//! kernel's time and the page's floor. A failure prints its seed: run it again with FASTPATH_SEED.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_page::ahead_ns;
use host::publisher::Publisher;
use host::{Host, VDSO};

const IDS: [u32; 5] = [0, 1, 7, 11, 4];
/// Largest difference that a reader sees when it is sent to the kernel and then to the page again: half of the cost of
/// a read, and the error of a line through such reads. A program cannot see it, because a read takes longer than that.
const UNSEEN_NS: u64 = 30;
/// Longest time for which a program that leaves its page waits for the kernel's clock: a slew of a tenth during an anchor's
/// longest life.
const LONGEST_DEPARTURE_NS: u64 = 41_000_000;
/// Longest time for which a process waits until a page is level with the kernel (hook/floor.h), and how far it may be ahead
/// then: what a look takes.
const LONGEST_WAIT_NS: f64 = 1e9;
const LOOK_NS: u64 = 300;
const MS: f64 = 1e6;

/// Scheduling and notification of the publisher.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Care {
    /// It runs when it is due, and polls adjtimex(2) every ten milliseconds.
    Prompt,
    /// It runs when it is due, and is notified of a call of adjtimex(2) at once.
    Notified,
    /// adjtimex(2) is not available.
    Blind,
    /// A refresh may come late, by up to so many milliseconds.
    Starved { ms: f64 },
    /// It was stopped.
    Stopped,
}

struct Reader {
    publisher: Publisher,
    care: Care,
    /// The latest answer of each clock, and whether it was the page's.
    last: [(u64, bool); 5],
    /// Our MONOTONIC less the kernel's, for each read that the page answered.
    ahead_ns: Vec<i64>,
    refresh_at_ns: f64,
    poll_at_ns: f64,
    /// When each clock was level with the kernel's last.
    level_at_ns: [f64; 5],
}

impl Reader {
    fn new(care: Care) -> Reader {
        let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
        publisher.host.ntp_ppm = 0.0;
        // A refresh may be due before the last one's anchor begins.
        publisher.late = f64::MIN_POSITIVE;
        publisher.host.tells = care != Care::Blind;
        let mut reader = Reader {
            publisher,
            care: Care::Prompt,
            last: [(0, false); 5],
            ahead_ns: Vec::new(),
            refresh_at_ns: 0.0,
            poll_at_ns: 0.0,
            level_at_ns: [0.0; 5],
        };
        reader.run_for(3_000.0);
        reader.care = care;
        reader.ahead_ns.clear();
        reader
    }

    fn look(&mut self) {
        for answers in std::mem::take(&mut self.publisher.before_anchors) {
            self.see(answers);
        }
        self.see(IDS.map(|id| self.publisher.answer(id)));
        IDS.into_iter()
            .enumerate()
            .for_each(|(clock, id)| self.could_leave(clock, id));
        if let Some(error_ns) = self.publisher.error_ns() {
            self.ahead_ns.push(error_ns);
        }
    }

    /// Checks that a program which left the page now, and waited until the kernel has reached the floor, would see no
    /// clock go back, and how long it would wait, also for its other threads.
    fn could_leave(&mut self, clock: usize, id: u32) {
        let kernel_ns = self.publisher.host.clock_ns(id).expect("the kernel has all of them");
        let kernel = (kernel_ns / 1_000_000_000, (kernel_ns % 1_000_000_000) as u32);
        let floor = self.publisher.floor(id);
        let wait_ns = floor.map_or(0, |floor| ahead_ns(floor, kernel));
        let last_ns = self.last[clock].0;
        assert!(
            kernel_ns + wait_ns >= last_ns,
            "clock {id} was at {last_ns}, the kernel's is at {kernel_ns}"
        );
        assert!(wait_ns <= LONGEST_DEPARTURE_NS, "clock {id} is {wait_ns} ns ahead");
        let now_ns = self.publisher.host.elapsed_ns;
        if wait_ns <= LOOK_NS {
            self.level_at_ns[clock] = now_ns;
        }
        let ahead_for_ns = now_ns - self.level_at_ns[clock];
        assert!(
            ahead_for_ns <= LONGEST_WAIT_NS,
            "clock {id} is ahead for {ahead_for_ns} ns"
        );
    }

    fn see(&mut self, answers: [(u64, bool); 5]) {
        for (clock, id) in IDS.into_iter().enumerate() {
            let (now_ns, by_page) = answers[clock];
            let (last_ns, last_by_page) = self.last[clock];
            let unseen_ns = if by_page && !last_by_page { UNSEEN_NS } else { 0 };
            assert!(
                now_ns + unseen_ns >= last_ns,
                "clock {id} goes back by {} ns (by the page: {last_by_page}, then {by_page}; {})",
                last_ns - now_ns,
                format_args!("{:?}", self.care)
            );
            self.last[clock] = (now_ns.max(last_ns), by_page);
        }
    }

    fn run_for(&mut self, ms: f64) {
        let end_ns = self.publisher.host.elapsed_ns + ms * MS;
        while self.publisher.host.elapsed_ns < end_ns {
            let now_ns = self.publisher.host.elapsed_ns;
            let polls = !matches!(self.care, Care::Blind | Care::Stopped);
            let is_news = polls && self.publisher.discipline.is_news(&self.publisher.host.ntp());
            let is_told = self.care == Care::Notified || now_ns >= self.poll_at_ns;
            if self.care != Care::Stopped && (now_ns >= self.refresh_at_ns || (is_news && is_told)) {
                self.publisher.refresh_now();
                let window_ns = self.publisher.discipline.next_window_ns() as f64;
                let late_ns = match self.care {
                    Care::Starved { ms } if self.publisher.host.random.chance(0.3) => {
                        self.publisher.host.random.between(0.0, ms * MS)
                    }
                    _ => 0.0,
                };
                self.refresh_at_ns = self.publisher.host.elapsed_ns + window_ns + late_ns;
                self.poll_at_ns = self.publisher.host.elapsed_ns + (10.0 * MS).max(late_ns);
            } else if now_ns >= self.poll_at_ns {
                self.poll_at_ns = now_ns + 10.0 * MS;
            }
            self.look();
            let step_ns = self.publisher.host.random.between(20_000.0, 200_000.0);
            self.publisher.host.advance(step_ns);
            self.look();
        }
    }

    /// Returns the largest errors ahead of the kernel and behind it, and the bound of 99.9 % of the errors, in
    /// microseconds.
    fn exposure_us(&self) -> (f64, f64, f64) {
        let mut sizes: Vec<u64> = self.ahead_ns.iter().map(|ns| ns.unsigned_abs()).collect();
        sizes.sort_unstable();
        let most = sizes[sizes.len() * 999 / 1_000];
        let ahead = self.ahead_ns.iter().copied().max().unwrap_or(0);
        let behind = -self.ahead_ns.iter().copied().min().unwrap_or(0);
        (ahead as f64 / 1e3, behind as f64 / 1e3, most as f64 / 1e3)
    }

    fn print(&self, what: &str) -> (f64, f64, f64) {
        let (ahead, behind, most) = self.exposure_us();
        println!("{what}: {ahead:.1} us ahead, {behind:.1} us behind, 99.9 % within {most:.1} us");
        (ahead, behind, most)
    }
}

const ALL: [Care; 5] = [
    Care::Notified,
    Care::Prompt,
    Care::Blind,
    Care::Starved { ms: 600.0 },
    Care::Stopped,
];

#[test]
fn slews_by_tick_and_frequency_never_take_time_back() {
    for care in ALL {
        let mut reader = Reader::new(care);
        for round in 0..30 {
            let random = &mut reader.publisher.host.random;
            let ppm = match round % 3 {
                0 => [-83_300.0, 83_300.0, -100_000.0, 100_000.0][round / 3 % 4],
                1 => random.between(-100_000.0, 100_000.0),
                _ => [500.0, -500.0][round % 2],
            };
            let (on_ms, off_ms) = (random.between(20.0, 900.0), random.between(5.0, 1_500.0));
            reader.publisher.host.ntp_ppm = ppm;
            reader.run_for(on_ms);
            reader.publisher.host.ntp_ppm = 0.0;
            reader.run_for(off_ms);
            if care == Care::Stopped {
                // It continues, and is stopped again.
                reader.care = Care::Prompt;
                reader.run_for(1_000.0);
                reader.care = Care::Stopped;
            }
        }
        assert!(
            reader.publisher.withdrawals.is_empty(),
            "{:?}",
            reader.publisher.withdrawals
        );
    }
}

#[test]
fn a_phase_locked_loop_is_followed_from_second_to_second() {
    for (care, limit_us) in [(Care::Notified, 150.0), (Care::Prompt, 150.0)] {
        for offset_ms in [100.0, -100.0, 400.0, -400.0] {
            let mut reader = Reader::new(care);
            // An interrupted sample of the kernel's clock, repeated 10 ms later, is one in a thousand of ten seconds.
            for _ in 0..5 {
                reader.publisher.host.offset_ns = offset_ms * MS;
                reader.run_for(10_000.0);
            }
            assert!(reader.publisher.withdrawals.is_empty());
            let (_, _, most) = reader.print(&format!("{offset_ms} ms"));
            assert!(most <= limit_us, "{most} us");
        }
    }
    for care in ALL {
        let mut reader = Reader::new(care);
        for offset_ms in [400.0, -400.0] {
            reader.publisher.host.offset_ns = offset_ms * MS;
            reader.run_for(4_500.0);
        }
    }
}

#[test]
fn who_asks_the_kernel_returns_to_no_page_that_does_not_know_its_rate() {
    for before_ns in (0..10_000).step_by(100) {
        let mut reader = Reader::new(Care::Stopped);
        reader.run_for(3_000.0);
        assert_eq!(reader.publisher.error_ns(), None, "the anchor has ended");
        // In the next second the kernel runs 10 % faster, from a moment that it does not report.
        reader.publisher.host.offset_ns = 400.0 * MS;
        let to_overflow_ns = reader.publisher.host.to_overflow_ns();
        reader.publisher.host.advance(to_overflow_ns - f64::from(before_ns));
        reader.look();
        reader.publisher.refresh_now();
        for _ in 0..100 {
            reader.look();
            reader.publisher.host.advance(2_000.0);
        }
        // The clock is served again soon.
        reader.care = Care::Prompt;
        reader.run_for(30.0);
        assert!(reader.publisher.error_ns().is_some());
    }
}

#[test]
fn a_frequency_that_is_toggled_is_followed_within_ten_microseconds() {
    for (care, limit_us) in [(Care::Notified, 4.0), (Care::Prompt, 13.0)] {
        let mut reader = Reader::new(care);
        for round in 0..100 {
            reader.publisher.host.ntp_ppm = [500.0, -500.0][round % 2];
            let ms = reader.publisher.host.random.between(50.0, 400.0);
            reader.run_for(ms);
        }
        let (ahead, behind, _) = reader.print("+-500 ppm");
        assert!(ahead.max(behind) <= limit_us, "{ahead} us ahead, {behind} us behind");
    }
}

#[test]
fn a_changed_tick_is_followed_when_it_is_noticed() {
    for (care, limit_us) in [(Care::Notified, 200.0), (Care::Prompt, 900.0)] {
        let mut reader = Reader::new(care);
        for round in 0..60 {
            reader.publisher.host.ntp_ppm = [83_300.0, 0.0, -83_300.0, 0.0][round % 4];
            reader.run_for(800.0);
        }
        let (ahead, behind, most) = reader.print("tick 10833 and 9167");
        assert!(most <= limit_us, "{most} us");
        // Where the sample was interrupted the next one, 2 ms later, shows it.
        assert!(
            ahead.max(behind) <= 900.0 + 2.0 * limit_us,
            "{ahead} us ahead, {behind} us behind"
        );
    }
}

#[test]
fn a_counter_that_is_given_up_while_ahead_leaves_a_floor() {
    for _ in 0..20 {
        let mut reader = Reader::new(Care::Notified);
        // Stopped while the kernel is slewed down by 8.33 %: 8 ms ahead.
        reader.care = Care::Stopped;
        reader.publisher.host.ntp_ppm = -83_300.0;
        reader.run_for(100.0);
        reader.care = Care::Prompt;
        reader.publisher.compared(true);
        reader.run_for(1.0);
        reader.publisher.compared(false);
        reader.run_for(3_000.0);
        assert!(reader.publisher.discipline.hres().is_some(), "served again");
        let (_, behind, _) = reader.exposure_us();
        assert!(behind <= 1.0, "{behind} us behind");
    }
}
