//! Calls the functions of each ISA's image from programs of that ISA: natively where this CPU runs them, else under
//! qemu-user. What each function answers is proven (tests/proof); here are instances, and what `fp_read_latch` finds.

mod guest;
#[path = "../../../../tests/skip.rs"]
mod skip;

use std::sync::atomic::Ordering::Relaxed;

use fastpath_image::{CpuFeatures, Image, Isa, KernelFunctions};
use fastpath_page::layout::{FLAG_CPU_SEGMENT, OFFSETS};
use fastpath_page::{Anchor, Base, ClockSet, Rate};
use guest::{Answer, Guest, Setup, buffer};

const SHIFT: u32 = 30;
/// Seconds that no clock of this machine shows, and that fit 31 bits.
const PAGE_SEC: u64 = 0x7000_0000;

const REALTIME: u64 = 0;
const MONOTONIC: u64 = 1;
const RAW: u64 = 4;
const BOOTTIME: u64 = 7;
const TAI: u64 = 11;
const PAGE_CLOCKS: [u64; 5] = [REALTIME, MONOTONIC, RAW, BOOTTIME, TAI];
/// Returns an anchor with a rate of zero, whose seconds distinguish the clocks.
fn still(guest: &mut Guest) -> Anchor {
    Anchor {
        clocks: ClockSet::ALL,
        base_cycles: guest.counter(),
        rate: Rate { mult: 0, shift: SHIFT },
        cap_cycles: u32::MAX,
        base: std::array::from_fn(|index| Base {
            sec: PAGE_SEC + 100 * index as u64,
            nsec_shifted: 123_456_789 << SHIFT,
        }),
        utc_error: Default::default(),
    }
}

fn previous(guest: &mut Guest) -> Anchor {
    let mut previous = still(guest);
    for base in &mut previous.base {
        base.sec += 7;
    }
    previous
}

fn future(guest: &mut Guest) -> Anchor {
    let anchor = still(guest);
    Anchor {
        base_cycles: anchor.base_cycles + (1 << 45),
        ..anchor
    }
}

/// Returns seconds and nanoseconds by clock_gettime.
fn read(guest: &mut Guest, id: u64) -> (i64, i64) {
    let answer = guest.call("clock_gettime", [id, buffer(0), 0]);
    assert_eq!(answer.result, 0, "clock {id}");
    (answer.long(guest.isa, 0, 0), answer.long(guest.isa, 0, 1))
}

/// Returns the seconds after PAGE_SEC by clock_gettime, and by the other functions that read the clock; None where the
/// kernel answered.
fn page_seconds(guest: &mut Guest, id: u64) -> Option<i64> {
    let of_page = |seconds: i64| (seconds >= PAGE_SEC as i64).then(|| seconds - PAGE_SEC as i64);
    let (seconds, _) = read(guest, id);
    if !guest.isa.is_64() {
        let wide = guest.call("clock_gettime64", [id, buffer(0), 0]);
        assert_eq!(wide.result, 0);
        assert_eq!(of_page(wide.long64(0, 0)), of_page(seconds), "clock {id}");
    }
    if id == REALTIME {
        let time = guest.call("gettimeofday", [buffer(0), 0, 0]);
        assert_eq!(of_page(time.long(guest.isa, 0, 0)), of_page(seconds), "gettimeofday");
    }
    of_page(seconds)
}

fn all_seconds(guest: &mut Guest) -> [Option<i64>; 5] {
    PAGE_CLOCKS.map(|id| page_seconds(guest, id))
}

fn ns((seconds, nanoseconds): (i64, i64)) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

#[test]
fn the_image_of_every_isa_is_here() {
    let missing: Vec<_> = Isa::ALL
        .into_iter()
        .filter(|&isa| Image::for_isa(isa).is_none())
        .collect();
    if !missing.is_empty() {
        skip::skip("no clang and lld on this machine");
    }
    assert_eq!(Image::host().isa(), Isa::HOST);
}

#[test]
fn every_clock_is_answered_from_the_page_wherever_it_lies() {
    Guest::each(|guest| {
        let size = guest.image.size() as i64;
        for page_offset in [-4096, -0x1_0000, -0x2_1000, size, 0x1_0000, 0x9_f000] {
            guest.install(Setup {
                page_offset,
                ..Setup::default()
            });
            assert_eq!(all_seconds(guest), [None; 5], "never seeded");
            let anchor = still(guest);
            guest.lay(&anchor, None, 2);
            assert_eq!(all_seconds(guest), [0, 100, 0, 200, 300].map(Some), "{}", guest.isa);
            assert_eq!(read(guest, MONOTONIC).1, 123_456_789);
            guest.page.header.hres_res_ns.store(17, Relaxed);
            guest.send_page();
            let resolution = guest.call("clock_getres", [MONOTONIC, buffer(0), 0]);
            assert_eq!(resolution.long(guest.isa, 0, 1), 17);
        }
    });
}

