//! Damages an image once for each rule of the build's checker, which must detect it.

use std::collections::BTreeSet;

use fastpath_image::Image;
use fastpath_image::elf::check::{Contract, Rule, Violation, check};
use fastpath_image::elf::*;

const E_TYPE: usize = 16;
const E_MACHINE: usize = 18;

/// A dynamic tag that no loader knows.
const UNKNOWN_TAG: u64 = 0x6fff_ee00;

/// Offsets in a file of either class.
struct Class {
    is_64: bool,
    program_headers: usize,
    program_header_size: usize,
    p_flags: usize,
    p_vaddr: usize,
    p_memsz: usize,
    /// Size of a word, which is also the offset of a dynamic entry's value behind its tag.
    word: usize,
    st_info: usize,
    st_value: usize,
    st_shndx: usize,
    e_shoff: usize,
    e_shnum: usize,
    section_header_size: usize,
}

const CLASS_64: Class = Class {
    is_64: true,
    program_headers: 64,
    program_header_size: 56,
    p_flags: 4,
    p_vaddr: 16,
    p_memsz: 40,
    word: 8,
    st_info: 4,
    st_value: 8,
    st_shndx: 6,
    e_shoff: 40,
    e_shnum: 60,
    section_header_size: 64,
};

const CLASS_32: Class = Class {
    is_64: false,
    program_headers: 52,
    program_header_size: 32,
    p_flags: 24,
    p_vaddr: 8,
    p_memsz: 20,
    word: 4,
    st_info: 12,
    st_value: 4,
    st_shndx: 14,
    e_shoff: 32,
    e_shnum: 48,
    section_header_size: 40,
};

/// The image of one ISA, and the offsets of its class.
struct Subject {
    isa: Isa,
    bytes: &'static [u8],
    class: &'static Class,
}

/// Returns the images that this build has: all four, or the host's alone.
fn subjects() -> impl Iterator<Item = Subject> {
    Isa::ALL.into_iter().filter_map(|isa| {
        let image = Image::for_isa(isa)?;
        Some(Subject {
            isa,
            bytes: image.bytes(),
            class: if isa.is_64() { &CLASS_64 } else { &CLASS_32 },
        })
    })
}

fn elf(bytes: &[u8]) -> Elf<'_> {
    Elf::parse(bytes).unwrap()
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

impl Class {
    fn word_at(&self, bytes: &[u8], at: usize) -> u64 {
        if self.is_64 {
            u64_at(bytes, at as u64).unwrap()
        } else {
            u32_at(bytes, at as u64).unwrap().into()
        }
    }

    fn put_word(&self, bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + self.word].copy_from_slice(&value.to_le_bytes()[..self.word]);
    }
}

impl Subject {
    fn segment(&self, kind: u32) -> usize {
        let elf = elf(self.bytes);
        let index = elf.segments.iter().position(|segment| segment.kind == kind).unwrap();
        self.class.program_headers + self.class.program_header_size * index
    }

    /// Returns the type of the segment with the tables that unwinders read.
    fn unwind_segment(&self) -> u32 {
        if self.isa == Isa::Arm {
            PT_ARM_EXIDX
        } else {
            PT_GNU_EH_FRAME
        }
    }

    /// Returns the offset of a dynamic tag's entry.
    fn tag(&self, tag: u32) -> usize {
        let elf = elf(self.bytes);
        let index = elf.dynamic.iter().position(|entry| entry.0 == tag).unwrap();
        elf.segments_of(PT_DYNAMIC).next().unwrap().offset as usize + 2 * self.class.word * index
    }

    /// Returns the offset that a tag points to.
    fn table(&self, tag: u32) -> usize {
        elf(self.bytes).dynamic_offset(tag).unwrap() as usize
    }

    /// Returns the offset of a dynamic symbol's entry.
    fn symbol(&self, function: &str) -> usize {
        let name = format!("{}{function}", self.isa.facts().prefix);
        let elf = elf(self.bytes);
        let mut symbols = elf.symbols();
        let (index, _) = symbols.find(|(_, symbol)| symbol.name == name.as_bytes()).unwrap();
        elf.symbol_offset(index).unwrap() as usize
    }

    fn find(&self, pattern: &[u8]) -> usize {
        let mut windows = self.bytes.windows(pattern.len());
        windows.position(|window| window == pattern).unwrap()
    }

    fn find_note(&self, name: &[u8], kind: u32) -> usize {
        let mut pattern = kind.to_le_bytes().to_vec();
        pattern.extend_from_slice(name);
        self.find(&pattern)
    }

