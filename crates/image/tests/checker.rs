//! Each rule of the build's checker turns red on an image that breaks it.

#[path = "../src/check.rs"]
#[allow(dead_code)]
mod check;
#[path = "../src/elf.rs"]
#[allow(dead_code)]
mod elf;

use std::collections::BTreeSet;

use check::{Contract, Rule, check};
use elf::*;
use fastpath_image::Image;

const SECTION_HEADERS_AT: usize = 40;
const E_TYPE: usize = 16;
const E_MACHINE: usize = 18;
const PROGRAM_HEADERS: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const P_FLAGS: usize = 4;
const P_VADDR: usize = 16;

fn contract() -> Contract {
    Contract::x86_64(fastpath_page::layout::ABI)
}

fn image() -> Vec<u8> {
    Image::bytes().to_vec()
}

fn elf(bytes: &[u8]) -> Elf<'_> {
    Elf::parse(bytes).unwrap()
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn segment(bytes: &[u8], kind: u32) -> usize {
    let index = elf(bytes)
        .segments
        .iter()
        .position(|segment| segment.kind == kind)
        .unwrap();
    PROGRAM_HEADERS + PROGRAM_HEADER_SIZE * index
}

/// Where the entry of a dynamic tag lies.
fn tag(bytes: &[u8], tag: u64) -> usize {
    let elf = elf(bytes);
    let index = elf.dynamic().iter().position(|entry| entry.0 == tag).unwrap();
    elf.segments_of(PT_DYNAMIC).next().unwrap().offset as usize + 16 * index
}

/// What a tag points to.
fn table(bytes: &[u8], tag: u64) -> usize {
    elf(bytes).dynamic_offset(tag).unwrap() as usize
}

/// Where the entry of a dynamic symbol lies.
fn symbol(bytes: &[u8], name: &str) -> usize {
    let elf = elf(bytes);
    let (index, _) = elf
        .symbols()
        .find(|(_, symbol)| symbol.name == name.as_bytes())
        .unwrap();
    elf.symbol_offset(index).unwrap() as usize
}

fn find(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
        .unwrap()
}

fn find_note(bytes: &[u8], name: &[u8], kind: u32) -> usize {
    let mut pattern = kind.to_le_bytes().to_vec();
    pattern.extend_from_slice(name);
    find(bytes, &pattern)
}

/// The rules that an image breaks after this has been done to it.
fn broken_by(damage: impl FnOnce(&mut Vec<u8>)) -> BTreeSet<String> {
    let mut bytes = image();
    damage(&mut bytes);
    assert_ne!(bytes, image(), "no damage was done");
    let violations = check(&bytes, &contract());
    violations
        .iter()
        .map(|violation| format!("{:?}", violation.rule))
        .collect()
}

/// That rule, and no other.
fn breaks_only(rule: Rule, damage: impl FnOnce(&mut Vec<u8>)) {
    assert_eq!(broken_by(damage), BTreeSet::from([format!("{rule:?}")]));
}

/// That rule, among those that follow from the same damage.
fn breaks(rule: Rule, damage: impl FnOnce(&mut Vec<u8>)) {
    let broken = broken_by(damage);
    assert!(
        broken.contains(&format!("{rule:?}")),
        "{rule:?} is not among {broken:?}"
    );
}

#[test]
fn the_finished_image_breaks_no_rule() {
    assert_eq!(check(&image(), &contract()), []);
}

#[test]
fn a_file_of_another_machine_or_class_is_refused() {
    breaks_only(Rule::Elf, |bytes| put(bytes, E_MACHINE, EM_386.to_le_bytes()));
    breaks_only(Rule::Elf, |bytes| bytes[0] = 0);
}

#[test]
fn an_executable_is_refused() {
    breaks_only(Rule::SharedObject, |bytes| put(bytes, E_TYPE, 2_u16.to_le_bytes()));
}

#[test]
fn an_image_of_more_than_two_pages_is_refused() {
    breaks_only(Rule::Size, |bytes| bytes.resize(check::MAX_SIZE + 1, 0));
}

