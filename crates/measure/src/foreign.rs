//! The clock paths of 32-bit programs on a 64-bit kernel, established by a 32-bit program that this process starts from
//! memory (`prober/prober.c`).

use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::child::{self, End, Record};
use crate::clocks::Clock;
use crate::functions::Call;
use crate::path::{self, Evidence, TIME_LIMIT, step};
use crate::price::Effort;
use crate::stats;
use crate::vdso::Vdso;

/// The prober. `None` if the kernel for which this was built does not start such programs, or the compiler could not
/// build one.
static PROBER: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/prober.rs"));

/// Returns whether this build has the prober.
pub(crate) fn is_built() -> bool {
    PROBER.is_some()
}

/// Returns the calls that are examined, in the order of the report. The clocks are read with 64 bits of seconds.
pub(crate) fn calls() -> Vec<(Call, Width)> {
    let clocks = Clock::ALL
        .iter()
        .map(|clock| (Call::ClockGettime(*clock), Width::Bits64));
    let functions = Call::FUNCTIONS.iter().map(|call| (*call, Width::Bits32));
    let old = (Call::ClockGettime(Clock::MONOTONIC), Width::Bits32);
    clocks.chain(functions).chain([old]).collect()
}

/// Width of the seconds in the answer: 32-bit programs have functions for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bits32,
    Bits64,
}

/// The findings about one call.
pub(crate) struct Seen {
    pub evidence: Evidence,
    /// Ticks of a call by libc, and of the bare system call below.
    pub libc: Option<f64>,
    pub syscall: Option<f64>,
}

/// The findings of the prober.
pub(crate) struct Findings {
    /// The findings about each call, in the order of [`calls`].
    pub calls: Vec<Seen>,
    /// The vDSO that such a program gets.
    pub vdso: Option<Vdso>,
}

/// Examines every call. `batch_ticks` is the number of ticks that a batch should take; `None` if the counter may not be
/// read.
pub(crate) fn look(batch_ticks: Option<f64>) -> Result<Findings, String> {
    let prober = Prober::new()?;
    let calls = calls();
    let items: Vec<String> = calls.iter().map(|(call, width)| item(*call, *width)).collect();
    let all: Vec<usize> = (0..calls.len()).collect();

    let (raw, _) = prober.run(&["errnos"], &all, &items)?;
    let (taken_away, end) = prober.run(&["paths"], &all, &items)?;
    let syscalls = path::interpret(calls.len(), &taken_away, end);
    let mut seen: Vec<Seen> = syscalls
        .into_iter()
        .enumerate()
        .map(|(index, syscalls)| Seen {
            evidence: Evidence {
                raw_errno: path::value(&raw, step::RAW, index as u64).map(|errno| errno as i32),
                syscalls,
            },
            libc: None,
            syscall: None,
        })
        .collect();
    if let Some(batch_ticks) = batch_ticks {
        // A call for which a filter kills the process is not made again.
        let safe = |seen: &Seen| {
            let in_page = matches!(seen.evidence.enters_kernel(), Ok((false, _)));
            !seen.evidence.is_unsupported() && (seen.evidence.syscall_works() || in_page)
        };
        let asked: Vec<usize> = all.into_iter().filter(|index| safe(&seen[*index])).collect();
        let effort = Effort::PROBE;
        let (records, _) = prober.prices(batch_ticks, effort, &asked, &items)?;
        for (nth, index) in asked.into_iter().enumerate() {
            let price = |step| cheapest(&records, step, nth as u32, effort);
            seen[index].libc = price(step::PRICE_LIBC);
            seen[index].syscall = price(step::PRICE_RAW);
        }
    }
    // The vDSO is copied last: a publisher that has just begun changes its anchors every millisecond, so an earlier
    // copy of the page would be outdated.
    let mut vdso = prober.vdso()?;
    for _ in 1..PAGE_LOOKS {
        if !vdso.as_ref().is_some_and(Vdso::answered_nothing) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        vdso = prober.vdso()?;
    }
    Ok(Findings { calls: seen, vdso })
}

/// Number of looks at a page that answers nothing: the publisher may have been between two anchors.
const PAGE_LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Returns the ticks that a call of each clock takes, by libc and by the system call, after a quick measurement; `None`
/// for a clock that the kernel does not have. Fails if nothing could be measured.
pub(crate) fn quick_look(
    clocks: &[Clock],
    batch_ticks: f64,
    effort: Effort,
) -> Result<Vec<Option<(f64, f64)>>, String> {
    let items: Vec<String> = clocks
        .iter()
        .map(|clock| item(Call::ClockGettime(*clock), Width::Bits64))
        .collect();
    let all: Vec<usize> = (0..clocks.len()).collect();
    let (records, end) = Prober::new()?.prices(batch_ticks, effort, &all, &items)?;
    if end != End::Finished {
        return Err(format!("the 32-bit prober {}", end.describe()));
    }
    let price = |step, nth| cheapest(&records, step, nth, effort);
    let both = |nth| price(step::PRICE_LIBC, nth).zip(price(step::PRICE_RAW, nth));
    Ok((0..clocks.len() as u32).map(both).collect())
}