    fn check(&self, bytes: &[u8]) -> Vec<Violation> {
        check(bytes, &Contract::for_isa(self.isa, fastpath_page::layout::ABI))
    }

    /// Returns the rules that the image breaks after this damage.
    fn broken_by(&self, damage: impl FnOnce(&mut Vec<u8>)) -> BTreeSet<String> {
        let mut bytes = self.bytes.to_vec();
        damage(&mut bytes);
        assert_ne!(bytes, self.bytes, "{}: no damage was done", self.isa);
        let violations = self.check(&bytes);
        violations
            .iter()
            .map(|violation| format!("{:?}", violation.rule))
            .collect()
    }

    /// Asserts that the damage breaks that rule, and no other.
    fn breaks_only(&self, rule: Rule, damage: impl FnOnce(&mut Vec<u8>)) {
        let broken = self.broken_by(damage);
        assert_eq!(broken, BTreeSet::from([format!("{rule:?}")]), "{}", self.isa);
    }

    /// Asserts that the damage breaks that rule, among others that follow from it.
    fn breaks(&self, rule: Rule, damage: impl FnOnce(&mut Vec<u8>)) {
        let broken = self.broken_by(damage);
        let rule = format!("{rule:?}");
        assert!(broken.contains(&rule), "{}: {rule} is not among {broken:?}", self.isa);
    }
}

#[test]
fn the_finished_image_breaks_no_rule() {
    for image in subjects() {
        assert_eq!(image.check(image.bytes), [], "{}", image.isa);
    }
}

#[test]
fn damage_to_the_header_and_the_segments_is_found() {
    for image in subjects() {
        // A file of another machine or class.
        image.breaks_only(Rule::Elf, |bytes| put(bytes, E_MACHINE, 8_u16.to_le_bytes()));
        image.breaks_only(Rule::Elf, |bytes| bytes[0] = 0);
        // An executable.
        image.breaks_only(Rule::SharedObject, |bytes| put(bytes, E_TYPE, 2_u16.to_le_bytes()));
        // An image of more than two pages.
        image.breaks_only(Rule::Size, |bytes| bytes.resize(check::MAX_SIZE + 1, 0));
        // A second loadable segment or a missing one.
        let eh_frame = image.segment(image.unwind_segment());
        image.breaks(Rule::Segments, |bytes| put(bytes, eh_frame, PT_LOAD.to_le_bytes()));
        const PT_TLS: u32 = 7;
        image.breaks(Rule::Segments, |bytes| put(bytes, eh_frame, PT_TLS.to_le_bytes()));
        // A segment that is not loaded at zero.
        let load = image.segment(PT_LOAD);
        image.breaks(Rule::LoadAddress, |bytes| {
            image.class.put_word(bytes, load + image.class.p_vaddr, 4096)
        });
        image.breaks_only(Rule::LoadAddress, |bytes| {
            image.class.put_word(bytes, load + image.class.p_memsz, 8192)
        });
        // A writable segment.
        let load = image.segment(PT_LOAD);
        image.breaks_only(Rule::LoadFlags, |bytes| bytes[load + image.class.p_flags] = 7);
        // A segment outside the loaded one.
        let note = image.segment(PT_NOTE);
        image.breaks_only(Rule::SegmentsLoaded, |bytes| {
            image.class.put_word(bytes, note + image.class.p_vaddr, 0)
        });
        // An executable stack.
        let stack = image.segment(PT_GNU_STACK);
        image.breaks_only(Rule::Stack, |bytes| bytes[stack + image.class.p_flags] = 7);
        image.breaks(Rule::Segments, |bytes| put(bytes, stack, PT_NOTE.to_le_bytes()));
        // Section headers that are missing cut off or writable.
        let class = image.class;
        let headers = class.word_at(image.bytes, class.e_shoff) as usize;
        let second = headers + class.section_header_size;
        const FLAGS: usize = 8;
        image.breaks_only(Rule::Sections, |bytes| bytes[second + FLAGS] |= 1);
        image.breaks_only(Rule::Sections, |bytes| bytes.truncate(second));
        image.breaks_only(Rule::Sections, |bytes| put(bytes, class.e_shnum, [0; 2]));
    }
}

