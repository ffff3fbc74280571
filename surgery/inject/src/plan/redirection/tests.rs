//! Redirects this machine's own vDSO, in a child process because a mistake could not be undone.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fastpath_image::Image;
use fastpath_page::{Anchor, Base, Init, Page, Rate, Writer};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::plan_region::Known;
use super::*;
use crate::plan::region;

/// A time that no clock of this machine shows.
const FOREIGN_SEC: i64 = 77_000_000_000;

pub(super) struct Vdso {
    pub base: u64,
    pub bytes: Vec<u8>,
}

/// Returns all of its mapping.
pub(super) fn this_machines() -> Vdso {
    let own = std::process::id() as i32;
    let maps = crate::target::maps::read(own).unwrap();
    let mapping = maps.iter().find(|mapping| mapping.name == "[vdso]").expect("a vDSO");
    let size = (mapping.end - mapping.start) as usize;
    Vdso {
        base: mapping.start,
        bytes: crate::target::memory::Memory::open(own)
            .unwrap()
            .bytes(mapping.start, size)
            .unwrap(),
    }
}

#[test]
fn this_machines_vdso_can_be_redirected_and_only_its_clock_functions_are() {
    let vdso = this_machines();
    let region = vdso.base - (1 << 20);
    let plan = region_for(&vdso.bytes, vdso.base, region, ClockSet::ALL, false).unwrap();
    assert_eq!(plan.left_alone, []);
    // Its code, its call frames, and the jump there.
    assert_eq!(
        purposes(&plan),
        [Purpose::EntryBody, Purpose::EntryBody, Purpose::Entry]
    );
    for JournalRecord { change: patch, .. } in &plan.journal.records {
        let at = (patch.address - vdso.base) as usize;
        assert_eq!(vdso.bytes[at..at + patch.original.len()], patch.original);
        assert_eq!(patch.replacement.len(), patch.original.len());
    }
    let journal = Journal::parse(&plan.code[region::JOURNAL as usize..]).unwrap();
    assert_eq!(journal, plan.journal);
    let without_realtime = region_for(&vdso.bytes, vdso.base, region, ClockSet::MONOTONIC, false).unwrap();
    // Its stub, and the jump there.
    assert_eq!(purposes(&without_realtime), [Purpose::Entry; 2]);
}

fn purposes(plan: &RegionPlan) -> Vec<Purpose> {
    plan.journal.records.iter().map(|record| record.purpose).collect()
}

/// User Mode Linux's vDSO is a page of its kernel's memory: behind the file is whatever follows it there.
#[test]
fn a_vdso_whose_page_goes_on_behind_its_file_gets_a_stub_there_and_one_without_room_is_left_alone() {
    let mut vdso = this_machines();
    let sections = 60..62;
    let end = stub::end_of_file::<object::elf::FileHeader64<object::LittleEndian>>(&vdso.bytes).unwrap() as usize;
    vdso.bytes[end..].fill(0x5a);
    let plan = |vdso: &Vdso| {
        let region = vdso.base - (1 << 20);
        region_for(&vdso.bytes, vdso.base, region, ClockSet::MONOTONIC, false)
    };
    let records = plan(&vdso).unwrap().journal.records;
    let patches: Vec<Change> = records.into_iter().map(|record| record.change).collect();
    let at = (patches[0].address - vdso.base) as usize;
    assert!(at >= end, "{at:#x}");
    assert!(patches[0].original.iter().all(|byte| *byte == 0x5a));
    let entry = iced_x86::Decoder::with_ip(64, &patches[1].replacement, patches[1].address, 0).decode();
    assert_eq!(entry.near_branch_target(), patches[0].address);
    // More section headers.
    vdso.bytes[sections].copy_from_slice(&[0xff, 0]);
    let refusal = plan(&vdso).err().map(|why| why.to_string()).unwrap_or_default();
    assert!(refusal.contains("no unused bytes"), "{refusal}");
}

