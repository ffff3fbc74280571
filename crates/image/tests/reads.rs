//! Answers of the image's functions to a program, mapped in this process. `guests` has what is the same on every ISA.

mod common;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use common::*;
use fastpath_image::{Image, KernelFunctions};
use fastpath_page::layout::{AnchorCell, FLAG_CPU_SEGMENT};
use fastpath_page::{Anchor, Base, ClockSet, Rate, Reader, Writer};
use proptest::prelude::*;

const NSEC_PER_SEC: i64 = 1_000_000_000;
const SHIFT: u32 = 30;
/// Answers with these seconds or more came from a page: no clock of this machine shows so much.
const PAGE_SEC: u64 = 1 << 40;

/// Returns an anchor with a rate of zero at a time that no clock of this machine shows: seconds distinguish the clocks.
fn still() -> Anchor {
    Anchor {
        clocks: ClockSet::ALL,
        base_cycles: counter(),
        rate: Rate { mult: 0, shift: SHIFT },
        cap_cycles: u32::MAX,
        base: std::array::from_fn(|index| Base {
            sec: PAGE_SEC + 100 * index as u64,
            nsec_shifted: 123_456_789 << SHIFT,
        }),
    }
}

fn ahead_cycles() -> u64 {
    counter() + (1 << 45)
}

/// Stores an anchor by plain stores, so that tests can also store what a correct writer would not.
fn store(cell: &AnchorCell, anchor: &Anchor) {
    cell.clocks.store(anchor.clocks.0, Relaxed);
    cell.floors.store(anchor.clocks.0, Relaxed);
    cell.base_cycles.store(anchor.base_cycles, Relaxed);
    cell.mult.store(anchor.rate.mult, Relaxed);
    cell.shift.store(anchor.rate.shift, Relaxed);
    cell.cap_cycles.store(anchor.cap_cycles, Relaxed);
    for (cell, base) in cell.base.iter().zip(&anchor.base) {
        cell.sec.store(base.sec, Relaxed);
        cell.nsec_shifted.store(base.nsec_shifted, Relaxed);
    }
}

/// Stores both latches: the newest anchor, the one before it, and the sequence count.
fn lay(mapped: &Mapped, newest: &Anchor, previous: Option<&Anchor>, seq: u32) {
    for latch in [&mapped.page.hres, &mapped.page.raw] {
        store(&latch.copy[0], newest);
        if let Some(previous) = previous {
            store(&latch.copy[1], previous);
        }
        latch.copy[0].seq.store(seq, SeqCst);
    }
}

/// Returns the seconds after PAGE_SEC; None where the kernel answered, after checking its answer.
fn page_answer(mapped: &Mapped, id: i32) -> Option<i64> {
    let (_, before) = kernel_clock(SYS_CLOCK_GETTIME, id);
    let (code, ts) = mapped.clock_gettime(id);
    let (_, after) = kernel_clock(SYS_CLOCK_GETTIME, id);
    assert_eq!(code, 0, "clock {id}");
    if ts.sec >= PAGE_SEC as i64 {
        return Some(ts.sec - PAGE_SEC as i64);
    }
    // Between the system calls, plus or minus the difference between the kernel's two paths.
    let ns = |ts: Timespec| i128::from(ts.sec) * i128::from(NSEC_PER_SEC) + i128::from(ts.fraction);
    let slack_ns = 1000;
    assert!(
        ns(before) - slack_ns <= ns(ts) && ns(ts) <= ns(after) + slack_ns,
        "clock {id}: {ts:?}"
    );
    None
}

fn assert_kernel_answers(mapped: &Mapped) {
    for id in PAGE_CLOCKS {
        assert_eq!(page_answer(mapped, id), None, "clock {id}");
    }
}

fn both() -> [Mapped; 2] {
    [Mapped::with_kernel(), Mapped::without_kernel()]
}

