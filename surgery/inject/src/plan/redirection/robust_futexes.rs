//! The functions of Linux 7.2's vDSO that unlock robust futexes: the kernel compares a thread's instruction pointer with their
//! place in its own vDSO, and completes the unlock.

use fastpath_image::elf::Elf;
use object::elf::{DT_STRSZ, DT_STRTAB, PT_DYNAMIC, PT_LOAD};

use super::plan_region::region_for;
use super::tests::{Vdso, kernels_vdsos, this_machines};
use super::*;

const UNLOCK: [&str; 2] = ["futex_robust_list64_try_unlock", "futex_robust_list32_try_unlock"];
/// mov %esi, %eax; xor %ecx, %ecx; lock cmpxchg %ecx, (%rdi); jne 1f; mov %rcx, (%rdx); 1: ret.
const CODE: [u8; 14] = [
    0x89, 0xf0, 0x31, 0xc9, 0xf0, 0x0f, 0xb1, 0x0f, 0x75, 0x03, 0x48, 0x89, 0x0a, 0xc3,
];

/// Returns this machine's vDSO with them in a further page, by the symbols of getcpu.
fn with_robust_futexes() -> Vec<u8> {
    let mut bytes = this_machines().bytes;
    let elf = Elf::parse(&bytes).unwrap();
    let strings = elf.dynamic_offset(DT_STRTAB).unwrap();
    let size = elf.dynamic.iter().position(|entry| entry.0 == DT_STRSZ).unwrap();
    let size_at = elf.segments_of(PT_DYNAMIC).next().unwrap().offset as usize + 16 * size + 8;
    let load = elf.segments.iter().position(|segment| segment.kind == PT_LOAD).unwrap();
    // Its p_filesz and p_memsz.
    let sizes_at = 64 + 56 * load + 32;
    let symbols = elf.symbols().filter(|(_, symbol)| symbol.name.ends_with(b"getcpu"));
    let symbols = symbols.map(|(index, _)| elf.symbol_offset(index).unwrap() as usize);
    let symbols: Vec<usize> = symbols.collect();
    let put = |bytes: &mut [u8], at: usize, values: &[u64]| {
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        bytes[at..at + values.len()].copy_from_slice(&values);
    };
    let whole = bytes.len() + 4096;
    for (name, at) in UNLOCK.iter().zip(symbols) {
        let st_name = (bytes.len() as u64 - strings) as u32;
        bytes[at..at + 4].copy_from_slice(&st_name.to_le_bytes());
        bytes.extend_from_slice(format!("__vdso_{name}\0").as_bytes());
        let code_at = bytes.len() as u64;
        bytes.extend_from_slice(&CODE);
        // st_value and st_size.
        put(&mut bytes, at + 8, &[code_at, CODE.len() as u64]);
    }
    let end = bytes.len() as u64;
    put(&mut bytes, size_at, &[end - strings]);
    put(&mut bytes, sizes_at, &[end, end]);
    bytes.resize(whole, 0);
    bytes
}

/// Regression test, too: `run` refused every program on a kernel with functions that it did not know.
#[test]
fn functions_that_unlock_robust_futexes_stay_in_their_place_and_are_not_copied() {
    let Vdso { base, .. } = this_machines();
    let at = base - (1 << 20);
    let mut seen = 0;
    let vdsos = kernels_vdsos().into_iter().map(|(_, vdso)| vdso);
    for vdso in vdsos.chain([with_robust_futexes()]) {
        let parsed = fastpath_image::Vdso::parse(&vdso).unwrap();
        let found = UNLOCK.map(|name| parsed.find(&format!("__vdso_{name}")));
        let [Some(first), Some(second)] = found else {
            continue;
        };
        let offsets = [first, second];
        seen += 1;
        for clocks in [ClockSet::ALL, ClockSet::MONOTONIC] {
            let mut region = region_for(&vdso, base, at, clocks, true).unwrap();
            let of_start = region.put_slow_path().unwrap();
            let records = region.journal.records.iter().chain(&of_start);
            let changes: Vec<&Change> = records.map(|record| &record.change).collect();
            assert!(changes.len() >= 2);
            for place in offsets.map(|offset| base + offset..base + offset + CODE.len() as u64) {
                let is_apart = |change: &&Change| {
                    let end = change.address + change.replacement.len() as u64;
                    end <= place.start || place.end <= change.address
                };
                assert!(changes.iter().all(is_apart), "{place:x?}: {changes:x?}");
            }
            let copies = changes.iter().map(|change| &change.replacement);
            for code in copies.chain([&region.code]) {
                assert!(code.windows(CODE.len()).all(|bytes| bytes != CODE));
            }
        }
        let plan = plan(Image::host(), &vdso, base, at, ClockSet::ALL).unwrap();
        let kernels = UNLOCK.map(|name| plan.kernel.address(name));
        assert_eq!(kernels, offsets.map(|offset| base + offset));
    }
    assert!(seen >= 1);
}
