//! CPUs whose counters differ, made of CPUs whose counters agree: reads of the counter trap (PR_SET_TSC), and the handler
//! adds an offset for each CPU. Measurement, publisher, page and image are the real ones.
//!
//! The whole file is one process whose counter traps from the test's beginning, so it has one test.

#![cfg(target_arch = "x86_64")]

#[path = "../../../tests/skip.rs"]
mod skip;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

use fastpath_image::{Image, Instance, InstanceConfig, KernelFunctions, Placement, Vdso, own_vdso};
use fastpath_page::{ClockSet, PAGE_SIZE};
use fastpath_publish::evidence::{Offsets, Trust, Unsolvable, offsets};
use fastpath_publish::host::init;
use fastpath_publish::{Member, Publisher, SharedPage};
use std::os::fd::AsRawFd;

const CPUS: usize = 64;
/// What the handler adds to the counter of each CPU.
static AHEAD: [AtomicI64; CPUS] = [const { AtomicI64::new(0) }; CPUS];
/// Counts per billion by which the counter of CPU 1 is faster, from the count in `DRIFTS_FROM` on.
static DRIFT_PPB: AtomicI64 = AtomicI64::new(0);
static DRIFTS_FROM: AtomicU64 = AtomicU64::new(0);
/// Start and end of the kernel's vDSO, whose reads are of the true counter, and of the image.
static KERNELS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static IMAGE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static READS_OF_IMAGE: AtomicU64 = AtomicU64::new(0);

fn is_in(range: &[AtomicU64; 2], address: u64) -> bool {
    (range[0].load(Relaxed)..range[1].load(Relaxed)).contains(&address)
}

/// Reads the counter of this CPU, and IA32_TSC_AUX.
fn true_counter() -> (u64, u32) {
    let mut aux = 0;
    // SAFETY: the calls change this thread's permission only; in between it may read the counter.
    unsafe {
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE);
        let counter = std::arch::x86_64::__rdtscp(&mut aux);
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
        (counter, aux)
    }
}

/// Executes RDTSC or RDTSCP of the program, which trapped.
extern "C" fn trapped(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const RDTSC: [u8; 2] = [0x0f, 0x31];
    const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];
    // SAFETY: the kernel passes a ucontext_t, and rip points to the instruction that trapped.
    let (registers, code) = unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let code = *(registers[libc::REG_RIP as usize] as *const [u8; 3]);
        (registers, code)
    };
    let at = registers[libc::REG_RIP as usize] as u64;
    let size = match code {
        [first, second, _] if [first, second] == RDTSC => RDTSC.len(),
        RDTSCP => RDTSCP.len(),
        // SAFETY: ends the process at once.
        _ => unsafe { libc::abort() },
    };
    let (mut counter, aux) = true_counter();
    let cpu = (aux & 0xfff) as usize;
    if !is_in(&KERNELS, at) {
        let drifted = (counter.wrapping_sub(DRIFTS_FROM.load(Relaxed)) as i128) * i128::from(DRIFT_PPB.load(Relaxed))
            / 1_000_000_000;
        let drifted = if cpu == 1 { drifted as i64 } else { 0 };
        counter = counter.wrapping_add_signed(AHEAD[cpu % CPUS].load(Relaxed) + drifted);
    }
    if is_in(&IMAGE, at) {
        READS_OF_IMAGE.fetch_add(1, Relaxed);
    }
    registers[libc::REG_RAX as usize] = (counter & 0xffff_ffff) as i64;
    registers[libc::REG_RDX as usize] = (counter >> 32) as i64;
    if size == RDTSCP.len() {
        registers[libc::REG_RCX as usize] = i64::from(aux);
    }
    registers[libc::REG_RIP as usize] += size as i64;
}

/// From now on, reads of the counter by this thread, and by those that it starts, are executed by [`trapped`].
fn trap_counter() {
    let kernels = own_vdso().expect("the kernel's vDSO can be read");
    if let Some(kernels) = kernels {
        KERNELS[0].store(kernels.base, Relaxed);
        KERNELS[1].store(kernels.base + kernels.bytes.len() as u64, Relaxed);
    }
    // SAFETY: a handler with the arguments that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV), 0);
    }
}

type ClockGettime = extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;