#[test]
fn the_raw_clock_has_a_latch_of_its_own() {
    let mapped = Mapped::with_kernel();
    lay(&mapped, &still(), None, 2);
    mapped.page.raw.copy[0].clocks.store(0, Relaxed);
    assert_eq!(page_answer(&mapped, MONOTONIC_RAW), None);
    assert_eq!(page_answer(&mapped, MONOTONIC), Some(100));
}

/// Stores an anchor that ended a moment ago, with every clock so far ahead of the kernel's, and that does not answer
/// any more.
fn lay_floor(mapped: &Mapped, ahead_ns: i64, clocks: ClockSet) {
    let kernel_ns = |id| {
        let (_, now) = kernel_clock(SYS_CLOCK_GETTIME, id);
        now.sec * NSEC_PER_SEC + now.fraction
    };
    let base = |id| {
        let ns = kernel_ns(id) + ahead_ns;
        Base {
            sec: (ns / NSEC_PER_SEC) as u64,
            nsec_shifted: ((ns % NSEC_PER_SEC) as u64) << SHIFT,
        }
    };
    let hres = Anchor {
        clocks,
        base_cycles: counter() - 1_000,
        cap_cycles: 999,
        base: [REALTIME, MONOTONIC, BOOTTIME, TAI].map(base),
        ..still()
    };
    let raw = Anchor {
        base: [base(MONOTONIC_RAW); 4],
        ..hres
    };
    lay(mapped, &hres, None, 2);
    store(&mapped.page.raw.copy[0], &raw);
}

fn ns_of(mapped: &Mapped, id: i32) -> i64 {
    let (code, now) = mapped.clock_gettime(id);
    assert_eq!(code, 0, "clock {id}");
    now.sec * NSEC_PER_SEC + now.fraction
}

#[test]
fn the_kernels_time_is_not_shown_while_it_is_below_what_readers_were_shown() {
    const AHEAD_NS: i64 = 100_000_000;
    for mapped in both() {
        lay_floor(&mapped, AHEAD_NS, ClockSet::ALL);
        let hres = |index: usize| {
            let base = &mapped.page.hres.copy[0].base[index];
            base.sec.load(Relaxed) as i64 * NSEC_PER_SEC + (base.nsec_shifted.load(Relaxed) >> SHIFT) as i64
        };
        let raw = &mapped.page.raw.copy[0].base[0];
        let raw_ns = raw.sec.load(Relaxed) as i64 * NSEC_PER_SEC + (raw.nsec_shifted.load(Relaxed) >> SHIFT) as i64;
        for (id, floor_ns) in [
            (REALTIME, hres(0)),
            (MONOTONIC, hres(1)),
            (BOOTTIME, hres(2)),
            (TAI, hres(3)),
            (MONOTONIC_RAW, raw_ns),
        ] {
            assert_eq!(ns_of(&mapped, id), floor_ns, "clock {id}");
        }
        let mut now = Timespec::default();
        // SAFETY: gettimeofday takes a valid timeval, and a null time zone.
        let code = unsafe { mapped.function::<Gettimeofday>("__vdso_gettimeofday")(&mut now, std::ptr::null_mut()) };
        assert_eq!((code, now.sec * 1_000_000 + now.fraction), (0, hres(0) / 1_000));
        // The floor outlasts a withdrawal.
        for latch in [&mapped.page.hres, &mapped.page.raw] {
            latch.copy[0].clocks.store(0, Relaxed);
        }
        assert_eq!(ns_of(&mapped, MONOTONIC), hres(1));
        // The floor lasts until the kernel has caught up.
        std::thread::sleep(Duration::from_nanos(AHEAD_NS as u64));
        assert_kernel_answers(&mapped);
        assert!(ns_of(&mapped, MONOTONIC) > hres(1));
    }
}

