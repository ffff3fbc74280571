//! The rules that the image must satisfy because a loader depends on them.
//!
//! The build runs this on the finished image and fails if a rule is broken; the tests break each rule once.

mod hash_tables;

use fastpath_isa::{HOSTS_VERSION, Version};

use super::*;
use object::elf::{
    DT_FINI, DT_FINI_ARRAY, DT_INIT, DT_INIT_ARRAY, DT_JMPREL, DT_NEEDED, DT_PLTGOT, DT_PLTRELSZ, DT_REL, DT_RELA,
    DT_RPATH, DT_RUNPATH, DT_TEXTREL, ELF_NOTE_OS_LINUX, NT_GNU_ABI_TAG, SHF_WRITE,
};

/// Largest image: two pages.
pub const MAX_SIZE: usize = 8192;

/// Size of a SHA-1.
const BUILD_ID_SIZE: usize = 20;

pub(crate) const SONAME: &str = "linux-vdso.so.1";
/// The name and type of the note by which fastpath recognizes its own image. Its description is the page's ABI version.
pub const NOTE_NAME: &str = "fastpath";
pub const NOTE_KIND: u32 = 1;

/// The exports of one ISA's vDSO.
pub struct Contract {
    pub isa: Isa,
    pub page_abi: u32,
    pub versions: Vec<&'static Version>,
    /// Type and bits of the property note; `None`: no note.
    pub property: Option<(u32, u32)>,
}

impl Contract {
    pub fn for_isa(isa: Isa, page_abi: u32) -> Contract {
        Contract {
            isa,
            page_abi,
            versions: isa.facts().vdso.iter().collect(),
            property: isa.facts().property.as_ref().map(|all| (all.kind, all.features)),
        }
    }

    /// Returns the contract of the image for hosts.
    pub fn for_hosts(isa: Isa, page_abi: u32) -> Contract {
        let mut contract = Contract::for_isa(isa, page_abi);
        contract.versions.push(&HOSTS_VERSION);
        contract.property = isa
            .facts()
            .property
            .as_ref()
            .map(|all| (all.kind, all.features_for_hosts));
        contract
    }

    /// Returns the type of the segment by which unwinders find their tables.
    fn unwind_segment(&self) -> u32 {
        match self.isa.facts().unwind {
            Unwind::EhFrame => PT_GNU_EH_FRAME,
            Unwind::ArmExidx => PT_ARM_EXIDX,
        }
    }

    /// Returns the name and binding (STB_*) of every function.
    pub fn functions(&self) -> impl Iterator<Item = (&'static str, u8)> + use<> {
        let versions = self.versions.clone();
        versions.into_iter().flat_map(|version| {
            let strong = version.functions.iter().map(|&name| (name, STB_GLOBAL));
            strong.chain(version.weak.iter().map(|&name| (name, STB_WEAK)))
        })
    }
}

/// A property that a loader depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// An ELF file of the right class, byte order and machine.
    Elf,
    /// ET_DYN.
    SharedObject,
    /// At most two pages.
    Size,
    /// PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_STACK, PT_GNU_EH_FRAME (PT_ARM_EXIDX on Arm) and, on ISAs with a property,
    /// PT_GNU_PROPERTY, each once, and nothing else.
    Segments,
    /// The PT_LOAD begins at address 0 of the file's first byte, and is the file's content to its end.
    LoadAddress,
    /// The PT_LOAD is readable and executable, and not writable.
    LoadFlags,
    /// The other segments lie in the PT_LOAD.
    SegmentsLoaded,
    /// PT_GNU_STACK requires no executable stack.
    Stack,
    /// PT_GNU_PROPERTY has a note of the contract's property, at the alignment that loaders require.
    Property,
    /// If the property states landing pads, each function begins with one, but those to which a signal handler returns.
    LandingPads,
    /// NT_GNU_ABI_TAG says Linux.
    AbiTag,
    /// A build id.
    BuildId,
    /// The note by which fastpath recognizes its own image.
    FastpathNote,
    /// An unwinder finds every function, in .eh_frame, on Arm in .ARM.exidx.
    Unwind,
    /// DT_SONAME.
    Soname,
    /// DT_STRTAB and DT_STRSZ.
    StringTable,
    /// DT_SYMTAB and DT_SYMENT.
    SymbolTable,
    /// Every function is defined, with its binding, its type, and inside the loaded segment.
    Symbols,
    /// No symbol is undefined.
    NoUndefined,
    /// DT_VERDEF, DT_VERDEFNUM: the version is defined.
    VersionDefinition,
    /// DT_VERSYM: every function has the version.
    SymbolVersions,
    /// DT_HASH finds every function.
    Hash,
    /// DT_GNU_HASH finds every function.
    GnuHash,
    /// No relocations: no loader relocates a vDSO.
    NoRelocations,
    /// No dependencies and no constructors: no loader handles them in a vDSO.
    NoDependencies,
    /// Section headers that a debugger can read, in the file, none of them writable.
    Sections,
}