#[test]
fn a_second_loadable_segment_or_a_missing_one_is_refused() {
    let eh_frame = segment(&image(), PT_GNU_EH_FRAME);
    breaks(Rule::Segments, |bytes| put(bytes, eh_frame, PT_LOAD.to_le_bytes()));
    const PT_TLS: u32 = 7;
    breaks(Rule::Segments, |bytes| put(bytes, eh_frame, PT_TLS.to_le_bytes()));
}

#[test]
fn a_segment_that_is_not_loaded_at_zero_is_refused() {
    let load = segment(&image(), PT_LOAD);
    breaks(Rule::LoadAddress, |bytes| {
        put(bytes, load + P_VADDR, 4096_u64.to_le_bytes())
    });
    const P_MEMSZ: usize = 40;
    breaks_only(Rule::LoadAddress, |bytes| {
        put(bytes, load + P_MEMSZ, 8192_u64.to_le_bytes())
    });
}

#[test]
fn a_writable_segment_is_refused() {
    let load = segment(&image(), PT_LOAD);
    breaks_only(Rule::LoadFlags, |bytes| bytes[load + P_FLAGS] = 7);
}

#[test]
fn a_segment_outside_the_loaded_one_is_refused() {
    let note = segment(&image(), PT_NOTE);
    breaks_only(Rule::SegmentsLoaded, |bytes| {
        put(bytes, note + P_VADDR, 0_u64.to_le_bytes())
    });
}

#[test]
fn a_missing_abi_tag_is_refused() {
    let at = find_note(&image(), b"GNU\0", 1);
    // The operating system that the note names: 1 is the Hurd.
    breaks_only(Rule::AbiTag, |bytes| bytes[at + 8] = 1);
}

#[test]
fn a_missing_build_id_is_refused() {
    let at = find_note(&image(), b"GNU\0", 3);
    breaks_only(Rule::BuildId, |bytes| bytes[at] = 0x7f);
}

#[test]
fn a_missing_fastpath_note_or_one_for_another_page_is_refused() {
    let at = find_note(&image(), b"fastpath\0", 1);
    breaks_only(Rule::FastpathNote, |bytes| bytes[at + 4] = b'F');
    breaks_only(Rule::FastpathNote, |bytes| bytes[at + 4 + 12] += 1);
}

#[test]
fn a_function_without_unwind_information_is_refused() {
    let header = elf(&image()).segments_of(PT_GNU_EH_FRAME).next().unwrap().offset as usize;
    breaks_only(Rule::EhFrame, |bytes| bytes[header + 1] = 0);
    let count = header + 8;
    breaks_only(Rule::EhFrame, |bytes| put(bytes, count, 1_u32.to_le_bytes()));
    // The description of the first function ends before the function does.
    let table = header + 12;
    let description = i32::from_le_bytes(image()[table + 4..table + 8].try_into().unwrap());
    let length = header.wrapping_add_signed(description as isize) + 12;
    breaks_only(Rule::EhFrame, |bytes| put(bytes, length, 4_u32.to_le_bytes()));
}

#[test]
fn another_soname_is_refused() {
    let at = find(&image(), b"linux-vdso.so.1\0");
    breaks_only(Rule::Soname, |bytes| bytes[at + 14] = b'2');
}

#[test]
fn a_string_table_beyond_the_segment_is_refused() {
    let at = tag(&image(), DT_STRSZ) + 8;
    breaks(Rule::StringTable, |bytes| put(bytes, at, 8192_u64.to_le_bytes()));
}

#[test]
fn symbols_of_another_size_are_refused() {
    let at = tag(&image(), DT_SYMENT) + 8;
    breaks_only(Rule::SymbolTable, |bytes| put(bytes, at, 16_u64.to_le_bytes()));
}

#[test]
fn a_missing_function_or_one_of_another_kind_is_refused() {
    let at = symbol(&image(), "__vdso_time");
    const INFO: usize = 4;
    const VALUE: usize = 8;
    breaks(Rule::Symbols, |bytes| put(bytes, at, [0; 4]));
    breaks_only(Rule::Symbols, |bytes| bytes[at + INFO] = STB_WEAK << 4 | STT_FUNC);
    breaks_only(Rule::Symbols, |bytes| bytes[at + INFO] = STB_GLOBAL << 4 | 1);
    breaks(Rule::Symbols, |bytes| put(bytes, at + VALUE, 4096_u64.to_le_bytes()));
}