#[test]
fn a_floor_is_for_the_clocks_that_were_shown_and_no_nonsense() {
    for mapped in both() {
        for ahead_ns in [
            -1,
            -NSEC_PER_SEC,
            600_000_000,
            999_999_999,
            2 * NSEC_PER_SEC,
            3_600 * NSEC_PER_SEC,
        ] {
            lay_floor(&mapped, ahead_ns, ClockSet::ALL);
            assert_kernel_answers(&mapped);
        }
        lay_floor(&mapped, 100_000_000, ClockSet::REALTIME);
        let (_, before) = kernel_clock(SYS_CLOCK_GETTIME, MONOTONIC);
        assert!(ns_of(&mapped, MONOTONIC) - (before.sec * NSEC_PER_SEC + before.fraction) < 50_000_000);
        lay_floor(&mapped, 100_000_000, ClockSet::NONE);
        assert_kernel_answers(&mapped);
    }
}

fn previous() -> Anchor {
    let mut previous = still();
    for base in &mut previous.base {
        base.sec += 7;
    }
    previous
}

proptest! {
    #[test]
    fn the_image_computes_what_the_model_in_rust_computes(
        mult in 1_u32..,
        shift in 0_u32..=33,
        sec in 0_u64..1 << 40,
        fraction in 0.0..1.0,
        age_share in 0.0..1.0,
    ) {
        let mapped = Mapped::without_kernel();
        let limit = 1_000_000_000_u64 << shift;
        let cap_cycles = (limit / u64::from(mult)).min(u64::from(u32::MAX)) as u32;
        let mut anchor = still();
        anchor.rate = Rate { mult, shift };
        anchor.cap_cycles = cap_cycles;
        anchor.base[1] = Base { sec, nsec_shifted: ((limit - 1) as f64 * fraction) as u64 };
        anchor.base_cycles = counter() - (f64::from(cap_cycles) * age_share) as u64;
        lay(&mapped, &anchor, None, 2);

        let reader = Reader::new(mapped.page);
        let model_at = |counter| reader.read(MONOTONIC as u32, || counter);
        let before = counter();
        let (code, ts) = mapped.clock_gettime(MONOTONIC);
        let after = counter();
        prop_assert_eq!(code, 0);
        // The anchor may have become stale in between: then the kernel answered.
        if let (Some(before), Some(after)) = (model_at(before), model_at(after)) {
            let ours = (ts.sec as u64, ts.fraction as u32);
            prop_assert!(before <= ours && ours <= after, "{:?} <= {:?} <= {:?}", before, ours, after);
        }
    }

    #[test]
    fn microseconds_are_whole_and_rounded_down(nsec in 0_u64..1_000_000_000) {
        let mapped = Mapped::without_kernel();
        let mut anchor = still();
        anchor.base[0].nsec_shifted = nsec << SHIFT;
        lay(&mapped, &anchor, None, 2);
        let mut tv = Timespec::default();
        // SAFETY: gettimeofday takes a valid timeval, and a null time zone.
        let code = unsafe { mapped.function::<Gettimeofday>("__vdso_gettimeofday")(&mut tv, std::ptr::null_mut()) };
        prop_assert_eq!(code, 0);
        prop_assert_eq!(tv, Timespec { sec: PAGE_SEC as i64, fraction: (nsec / 1000) as i64 });
    }
}