/// A broken rule, and what broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub found: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}: {}", self.rule, self.found)
    }
}

/// Returns every rule that the image breaks.
pub fn check(image: &[u8], contract: &Contract) -> Vec<Violation> {
    let elf = match Elf::parse(image) {
        Ok(elf) => elf,
        Err(error) => {
            return vec![Violation {
                rule: Rule::Elf,
                found: error.to_string(),
            }];
        }
    };
    let mut checker = Checker {
        image,
        elf,
        contract,
        violations: Vec::new(),
    };
    checker.file();
    checker.segments();
    checker.property();
    checker.notes();
    checker.unwind();
    checker.dynamic();
    checker.symbols();
    checker.versions();
    checker.hash_tables();
    checker.sections();
    checker.violations
}

struct Checker<'a> {
    image: &'a [u8],
    elf: Elf<'a>,
    contract: &'a Contract,
    violations: Vec<Violation>,
}

impl<'a> Checker<'a> {
    fn require(&mut self, rule: Rule, holds: bool, found: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { rule, found: found() });
        }
    }

    fn symbol_named(&self, name: &str) -> Option<Symbol<'a>> {
        let symbol = self.elf.symbols().find(|(_, symbol)| symbol.name == name.as_bytes());
        symbol.map(|(_, symbol)| symbol)
    }

    fn file(&mut self) {
        let (is_64, machine, kind, size) = (self.elf.is_64(), self.elf.machine, self.elf.kind, self.image.len());
        let contract = self.contract;
        self.require(Rule::Elf, Isa::of_elf(machine, is_64) == Some(contract.isa), || {
            format!("machine {machine}, 64 bits: {is_64}")
        });
        self.require(Rule::SharedObject, kind == ET_DYN, || format!("ELF type {kind}"));
        self.require(Rule::Size, size <= MAX_SIZE, || format!("{size} bytes"));
    }

    fn segments(&mut self) {
        let mut kinds: Vec<u32> = self.elf.segments.iter().map(|segment| segment.kind).collect();
        kinds.sort_unstable();
        let mut expected = vec![
            PT_LOAD,
            PT_DYNAMIC,
            PT_NOTE,
            PT_GNU_STACK,
            self.contract.unwind_segment(),
        ];
        expected.extend(self.contract.property.map(|_| PT_GNU_PROPERTY));
        expected.sort_unstable();
        self.require(Rule::Segments, kinds == expected, || {
            format!("segments of types {kinds:#x?}")
        });

        for segment in self.elf.segments.clone() {
            if segment.kind == PT_GNU_STACK {
                let flags = segment.flags;
                self.require(Rule::Stack, flags == PF_R | PF_W, || format!("flags {flags:#x}"));
                continue;
            }
            if segment.kind != PT_LOAD {
                let same = segment.vaddr == segment.offset && segment.file_size == segment.memory_size;
                let loaded = self.elf.is_loaded(segment.offset, segment.file_size);
                self.require(Rule::SegmentsLoaded, same && loaded, || format!("{segment:x?}"));
                continue;
            }
            let whole = segment.vaddr == 0
                && segment.offset == 0
                && segment.file_size == segment.memory_size
                && segment.file_size <= self.image.len() as u64;
            self.require(Rule::LoadAddress, whole, || format!("{segment:x?}"));
            let flags = segment.flags;
            self.require(Rule::LoadFlags, flags == PF_R | PF_X, || format!("flags {flags:#x}"));
        }
    }

    fn property(&mut self) {
        let Some((kind, features)) = self.contract.property else {
            return;
        };
        // The name's size, the description's, NT_GNU_PROPERTY_TYPE_0; the name; one property of four bytes, padded.
        let words = [4, 16, 5, u32::from_le_bytes(*b"GNU\0"), kind, 4, features, 0];
        let note: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let segment = self.elf.segments_of(PT_GNU_PROPERTY).next().copied();
        let holds = segment.is_some_and(|segment| {
            let found = bytes_at(self.image, segment.offset, segment.file_size);
            segment.alignment == 8 && segment.offset % 8 == 0 && found == Some(&note)
        });
        self.require(Rule::Property, holds, || format!("{segment:x?}"));

        let functions = self.contract.functions();
        let called =
            functions.filter(|(name, _)| features & Property::LANDING_PADS != 0 && !name.ends_with("sigreturn"));
        for (name, _) in called {
            let code = self
                .symbol_named(name)
                .and_then(|symbol| bytes_at(self.image, symbol.value, 4));
            let pads = self.contract.isa.facts().landing_pads;
            // A function that is not there is Rule::Symbols's.
            let holds = code.is_none_or(|code| pads.iter().any(|pad| pad == code));
            self.require(Rule::LandingPads, holds, || format!("{name} begins with {code:x?}"));
        }
    }

    fn notes(&mut self) {
        let notes = self.elf.notes.clone();
        let page_abi = self.contract.page_abi;
        let has = |name: &str, kind: u32, holds: &dyn Fn(&[u8]) -> bool| {
            notes
                .iter()
                .any(|note| note.name == name.as_bytes() && note.kind == kind && holds(note.description))
        };
        let abi_tag = has("GNU", NT_GNU_ABI_TAG, &|tag| {
            tag.len() == 16 && u32_at(tag, 0) == Some(ELF_NOTE_OS_LINUX)
        });
        let build_id = has("GNU", NT_GNU_BUILD_ID, &|id| id.len() == BUILD_ID_SIZE);
        let fastpath = has(NOTE_NAME, NOTE_KIND, &|abi| abi == page_abi.to_le_bytes());
        for (rule, holds) in [
            (Rule::AbiTag, abi_tag),
            (Rule::BuildId, build_id),
            (Rule::FastpathNote, fastpath),
        ] {
            self.require(rule, holds, || format!("{notes:x?}"));
        }
    }

    fn unwind(&mut self) {
        for (name, _) in self.contract.functions() {
            let Some(symbol) = self.symbol_named(name) else {
                continue;
            };
            let covered = match self.contract.isa.facts().unwind {
                Unwind::EhFrame => self.unwinder_finds(symbol.value, symbol.size),
                Unwind::ArmExidx => self.is_in_exidx(symbol.value),
            };
            let covered = covered.unwrap_or(false);
            self.require(Rule::Unwind, covered, || {
                format!("no unwind information covers {name} at {:#x}", symbol.value)
            });
        }
    }

    /// Looks a function up in the binary search table, as an unwinder does, and follows it to the frame description.
    fn unwinder_finds(&self, function: u64, size: u64) -> Option<bool> {
        // Format of the toolchains' tables (DWARF exception header encodings): version 1, frame pointer relative to
        // itself, count absolute, table relative to the header; four bytes each.
        const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let header = self.elf.segments_of(PT_GNU_EH_FRAME).next()?.offset;
        if bytes_at(self.image, header, 4)? != HEADER {
            return None;
        }
        let relative = |base: u64, at: u64| {
            let distance = u32_at(self.image, at)? as i32;
            Some(base.wrapping_add_signed(i64::from(distance)))
        };
        let count = u32_at(self.image, header + 8)?;
        let entries = (0..u64::from(count)).map_while(|index| {
            let at = header + 12 + index * 8;
            Some((relative(header, at)?, relative(header, at + 4)?))
        });
        let (_, description) = entries.take_while(|&(start, _)| start <= function).last()?;
        if !self.elf.is_loaded(description, 16) {
            return None;
        }
        let start = relative(description + 8, description + 8)?;
        let length = u64::from(u32_at(self.image, description + 12)?);
        Some(start <= function && function + size <= start + length)
    }

    /// Looks a function up in Arm's table (Exception Handling ABI, chapter 6): pairs of a function's distance and its
    /// unwind instructions, in the order of addresses, each valid up to the next one's beginning.
    fn is_in_exidx(&self, function: u64) -> Option<bool> {
        const CANNOT_UNWIND: u32 = 1;
        let table = self.elf.segments_of(PT_ARM_EXIDX).next()?;
        let entries = (0..table.file_size / 8).map_while(|index| {
            let at = table.offset + index * 8;
            // 31 bits, signed.
            let distance = (u32_at(self.image, at)? << 1) as i32 >> 1;
            Some((at.wrapping_add_signed(i64::from(distance)), u32_at(self.image, at + 4)?))
        });
        let entries: Vec<(u64, u32)> = entries.collect();
        let is_sorted = entries.is_sorted_by_key(|entry| entry.0);
        let (_, how) = entries.into_iter().rfind(|&(start, _)| start <= function)?;
        Some(is_sorted && how != CANNOT_UNWIND)
    }

    fn dynamic(&mut self) {
        const DT_RELR: u32 = 36;
        let soname = self.elf.soname().map(String::from_utf8_lossy);
        let is_soname = soname.as_deref() == Some(SONAME);
        self.require(Rule::Soname, is_soname, || format!("{soname:?}"));

        let size = self.elf.dynamic_value(DT_STRSZ).unwrap_or(0);
        let strings = self.elf.dynamic_offset(DT_STRTAB);
        let loaded = strings.is_some_and(|at| size > 0 && self.elf.is_loaded(at, size));
        self.require(Rule::StringTable, loaded, || format!("at {strings:x?}, {size} bytes"));

        let symbols = self.elf.dynamic_offset(DT_SYMTAB);
        let entry_size = self.elf.dynamic_value(DT_SYMENT);
        let size = u64::from(self.elf.symbol_count()) * self.elf.symbol_size();
        let loaded = symbols.is_some_and(|at| size > 0 && self.elf.is_loaded(at, size));
        let holds = loaded && entry_size == Some(self.elf.symbol_size());
        self.require(Rule::SymbolTable, holds, || {
            format!("at {symbols:x?}, {size} bytes, entries of {entry_size:?}")
        });

        let relocations = [DT_PLTRELSZ, DT_PLTGOT, DT_RELA, DT_REL, DT_TEXTREL, DT_JMPREL, DT_RELR];
        self.forbid_tags(Rule::NoRelocations, &relocations);

        let dependencies = [
            DT_NEEDED,
            DT_INIT,
            DT_FINI,
            DT_RPATH,
            DT_INIT_ARRAY,
            DT_FINI_ARRAY,
            DT_RUNPATH,
        ];
        self.forbid_tags(Rule::NoDependencies, &dependencies);
    }

    fn forbid_tags(&mut self, rule: Rule, tags: &[u32]) {
        for &tag in tags {
            let absent = self.elf.dynamic_value(tag).is_none();
            self.require(rule, absent, || format!("dynamic tag {tag}"));
        }
    }

    fn symbols(&mut self) {
        for (name, binding) in self.contract.functions() {
            let symbol = self.symbol_named(name);
            let holds = symbol.is_some_and(|symbol| {
                symbol.kind == STT_FUNC
                    && symbol.binding == binding
                    && symbol.size > 0
                    && (symbol.section == SHN_UNDEF || self.elf.is_loaded(symbol.value, symbol.size))
            });
            self.require(Rule::Symbols, holds, || format!("{name}: {symbol:x?}"));
        }
        let undefined: Vec<_> = self
            .elf
            .symbols()
            .filter(|(_, symbol)| symbol.section == SHN_UNDEF)
            .map(|(_, symbol)| String::from_utf8_lossy(symbol.name).into_owned())
            .collect();
        self.require(Rule::NoUndefined, undefined.is_empty(), || undefined.join(", "));
    }

    fn versions(&mut self) {
        let versions = self.elf.versions();
        let count = self.elf.dynamic_value(DT_VERDEFNUM);
        for contract in &self.contract.versions {
            let version = versions
                .iter()
                .find(|(_, flags, name)| flags & VER_FLG_BASE == 0 && *name == contract.name.as_bytes());
            let holds = version.is_some() && count == Some(versions.len() as u64);
            self.require(Rule::VersionDefinition, holds, || {
                format!("{count:?} definitions announced, found {versions:x?}")
            });
            let Some(&(version, ..)) = version else { continue };
            for name in contract.functions.iter().chain(contract.weak) {
                let Some(symbol) = self.symbol_named(name) else {
                    continue;
                };
                // The bit for "hidden" must be clear too: a lookup without a version must find the function.
                self.require(Rule::SymbolVersions, symbol.version == Some(version), || {
                    format!("{name} has version {:?}", symbol.version)
                });
            }
        }
    }

    fn sections(&mut self) {
        // The sections by which gdb reads symbols and unwind information.
        let unwind = match self.contract.isa.facts().unwind {
            Unwind::EhFrame => ".eh_frame",
            Unwind::ArmExidx => ".ARM.exidx",
        };
        let sections = self.elf.sections();
        let holds = sections.as_ref().is_some_and(|sections| {
            let has = |name: &str| sections.iter().any(|section| section.name == name);
            let complete = [".dynsym", ".dynstr", unwind, ".text"].into_iter().all(has);
            complete && sections.iter().all(|section| section.flags & u64::from(SHF_WRITE) == 0)
        });
        self.require(Rule::Sections, holds, || format!("{sections:x?}"));
    }
}
