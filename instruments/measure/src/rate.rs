//! The rate of the kernel's clocks against the other clocks of the machine, which the kernel does not follow: HPET, PTP
//! clocks and RTC. They are only read.

use crate::child::{self, End};
use crate::clocks::Clock;
use crate::functions::Functions;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::time::Duration;

/// What a clock may be off without being wrong: the most that the kernel lets NTP correct (MAXFREQ, 500 ppm,
/// include/linux/timex.h), and the accuracy that is asked of an HPET (IA-PC HPET Specification 1.0a, 2.2). Oscillators of
/// RTCs are better.
const TOLERANCE_PPM: f64 = 500.0;
/// Looks at a clock that takes no time to read, of which the narrowest counts.
const LOOKS: usize = 16;
/// Most PTP clocks that are read.
const MOST_PTP: usize = 4;
/// Time between two reads of an RTC, whose time is whole seconds.
const RTC_NAP: Duration = Duration::from_micros(300);
/// Reads of an RTC after which it has stopped: each takes a nap and more.
const RTC_READS: u32 = 8_000;

/// How fast a clock of the kernel runs against another clock of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockRate {
    /// The kernel's clock: `MONOTONIC` or `MONOTONIC_RAW`.
    pub clock: Clock,
    /// The other clock: `HPET`, `PTP clock ptp0 (KVM virtual PTP)`, `RTC rtc0 (rtc_cmos)`.
    pub against: String,
    /// How much faster the kernel's clock is, in millionths; less than 0: it is slower.
    pub ppm: f64,
    /// Largest such value that the reads and the other clock's own accuracy explain.
    pub bound_ppm: f64,
    /// Time between the two looks by the other clock, in seconds.
    pub over_s: f64,
}

impl ClockRate {
    /// Returns whether the kernel's clock runs at a wrong rate.
    pub fn is_wrong(&self) -> bool {
        self.ppm.abs() > self.bound_ppm
    }
}

/// Returns the rate of MONOTONIC that is certainly wrong: no slew explains it, for MONOTONIC_RAW has it, too.
pub fn wrong_rate(rates: &[ClockRate]) -> Option<&ClockRate> {
    let of = |clock| rates.iter().filter(move |rate| rate.clock == clock && rate.is_wrong());
    let is_slewed = |rate: &&ClockRate| of(Clock::MONOTONIC_RAW).all(|raw| raw.against != rate.against);
    of(Clock::MONOTONIC).find(|rate| !is_slewed(rate))
}

/// Returns how fast a clock is, from millionths by which it is faster: `4.8 % slow`, `120 ppm fast`.
pub fn off_by(ppm: f64) -> String {
    let direction = if ppm < 0.0 { "slow" } else { "fast" };
    match ppm.abs() {
        ppm if ppm >= 1_000_000.0 => format!("{:.2} times {direction}", 1.0 + ppm / 1e6),
        ppm if ppm >= 1_000.0 => format!("{:.1} % {direction}", ppm / 1e4),
        ppm => format!("{ppm:.0} ppm {direction}"),
    }
}

/// Returns whether the kernel's clock is synchronized with a reference, by adjtimex(2); `None`: it does not say. A child
/// asks, because a seccomp filter may kill for that.
pub fn is_synchronized() -> Option<bool> {
    const NOT_SYNCHRONIZED: i32 = 1;
    let ask = || {
        // SAFETY: all-zero bits are a valid timex, and mode 0 only reads.
        let mut state: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes no more than a timex.
        match unsafe { libc::adjtimex(&raw mut state) } {
            ..0 => 2,
            _ if state.status & libc::STA_UNSYNC != 0 => NOT_SYNCHRONIZED,
            _ => 0,
        }
    };
    // SAFETY: `ask` makes one system call.
    match unsafe { child::exit_of(ask) }? {
        End::Finished => Some(true),
        End::Exited(NOT_SYNCHRONIZED) => Some(false),
        _ => None,
    }
}

/// The clocks that are compared, and a look at each.
pub struct Comparison(Vec<(Reference, Look)>);