/// Ends the other thread when this one returns or panics.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_reader_never_stalls_or_goes_back_while_a_writer_refreshes() {
    let mapped = Mapped::without_kernel();
    let writer = Writer::new(mapped.page);
    let rate = Rate {
        mult: 1 << SHIFT,
        shift: SHIFT,
    };
    let base_cycles = counter();
    let at = |counter: u64| Anchor {
        base_cycles: counter,
        rate,
        cap_cycles: 900_000_000,
        base: [Base::from_ns_shifted(
            (u128::from(PAGE_SEC) * 1_000_000_000 + u128::from(counter - base_cycles)) << SHIFT,
            SHIFT,
        ); 4],
        ..still()
    };
    writer.publish_hres(&at(base_cycles), counter).unwrap();
    const ENOUGH: u64 = 1_000_000;
    let begun = Instant::now();
    let over = AtomicBool::new(false);
    let mut from_page = 0_u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                // The readers see a valid page whether it was too early, too late or published.
                let _ = writer.publish_hres(&at(counter() + 20_000), counter);
            }
        });
        let _end = EndOf(&over);
        let mut last = Timespec::default();
        // Takes some hundred milliseconds, where this process gets two CPUs.
        while from_page < ENOUGH && begun.elapsed() < Duration::from_secs(60) {
            for _ in 0..1000 {
                let (code, ts) = mapped.clock_gettime(REALTIME);
                assert_eq!(code, 0);
                // A cycle of this page is a nanosecond, so only the page's own answers can be compared.
                if ts.sec >= PAGE_SEC as i64 {
                    assert!(ts >= last, "{last:?} was followed by {ts:?}");
                    last = ts;
                    from_page += 1;
                }
            }
        }
    });
    assert!(from_page >= ENOUGH, "the page answered {from_page} times only");
}

/// Returns ids that no page answers: COARSE, CPU time, of threads, of processes, of files, out of range.
fn other_ids() -> Vec<i32> {
    let mut thread_clock = 0;
    // SAFETY: the thread is this one, and the pointer valid.
    let code = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut thread_clock) };
    assert_eq!(code, 0);
    let of_process_1 = !1 << 3 | 2;
    let of_file_0 = !0 << 3 | 3;
    let mut ids = vec![thread_clock, of_process_1, of_file_0, i32::MIN, i32::MAX, -1, 1 << 30];
    ids.extend((2..70).filter(|id| !PAGE_CLOCKS.contains(id)));
    ids
}

#[test]
fn every_other_clock_id_is_answered_as_the_kernel_answers_it() {
    for mapped in both() {
        lay(&mapped, &still(), None, 2);
        for id in other_ids() {
            let (before_code, before) = kernel_clock(SYS_CLOCK_GETTIME, id);
            let (code, ts) = mapped.clock_gettime(id);
            let (_, after) = kernel_clock(SYS_CLOCK_GETTIME, id);
            assert_eq!(code, before_code, "clock {id}");
            assert!(
                before <= ts && ts <= after,
                "clock {id}: {before:?} <= {ts:?} <= {after:?}"
            );
        }
    }
}

#[test]
fn every_resolution_is_the_kernels() {
    // The kernel has two answers for the AUX clocks (16 to 23, Linux 6.17) while they are off: a resolution from its
    // vDSO and an error from its system call. A program gets the same answer as without fastpath.
    let kernel = Mapped::kernels_own();
    for (mapped, expected) in [
        (
            Mapped::with_kernel(),
            &(|id| kernel.clock_getres(id)) as &dyn Fn(i32) -> _,
        ),
        (Mapped::without_kernel(), &|id| kernel_clock(SYS_CLOCK_GETRES, id)),
    ] {
        let coarse = kernel_clock(SYS_CLOCK_GETRES, libc::CLOCK_REALTIME_COARSE).1.fraction;
        for (hres_ns, coarse_ns) in [(0, 0), (1, coarse as u32)] {
            mapped.page.header.hres_res_ns.store(hres_ns, Relaxed);
            mapped.page.header.coarse_res_ns.store(coarse_ns, Relaxed);
            for id in PAGE_CLOCKS.into_iter().chain(other_ids()) {
                let expected = expected(id);
                assert_eq!(mapped.clock_getres(id), expected, "clock {id}");
                // SAFETY: clock_getres has this type, and accepts a null pointer.
                let code = unsafe { mapped.function::<ClockGettime>("__vdso_clock_getres")(id, std::ptr::null_mut()) };
                assert_eq!(code, expected.0, "clock {id}");
            }
        }
    }
}

