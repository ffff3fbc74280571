//! The answers of the image for hosts, by its entry point in this process.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod guest;
mod region;

#[allow(dead_code)]
mod clock_lock;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use fastpath_page::answers::Identity;
use fastpath_publish::host::{Publisher, PublisherConfig, Refreshed, ThisHost};
use guest::{Guest, Registers, kernel};

/// The call that each answer is for, with the arguments for which it is.
const CALLS: [(libc::c_long, u64, Identity); 12] = [
    (libc::SYS_getpid, 7, Identity::Pid),
    (libc::SYS_gettid, 7, Identity::Tid),
    (libc::SYS_getppid, 7, Identity::Ppid),
    (libc::SYS_getpgid, 0, Identity::Pgid),
    (libc::SYS_getsid, 0, Identity::Sid),
    (libc::SYS_getuid, 7, Identity::Uid),
    (libc::SYS_geteuid, 7, Identity::Euid),
    (libc::SYS_getgid, 7, Identity::Gid),
    (libc::SYS_getegid, 7, Identity::Egid),
    (libc::SYS_setfsuid, u64::MAX, Identity::Fsuid),
    (libc::SYS_setfsgid, 0xffff_ffff, Identity::Fsgid),
    (libc::SYS_getpgid, 0, Identity::Pgid),
];

fn truth(number: libc::c_long, argument: u64) -> i64 {
    let mut registers = Registers::for_call(number, [argument, 0, 0]);
    kernel(&mut registers);
    registers.result()
}

#[test]
fn a_valid_answer_is_returned_and_any_other_asks_the_kernel() {
    let guest = Guest::new();
    let mut answers = guest.answers();
    for (number, argument, identity) in CALLS {
        assert_eq!(
            guest.call(number, [argument, 0, 0]),
            truth(number, argument),
            "{number}"
        );
        assert_eq!(guest.ask(number, [argument, 0, 0]), None);
        for value in [0, 1, 65_534, 0x8000_0000, u32::MAX] {
            answers.set(identity, value).unwrap();
            assert_eq!(guest.call(number, [argument, 0, 0]), i64::from(value), "{number}");
            assert_eq!(guest.ask(number, [argument, 0, 0]), Some(i64::from(value)));
        }
        answers.invalidate(&[identity]).unwrap();
        assert_eq!(
            guest.call(number, [argument, 0, 0]),
            truth(number, argument),
            "{number}"
        );
    }
}

#[test]
fn another_process_is_not_this_one() {
    let guest = Guest::new();
    let mut answers = guest.answers();
    answers.set(Identity::Pgid, 12_345).unwrap();
    answers.set(Identity::Sid, 12_345).unwrap();
    answers.set(Identity::Fsuid, 12_345).unwrap();
    for number in [libc::SYS_getpgid, libc::SYS_getsid] {
        assert_eq!(guest.call(number, [1, 0, 0]), truth(number, 1));
        // The kernel takes 32 bits.
        assert_eq!(guest.call(number, [1 << 32, 0, 0]), 12_345);
    }
    assert_eq!(guest.call(libc::SYS_setfsuid, [0, 0, 0]), truth(libc::SYS_setfsuid, 0));
}

#[test]
fn three_ids_are_those_of_one_moment() {
    let guest = Guest::new();
    let mut answers = guest.answers();
    let ids = [Identity::Uid, Identity::Euid, Identity::Suid];
    let changing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..200_000 {
                answers.invalidate(&Identity::CREDENTIALS).unwrap();
                for id in ids {
                    answers.set(id, round).unwrap();
                }
            }
            changing.store(false, Ordering::Relaxed);
        });
        let mut answered = 0;
        while changing.load(Ordering::Relaxed) {
            let mut ids = [0_u32; 3];
            let at = ids.each_mut().map(|id| std::ptr::from_mut(id) as u64);
            assert_eq!(guest.call(libc::SYS_getresuid, at), 0);
            assert!(ids[0] == ids[1] && ids[1] == ids[2], "{ids:?}");
            answered += u32::from(ids[0] != 0);
        }
        println!("{answered} of the page's ids");
    });
}

#[test]
fn no_register_differs_from_what_the_kernel_leaves() {
    let guest = Guest::new();
    let mut answers = guest.answers();
    for valid in [false, true] {
        for (number, argument, identity) in CALLS {
            let truth = truth(number, argument);
            if valid {
                answers.set(identity, truth as u32).unwrap();
            }
            for flags in Registers::all_flags() {
                let start = Registers {
                    flags,
                    ..Registers::for_call(number, [argument, 2, 3])
                };
                let (mut ours, mut kernels) = (start, start);
                guest.enter(&mut ours);
                kernel(&mut kernels);
                assert_eq!(ours, kernels, "{number} with {flags:#x}");
            }
        }
    }
    // Calls that are not answered, of any number.
    let close_nothing = [u64::from(u32::MAX), 0, 0];
    for number in [libc::SYS_close, libc::SYS_sched_yield, 449 + 1000, -1] {
        for flags in Registers::all_flags() {
            let start = Registers {
                flags,
                ..Registers::for_call(number, close_nothing)
            };
            let (mut ours, mut kernels) = (start, start);
            guest.enter(&mut ours);
            kernel(&mut kernels);
            assert_eq!(ours, kernels, "{number} with {flags:#x}");
        }
    }
}

