//! The clock paths of 32-bit programs on a 64-bit kernel: looked at by a program of that kind, which this process starts from
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

/// The prober. `None`: the kernel for which this was built starts no such programs, or its compiler made none.
static PROBER: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/prober.rs"));

/// Whether this build can look.
pub(crate) fn is_built() -> bool {
    PROBER.is_some()
}

/// What is asked about, with the name that a report gives it. The clocks are read with 64 bits of seconds.
pub(crate) fn calls() -> Vec<(Call, Width)> {
    let clocks = Clock::ALL
        .iter()
        .map(|clock| (Call::ClockGettime(*clock), Width::Bits64));
    let functions = Call::FUNCTIONS.iter().map(|call| (*call, Width::Bits32));
    let old = (Call::ClockGettime(Clock::MONOTONIC), Width::Bits32);
    clocks.chain(functions).chain([old]).collect()
}

/// Seconds in the answer: 32-bit programs have functions for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bits32,
    Bits64,
}

/// What is known about one call.
pub(crate) struct Seen {
    pub evidence: Evidence,
    /// Ticks by libc and by the bare system call.
    pub libc: Option<f64>,
    pub syscall: Option<f64>,
}

/// What the prober found.
pub(crate) struct Findings {
    /// In the order of [`calls`].
    pub calls: Vec<Seen>,
    /// The vDSO that such a program gets.
    pub vdso: Option<Vdso>,
}

/// Looks at every call. `price`: whether the counter may be read, and how many ticks a batch is to take.
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
        // What a filter of this process answers with death is not called again.
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
    // Last: a publisher that has just begun changes its anchors every millisecond, and a copy of the page would be old at once.
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

/// How often a page is looked at that answers nothing: an anchor may have been on its way.
const PAGE_LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Ticks that a call of each clock takes, by libc and by the system call, after a quick look; None for one that the kernel does not
/// have. An error: nothing could be found out.
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

/// As the prober reads it.
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

/// The least of the groups' medians, in ticks per call. A record's item has the number of calls in its upper half.
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

    /// The vDSO that it gets. It says one record with the address, then the page below and the vDSO, as they are.
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

    /// Starts it with `arguments`, and those of `items` that are asked for.
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
            let errno = self.become_it(reporter, &argv);
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

    /// Returns an errno if it fails.
    fn become_it(&self, reporter: &child::Reporter, argv: &[*const libc::c_char]) -> i32 {
        const OUTPUT: i32 = 1;
        const EMPTY: &CStr = c"";
        let environment = [std::ptr::null::<libc::c_char>()];
        // SAFETY: in a child of one thread; argv and the environment are null-terminated arrays of C strings.
        unsafe {
            // Where `fastpath run` serves this process, it must be able to meet the prober.
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