#[test]
fn damage_to_the_notes_is_found() {
    for image in subjects() {
        // A missing abi tag.
        let at = image.find_note(b"GNU\0", 1);
        // The operating system in the note: 1 is the Hurd.
        image.breaks_only(Rule::AbiTag, |bytes| bytes[at + 8] = 1);
        // A missing build id.
        let at = image.find_note(b"GNU\0", 3);
        image.breaks_only(Rule::BuildId, |bytes| bytes[at] = 0x7f);
        // A missing fastpath note or one for another page.
        let at = image.find_note(b"fastpath\0", 1);
        image.breaks_only(Rule::FastpathNote, |bytes| bytes[at + 4] = b'F');
        image.breaks_only(Rule::FastpathNote, |bytes| bytes[at + 4 + 12] += 1);
    }
}

/// Without the property, a loader would switch shadow stacks or landing pads off. One that promises too much is a crash.
#[test]
fn an_image_states_the_property_that_its_code_has() {
    let has = |image: &Image| {
        let elf = elf(image.bytes());
        let segment = *elf.segments_of(PT_GNU_PROPERTY).next()?;
        let at = |offset| u32_at(image.bytes(), segment.offset + offset).unwrap();
        assert_eq!((segment.alignment, segment.file_size), (8, 32));
        Some((at(16), at(24)))
    };
    for (isa, native, for_hosts) in [
        // IBT and SHSTK of the x86 ABI, BTI of AArch64's.
        (Isa::X86_64, Some((0xc000_0002, 3)), Some((0xc000_0002, 2))),
        (Isa::Aarch64, Some((0xc000_0000, 1)), Some((0xc000_0000, 1))),
        (Isa::I386, None, None),
        (Isa::Arm, None, None),
    ] {
        let images = [(Image::for_isa(isa), native), (Image::for_hosts(isa), for_hosts)];
        for (image, property) in images
            .into_iter()
            .filter_map(|(image, property)| Some((image?, property)))
        {
            assert_eq!(has(image), property, "{isa}");
        }
    }
    for image in subjects().filter(|image| image.isa.is_64()) {
        let note = elf(image.bytes).segments_of(PT_GNU_PROPERTY).next().unwrap().offset as usize;
        image.breaks_only(Rule::Property, |bytes| bytes[note + 24] ^= 2);
        image.breaks_only(Rule::Property, |bytes| bytes[note + 8] = 1);
        let at = image.segment(PT_GNU_PROPERTY);
        const P_ALIGN: usize = 48;
        image.breaks_only(Rule::Property, |bytes| image.class.put_word(bytes, at + P_ALIGN, 4));
        let function = image.symbol("getrandom") + image.class.st_value;
        let entry = image.class.word_at(image.bytes, function) as usize;
        image.breaks_only(Rule::LandingPads, |bytes| bytes[entry] = 0x90);
    }
}

#[test]
fn a_function_without_unwind_information_is_refused() {
    for image in subjects() {
        let header = elf(image.bytes)
            .segments_of(image.unwind_segment())
            .next()
            .unwrap()
            .offset as usize;
        if image.isa == Isa::Arm {
            unwind_tables_of_arm(&image, header);
        } else {
            unwind_tables(&image, header);
        }
    }
}

fn unwind_tables(image: &Subject, header: usize) {
    image.breaks_only(Rule::Unwind, |bytes| bytes[header + 1] = 0);
    let count = header + 8;
    image.breaks_only(Rule::Unwind, |bytes| put(bytes, count, 1_u32.to_le_bytes()));
    // The descriptions of all functions end before the functions do.
    let table = header + 12;
    let functions = u32_at(image.bytes, count as u64).unwrap() as usize;
    image.breaks_only(Rule::Unwind, |bytes| {
        for entry in (table..).step_by(8).take(functions) {
            let description = u32_at(image.bytes, entry as u64 + 4).unwrap() as i32;
            let length = header.wrapping_add_signed(description as isize) + 12;
            put(bytes, length, 4_u32.to_le_bytes());
        }
    });
}

fn unwind_tables_of_arm(image: &Subject, table: usize) {
    const CANNOT_UNWIND: u32 = 1;
    image.breaks_only(Rule::Unwind, |bytes| put(bytes, table + 4, CANNOT_UNWIND.to_le_bytes()));
    // The first function begins after the others.
    image.breaks_only(Rule::Unwind, |bytes| put(bytes, table, 4096_u32.to_le_bytes()));
}

