//! The functions with which a program reads the time: libc's, a vDSO's, or the bare system calls.

use fastpath_isa::Isa;
use fastpath_page::clocks::Clock;
use libc::{c_int, c_long, c_uint, c_void, clockid_t, time_t, timespec, timeval};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::hint::black_box;
use std::ptr::null_mut;
#[cfg(not(target_env = "musl"))]
use std::sync::OnceLock;

/// Signature of `clock_gettime` and `clock_getres`.
pub type ClockFn = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
/// `gettimeofday`.
pub type GettimeofdayFn = unsafe extern "C" fn(*mut timeval, *mut c_void) -> c_int;
/// `time`.
pub type TimeFn = unsafe extern "C" fn(*mut time_t) -> time_t;
/// `getcpu`.
pub type GetcpuFn = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_void) -> c_int;

/// The functions of one source: libc, a vDSO, or the bare system calls. All are called through a pointer, so that two
/// sources differ in the function alone.
#[derive(Clone, Copy)]
pub struct Functions {
    clock_gettime: ClockFn,
    clock_getres: Option<ClockFn>,
    gettimeofday: Option<GettimeofdayFn>,
    time: Option<TimeFn>,
    getcpu: Option<GetcpuFn>,
}

impl Functions {
    /// Returns the functions at the addresses that `find` returns for the names `clock_gettime`, `clock_getres`,
    /// `gettimeofday`, `time` and `getcpu`; `None` without a `clock_gettime`.
    ///
    /// # Safety
    /// Each address must be that of a C function with the signature that the kernel's vDSO gives that name, and must
    /// remain so for as long as the process runs.
    pub unsafe fn at(find: impl Fn(&str) -> Option<usize>) -> Option<Functions> {
        let find = |name| find(name).filter(|address| *address != 0);
        // SAFETY: the caller promises addresses of functions of these types; `find` returns `None` for a missing one.
        unsafe {
            Some(Functions {
                clock_gettime: std::mem::transmute::<usize, ClockFn>(find("clock_gettime")?),
                clock_getres: find("clock_getres").map(|at| std::mem::transmute::<usize, ClockFn>(at)),
                gettimeofday: find("gettimeofday").map(|at| std::mem::transmute::<usize, GettimeofdayFn>(at)),
                time: find("time").map(|at| std::mem::transmute::<usize, TimeFn>(at)),
                getcpu: find("getcpu").map(|at| std::mem::transmute::<usize, GetcpuFn>(at)),
            })
        }
    }

    /// Returns libc's functions, which programs call by default.
    pub fn libc() -> Functions {
        Functions {
            clock_gettime: libc::clock_gettime,
            clock_getres: Some(libc::clock_getres),
            gettimeofday: Some(libc_gettimeofday),
            time: Some(libc::time),
            getcpu: libc_getcpu(),
        }
    }

    /// Returns the bare system calls. Some ISAs have no `time`.
    pub fn syscalls() -> Functions {
        Functions {
            clock_gettime: syscall::clock_gettime,
            clock_getres: Some(syscall::clock_getres),
            gettimeofday: Some(syscall::gettimeofday),
            time: syscall::TIME.map(|_| syscall::time as TimeFn),
            getcpu: Some(syscall::getcpu),
        }
    }

    /// Returns whether this source has the function.
    pub fn has(&self, call: VdsoCall) -> bool {
        match call {
            VdsoCall::ClockGettime(_) => true,
            VdsoCall::ClockGetres(_) => self.clock_getres.is_some(),
            VdsoCall::Gettimeofday => self.gettimeofday.is_some(),
            VdsoCall::Time => self.time.is_some(),
            VdsoCall::Getcpu => self.getcpu.is_some(),
        }
    }

    /// Makes one call. The result follows libc's convention for a libc function and a system call, and the vDSO's
    /// (minus errno) for a vDSO's. Does nothing if the source does not have the function.
    pub fn call(&self, call: VdsoCall) -> c_long {
        match call {
            VdsoCall::ClockGettime(clock) => c_long::from(gettime(self.clock_gettime, clock).0),
            VdsoCall::ClockGetres(clock) => self.clock_getres.map_or(0, |f| c_long::from(gettime(f, clock).0)),
            VdsoCall::Gettimeofday => self.gettimeofday.map_or(0, |f| c_long::from(gettimeofday(f))),
            VdsoCall::Time => self.time.map_or(0, |f| time(f) as c_long),
            VdsoCall::Getcpu => self.getcpu.map_or(0, |f| c_long::from(getcpu(f))),
        }
    }