#[test]
fn gettimeofday_falls_back_and_uses_the_anchor_before_as_clock_gettime_does() {
    for mapped in both() {
        // SAFETY: gettimeofday has this type.
        let gettimeofday: Gettimeofday = unsafe { mapped.function("__vdso_gettimeofday") };
        let read = || {
            let mut tv = Timespec::default();
            // SAFETY: a valid timeval, and no time zone.
            assert_eq!(unsafe { gettimeofday(&mut tv, std::ptr::null_mut()) }, 0);
            tv
        };
        let in_page = Timespec {
            sec: PAGE_SEC as i64 + 7,
            fraction: 123_456,
        };
        let kernel = || kernel_clock(SYS_CLOCK_GETTIME, REALTIME).1.sec;
        assert!((read().sec - kernel()).abs() <= 1);
        lay(&mapped, &still(), Some(&previous()), 5);
        assert_eq!(read(), in_page);
        let future = Anchor {
            base_cycles: ahead_cycles(),
            ..still()
        };
        lay(&mapped, &future, Some(&previous()), 4);
        assert_eq!(read(), in_page);
        lay(
            &mapped,
            &Anchor {
                base_cycles: 0,
                cap_cycles: 1,
                ..still()
            },
            Some(&previous()),
            4,
        );
        assert!((read().sec - kernel()).abs() <= 1);
        lay(
            &mapped,
            &Anchor {
                base_cycles: 0,
                cap_cycles: 1,
                ..still()
            },
            Some(&future),
            5,
        );
        assert!((read().sec - kernel()).abs() <= 1);
    }
}

#[test]
fn time_is_the_kernels_with_and_without_a_pointer() {
    for mapped in both() {
        lay(&mapped, &still(), None, 2);
        // SAFETY: time has this type.
        let time: Time = unsafe { mapped.function("__vdso_time") };
        let coarse = || kernel_clock(SYS_CLOCK_GETTIME, libc::CLOCK_REALTIME_COARSE).1.sec;
        let mut stored = 0;
        let before = coarse();
        // SAFETY: time takes a valid pointer or null.
        let (returned, alone) = unsafe { (time(&mut stored), time(std::ptr::null_mut())) };
        let after = coarse();
        assert_eq!(stored, returned);
        assert!(before <= returned && returned <= alone && alone <= after);
    }
}

#[test]
fn getcpu_tells_the_cpu_by_every_path() {
    let paths = [
        (Mapped::with_kernel(), 0),
        (Mapped::without_kernel(), 0),
        (Mapped::without_kernel(), FLAG_CPU_SEGMENT),
    ];
    // SAFETY: a CPU set is plain bits; the calls read and write this one, for this thread.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of_val(&allowed);
    // SAFETY: the kernel writes at most `size` bytes, which is the set's size.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size, &mut allowed) }, 0);
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: the index is below CPU_SETSIZE.
        if !unsafe { libc::CPU_ISSET(cpu, &allowed) } {
            continue;
        }
        // SAFETY: a CPU set is plain bits, `cpu` is within it, and the kernel reads `size` bytes, which is its size.
        unsafe {
            let mut only: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut only);
            assert_eq!(libc::sched_setaffinity(0, size, &only), 0);
        }
        for (mapped, flags) in &paths {
            mapped.page.header.flags.store(*flags, Relaxed);
            // SAFETY: getcpu has this type.
            let getcpu: Getcpu = unsafe { mapped.function("__vdso_getcpu") };
            let nothing = std::ptr::null_mut();
            let (mut here, mut node, mut kernel_cpu, mut kernel_node) = (u32::MAX, u32::MAX, 0_u32, 0_u32);
            // SAFETY: getcpu takes valid pointers or null.
            unsafe {
                libc::syscall(libc::SYS_getcpu, &raw mut kernel_cpu, &raw mut kernel_node, 0);
                assert_eq!(getcpu(&mut here, &mut node, nothing), 0);
                assert_eq!((here, node), (kernel_cpu, kernel_node));
                assert_eq!(here as usize, cpu);
                assert_eq!(getcpu(nothing.cast(), nothing.cast(), nothing), 0);
            }
        }
    }
}