impl Comparison {
    /// Looks at the machine's other clocks. `rtc`: also at the RTC, which takes until its next second.
    ///
    /// The clocksource in use is no reference.
    pub fn begin(clocksource: Option<&str>, rtc: bool) -> Comparison {
        let mut references: Vec<Reference> = hpet(|| clocksource == Some("hpet")).into_iter().collect();
        references.extend(ptp_clocks());
        if rtc {
            references.extend(rtc_clock());
        }
        Comparison::with(references)
    }

    /// Looks at the HPET only, where this process may read it, which takes some ten microseconds.
    pub fn begin_quickly() -> Comparison {
        Comparison::with(hpet(|| {
            fastpath_evidence::kernel_file(fastpath_evidence::CLOCKSOURCE)
                .is_some_and(|name| name.starts_with(b"hpet\n"))
        }))
    }

    fn with(references: impl IntoIterator<Item = Reference>) -> Comparison {
        let looked = |reference: Reference| Some((reference.look()?, reference));
        let begun = references.into_iter().filter_map(looked);
        Comparison(begun.map(|(look, reference)| (reference, look)).collect())
    }

    /// Returns whether there is no other clock.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Looks again, and returns why no page is to be published: the kernel's clock is wrong, and a page would repeat it.
    pub fn refusal(self) -> Option<String> {
        let rates = self.end();
        let rate = wrong_rate(&rates)?;
        Some(format!(
            "the kernel's clock runs {} against the {}, and fastpath would only make a wrong clock faster: `fastpath doctor` says \
             what to do, and --trust-counter serves it as it is",
            off_by(rate.ppm),
            rate.against
        ))
    }

    /// Looks again, and returns the rates, which are the more precise the more time has passed.
    pub fn end(self) -> Vec<ClockRate> {
        let rates = self.0.iter().filter_map(|(reference, begun)| {
            let ended = reference.look()?;
            Some(rates(
                &reference.name(),
                begun,
                &ended,
                reference.between_ns(begun, &ended)?,
            ))
        });
        rates.flatten().collect()
    }
}

fn hpet(is_clocksource: impl FnOnce() -> bool) -> Option<Reference> {
    Hpet::open().filter(|_| !is_clocksource()).map(Reference::Hpet)
}

/// The kernel's clocks that are compared.
const COMPARED: [Clock; 2] = [Clock::MONOTONIC, Clock::MONOTONIC_RAW];

/// A look at a reference, between two looks at the kernel's clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    before_ns: [i64; 2],
    /// In nanoseconds, or in counts of an HPET.
    reference: u64,
    after_ns: [i64; 2],
}

impl Look {
    fn width_ns(&self) -> i64 {
        self.after_ns[0] - self.before_ns[0]
    }

    fn middle_ns(&self, clock: usize) -> f64 {
        self.before_ns[clock] as f64 + (self.after_ns[clock] - self.before_ns[clock]) as f64 / 2.0
    }
}

fn rates(against: &str, begun: &Look, ended: &Look, passed_ns: f64) -> Vec<ClockRate> {
    let rate = |(index, clock): (usize, Clock)| {
        let kernel_ns = ended.middle_ns(index) - begun.middle_ns(index);
        let width_ns = (begun.width_ns() + ended.width_ns()) as f64 / 2.0;
        (passed_ns > 0.0).then(|| ClockRate {
            clock,
            against: against.to_owned(),
            ppm: (kernel_ns / passed_ns - 1.0) * 1e6,
            bound_ppm: TOLERANCE_PPM + width_ns / passed_ns * 1e6,
            over_s: passed_ns / 1e9,
        })
    };
    COMPARED.into_iter().enumerate().filter_map(rate).collect()
}

enum Reference {
    Hpet(Hpet),
    /// A clock behind a descriptor, and its name.
    Ptp(File, String),
    /// The file with its time in seconds, and its name.
    Rtc(File, String),
}

impl Reference {
    fn name(&self) -> String {
        match self {
            Reference::Hpet(_) => "HPET".to_owned(),
            Reference::Ptp(_, name) => format!("PTP clock {name}"),
            Reference::Rtc(_, name) => format!("RTC {name}"),
        }
    }

