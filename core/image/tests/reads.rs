//! Answers of the image's functions to a program, mapped in this process. `guests` has what is the same on every ISA.

mod common;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use common::*;
use fastpath_image::{Image, KernelFunctions};
use fastpath_page::layout::AnchorCell;
use fastpath_page::{Anchor, Base, ClockSet, Rate};

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
        utc_error: Default::default(),
    }
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

/// Stores an anchor as the newest of both latches.
fn lay(mapped: &Mapped, anchor: &Anchor) {
    for latch in [&mapped.page.hres, &mapped.page.raw] {
        store(&latch.copy[0], anchor);
        latch.copy[0].seq.store(2, SeqCst);
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
    lay(mapped, &hres);
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
fn a_floor_is_for_the_clocks_that_were_shown() {
    for mapped in both() {
        lay_floor(&mapped, 100_000_000, ClockSet::REALTIME);
        let (_, before) = kernel_clock(SYS_CLOCK_GETTIME, MONOTONIC);
        assert!(ns_of(&mapped, MONOTONIC) - (before.sec * NSEC_PER_SEC + before.fraction) < 50_000_000);
        lay_floor(&mapped, 100_000_000, ClockSet::NONE);
        assert_kernel_answers(&mapped);
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
    for name in [
        "__vdso_getrandom",
        "getrandom",
        "__vdso_sgx_enter_enclave",
        "__vdso_getcpu",
    ] {
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
fn a_coarse_clock_is_18_instructions_from_the_kernels_function() {
    let mapped = Mapped::with_kernel();
    lay(&mapped, &still());
    for id in [libc::CLOCK_REALTIME_COARSE, libc::CLOCK_MONOTONIC_COARSE] {
        assert_eq!(page_answer(&mapped, id), None);
        // gcc 12 takes 16, and gcc 14 two more. The last is a jump through a slot, and one a no-op: the code in the
        // kernel's vDSO does without them.
        assert!(
            instructions(&mapped, id) <= 18,
            "clock {id}: {}",
            instructions(&mapped, id)
        );
    }
    // gcc 12 takes 40 instructions: the no-op is none where the instance is pinned.
    for id in [REALTIME, MONOTONIC] {
        assert!(
            instructions(&mapped, id) <= 41,
            "clock {id}: {}",
            instructions(&mapped, id)
        );
    }
}

#[test]
fn an_instance_that_goes_back_to_nothing_runs_at_any_address() {
    for image in fastpath_image::Isa::ALL.into_iter().filter_map(Image::for_isa) {
        let at = |address| {
            let options = fastpath_image::InstanceConfig::at(fastpath_image::Placement::at(address));
            fastpath_image::Instance::new(image, &options).unwrap()
        };
        assert_eq!(at(0).bytes(), at(0x7000_0000).bytes(), "{}", image.isa());
    }
}