extern "C" fn spy_sum(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, on_stack: u64, also: u64) -> u64 {
    [a, b, c, d, e, f, on_stack, also]
        .into_iter()
        .fold(0, |sum, argument| sum * 10 + argument)
}

#[test]
fn functions_that_are_not_clocks_are_passed_on_with_all_their_arguments() {
    let mapped = Mapped::new(KernelFunctions::from_fn(|_| Some(spy_sum as *const () as u64)));
    type Sum = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64) -> u64;
    for name in ["__vdso_getrandom", "getrandom", "__vdso_sgx_enter_enclave"] {
        // SAFETY: the slot holds a function of this type, and the image passes calls on unchanged.
        let sum: Sum = unsafe { mapped.function(name) };
        assert_eq!(sum(1, 2, 3, 4, 5, 6, 7, 8), 12_345_678, "{name}");
    }
}

#[test]
fn the_unprefixed_names_are_the_same_functions() {
    let mapped = Mapped::with_kernel();
    for name in ["clock_gettime", "gettimeofday", "time", "clock_getres", "getcpu"] {
        assert_eq!(
            mapped.address(name),
            mapped.address(&format!("__vdso_{name}")),
            "{name}"
        );
        assert!(mapped.address(name).is_some(), "{name}");
    }
}

/// Returns how many instructions of the image a child executes between its call and the kernel's function, or its
/// return, by single steps.
fn instructions(mapped: &Mapped, id: i32) -> usize {
    let code = mapped.code();
    // SAFETY: the child calls one function of the image, which allocates nothing, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the child calls async-signal-safe functions and one of the image, and ends.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            mapped.clock_gettime(id);
            libc::_exit(0);
        }
    }
    let (mut inside, mut status) = (0, 0);
    // SAFETY: the child is this process's and traced; the registers are plain numbers.
    unsafe {
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        while libc::WIFSTOPPED(status) {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut registers), 0);
            if code.contains(&registers.rip) {
                inside += 1;
            } else if inside > 0 {
                libc::kill(child, libc::SIGKILL);
            }
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
    }
    assert!(inside > 0, "clock {id}: the image was not reached");
    inside
}

#[test]
fn a_coarse_clock_is_nine_instructions_from_the_kernels_function() {
    let mapped = Mapped::with_kernel();
    lay(&mapped, &still(), None, 2);
    for id in [libc::CLOCK_REALTIME_COARSE, libc::CLOCK_MONOTONIC_COARSE] {
        assert_eq!(page_answer(&mapped, id), None);
        assert!(
            instructions(&mapped, id) <= 9,
            "clock {id}: {}",
            instructions(&mapped, id)
        );
    }
    // gcc 12 takes 36 instructions, clang 14 37.
    for id in [REALTIME, MONOTONIC] {
        assert!(
            instructions(&mapped, id) <= 37,
            "clock {id}: {}",
            instructions(&mapped, id)
        );
    }
}

#[test]
fn getcpu_is_a_jump_where_the_kernel_has_it() {
    let kernel = KernelFunctions::NONE.with("getcpu", spy_sum as *const () as u64);
    let mapped = Mapped::new(kernel);
    type Sum = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64) -> u64;
    // SAFETY: the slot holds a function of this type, and the image passes the call on unchanged.
    let sum: Sum = unsafe { mapped.function("__vdso_getcpu") };
    assert_eq!(sum(1, 2, 3, 4, 5, 6, 7, 8), 12_345_678);
}

#[test]
fn an_instance_that_goes_back_to_nothing_runs_at_any_address() {
    for image in fastpath_image::Isa::ALL.into_iter().filter_map(Image::of) {
        let at = |address| {
            let options = fastpath_image::Options::at(fastpath_image::Placement::at(address));
            fastpath_image::Instance::new(image, &options).unwrap()
        };
        assert_eq!(at(0).bytes(), at(0x7000_0000).bytes(), "{}", image.isa());
    }
}