    fn look(&self) -> Option<Look> {
        let read = || match self {
            Reference::Hpet(hpet) => Some(hpet.count()),
            Reference::Ptp(file, _) => ptp_ns(file),
            Reference::Rtc(file, _) => rtc_second(file),
        };
        if let Reference::Rtc(..) = self {
            return next_second(read, kernel_ns, || fastpath_evidence::pause(RTC_NAP));
        }
        let look = || {
            Some(Look {
                before_ns: kernel_ns()?,
                reference: read()?,
                after_ns: kernel_ns()?,
            })
        };
        (0..LOOKS).filter_map(|_| look()).min_by_key(Look::width_ns)
    }

    /// Returns the time between two looks; `None` where its counter has begun anew.
    fn between_ns(&self, begun: &Look, ended: &Look) -> Option<f64> {
        let passed = ended.reference.wrapping_sub(begun.reference);
        match self {
            Reference::Hpet(hpet) => hpet.passed_ns(passed, (ended.before_ns[0] - begun.before_ns[0]) as f64),
            _ => Some(passed as i64 as f64),
        }
    }
}

fn kernel_ns() -> Option<[i64; 2]> {
    let libc = Functions::libc();
    Some([libc.now_ns(COMPARED[0])?, libc.now_ns(COMPARED[1])?])
}

/// Waits until a clock of whole seconds changes. The change lies between the beginning of the last read of the old second
/// and the end of the first of the new one.
fn next_second(
    second: impl Fn() -> Option<u64>,
    kernel_ns: impl Fn() -> Option<[i64; 2]>,
    nap: impl Fn(),
) -> Option<Look> {
    let mut before_ns = kernel_ns()?;
    let old = second()?;
    for _ in 0..RTC_READS {
        nap();
        let begins_ns = kernel_ns()?;
        let now = second()?;
        if now != old {
            return Some(Look {
                before_ns,
                reference: now.wrapping_mul(1_000_000_000),
                after_ns: kernel_ns()?,
            });
        }
        before_ns = begins_ns;
    }
    None
}

/// Returns the RTC that the kernel sets its clock from at the boot, or else the first.
fn rtc_clock() -> Option<Reference> {
    let folder = |name: &str| format!("/sys/class/rtc/{name}");
    let mut names = names("/sys/class/rtc");
    names.sort_by_key(|name| read_line(&format!("{}/hctosys", folder(name))).as_deref() != Some("1"));
    let name = names.first()?;
    let model = read_line(&format!("{}/name", folder(name)))?;
    let file = File::open(format!("{}/since_epoch", folder(name))).ok()?;
    Some(Reference::Rtc(file, format!("{name} ({model})")))
}

fn rtc_second(file: &File) -> Option<u64> {
    let mut text = [0; 32];
    let count = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..count]).ok()?.trim().parse().ok()
}

fn ptp_clocks() -> impl Iterator<Item = Reference> {
    let clock = |name: String| {
        let model = read_line(&format!("/sys/class/ptp/{name}/clock_name"))?;
        let file = File::open(format!("/dev/{name}")).ok()?;
        Some(Reference::Ptp(file, format!("{name} ({model})")))
    };
    names("/sys/class/ptp").into_iter().filter_map(clock).take(MOST_PTP)
}