#[test]
fn the_anchor_before_answers_until_the_newest_begins_and_while_it_is_written() {
    Guest::each(|guest| {
        let (newest, previous) = (future(guest), previous(guest));
        for seq in [4, 5] {
            guest.lay(&newest, Some(&previous), seq);
            assert_eq!(all_seconds(guest), [7, 107, 7, 207, 307].map(Some), "{}", guest.isa);
        }
    });
}

/// Regression test: 32-bit images took what was on the stack for a time that a reader was shown, where a clock has none
/// and the kernel's answer is below a second, as CPU times are.
#[test]
fn cpu_times_are_the_kernels_whatever_is_on_the_stack() {
    Guest::each(|guest| {
        let anchor = still(guest);
        guest.lay(&anchor, None, 2);
        for id in [2, 3] {
            let number = guest.isa.facts().calls.clock_gettime.into();
            let by_kernel = guest.system_call(number, [id, buffer(0), 0]);
            let before = (by_kernel.long(guest.isa, 0, 0), by_kernel.long(guest.isa, 0, 1));
            let mut ours = vec![read(guest, id)];
            if !guest.isa.is_64() {
                let wide = guest.call("clock_gettime64", [id, buffer(0), 0]);
                ours.push((wide.long64(0, 0), wide.long64(0, 1)));
            }
            let by_kernel = guest.system_call(number, [id, buffer(0), 0]);
            let after = (by_kernel.long(guest.isa, 0, 0), by_kernel.long(guest.isa, 0, 1));
            for ours in ours {
                assert!(
                    ns(before) <= ns(ours) && ns(ours) <= ns(after),
                    "{} clock {id}: {before:?} {ours:?} {after:?}",
                    guest.isa
                );
            }
        }
    });
}

/// Returns an image with the spy in the place of every kernel function.
fn spied(guest: &Guest) -> Setup {
    let spy = guest.spy;
    Setup {
        kernel: KernelFunctions::from_fn(|function| (function != "vsyscall").then_some(spy)),
        ..Setup::default()
    }
}

/// Returns the plain names of the functions that fall back to the kernel's.
fn functions(isa: Isa) -> impl Iterator<Item = &'static str> {
    let slots = isa.facts().slots().iter().copied();
    slots.filter(move |function| isa.facts().exports(function))
}

#[test]
fn what_the_page_does_not_answer_goes_to_the_kernels_function() {
    Guest::each(|guest| {
        for serve_clocks in [true, false] {
            let setup = Setup {
                serve_clocks,
                ..spied(guest)
            };
            guest.install(setup);
            for function in functions(guest.isa) {
                let Answer { result, buffers } = guest.call(function, [5, buffer(1), 3]);
                assert_eq!(result, 42, "{} {function}", guest.isa);
                let id = i32::from_le_bytes(buffers[2][..4].try_into().unwrap());
                assert_eq!(id, 5, "{} {function}", guest.isa);
            }
        }
    });
}

#[test]
fn clocks_that_are_not_served_have_no_detour() {
    Guest::each(|guest| {
        let setup = Setup {
            serve_clocks: false,
            ..spied(guest)
        };
        guest.install(setup);
        let anchor = still(guest);
        guest.page.header.hres_res_ns.store(1, Relaxed);
        guest.lay(&anchor, None, 2);
        for function in ["clock_gettime", "clock_getres", "gettimeofday"] {
            assert_eq!(
                guest.call(function, [0, buffer(0), 0]).result,
                42,
                "{} {function}",
                guest.isa
            );
        }
        guest.install(Setup {
            serve_clocks: false,
            ..Setup::default()
        });
        let left: Vec<_> = functions(guest.isa)
            .filter(|function| guest.address(&guest.name(function)).is_some())
            .collect();
        let expected: &[&str] = if guest.isa == Isa::Arm { &[] } else { &["getcpu"] };
        assert_eq!(left, expected, "{}", guest.isa);
    });
}

#[test]
fn functions_that_are_only_passed_on_are_there_if_the_kernel_has_them() {
    Guest::each(|guest| {
        for function in guest.isa.facts().forwarded {
            assert_eq!(guest.address(&guest.name(function)), None, "{} {function}", guest.isa);
        }
    });
}

#[test]
fn a_vsyscall_leads_to_the_kernels_or_makes_the_call() {
    Guest::run(Isa::I386, |guest| {
        let getpid = |guest: &mut Guest| guest.vsyscall([20, 1, 2]).result;
        assert_eq!(getpid(guest), i64::from(guest.pid()));
        let Some((vdso, base)) = guest.kernel_vdso() else {
            return;
        };
        let kernel = KernelFunctions::from_vdso(&vdso, base);
        guest.install(Setup {
            kernel,
            ..Setup::default()
        });
        assert_eq!(getpid(guest), i64::from(guest.pid()));
        let from = guest.address("__kernel_vsyscall").unwrap();
        let to = base + vdso.find("__kernel_vsyscall").unwrap();
        let distance = (to as u32).wrapping_sub(from as u32 + 5);
        let instance = fastpath_image::Instance::new(
            guest.image,
            &fastpath_image::InstanceConfig {
                kernel,
                ..fastpath_image::InstanceConfig::at(fastpath_image::Placement::at(guest.image_address()))
            },
        )
        .unwrap();
        let at = (from - guest.image_address()) as usize;
        assert_eq!(instance.bytes()[at], 0xe9);
        assert_eq!(instance.bytes()[at + 1..at + 5], distance.to_le_bytes());
    });
}