    /// Makes `calls` calls, back to back.
    #[inline(never)]
    pub fn repeat(&self, call: VdsoCall, calls: u32) {
        // The pointer is hidden from the optimiser, so that every source is called in the same, indirect way.
        match call {
            VdsoCall::ClockGettime(clock) => {
                let f = black_box(self.clock_gettime);
                for _ in 0..calls {
                    gettime(f, clock);
                }
            }
            VdsoCall::ClockGetres(clock) => {
                let Some(f) = black_box(self.clock_getres) else { return };
                for _ in 0..calls {
                    gettime(f, clock);
                }
            }
            VdsoCall::Gettimeofday => {
                let Some(f) = black_box(self.gettimeofday) else { return };
                for _ in 0..calls {
                    gettimeofday(f);
                }
            }
            VdsoCall::Time => {
                let Some(f) = black_box(self.time) else { return };
                for _ in 0..calls {
                    time(f);
                }
            }
            VdsoCall::Getcpu => {
                let Some(f) = black_box(self.getcpu) else { return };
                for _ in 0..calls {
                    getcpu(f);
                }
            }
        }
    }

    /// Returns the clock in nanoseconds since its epoch; `None` if the read was not answered.
    #[inline(always)]
    pub fn now_ns(&self, clock: Clock) -> Option<i64> {
        let (answer, now) = gettime(self.clock_gettime, clock);
        (answer == 0).then(|| now.tv_sec * 1_000_000_000 + now.tv_nsec)
    }
}

/// A call that a vDSO can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdsoCall {
    /// `clock_gettime` of one clock.
    ClockGettime(Clock),
    /// `clock_getres` of one clock.
    ClockGetres(Clock),
    /// `gettimeofday` without a time zone.
    Gettimeofday,
    /// `time`.
    Time,
    /// `getcpu`.
    Getcpu,
}

impl VdsoCall {
    /// The functions other than `clock_gettime`. The resolution is the same for all clocks of a kind, so one of them is
    /// enough.
    pub const FUNCTIONS: &'static [VdsoCall] = &[
        VdsoCall::Gettimeofday,
        VdsoCall::Time,
        VdsoCall::Getcpu,
        VdsoCall::ClockGetres(Clock::MONOTONIC),
    ];

    /// Returns the function's name.
    pub fn function(self) -> &'static str {
        match self {
            VdsoCall::ClockGettime(_) => "clock_gettime",
            VdsoCall::ClockGetres(_) => "clock_getres",
            VdsoCall::Gettimeofday => "gettimeofday",
            VdsoCall::Time => "time",
            VdsoCall::Getcpu => "getcpu",
        }
    }

    /// Returns the clock that the function takes, if it takes one.
    pub fn clock(self) -> Option<Clock> {
        match self {
            VdsoCall::ClockGettime(clock) | VdsoCall::ClockGetres(clock) => Some(clock),
            _ => None,
        }
    }
}

impl std::fmt::Display for VdsoCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.clock() {
            Some(clock) => f.pad(&format!("{} {}", self.function(), clock)),
            None => f.pad(self.function()),
        }
    }
}

impl Serialize for VdsoCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VdsoCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VdsoCall, D::Error> {
        let printed = String::deserialize(deserializer)?;
        let of_clock = |clock: &Clock| [VdsoCall::ClockGettime(*clock), VdsoCall::ClockGetres(*clock)];
        let mut all = Clock::ALL
            .iter()
            .flat_map(of_clock)
            .chain(VdsoCall::FUNCTIONS.iter().copied());
        let found = all.find(|call| call.to_string() == printed);
        found.ok_or_else(|| D::Error::custom(format_args!("unknown function '{printed}'")))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for VdsoCall {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Call".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "a function and its clock: `clock_gettime MONOTONIC`" })
    }
}

// The answers are passed to `black_box` by reference: moving one whole, right after the callee stored it in two halves,
// would wait for those stores to leave the store buffer, some 10 ns that no caller spends.

#[inline(always)]
fn gettime(f: ClockFn, clock: Clock) -> (c_int, timespec) {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `f` is clock_gettime or clock_getres by the promise of the caller of `Functions::at`; it writes one
    // timespec.
    let answer = unsafe { f(clock.id(), &mut now) };
    black_box(&mut now);
    (answer, now)
}

#[inline(always)]
fn gettimeofday(f: GettimeofdayFn) -> c_int {
    let mut now = timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `f` is gettimeofday by the promise of the caller of `Functions::at`; it writes one timeval, and no time
    // zone.
    let answer = unsafe { f(&mut now, null_mut()) };
    black_box(&mut now);
    answer
}