/// Regression test: a panic with checked arithmetic.
#[test]
fn a_function_outside_of_the_vdso_is_not_redirected() {
    let mut vdso = this_machines();
    let parsed = fastpath_image::Vdso::parse(&vdso.bytes).unwrap();
    let mut exports = parsed.exports().iter();
    let export = exports.find(|export| export.name == "__vdso_clock_gettime").unwrap();
    // st_value and st_size of its symbol.
    let place = [export.offset, export.size].map(u64::to_le_bytes).concat();
    for at in 0..vdso.bytes.len() - place.len() {
        if vdso.bytes[at..].starts_with(&place) {
            vdso.bytes[at..at + 8].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        }
    }
    let refusal = region_for(&vdso.bytes, vdso.base, vdso.base - (1 << 20), ClockSet::ALL, false).err();
    let refusal = refusal.map(|why| why.to_string()).unwrap_or_default();
    assert!(refusal.contains("no clock_gettime"), "{refusal}");
}

/// Kernels' vDSOs: this machine's, and those in the directory that the variable names.
pub(super) fn kernels_vdsos() -> Vec<(String, Vec<u8>)> {
    let mut vdsos = vec![("this machine's".to_owned(), this_machines().bytes)];
    if let Some(directory) = std::env::var_os("FASTPATH_KERNELS_VDSOS") {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            vdsos.push((path.display().to_string(), std::fs::read(path).unwrap()));
        }
    }
    vdsos
}

#[test]
fn whatever_a_kernels_vdso_contains_it_is_redirected_or_refused() {
    let base = 0x7fff_0000_0000;
    let (mut planned, mut refused) = (0, 0);
    // The images have the form of kernels' vDSOs.
    let images = [Isa::X86_64, Isa::I386].into_iter().filter_map(Image::for_isa);
    let mut seeds: Vec<_> = images.map(|image| image.bytes().to_vec()).collect();
    seeds.push(this_machines().bytes);
    crate::mutations::feed(&seeds, Duration::from_secs(5), 2, |bytes| {
        let mut vdso = bytes.to_vec();
        vdso.resize(bytes.len().next_multiple_of(fastpath_page::PAGE_SIZE), 0);
        for (region_at, rescue) in [(base - (1 << 20), false), (base + vdso.len() as u64, true)] {
            match region_for(&vdso, base, region_at, ClockSet::ALL, rescue) {
                Ok(plan) => {
                    planned += 1;
                    let journal = Journal::parse(&plan.code[region::JOURNAL as usize..]);
                    assert_eq!(journal.as_ref(), Some(&plan.journal));
                }
                Err(_) => refused += 1,
            }
        }
    });
    assert!(planned > 0 && refused > 0, "{planned} planned, {refused} refused");
}

#[test]
fn the_images_code_has_call_frames_and_can_be_undone() {
    let base = 0x7fff_0000_0000;
    for (name, before) in kernels_vdsos() {
        let plan = region_for(&before, base, base - (1 << 20), ClockSet::ALL, false).unwrap();
        let [body, frames, entry] = &plan.journal.records[..] else {
            panic!("{name}: {} changes", plan.journal.records.len());
        };
        assert_eq!(body.purpose, Purpose::EntryBody, "{name}");
        let (body_at, at) = (body.range(), body.change.address);
        let jump = Isa::X86_64.facts().jump_target;
        let target = jump(&entry.change.replacement, entry.change.address).unwrap();
        assert!((at..at + u64::from(body.in_thunk)).contains(&target), "{name}");
        // What is not served goes from the image's code to the displaced instructions behind it, and the kernel's code.
        let thunk = at + u64::from(body.in_thunk) + entry_body::MOVED.len() as u64;
        let displaced = &plan.journal.records[2].change.original;
        assert!(
            body.change.replacement[usize::from(body.in_thunk) + entry_body::MOVED.len()..].starts_with(displaced),
            "{name}"
        );
        // A thread that is still in the region after a detach does not go to what was there.
        let word = |bytes: &[u8]| body_at.contains(&u64::from_le_bytes(bytes.try_into().unwrap()));
        let image = &plan.code[region::IMAGE as usize..region::HOOK as usize];
        assert!(!image.chunks_exact(8).any(word), "{name}");
        let copies: Vec<u64> = plan
            .moved
            .iter()
            .filter(|moved| body_at.contains(&moved.from))
            .map(|m| m.to)
            .collect();
        assert!(
            copies.len() > 50 && !copies.iter().any(|to| body_at.contains(to)),
            "{name}"
        );
        assert!(
            frames.change.replacement != frames.change.original && thunk < body_at.end,
            "{name}"
        );
        let records = &plan.journal.records;
        let served = with(&before, base, records.iter().map(after));
        assert_eq!(
            with(&served, base, records.iter().rev().map(original)),
            before,
            "{name}"
        );
    }
}