/// Returns the call in the notation of the prober's arguments.
fn item(call: Call, width: Width) -> String {
    let function = match (call, width) {
        (Call::ClockGettime(_), Width::Bits64) => 0,
        (Call::ClockGetres(_), _) => 1,
        (Call::Gettimeofday, _) => 2,
        (Call::Time, _) => 3,
        (Call::Getcpu, _) => 4,
        (Call::ClockGettime(_), Width::Bits32) => 5,
    };
    format!("{function}:{}", call.clock().map_or(0, Clock::id))
}

/// Returns the least of the groups' medians, in ticks per call. The upper half of a record's item is the number of
/// calls.
fn cheapest(records: &[Record], step: u64, item: u32, effort: Effort) -> Option<f64> {
    let batches: Vec<f64> = records
        .iter()
        .filter(|record| record[0] == step && record[1] as u32 == item)
        .map(|record| record[2] as f64 / (record[1] >> 32) as f64)
        .collect();
    let groups = batches.chunks(effort.batches as usize);
    let cheapest = groups
        .filter_map(|group| stats::median(&mut group.to_vec()))
        .fold(f64::INFINITY, f64::min);
    cheapest.is_finite().then_some(cheapest)
}

/// The prober in memory.
struct Prober(OwnedFd);

impl Prober {
    fn new() -> Result<Prober, String> {
        let program = PROBER.ok_or("this build of fastpath has no 32-bit prober (it takes a compiler with -m32)")?;
        let failed = |e: std::io::Error| format!("a 32-bit prober could not be put into memory: {e}");
        let memory = memfd_create(c"fastpath-prober", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let mut file = std::fs::File::from(memory);
        file.write_all(program).map_err(failed)?;
        Ok(Prober(file.into()))
    }

    /// Returns the prober's vDSO. The prober writes one record with the address, then the bytes of the page below and
    /// of the vDSO.
    fn vdso(&self) -> Result<Option<Vdso>, String> {
        let (records, end) = self.run(&["vdso"], &[], &[])?;
        let words = records.concat();
        let Some((&[_, address, _], words)) = words.split_first_chunk() else {
            return Err(format!("the 32-bit prober {}", end.describe()));
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let seen = bytes.split_at_checked(4096).filter(|_| address != 0);
        Ok(seen.map(|(below, image)| Vdso::seen(address as usize, below, image)))
    }

    fn prices(
        &self,
        batch_ticks: f64,
        effort: Effort,
        asked: &[usize],
        items: &[String],
    ) -> Result<(Vec<Record>, End), String> {
        let batches = (effort.groups * effort.batches).to_string();
        let ticks = (batch_ticks as u32).to_string();
        self.run(&["prices", &ticks, &batches], asked, items)
    }

    /// Starts the prober with `arguments`, and with those of `items` that `asked` selects.
    fn run(&self, arguments: &[&str], asked: &[usize], items: &[String]) -> Result<(Vec<Record>, End), String> {
        let asked = asked.iter().map(|index| items[*index].as_str());
        let strings: Result<Vec<CString>, _> = ["prober"]
            .into_iter()
            .chain(arguments.iter().copied())
            .chain(asked)
            .map(CString::new)
            .collect();
        let strings = strings.map_err(|e| e.to_string())?;
        let argv: Vec<_> = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        let body = |reporter: &child::Reporter| {
            let errno = self.exec(reporter, &argv);
            reporter.report(step::EXEC, 0, errno as u64);
        };
        // SAFETY: dup2, fcntl, prctl, execveat and write are async-signal-safe; everything was allocated above.
        let (records, end) = unsafe { child::run(TIME_LIMIT, body) }
            .map_err(|error| format!("no child process could be started: {error}"))?;
        match records.as_slice() {
            [[step::EXEC, _, errno]] => Err(format!(
                "this kernel does not start a 32-bit program: {}",
                std::io::Error::from_raw_os_error(*errno as i32)
            )),
            _ => Ok((records, end)),
        }
    }

    /// Execs the prober. Returns only if that fails, with the errno.
    fn exec(&self, reporter: &child::Reporter, argv: &[*const libc::c_char]) -> i32 {
        const OUTPUT: i32 = 1;
        const EMPTY: &CStr = c"";
        let environment = [std::ptr::null::<libc::c_char>()];
        // SAFETY: in a child of one thread; argv and the environment are null-terminated arrays of C strings.
        unsafe {
            // If `fastpath run` serves this process, it must be allowed to inject the prober too.
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            if reporter.descriptor() == OUTPUT {
                libc::fcntl(OUTPUT, libc::F_SETFD, 0);
            } else {
                libc::dup2(reporter.descriptor(), OUTPUT);
            }
            libc::syscall(
                libc::SYS_execveat,
                self.0.as_raw_fd(),
                EMPTY.as_ptr(),
                argv.as_ptr(),
                environment.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
            *libc::__errno_location()
        }
    }
}