/// Maps the page, and the image behind it. Returns the image's clock_gettime, which makes a system call where the page does
/// not answer.
fn map(page: &SharedPage) -> ClockGettime {
    let image_size = 2 * PAGE_SIZE;
    let map = |at: *mut libc::c_void, size, protection, flags, fd| {
        // SAFETY: a new mapping, or one in place of memory that this function has just reserved.
        let mapping = unsafe { libc::mmap(at, size, protection, flags, fd, 0) };
        assert_ne!(mapping, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        mapping
    };
    let reader = page.reader().expect("a descriptor");
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let base = map(std::ptr::null_mut(), PAGE_SIZE + image_size, writable, private, -1);
    map(
        base,
        PAGE_SIZE,
        libc::PROT_READ,
        libc::MAP_SHARED | libc::MAP_FIXED,
        reader.as_raw_fd(),
    );
    let address = base as u64 + PAGE_SIZE as u64;
    let options = InstanceConfig {
        kernel: KernelFunctions::NONE,
        ..InstanceConfig::at(Placement::at(address))
    };
    let instance = Instance::new(Image::host(), &options).expect("an instance");
    let image = NonNull::new(address as *mut u8).expect("mapped");
    // SAFETY: the image fits the memory, which no other code knows yet.
    unsafe {
        image
            .as_ptr()
            .copy_from_nonoverlapping(instance.bytes().as_ptr(), instance.bytes().len());
        assert_eq!(
            libc::mprotect(image.as_ptr().cast(), image_size, libc::PROT_READ | libc::PROT_EXEC),
            0
        );
    }
    IMAGE[0].store(address, Relaxed);
    IMAGE[1].store(address + image_size as u64, Relaxed);
    let vdso = Vdso::parse(instance.bytes()).expect("a vDSO");
    let function = vdso.find("__vdso_clock_gettime").expect("clock_gettime");
    // SAFETY: the function has this signature.
    unsafe { std::mem::transmute::<usize, ClockGettime>((address + function) as usize) }
}

fn ns(read: impl FnOnce(libc::clockid_t, *mut libc::timespec) -> i32) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(read(libc::CLOCK_MONOTONIC, &mut time), 0);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn kernels_ns() -> i64 {
    // SAFETY: the kernel stores a timespec.
    ns(|clock, time| unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as i32 })
}

fn cpus() -> Vec<usize> {
    fastpath_publish::evidence::cpus::allowed()
}

/// What readers have seen.
#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    backward: u64,
    /// Reads that were not between the kernel's times before and after, plus or minus this much.
    wrong: u64,
}

/// More than a publisher on a busy machine is off, and far less than any offset.
const BOUND_NS: i64 = 2_000_000;

/// Reads in two threads that move from CPU to CPU all the time, until `until`. Each read must be no earlier than the latest
/// that any thread had seen when it began.
fn read_everywhere(clock_gettime: ClockGettime, until: impl Fn(u64) -> bool + Sync) -> Seen {
    let latest = AtomicI64::new(0);
    let reads = AtomicU64::new(0);
    let cpus = cpus();
    let read = |thread: usize| {
        let mut seen = Seen::default();
        let mut turn = thread;
        while !until(reads.load(Relaxed)) {
            turn += 1;
            let _ = fastpath_publish::evidence::cpus::run_on(cpus[turn % cpus.len()]);
            let before = kernels_ns();
            let (mut first, mut last) = (i64::MAX, 0);
            for _ in 0..20 {
                let shown = latest.load(SeqCst);
                let now = ns(|clock, time| clock_gettime(clock, time));
                seen.backward += u64::from(now < shown);
                latest.fetch_max(now, SeqCst);
                (first, last) = (first.min(now), last.max(now));
            }
            let after = kernels_ns();
            seen.wrong += u64::from(first < before - BOUND_NS || last > after + BOUND_NS);
            seen.reads += 20;
            reads.fetch_add(20, Relaxed);
        }
        seen
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || read(thread))).collect();
        threads.into_iter().fold(Seen::default(), |sum, thread| {
            let seen = thread.join().expect("a reader");
            Seen {
                reads: sum.reads + seen.reads,
                backward: sum.backward + seen.backward,
                wrong: sum.wrong + seen.wrong,
            }
        })
    })
}

/// Sets a flag at the end of a scope. A failed assertion ends one, too, which else waits for the publisher.
struct SetsAtEnd<'a>(&'a AtomicBool);