#[test]
fn damage_to_the_tables_of_names_and_functions_is_found() {
    for image in subjects() {
        // Another soname.
        let at = image.find(b"linux-vdso.so.1\0");
        image.breaks_only(Rule::Soname, |bytes| bytes[at + 14] = b'2');
        // A string table beyond the segment.
        let at = image.tag(DT_STRSZ) + image.class.word;
        image.breaks(Rule::StringTable, |bytes| image.class.put_word(bytes, at, 8192));
        // Symbols of another size.
        let at = image.tag(DT_SYMENT) + image.class.word;
        image.breaks_only(Rule::SymbolTable, |bytes| image.class.put_word(bytes, at, 20));
        // A missing function or one of another kind.
        let at = image.symbol("clock_getres");
        image.breaks(Rule::Symbols, |bytes| put(bytes, at, [0; 4]));
        image.breaks_only(Rule::Symbols, |bytes| {
            bytes[at + image.class.st_info] = STB_WEAK << 4 | STT_FUNC
        });
        image.breaks_only(Rule::Symbols, |bytes| {
            bytes[at + image.class.st_info] = STB_GLOBAL << 4 | 1
        });
        image.breaks(Rule::Symbols, |bytes| {
            image.class.put_word(bytes, at + image.class.st_value, 4096)
        });
        // An undefined symbol.
        let at = image.symbol("clock_getres");
        image.breaks_only(Rule::NoUndefined, |bytes| {
            put(bytes, at + image.class.st_shndx, SHN_UNDEF.to_le_bytes())
        });
        // An undefined version.
        let count = image.tag(DT_VERDEFNUM) + image.class.word;
        image.breaks_only(Rule::VersionDefinition, |bytes| bytes[count] += 1);
        for version in Contract::for_isa(image.isa, 0).versions {
            let name = image.find(format!("{}\0", version.name).as_bytes());
            image.breaks_only(Rule::VersionDefinition, |bytes| bytes[name + 8] = b'7');
        }
        // A function without its version.
        let versions = image.table(DT_VERSYM);
        const GLOBAL: u16 = 1;
        image.breaks_only(Rule::SymbolVersions, |bytes| {
            put(bytes, versions + 2, GLOBAL.to_le_bytes())
        });
        const HIDDEN: u8 = 0x80;
        image.breaks_only(Rule::SymbolVersions, |bytes| bytes[versions + 3] |= HIDDEN);
        // No table at all: DT_VERSYM becomes an unknown tag.
        let at = image.tag(DT_VERSYM);
        image.breaks_only(Rule::SymbolVersions, |bytes| {
            image.class.put_word(bytes, at, UNKNOWN_TAG)
        });
        // A hash table that misses a function.
        let hash = image.table(DT_HASH);
        let buckets = u32_at(image.bytes, hash as u64).unwrap() as usize;
        image.breaks_only(Rule::Hash, |bytes| bytes[hash + 8..][..4 * buckets].fill(0));
        let at = image.tag(DT_HASH);
        image.breaks_only(Rule::Hash, |bytes| image.class.put_word(bytes, at, UNKNOWN_TAG));
        // A gnu hash table that misses a function.
        let hash = image.table(DT_GNU_HASH);
        let bloom = hash + 16;
        image.breaks_only(Rule::GnuHash, |bytes| put(bytes, bloom, [0; 8]));
        image.breaks_only(Rule::GnuHash, |bytes| put(bytes, hash, [0; 4]));
        let at = image.tag(DT_GNU_HASH);
        image.breaks_only(Rule::GnuHash, |bytes| image.class.put_word(bytes, at, UNKNOWN_TAG));
    }
}

/// Replaces the dynamic entry with the least information.
fn replace_flags_tag(image: &Subject, new: u64) -> impl FnOnce(&mut Vec<u8>) + use<> {
    const DT_FLAGS: u32 = 30;
    let (at, class) = (image.tag(DT_FLAGS), image.class);
    move |bytes| class.put_word(bytes, at, new)
}

#[test]
fn relocations_and_dependencies_are_refused() {
    for image in subjects() {
        // Relocations.
        const DT_RELA: u64 = 7;
        const DT_REL: u64 = 17;
        const DT_JMPREL: u64 = 23;
        const DT_RELR: u64 = 36;
        for kind in [DT_RELA, DT_REL, DT_JMPREL, DT_RELR] {
            image.breaks_only(Rule::NoRelocations, replace_flags_tag(&image, kind));
        }
        // Dependencies and constructors.
        const DT_NEEDED: u64 = 1;
        const DT_INIT: u64 = 12;
        const DT_RUNPATH: u64 = 29;
        for kind in [DT_NEEDED, DT_INIT, DT_RUNPATH] {
            image.breaks_only(Rule::NoDependencies, replace_flags_tag(&image, kind));
        }
    }
}