fn original(record: &JournalRecord) -> (u64, &[u8]) {
    (record.change.address, &record.change.original)
}

fn after(record: &JournalRecord) -> (u64, &[u8]) {
    (record.change.address, &record.change.replacement)
}

/// Returns a vDSO with these bytes.
fn with<'r>(vdso: &[u8], base: u64, changes: impl IntoIterator<Item = (u64, &'r [u8])>) -> Vec<u8> {
    let mut changed = vdso.to_vec();
    for (address, bytes) in changes {
        let at = (address - base) as usize;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
    }
    changed
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_beyond_the_address_space_has_no_frames() {
    let mut vdso = this_machines().bytes;
    let elf = fastpath_image::elf::Elf::parse(&vdso).unwrap();
    let header = elf.segments_of(object::elf::PT_GNU_EH_FRAME).next().unwrap().offset as usize;
    let word = |at: usize| i32::from_le_bytes(vdso[at..at + 4].try_into().unwrap());
    // The first function's offset from the header, and its size in its description.
    let (offset_at, size_at) = (header + 12, header.wrapping_add_signed(word(header + 16) as isize) + 12);
    vdso[offset_at..offset_at + 4].copy_from_slice(&i32::MIN.to_le_bytes());
    vdso[size_at..size_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(call_frames::read(&vdso, 0x7fff_0000_0000).is_none());
}

#[test]
fn the_slow_path_is_behind_the_vdsos_file_and_only_it_stays() {
    let base = 0x7fff_0000_0000;
    for (name, before) in kernels_vdsos() {
        let mut plan = region_for(&before, base, base - (1 << 20), ClockSet::ALL, false).unwrap();
        let stays = plan.put_slow_path().unwrap();
        let records = &plan.journal.records;
        let [_, code] = &stays[..] else {
            panic!("{name}: {} writes", stays.len());
        };
        assert!(code.change.original.iter().all(|byte| *byte == 0), "{name}");
        assert!(before.ends_with(&[0; region::TAIL_BYTES]), "{name}");
        let stayed = with(&before, base, stays.iter().map(after));
        let served = with(&stayed, base, records.iter().map(after));
        assert_eq!(with(&served, base, records.iter().rev().map(original)), stayed);
        // The body goes nowhere but to the page, and to where its call frames are.
        let load = records
            .iter()
            .find(|record| record.purpose == Purpose::SlowPath)
            .unwrap();
        let end = base + u64::from_le_bytes(load.change.replacement[..8].try_into().unwrap());
        let slow_path = load.thunk..load.thunk + u64::from(load.in_thunk);
        assert_eq!(slow_path.end, end, "{name}");
        let body = &records[0];
        let code = &body.change.replacement[..body.in_thunk.into()];
        let code = iced_x86::Decoder::with_ip(64, code, body.change.address, 0).into_iter();
        let targets = code
            .filter(fastpath_code::rescue::is_branch)
            .map(|branch| branch.near_branch_target());
        let body_at = body.range();
        let out: Vec<u64> = targets.filter(|target| !body_at.contains(target)).collect();
        assert!(
            out.len() == 2 && out.iter().all(|target| slow_path.contains(target)),
            "{name}: {out:x?}"
        );
        // Each of its functions has an entry in the table, and a description that begins there.
        let table = call_frames::Table::read(&served).unwrap();
        let of_image = table
            .entries
            .iter()
            .filter(|(function, _)| slow_path.contains(&(base + function)));
        let of_image: Vec<_> = of_image.collect();
        assert_eq!((of_image.len(), base + of_image[0].0), (5, slow_path.start), "{name}");
        for (function, description) in of_image {
            let at = (base.wrapping_add(*description) + call_frames::Frames::START_AT).wrapping_sub(base - (1 << 20))
                as usize;
            let distance = i32::from_le_bytes(plan.code[at..at + 4].try_into().unwrap());
            let start = (base - (1 << 20) + at as u64).wrapping_add_signed(distance.into());
            assert_eq!(start, base + function, "{name}");
        }
        // Without it, the table is as it was.
        let left = call_frames::read(&stayed, base).map(|all| all.len());
        assert_eq!(left, call_frames::read(&before, base).map(|all| all.len()), "{name}");
        assert_eq!(call_frames::read(&served, base).map(|all| all.len()), left, "{name}");
    }
}

#[test]
fn a_plan_that_is_kept_is_the_one_that_each_program_would_get_by_itself() {
    let (base, region) = (0x7fff_0000_0000, 0x7ffe_fff0_0000);
    for (name, vdso) in kernels_vdsos() {
        let known = Known::plan(&vdso, base, region, ClockSet::ALL).unwrap();
        for higher in [0, 0x1000, 0x00ff_ffff_f000_u64.wrapping_neg(), 0x1234_5000] {
            let (base, region) = (base.wrapping_add(higher), region.wrapping_add(higher));
            assert!(known.suits(&vdso, base, region, ClockSet::ALL), "{name}");
            for rescue in [false, true] {
                let own = Known::plan(&vdso, base, region, ClockSet::ALL).unwrap();
                let [mut kept, mut own] = [&known, &own].map(|known| known.region(base, rescue).unwrap());
                assert_eq!(kept.put_slow_path().unwrap(), own.put_slow_path().unwrap(), "{name}");
                assert!(kept.code == own.code, "{name}: {higher:#x}");
                assert_eq!((kept.journal, kept.moved), (own.journal, own.moved), "{name}");
            }
        }
        let mut other = vdso.clone();
        *other.last_mut().unwrap() ^= 1;
        assert!(!known.suits(&other, base, region, ClockSet::ALL));
        assert!(!known.suits(&vdso, base, region + 4096, ClockSet::ALL));
        assert!(!known.suits(&vdso, base + 4096, region, ClockSet::ALL));
        assert!(!known.suits(&vdso, base, region, ClockSet::MONOTONIC));
    }
}

#[test]
fn a_gettimeofday_with_a_breakpoint_or_a_computed_jump_stays_in_its_place() {
    let vdso = this_machines();
    let parsed = fastpath_image::Vdso::parse(&vdso.bytes).unwrap();
    let at = parsed.find("__vdso_gettimeofday").unwrap() as usize;
    let size = |bytes: &[u8]| {
        let plan = region_for(bytes, vdso.base, vdso.base - (1 << 20), ClockSet::ALL, false).unwrap();
        let changes = plan.journal.records.iter().map(|record| &record.change);
        changes.map(|change| change.original.len()).max()
    };
    assert!(size(&vdso.bytes) > Some(400));
    // A breakpoint, and `jmp *%rax`.
    for other in [&[0xcc][..], &[0xff, 0xe0]] {
        let mut bytes = vdso.bytes.clone();
        bytes[at + 1..at + 1 + other.len()].copy_from_slice(other);
        assert!(size(&bytes) < Some(100), "{other:x?}");
    }
}

#[test]
fn functions_that_are_not_served_keep_their_addresses() {
    let vdso = this_machines();
    let at = vdso.base - (1 << 20);
    let thunks = at + region::ENTRY_THUNKS;
    let plan = plan(Image::host(), &vdso.bytes, vdso.base, at, ClockSet::ALL).unwrap();
    let parsed = fastpath_image::Vdso::parse(&vdso.bytes).unwrap();
    let kernels = KernelFunctions::from_vdso(&parsed, vdso.base);
    let wanted = |second: u64| kernels.with("gettimeofday", thunks).with("clock_gettime", second);
    let is_second = |offset: usize| plan.kernel == wanted(thunks + offset as u64);
    let second = (0..plan.thunks.len())
        .step_by(THUNK_ALIGNMENT)
        .find(|offset| is_second(*offset));
    assert!(second.is_some_and(|offset| offset > 0), "{:?}", plan.kernel);
}

/// A page on which every clock shows [`FOREIGN_SEC`] now and for a second or so, as a descriptor.
fn foreign_page() -> OwnedFd {
    let page = Page::zeroed();
    let writer = Writer::new(&page);
    writer.init(&Init {
        hres_res_ns: 1,
        ..Init::default()
    });
    let base = Base {
        sec: FOREIGN_SEC as u64,
        nsec_shifted: 0,
    };
    // SAFETY: RDTSC is part of x86-64, and nothing here turns it off.
    let now = unsafe { std::arch::x86_64::_rdtsc() };
    let anchor = Anchor {
        clocks: ClockSet::HRES,
        base_cycles: now,
        rate: Rate {
            mult: 1 << 20,
            shift: 23,
        },
        cap_cycles: u32::MAX,
        base: [base; 4],
        utc_error: Default::default(),
    };
    let anchor = Anchor {
        cap_cycles: anchor.rate.max_cap(),
        ..anchor
    };
    // SAFETY: RDTSC is part of x86-64, and no prctl of this process disables it.
    writer
        .publish_hres(&anchor, || unsafe { std::arch::x86_64::_rdtsc() })
        .unwrap();
    // SAFETY: a page is made of atomics, without padding, and is not written now.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const page).cast::<u8>(), size_of::<Page>()) };
    let file = std::fs::File::from(memfd_create(c"fastpath-page", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(4096).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.into()
}

/// Maps the region and redirects the vDSO of this process; returns the plan.
fn redirect_this_process(vdso: &Vdso, page: &OwnedFd) -> RegionPlan {
    let size = region::SIZE as usize;
    let map = |at: u64, size: usize, protection, flags, fd| {
        // SAFETY: a fresh mapping, or one over part of the region.
        let mapped = unsafe { libc::mmap(at as *mut libc::c_void, size, protection, flags, fd, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        mapped as u64
    };
    let maps = crate::target::maps::read(std::process::id() as i32).unwrap();
    let at = crate::plan::region::place_near(&maps, vdso.base).unwrap();
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    map(at, size, libc::PROT_READ | libc::PROT_EXEC, private, -1);
    let shared = libc::MAP_SHARED | libc::MAP_FIXED;
    let plan = region_for(&vdso.bytes, vdso.base, at, ClockSet::ALL, false).unwrap();
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(&plan.code, at).unwrap();
    map(at + region::PAGE, 4096, libc::PROT_READ, shared, page.as_raw_fd());
    for JournalRecord { change, .. } in &plan.journal.records {
        memory.write_all_at(&change.replacement, change.address).unwrap();
    }
    plan
}

fn by_libc(clock: libc::clockid_t) -> Option<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    let answer = unsafe { libc::clock_gettime(clock, &mut time) };
    (answer == 0).then_some(time.tv_sec)
}

fn by_system_call(clock: libc::clockid_t) -> Option<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    (answer == 0).then_some(time.tv_sec)
}

/// Forks, lets the child do `work`, and returns its answer as an exit status; 0 is success.
fn in_a_child(work: impl FnOnce() -> u8 + std::panic::UnwindSafe) -> i32 {
    // The disassembler fills its tables at its first use, under a lock: a child that is forked while another test's thread
    // does that would wait forever.
    let nop = iced_x86::Decoder::new(64, &[0x90], 0).decode();
    iced_x86::Encoder::new(64).encode(&nop, 0).unwrap();
    // SAFETY: the child allocates, which glibc allows after the fork of a process with threads, and ends by _exit.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let status = std::panic::catch_unwind(work).map_or(99, i32::from);
            libc::_exit(status)
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            -libc::WTERMSIG(status)
        }
    }
}

/// Clocks that no page answers, and an unknown one.
const OTHERS: [libc::clockid_t; 4] = [
    libc::CLOCK_REALTIME_COARSE,
    libc::CLOCK_MONOTONIC_COARSE,
    libc::CLOCK_PROCESS_CPUTIME_ID,
    1000,
];

#[test]
fn a_redirected_process_reads_the_page_and_can_call_the_kernels_functions() {
    let vdso = this_machines();
    // An anchor lasts for a second or so; on a busy machine a child may take longer.
    let status = (0..10)
        .map(|_| reads_of_a_child(&vdso))
        .find(|status| *status != TOO_LATE);
    assert_eq!(status, Some(0));
}

const TOO_LATE: i32 = 50;

fn reads_of_a_child(vdso: &Vdso) -> i32 {
    let page = foreign_page();
    in_a_child(move || {
        redirect_this_process(vdso, &page);
        // The anchor begins a little later than it was made.
        let begun = by_system_call(libc::CLOCK_MONOTONIC);
        while by_libc(libc::CLOCK_MONOTONIC).is_some_and(|sec| sec < FOREIGN_SEC) {
            if by_system_call(libc::CLOCK_MONOTONIC) > begun.map(|sec| sec + 3) {
                return TOO_LATE as u8;
            }
        }
        let served = [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME];
        let wrong = served
            .iter()
            .any(|clock| by_libc(*clock).is_none_or(|sec| sec / 10 != FOREIGN_SEC / 10));
        if wrong {
            return TOO_LATE as u8;
        }
        let mut day = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: a valid timeval; no time zone is wanted.
        unsafe { libc::gettimeofday(&mut day, std::ptr::null_mut()) };
        if day.tv_sec / 10 != FOREIGN_SEC / 10 {
            return TOO_LATE as u8;
        }
        // Through the thunk, by the kernel's own code.
        for clock in OTHERS {
            let before = by_system_call(clock);
            let between = by_libc(clock);
            let after = by_system_call(clock);
            if before.is_some() != between.is_some() || between < before || after < between {
                return 3;
            }
        }
        // SAFETY: a null pointer is allowed.
        let now = unsafe { libc::time(std::ptr::null_mut()) };
        u8::from(by_system_call(libc::CLOCK_REALTIME).is_none_or(|sec| (sec - now).abs() > 5)) * 4
    })
}

#[test]
fn reads_of_a_page_that_answers_nothing_get_the_right_time_through_the_thunks() {
    let vdso = this_machines();
    let page = std::fs::File::from(memfd_create(c"fastpath-page", MFdFlags::MFD_CLOEXEC).unwrap());
    page.set_len(4096).unwrap();
    let page = page.into();
    let status = in_a_child(move || {
        redirect_this_process(&vdso, &page);
        for clock in OTHERS.into_iter().chain([0, 1, 4, 7, 11]) {
            let [before, between, after] = [by_system_call(clock), by_libc(clock), by_system_call(clock)];
            if before.is_some() != between.is_some() || between < before || after < between {
                return 1;
            }
        }
        let mut day = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: a valid timeval; no time zone is wanted.
        unsafe { libc::gettimeofday(&mut day, std::ptr::null_mut()) };
        u8::from(by_system_call(0).is_none_or(|sec| (sec - day.tv_sec).abs() > 1)) * 2
    });
    assert_eq!(status, 0);
}

#[test]
fn bytes_that_are_put_back_are_the_kernels_path_again() {
    let vdso = this_machines();
    let page = foreign_page();
    let status = in_a_child(move || {
        let plan = redirect_this_process(&vdso, &page);
        let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
        for JournalRecord { change, .. } in &plan.journal.records {
            memory.write_all_at(&change.original, change.address).unwrap();
        }
        let again = this_machines();
        u8::from(again.bytes != vdso.bytes || by_libc(libc::CLOCK_MONOTONIC).is_none_or(|sec| sec >= FOREIGN_SEC))
    });
    assert_eq!(status, 0);
}