#[test]
fn an_undefined_symbol_is_refused() {
    let at = symbol(&image(), "__vdso_time");
    const SECTION: usize = 6;
    breaks_only(Rule::NoUndefined, |bytes| {
        put(bytes, at + SECTION, SHN_UNDEF.to_le_bytes())
    });
}

#[test]
fn an_undefined_version_is_refused() {
    let count = tag(&image(), DT_VERDEFNUM) + 8;
    breaks_only(Rule::VersionDefinition, |bytes| bytes[count] += 1);
    let name = find(&image(), b"LINUX_2.6\0");
    breaks_only(Rule::VersionDefinition, |bytes| bytes[name + 8] = b'7');
}

#[test]
fn a_function_without_its_version_is_refused() {
    let versions = table(&image(), DT_VERSYM);
    const GLOBAL: u16 = 1;
    breaks_only(Rule::SymbolVersions, |bytes| {
        put(bytes, versions + 2, GLOBAL.to_le_bytes())
    });
    const HIDDEN: u8 = 0x80;
    breaks_only(Rule::SymbolVersions, |bytes| bytes[versions + 3] |= HIDDEN);
    // No table at all: DT_VERSYM becomes a tag that nobody knows.
    let at = tag(&image(), DT_VERSYM);
    breaks_only(Rule::SymbolVersions, |bytes| bytes[at] = 0xee);
}

#[test]
fn a_hash_table_that_misses_a_function_is_refused() {
    let hash = table(&image(), DT_HASH);
    breaks_only(Rule::Hash, |bytes| put(bytes, hash + 8, [0; 4]));
    let at = tag(&image(), DT_HASH);
    breaks_only(Rule::Hash, |bytes| bytes[at + 4] = 1);
}

#[test]
fn a_gnu_hash_table_that_misses_a_function_is_refused() {
    let hash = table(&image(), DT_GNU_HASH);
    let bloom = hash + 16;
    breaks_only(Rule::GnuHash, |bytes| put(bytes, bloom, [0; 8]));
    breaks_only(Rule::GnuHash, |bytes| put(bytes, hash, [0; 4]));
    let at = tag(&image(), DT_GNU_HASH);
    breaks_only(Rule::GnuHash, |bytes| bytes[at + 4] = 1);
}

/// Makes the dynamic entry that says least another one.
fn replace_flags_tag(new: u64) -> impl FnOnce(&mut Vec<u8>) {
    const DT_FLAGS: u64 = 30;
    move |bytes| {
        let at = tag(bytes, DT_FLAGS);
        put(bytes, at, new.to_le_bytes());
    }
}

#[test]
fn relocations_are_refused() {
    const DT_RELA: u64 = 7;
    const DT_REL: u64 = 17;
    const DT_JMPREL: u64 = 23;
    const DT_RELR: u64 = 36;
    for kind in [DT_RELA, DT_REL, DT_JMPREL, DT_RELR] {
        breaks_only(Rule::NoRelocations, replace_flags_tag(kind));
    }
}

#[test]
fn dependencies_and_constructors_are_refused() {
    const DT_NEEDED: u64 = 1;
    const DT_INIT: u64 = 12;
    const DT_RUNPATH: u64 = 29;
    for kind in [DT_NEEDED, DT_INIT, DT_RUNPATH] {
        breaks_only(Rule::NoDependencies, replace_flags_tag(kind));
    }
}

#[test]
fn section_headers_that_are_missing_cut_off_or_writable_are_refused() {
    let headers = u64_at(&image(), SECTION_HEADERS_AT as u64).unwrap() as usize;
    const FLAGS: usize = 8;
    breaks_only(Rule::Sections, |bytes| bytes[headers + 64 + FLAGS] |= 1);
    breaks_only(Rule::Sections, |bytes| bytes.truncate(headers + 64));
    const SECTION_COUNT: usize = 60;
    breaks_only(Rule::Sections, |bytes| put(bytes, SECTION_COUNT, [0; 2]));
}