/// Addresses that cannot be written: NULL, the lowest page, not canonical, the kernel's, read-only, and the end of a
/// mapping.
fn bad_addresses() -> [u64; 6] {
    // SAFETY: new mappings; the second is made smaller.
    let [readable, end] = unsafe {
        let map = |protection| {
            let at = libc::mmap(
                std::ptr::null_mut(),
                8192,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        let readable = map(libc::PROT_READ);
        let end = map(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(libc::munmap(end.byte_add(4096), 4096), 0);
        [readable as u64, end as u64 + 4096 - 3]
    };
    [0, 8, 1 << 62, u64::MAX - 4095, readable, end]
}

#[test]
fn results_that_cannot_be_written_are_the_kernels_to_refuse() {
    let guest = Guest::new();
    guest.answers().set_random(true).unwrap();
    for address in bad_addresses() {
        for _ in 0..3 {
            for (number, arguments) in [
                (libc::SYS_clock_gettime, [1, address, 0]),
                (libc::SYS_gettimeofday, [address, 0, 0]),
                (libc::SYS_getrandom, [address, 16, 0]),
                (libc::SYS_getresuid, [address, address, address]),
            ] {
                let mut registers = Registers::for_call(number, arguments);
                kernel(&mut registers);
                let result = guest.call(number, arguments);
                // A getrandom at the end of a mapping is short.
                if number == libc::SYS_getrandom {
                    assert_eq!(result, registers.result(), "{address:#x}");
                } else if number != libc::SYS_gettimeofday || address != 0 {
                    assert_eq!(result, -i64::from(libc::EFAULT), "{number} {address:#x}");
                }
                assert_eq!(guest.ask(number, arguments), None);
            }
        }
    }
}

#[test]
fn memory_that_is_unmapped_is_forgotten_when_the_host_says_so() {
    let guest = Guest::new();
    guest.has_one_thread();
    let mut answers = guest.answers();
    answers.set_random(true).unwrap();
    // SAFETY: a new mapping, which only this test uses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let bytes = [at as u64, 16, 0];
    assert_eq!(guest.call(libc::SYS_getrandom, bytes), 16);
    assert_eq!(guest.call(libc::SYS_getrandom, bytes), 16);
    assert_eq!(guest.ask(libc::SYS_getrandom, bytes), Some(16));
    answers.forget_memory().unwrap();
    assert_eq!(guest.ask(libc::SYS_getrandom, bytes), None);
    // SAFETY: nothing else uses it.
    unsafe { libc::munmap(at, 4096) };
    assert_eq!(guest.call(libc::SYS_getrandom, bytes), -i64::from(libc::EFAULT));
}

#[test]
fn memory_is_only_known_in_a_process_with_one_thread() {
    let guest = Guest::new();
    guest.answers().set_random(true).unwrap();
    let mut heap = vec![0_u8; 64];
    let bytes = [heap.as_mut_ptr() as u64, 16, 0];
    for is_alone in [false, true, false] {
        match is_alone {
            true => guest.has_one_thread(),
            false => guest.answers().invalidate(&[Identity::Tid]).unwrap(),
        }
        assert_eq!(guest.call(libc::SYS_getrandom, bytes), 16);
        assert_eq!(guest.ask(libc::SYS_getrandom, bytes).is_some(), is_alone);
    }
}

#[test]
fn clocks_are_answered_by_their_page() {
    let _clock = clock_lock::ClockLock::shared();
    let guest = Guest::new();
    guest.has_one_thread();
    let publisher = Publisher::new(guest.page(), ThisHost, PublisherConfig::default());
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = std::ptr::from_mut(&mut time) as u64;
    // The kernel writes the first to memory that is not known yet.
    assert_eq!(guest.call(libc::SYS_clock_gettime, [1, at, 0]), 0);
    for _ in 0..10_000 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        if publisher.publish() == Ok(Refreshed::Published) && guest.ask(libc::SYS_clock_gettime, [1, at, 0]) == Some(0)
        {
            break;
        }
    }
    let mut last = 0;
    for _ in 0..10_000 {
        assert_eq!(guest.call(libc::SYS_clock_gettime, [1, at, 0]), 0);
        let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
    assert_eq!(
        guest.call(libc::SYS_clock_gettime, [99, at, 0]),
        -i64::from(libc::EINVAL)
    );
    assert_eq!(guest.ask(libc::SYS_clock_gettime, [99, at, 0]), None);
    assert_eq!(guest.call(libc::SYS_gettimeofday, [at, 0, 0]), 0);
    assert_eq!(guest.call(libc::SYS_clock_getres, [1, at, 0]), 0);
    assert_eq!((time.tv_sec, time.tv_nsec), (0, 1));
    assert_eq!(guest.call(libc::SYS_clock_getres, [1, 0, 0]), 0);
}

/// Draws 16 bytes into memory that is known.
fn draw(guest: &Guest, to: &mut [u8; 16]) {
    let at = std::ptr::from_mut(to) as u64;
    assert_eq!(guest.call(libc::SYS_getrandom, [at, 16, 0]), 16);
}

#[test]
fn each_byte_is_handed_out_once_and_erased() {
    let guest = Guest::new();
    guest.has_one_thread();
    guest.answers().set_random(true).unwrap();
    let mut bytes = [0; 16];
    draw(&guest, &mut bytes);
    draw(&guest, &mut bytes);
    let ring = guest.ring();
    assert!(!ring.windows(8).any(|window| window == &bytes[..8]), "it is not erased");
    assert!(ring[1024..].iter().any(|byte| *byte != 0), "the ring is not filled");

    const THREADS: usize = 8;
    const DRAWS: usize = 50_000;
    let drawn: Vec<Vec<[u8; 16]>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut all = vec![[0; 16]; DRAWS];
                    all.iter_mut().for_each(|to| draw(&guest, to));
                    all
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let halves = drawn.iter().flatten().flat_map(|bytes| bytes.as_chunks::<8>().0);
    let different: HashSet<&[u8; 8]> = halves.collect();
    assert_eq!(different.len(), THREADS * DRAWS * 2);
    let mut counts = [0_usize; 256];
    drawn
        .iter()
        .flatten()
        .flatten()
        .for_each(|byte| counts[usize::from(*byte)] += 1);
    let mean = THREADS * DRAWS * 16 / 256;
    assert!(
        counts.iter().all(|count| count.abs_diff(mean) < mean / 20),
        "{counts:?}"
    );
}

#[test]
fn requests_of_every_size_and_flag_are_as_the_kernels() {
    let guest = Guest::new();
    guest.has_one_thread();
    guest.answers().set_random(true).unwrap();
    let mut buffer = [0_u8; 8192];
    for size in [0, 1, 7, 8, 9, 255, 256, 257, 4096] {
        for flags in [0, 1, 4, 5, 2, 3, 6, 8, 1 << 32] {
            let mut registers = Registers::for_call(libc::SYS_getrandom, [buffer.as_mut_ptr() as u64, size, flags]);
            kernel(&mut registers);
            for _ in 0..3 {
                buffer.fill(0);
                let result = guest.call(libc::SYS_getrandom, [buffer.as_mut_ptr() as u64, size, flags]);
                assert_eq!(result, registers.result(), "{size} bytes with {flags}");
                let written = result.max(0) as usize;
                assert!(
                    buffer[written..].iter().all(|byte| *byte == 0),
                    "{size} bytes with {flags}"
                );
                if written >= 16 {
                    assert!(buffer[..written].iter().any(|byte| *byte != 0));
                }
            }
        }
    }
}

#[test]
fn a_marked_descriptor_is_read_from_the_ring_and_another_is_not() {
    let guest = Guest::new();
    guest.has_one_thread();
    let mut answers = guest.answers();
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&zeros) as u64;
    let mut bytes = [1_u8; 16];
    let arguments = [descriptor, bytes.as_mut_ptr() as u64, 16];
    answers.set_random(true).unwrap();
    assert_eq!(guest.call(libc::SYS_read, arguments), 16);
    assert_eq!(bytes, [0; 16]);
    answers.mark_urandom(descriptor as u32, true).unwrap();
    // The first tells that the memory can be written.
    assert_eq!(guest.call(libc::SYS_read, arguments), 16);
    assert_eq!(guest.call(libc::SYS_read, arguments), 16);
    assert_ne!(bytes, [0; 16]);
    answers.mark_urandom(descriptor as u32, false).unwrap();
    assert_eq!(guest.call(libc::SYS_read, arguments), 16);
    assert_eq!(bytes, [0; 16]);
    answers.mark_urandom(descriptor as u32, true).unwrap();
    answers.set_random(false).unwrap();
    assert_eq!(guest.call(libc::SYS_read, arguments), 16);
    assert_eq!(bytes, [0; 16]);
}

#[test]
fn a_child_has_neither_answers_nor_random_bytes() {
    let guest = Guest::new();
    guest.has_one_thread();
    let mut answers = guest.answers();
    answers.set_random(true).unwrap();
    answers.set(Identity::Pid, 12_345).unwrap();
    let mut bytes = [0; 16];
    draw(&guest, &mut bytes);
    draw(&guest, &mut bytes);
    assert!(guest.ring().iter().any(|byte| *byte != 0));
    // SAFETY: the child calls nothing that another thread of the parent may have locked.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = guest.call(libc::SYS_getpid, [0; 3]) == truth(libc::SYS_getpid, 0)
            && guest.ring().iter().all(|byte| *byte == 0)
            && guest
                .ask(libc::SYS_getrandom, [bytes.as_mut_ptr() as u64, 16, 0])
                .is_none();
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(guest.call(libc::SYS_getpid, [0; 3]), 12_345);
}