#[inline(always)]
fn time(f: TimeFn) -> time_t {
    // SAFETY: `f` is time by the promise of the caller of `Functions::at`; with a null pointer it writes nothing.
    black_box(unsafe { f(null_mut()) })
}

#[inline(always)]
fn getcpu(f: GetcpuFn) -> c_int {
    let mut cpu: c_uint = 0;
    // SAFETY: `f` is getcpu by the promise of the caller of `Functions::at`; it writes the CPU's number, and no node.
    let answer = unsafe { f(&mut cpu, null_mut(), null_mut()) };
    black_box(&mut cpu);
    answer
}

unsafe extern "C" {
    /// Declared here because the libc crate gives the time zone another type with each C library.
    #[link_name = "gettimeofday"]
    fn libc_gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int;
}

/// Returns libc's getcpu. The symbol is looked up, because not every libc has it, and only once, because the lookup
/// would count as part of a timed call.
#[cfg(not(target_env = "musl"))]
fn libc_getcpu() -> Option<GetcpuFn> {
    static FOUND: OnceLock<Option<GetcpuFn>> = OnceLock::new();
    *FOUND.get_or_init(look_up_getcpu)
}

#[cfg(not(target_env = "musl"))]
fn look_up_getcpu() -> Option<GetcpuFn> {
    // SAFETY: dlsym only reads the name.
    let getcpu = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getcpu".as_ptr()) };
    // No substitute: glibc's sched_getcpu asks neither a vDSO nor the kernel, but reads what rseq(2) keeps in the
    // thread.
    // SAFETY: getcpu(2) in libc takes the first two of these arguments; the third, which it ignores, is in a register
    // by every Linux ABI.
    (!getcpu.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, GetcpuFn>(getcpu) })
}

/// Returns a substitute: musl has sched_getcpu only, which calls the vDSO.
#[cfg(target_env = "musl")]
fn libc_getcpu() -> Option<GetcpuFn> {
    unsafe extern "C" fn getcpu(cpu: *mut c_uint, _node: *mut c_uint, _unused: *mut c_void) -> c_int {
        // SAFETY: sched_getcpu takes nothing; the caller passes a `cpu` that may be written.
        unsafe {
            let answer = libc::sched_getcpu();
            if answer < 0 {
                return -1;
            }
            *cpu = answer as c_uint;
        }
        0
    }
    Some(getcpu)
}

/// The system calls as C functions.
pub(crate) mod syscall {
    use super::*;

    /// Number of `time`, where it exists.
    pub(crate) const TIME: Option<u32> = Isa::HOST.facts().calls.time;

    pub(crate) unsafe extern "C" fn clock_gettime(id: clockid_t, now: *mut timespec) -> c_int {
        // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
        unsafe { libc::syscall(libc::SYS_clock_gettime, id, now) as c_int }
    }

    pub(crate) unsafe extern "C" fn clock_getres(id: clockid_t, resolution: *mut timespec) -> c_int {
        // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
        unsafe { libc::syscall(libc::SYS_clock_getres, id, resolution) as c_int }
    }

    pub(crate) unsafe extern "C" fn gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int {
        // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
        unsafe { libc::syscall(libc::SYS_gettimeofday, now, zone) as c_int }
    }

    pub(crate) unsafe extern "C" fn time(now: *mut time_t) -> time_t {
        // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
        TIME.map_or(-1, |number| unsafe { libc::syscall(number.into(), now) as time_t })
    }

    pub(crate) unsafe extern "C" fn getcpu(cpu: *mut c_uint, node: *mut c_uint, unused: *mut c_void) -> c_int {
        // SAFETY: the caller's pointers are passed on to the kernel, which checks them.
        unsafe { libc::syscall(libc::SYS_getcpu, cpu, node, unused) as c_int }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_and_the_system_calls_show_the_same_time() {
        let (libc, raw) = (Functions::libc(), Functions::syscalls());
        for clock in Clock::SERVED {
            let (before, here, after) = (raw.now_ns(*clock), libc.now_ns(*clock), raw.now_ns(*clock));
            assert!(
                before <= here && here <= after,
                "{clock}: {before:?} {here:?} {after:?}"
            );
        }
        for call in VdsoCall::FUNCTIONS {
            assert!(libc.has(*call));
            assert!(libc.call(*call) >= 0 && raw.call(*call) >= 0, "{call}");
        }
    }

    #[test]
    fn a_place_without_clock_gettime_is_none() {
        // SAFETY: the address is that of a function with the kernel's signature.
        let none = unsafe { Functions::at(|name| (name == "time").then_some(libc::time as *const () as usize)) };
        assert!(none.is_none());
    }
}