#[test]
fn getcpu_comes_from_the_cpu_or_the_kernel() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.facts().exports("getcpu")) {
        Guest::run(isa, |guest| {
            // SAFETY: a CPU set is plain bits; the thread is the guest's.
            unsafe {
                let mut only: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(libc::sched_getcpu() as usize, &mut only);
                assert_eq!(libc::sched_setaffinity(guest.pid(), size_of_val(&only), &only), 0);
            }
            let kernel = guest.system_call(isa.facts().calls.getcpu.into(), [buffer(0), buffer(1), 0]);
            for flags in [0, FLAG_CPU_SEGMENT] {
                guest.page.header.flags.store(flags, Relaxed);
                guest.send_page();
                let ours = guest.call("getcpu", [buffer(0), buffer(1), 0]);
                assert_eq!(
                    (ours.result, ours.word(0, 0), ours.word(1, 0)),
                    (0, kernel.word(0, 0), kernel.word(1, 0))
                );
            }
        });
    }
}

#[test]
fn the_offset_of_the_cpu_is_subtracted_where_the_page_has_offsets() {
    const AHEAD: i64 = 5 << 36;
    if !CpuFeatures::of_this_cpu().rdtscp {
        return skip::skip("this CPU has no RDTSCP");
    }
    for isa in [Isa::X86_64, Isa::I386] {
        Guest::run(isa, |guest| {
            for ahead in [AHEAD, -AHEAD - 1] {
                guest.install(Setup::default());
                let anchor = still(guest);
                let anchor = Anchor {
                    base_cycles: anchor.base_cycles.wrapping_sub(ahead as u64),
                    ..anchor
                };
                // Without the flag, the table is not read.
                guest.lay(&anchor, None, 2);
                assert_eq!(page_seconds(guest, MONOTONIC), None, "{isa}");

                let table: Vec<_> = (0..OFFSETS).map(|cpu| (cpu, ahead)).collect();
                fastpath_page::Writer::new(&guest.page).set_offsets(Some(&table));
                for latch in [&guest.page.hres, &guest.page.raw] {
                    latch.copy[0].by_cpu.store(anchor.clocks.0, Relaxed);
                    latch.copy[0].clocks.store(0, Relaxed);
                }
                guest.send_page();
                let expected = [Some(0), Some(100), Some(0), Some(200), Some(300)];
                assert_eq!(all_seconds(guest), expected, "{isa} {ahead}");

                // On a CPU without an offset the kernel answers, and no anchor's end is a floor.
                fastpath_page::Writer::new(&guest.page).set_offsets(Some(&[]));
                guest.send_page();
                assert_eq!(all_seconds(guest), [None; 5], "{isa} {ahead}");
            }
        });
    }
}

#[test]
fn system_calls_are_told_by_where_they_return() {
    for isa in Isa::ALL {
        let Some(image) = Image::for_isa(isa) else { continue };
        let instruction = isa.facts().system_call;
        assert!(image.system_calls().len() >= 3, "{isa}");
        for &at in image.system_calls() {
            assert!(image.bytes()[..at as usize].ends_with(instruction), "{isa}: {at:#x}");
        }
    }
}

#[test]
fn signal_return_is_known_by_its_bytes() {
    let code = |isa, name: &str| {
        let image = Image::for_isa(isa)?;
        let at = image.symbol(name).unwrap_or_else(|| panic!("{isa} has no {name}")) as usize;
        Some(&image.bytes()[at..at + 8])
    };
    if let Some(code) = code(Isa::I386, "__kernel_sigreturn") {
        assert_eq!(code, [0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80]);
    }
    if let Some(code) = code(Isa::I386, "__kernel_rt_sigreturn") {
        assert_eq!(code[..7], [0xb8, 173, 0, 0, 0, 0xcd, 0x80]);
    }
    if let Some(code) = code(Isa::Aarch64, "__kernel_rt_sigreturn") {
        assert_eq!(code, [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]);
    }
    for isa in Isa::ALL {
        let Some(image) = Image::for_isa(isa) else { continue };
        assert_eq!(
            image.rt_sigreturn().is_some(),
            matches!(isa, Isa::I386 | Isa::Aarch64),
            "{isa}"
        );
        assert_eq!(image.sigreturn().is_some(), isa == Isa::I386, "{isa}");
    }
}