fn ptp_ns(clock: &File) -> Option<u64> {
    // clock_getcpuclockid's way to name the clock of a descriptor: CLOCKFD, include/linux/posix-timers.h.
    const CLOCKFD: libc::clockid_t = 3;
    let id = (!clock.as_raw_fd() << 3) | CLOCKFD;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes no more than a timespec.
    let answer = unsafe { libc::clock_gettime(id, &raw mut now) };
    (answer == 0).then(|| (now.tv_sec * 1_000_000_000 + now.tv_nsec) as u64)
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn read_line(file: &str) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// The registers of an HPET, as /dev/hpet maps them (IA-PC HPET Specification 1.0a, 2.3).
struct Hpet {
    registers: NonNull<u8>,
}

impl Hpet {
    const BYTES: usize = 4096;
    const CAPABILITIES: usize = 0x000;
    const COUNTER: usize = 0x0f0;
    /// COUNT_SIZE_CAP: the counter has 64 bits.
    const IS_64_BITS: u64 = 1 << 13;
    /// Largest period that is permitted, in femtoseconds.
    const LONGEST_PERIOD_FS: u64 = 100_000_000;

    fn open() -> Option<Hpet> {
        let file = File::open("/dev/hpet").ok()?;
        // SAFETY: maps a page at an address that the kernel chooses, to be read only.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Hpet::BYTES,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        let hpet = Hpet {
            registers: NonNull::new(page.cast())?,
        };
        let is_sane = (1..=Hpet::LONGEST_PERIOD_FS).contains(&hpet.period_fs());
        // It stands still unless the kernel has started it.
        let runs = is_sane && {
            let first = hpet.count();
            (0..1_000).any(|_| hpet.count() != first)
        };
        runs.then_some(hpet)
    }

    fn register(&self, at: usize) -> u64 {
        // SAFETY: the page is mapped as long as `self` lives, and both registers are aligned and within it. Reads of them
        // change nothing.
        unsafe { self.registers.add(at).cast::<u64>().read_volatile() }
    }

    fn count(&self) -> u64 {
        self.register(Hpet::COUNTER)
    }

    fn period_fs(&self) -> u64 {
        self.register(Hpet::CAPABILITIES) >> 32
    }

    /// Returns the time of a number of counts; `None` if a counter of 32 bits may have gone round meanwhile, by what the
    /// kernel's clock says.
    fn passed_ns(&self, counts: u64, about_ns: f64) -> Option<f64> {
        let fs = self.period_fs() as f64;
        if self.register(Hpet::CAPABILITIES) & Hpet::IS_64_BITS != 0 {
            return Some(counts as f64 * fs / 1e6);
        }
        let round_ns = f64::from(u32::MAX) * fs / 1e6;
        (about_ns < round_ns / 4.0).then(|| f64::from(counts as u32) * fs / 1e6)
    }
}

impl Drop for Hpet {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `open`, and nothing refers to it any more.
        unsafe { libc::munmap(self.registers.as_ptr().cast(), Hpet::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn look(at_ns: i64, reference: u64) -> Look {
        Look {
            before_ns: [at_ns, at_ns],
            reference,
            after_ns: [at_ns + 2_000, at_ns + 2_000],
        }
    }

    #[test]
    fn a_slow_clock_is_told_from_one_that_is_within_the_bound() {
        let passed_ns = 1e9;
        for (ppm, is_wrong) in [(0, false), (400, false), (-400, false), (600, true), (-48_000, true)] {
            let ended = look(1_000_000_000 + ppm * 1_000, 0);
            for rate in rates("HPET", &look(0, 0), &ended, passed_ns) {
                assert_eq!(rate.is_wrong(), is_wrong, "{rate:?}");
                assert!((rate.ppm - ppm as f64).abs() < 0.1, "{rate:?}");
                assert_eq!(rate.bound_ppm, TOLERANCE_PPM + 2.0);
            }
        }
        assert_eq!(rates("HPET", &look(5, 0), &look(9, 0), 0.0), []);
    }

    #[test]
    fn the_edge_of_a_second_lies_within_the_look() {
        // Each read of the RTC takes 100 us; each nap 300.
        let now_ns = Cell::new(7_000_000_000_i64 + 123_456_789);
        let pass = |ns| now_ns.set(now_ns.get() + ns);
        let second = || {
            pass(60_000);
            let second = now_ns.get() / 1_000_000_000;
            pass(40_000);
            Some(second as u64)
        };
        let look = next_second(second, || Some([now_ns.get(); 2]), || pass(300_000)).unwrap();
        assert_eq!(look.reference, 8_000_000_000);
        assert!(
            look.before_ns[0] <= 8_000_000_000 && 8_000_000_000 <= look.after_ns[0],
            "{look:?}"
        );
        assert!(look.width_ns() <= 600_000, "{look:?}");
        assert_eq!(next_second(|| Some(1), || Some([0; 2]), || ()), None, "it has stopped");
    }

    #[test]
    fn what_this_machine_has_agrees_with_the_kernel() {
        let comparison = Comparison::begin(None, true);
        fastpath_evidence::pause(Duration::from_millis(200));
        for rate in comparison.end() {
            // A busy machine delays a look at the RTC; the bound says so.
            assert!(rate.bound_ppm >= TOLERANCE_PPM && rate.ppm.is_finite(), "{rate:?}");
        }
    }
}