impl Drop for SetsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Timeout, longer than a busy machine needs.
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn counters_that_differ_are_made_to_agree_and_those_that_drift_are_left() {
    if cpus().len() < 2 {
        return skip::skip("one CPU only");
    }
    // Offsets from eight seconds down to a microsecond, before and behind.
    for (cpu, ahead) in AHEAD.iter().enumerate().skip(1) {
        let sign = if cpu % 2 == 1 { 1 } else { -1 };
        ahead.store(sign * 2_000 * 10_i64.pow(7 - ((cpu - 1) % 8) as u32), Relaxed);
    }
    trap_counter();
    // 400 ppm: a start is refused, and says so.
    DRIFTS_FROM.store(true_counter().0, Relaxed);
    DRIFT_PPB.store(400_000, Relaxed);
    let refused = (0..50).find_map(|_| match Offsets::measure_steady() {
        Err(Unsolvable::Drifts(drift)) => Some(drift),
        _ => None, // on a busy machine
    });
    let drift = refused.expect("a refusal with the figure");
    let says = Unsolvable::Drifts(drift).to_string();
    assert!(
        says.starts_with("CPU 1's counter runs ") && says.contains(" ppm faster than CPU 0's"),
        "{says}"
    );
    assert_eq!((drift.cpu, drift.against), (1, 0));
    assert!((drift.ppm - 400.0).abs() <= drift.error_ppm, "{drift:?}");
    DRIFT_PPB.store(0, Relaxed);
    Offsets::forget();
    let (measured, _) = (0..50).find_map(|_| Offsets::measure(&[]).ok()).expect("offsets");
    assert!(measured.spread_cycles() > 1_000_000_000, "{measured:?}");
    offsets::put_in_force(measured);

    let page = SharedPage::create().expect("a page");
    page.writer().init(&init::of_this_host());
    let clock_gettime = map(&page);
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, Trust::AllowNonInvariant).expect("a publisher");
    publisher.compare_cpus().expect("a thread");
    let member = Member {
        page,
        clocks: ClockSet::HRES,
        offsets: Default::default(),
    };
    let member = Arc::new(member);
    handle.add(1, member.clone());
    let over = AtomicBool::new(false);
    let withdrawn = || member.page.page().stats.withdrawn_reason.load(Relaxed);
    let refreshes = || member.page.page().stats.refreshes.load(Relaxed);
    std::thread::scope(|scope| {
        let _end = SetsAtEnd(&over);
        scope.spawn(|| publisher.run(|| !over.load(Relaxed)));
        let begun = Instant::now();
        while refreshes() == 0 {
            assert!(begun.elapsed() < TIMEOUT, "nothing is published");
            std::thread::sleep(Duration::from_millis(1));
        }

        let seen = read_everywhere(clock_gettime, |reads| reads >= 300_000 || begun.elapsed() > TIMEOUT);
        println!(
            "constant offsets: {seen:?}, {} by the page",
            READS_OF_IMAGE.load(Relaxed)
        );
        assert_eq!((seen.backward, seen.wrong), (0, 0), "{seen:?}");
        assert!(
            READS_OF_IMAGE.load(Relaxed) > 10_000, // on a busy machine the kernel answers many
            "the page answers: {seen:?}"
        );

        // CPU 1 is faster by 4 ppm. Reads that trap make a margin of ten microseconds, which lasts for two seconds: comparisons
        // come later on a busy machine.
        DRIFTS_FROM.store(true_counter().0, Relaxed);
        DRIFT_PPB.store(4_000, Relaxed);
        let begun = Instant::now();
        let withdrawn_since = std::sync::Mutex::new(None);
        let seen = read_everywhere(clock_gettime, |_| {
            let Ok(mut since) = withdrawn_since.lock() else {
                return true;
            };
            if withdrawn() == 0 {
                *since = None;
            } else {
                since.get_or_insert_with(Instant::now);
            }
            // Longer than a measurement takes.
            since.is_some_and(|since| since.elapsed() > Duration::from_secs(8)) || begun.elapsed() > TIMEOUT
        });
        println!("a drift: {seen:?}, {:?}", begun.elapsed());
        assert_eq!((seen.backward, seen.wrong), (0, 0), "{seen:?}");
        assert_ne!(withdrawn(), 0, "counters that drift are left to the kernel");
    });
}
