//! Names of functions, and callers, from the mapped files. The work is done after the call.

use crate::trace::arch;
use crate::trace::call::CallSample;
use crate::trace::process::{self, ImageMapping, ProgramImage};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use fastpath_image::Isa;
use nix::sys::memfd::{MFdFlags, memfd_create};
use object::{Object, ObjectSection, ObjectSegment};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// One function on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
pub struct Frame {
    /// The function's name, demangled; nothing if the file has no symbol for it.
    pub function: Option<String>,
    /// The file that contains it, `[vdso]`, or `//anon` for code made at run time; nothing if the mapping is not known.
    pub library: Option<String>,
}

impl Frame {
    /// Returns whether it only makes system calls for its callers: libc, the loader, a vDSO.
    pub(crate) fn is_go_between(&self) -> bool {
        let Some(library) = self.library.as_deref() else {
            return false;
        };
        let file = library.rsplit('/').next().unwrap_or_default();
        let of_libc = [
            "libc.so",
            "libc-2.",
            "ld-musl-",
            "ld-linux",
            "libc.musl-",
            "libpthread",
            "librt",
        ];
        is_vdso(library) || of_libc.iter().any(|name| file.starts_with(name))
    }
}

/// Returns whether a function of a C library or a runtime only reads a clock: its caller says more.
pub(crate) fn is_clock_function(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "clock_gettime",
        "gettimeofday",
        "time.now",
        "time.Now",
        "time.Since",
        "time.Until",
        "time.runtime",
        "runtime.nanotime",
        "runtime.walltime",
        "os::javaTime",
        "_PyTime_",
        "std::chrono::",
        "std::time::",
        "std::sys::",
    ];
    let name = name.trim_start_matches("__");
    NAMES.iter().any(|begin| name.starts_with(begin))
}

/// Returns whether a function is of Go's runtime or its package time.
pub(crate) fn is_of_go(name: &str) -> bool {
    name.starts_with("runtime.") || name.starts_with("time.")
}

/// Returns whether a mapping is a vDSO: the kernel's, or fastpath's.
pub(crate) fn is_vdso(path: &str) -> bool {
    path == "[vdso]" || path.starts_with("/memfd:fastpath")
}

/// Returns the kernel's vDSO in this process, which is the same in every process of this ISA.
pub(crate) fn kernels_vdso() -> Option<&'static [u8]> {
    let maps = fastpath_os::maps::own().ok()?;
    let vdso = maps.iter().find(|mapping| mapping.name == "[vdso]")?;
    // SAFETY: the kernel has mapped its vDSO there, readable, for as long as this process runs.
    Some(unsafe { std::slice::from_raw_parts(vdso.start as *const u8, vdso.len() as usize) })
}

/// Returns a part of a process's memory, such as its vDSO, if that may be read.
pub(crate) fn memory_of(pid: u32, range: &std::ops::Range<u64>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, range.start).ok()?;
    Some(bytes)
}

/// The data of each file, read once.
#[derive(Default)]
pub(crate) struct Symbols {
    symbolizers: Symbolizers,
    modules: HashMap<PathBuf, Option<Arc<Unwinding>>>,
    copies: Copies,
    names: HashMap<(PathBuf, u64), Option<String>>,
    /// Unwinders by process, program, and number of mappings.
    unwinders: HashMap<(u32, u64, usize), Unwinder>,
}

/// A symbolizer that returns names as they are, and one that demangles them.
struct Symbolizers([Symbolizer; 2]);

impl Default for Symbolizers {
    fn default() -> Symbolizers {
        Symbolizers([false, true].map(|demangles| Symbolizer::builder().enable_demangling(demangles).build()))
    }
}

impl Symbolizers {
    fn name(&self, source: &Source<'_>, offset: u64) -> Option<String> {
        let name = |symbolizer: &Symbolizer| {
            let found = symbolizer.symbolize_single(source, Input::FileOffset(offset)).ok()?;
            Some(found.into_sym()?.name.into_owned())
        };
        let [plain, demangling] = &self.0;
        // A name in C may be a mangled type in C++: `w` would be shown as `wchar_t`.
        let as_it_is = name(plain)?;
        match ["_Z", "_R"].iter().any(|begin| as_it_is.starts_with(begin)) {
            true => name(demangling),
            false => Some(as_it_is),
        }
    }
}

/// Copies of files in memory, by their paths: a file that is mapped may be truncated by its owner.
#[derive(Default)]
struct Copies {
    files: HashMap<PathBuf, Option<File>>,
    bytes: u64,
}

impl Copies {
    fn copy(&mut self, pid: u32, path: &str) -> Option<&File> {
        let key = PathBuf::from(path);
        if !self.files.contains_key(&key) {
            let copy = self.make(pid, path);
            self.files.insert(key.clone(), copy);
        }
        self.files.get(&key)?.as_ref()
    }

    fn make(&mut self, pid: u32, path: &str) -> Option<File> {
        let mut reader = process::open(pid, path)?;
        self.bytes = self
            .bytes
            .checked_add(reader.length())
            .filter(|bytes| *bytes <= LARGEST)?;
        let mut copy = File::from(memfd_create(c"fastpath-symbols", MFdFlags::MFD_CLOEXEC).ok()?);
        std::io::copy(&mut reader, &mut copy).ok()?;
        Some(copy)
    }
}

type Unwinder = (arch::NativeUnwinder<Arc<[u8]>>, arch::Cache);

/// The data of a file that unwinding needs.
struct Unwinding {
    /// File offset, size and address of each segment.
    segments: Vec<(u64, u64, u64)>,
    text: Option<std::ops::Range<u64>>,
    eh_frame: Option<(std::ops::Range<u64>, Arc<[u8]>)>,
    eh_frame_hdr: Option<(std::ops::Range<u64>, Arc<[u8]>)>,
    debug_frame: Option<Arc<[u8]>>,
}

/// Most bytes of all files that are read for their tables.
const LARGEST: u64 = 1 << 30;
const DEEPEST: usize = 16;
/// Most mappings that are unwound through. Programs with many plug-ins have some thousand.
const MOST_MODULES: usize = 4096;

impl Symbols {
    /// Returns the function at an address of a process.
    pub(crate) fn frame(&mut self, pid: u32, image: &ProgramImage, address: u64) -> Frame {
        let Some(mapping) = image.mapping(address) else {
            return Frame {
                function: None,
                library: None,
            };
        };
        Frame {
            function: self.name(pid, mapping, address),
            library: Some(mapping.path.clone()).filter(|path| !path.is_empty()),
        }
    }

    fn name(&mut self, pid: u32, mapping: &ImageMapping, address: u64) -> Option<String> {
        if !mapping.path.starts_with('/') {
            return None;
        }
        let offset = address - mapping.range.start + mapping.offset;
        let key = (PathBuf::from(&mapping.path), offset);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let copy = self.copies.copy(pid, &mapping.path);
        let name = copy.and_then(|copy| {
            let source = Source::Elf(Elf::new(fastpath_os::path_of(copy)));
            self.symbolizers.name(&source, offset)
        });
        self.names.insert(key, name.clone());
        name
    }

    /// Returns the callers, innermost first, beginning with the function that entered the kernel. Only frames within
    /// the sample's piece of stack are found.
    pub(crate) fn callers(&mut self, sample: &CallSample, image: &ProgramImage) -> Vec<Frame> {
        let pid = sample.site.pid;
        let unwound = self.unwind(sample, image);
        let mut frames: Vec<Frame> = Vec::new();
        for (depth, (address, _)) in unwound.iter().enumerate() {
            // A return address may be the first byte of the next function.
            let within = if depth == 0 { *address } else { address - 1 };
            frames.push(self.frame(pid, image, within));
        }
        // A static program's musl has no call frame information.
        let is_of_clock = |frame: &Frame| frame.function.as_deref().is_some_and(is_clock_function);
        let last_named = frames.iter().rposition(|frame| frame.function.is_some());
        let Some(mut last) = last_named.filter(|last| *last > 0 && is_of_clock(&frames[*last])) else {
            return frames;
        };
        let mut place = unwound[last];
        while let Some(outer) =
            returns_to(sample, image, place).filter(|_| last < DEEPEST && is_of_clock(&frames[last]))
        {
            frames.truncate(last + 1);
            frames.push(self.frame(pid, image, outer.0 - 1));
            (place, last) = (outer, last + 1);
        }
        frames
    }

    fn module(&mut self, pid: u32, path: &str) -> Option<Arc<Unwinding>> {
        let key = PathBuf::from(path);
        if let Some(known) = self.modules.get(&key) {
            return known.clone();
        }
        let copy = self.copies.copy(pid, path);
        let module = copy.and_then(Unwinding::read).map(Arc::new);
        self.modules.insert(key, module.clone());
        module
    }

    /// Returns the address and the stack pointer of each frame.
    fn unwind(&mut self, sample: &CallSample, image: &ProgramImage) -> Vec<(u64, u64)> {
        use framehop::{FrameAddress, Unwinder as _};

        // 32-bit stacks are not unwound. Callers of the vsyscall page are 64-bit code.
        if sample.site.abi == crate::trace::call::CallAbi::Compat {
            return vec![(sample.site.ip, sample.sp)];
        }
        const MANY: usize = 64;
        if self.unwinders.len() > MANY {
            self.unwinders.clear();
        }
        let key = (sample.site.pid, image.since_ns, image.maps.len());
        let (unwinder, mut cache) = match self.unwinders.remove(&key) {
            Some(known) => known,
            None => (self.unwinder(sample.site.pid, image), arch::Cache::new()),
        };
        let mut read = |address: u64| on_stack(sample, address).ok_or(());
        let mut registers = arch::unwound_from(sample.site.ip, sample.sp, sample.frame);
        let mut next = Some(FrameAddress::from_instruction_pointer(sample.site.ip));
        let mut frames = Vec::new();
        while let Some(address) = next.filter(|_| frames.len() < DEEPEST) {
            frames.push((address.address(), registers.sp()));
            let outer = unwinder.unwind_frame(address, &mut registers, &mut cache, &mut read);
            next = outer.ok().flatten().and_then(FrameAddress::from_return_address);
        }
        self.unwinders.insert(key, (unwinder, cache));
        frames
    }

    fn unwinder(&mut self, pid: u32, image: &ProgramImage) -> arch::NativeUnwinder<Arc<[u8]>> {
        use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};

        let mut unwinder = arch::NativeUnwinder::new();
        for mapping in image.maps.iter().take(MOST_MODULES) {
            let module = if mapping.path == "[vdso]" {
                // fastpath's code in a vDSO has call frame information of its own there.
                let own = memory_of(pid, &mapping.range);
                let bytes = own.as_deref().or_else(|| kernels_vdso());
                bytes.and_then(Unwinding::parse).map(Arc::new)
            } else {
                self.module(pid, &mapping.path)
            };
            let Some(module) = module else { continue };
            let Some(base) = module.base_of(mapping) else { continue };
            let section = |part: &Option<(std::ops::Range<u64>, Arc<[u8]>)>| part.clone().unzip();
            let (eh_frame_svma, eh_frame) = section(&module.eh_frame);
            let (eh_frame_hdr_svma, eh_frame_hdr) = section(&module.eh_frame_hdr);
            let sections = ExplicitModuleSectionInfo {
                text_svma: module.text.clone(),
                eh_frame_svma,
                eh_frame,
                eh_frame_hdr_svma,
                eh_frame_hdr,
                debug_frame: module.debug_frame.clone(),
                ..ExplicitModuleSectionInfo::default()
            };
            unwinder.add_module(Module::new(mapping.path.clone(), mapping.range.clone(), base, sections));
        }
        unwinder
    }
}

/// Returns a word of the sample's piece of stack.
fn on_stack(sample: &CallSample, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(sample.sp)?).ok()?;
    Some(u64::from_ne_bytes(*sample.stack.get(at..)?.first_chunk()?))
}

/// Returns where a function returns to, by its code, and the stack pointer there.
fn returns_to(sample: &CallSample, image: &ProgramImage, (address, sp): (u64, u64)) -> Option<(u64, u64)> {
    /// Bytes of its code that are looked at.
    const MOST: u64 = 512;
    if !Isa::HOST.is_x86() {
        return None;
    }
    let end = image.mapping(address)?.range.end.min(address.saturating_add(MOST));
    let code = memory_of(sample.site.pid, &(address..end))?;
    let at = sp.checked_add(fastpath_code::epilogue::bytes_below_return_address(&code)? as u64)?;
    let outer = on_stack(sample, at)?;
    image.mapping(outer).map(|_| (outer, at + size_of::<u64>() as u64))
}

impl Unwinding {
    fn read(copy: &File) -> Option<Unwinding> {
        let mut bytes = vec![0; usize::try_from(copy.metadata().ok()?.len()).ok()?];
        copy.read_exact_at(&mut bytes, 0).ok()?;
        Unwinding::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Unwinding> {
        let file = object::File::parse(bytes).ok()?;
        let section = |name: &str| {
            let section = file.section_by_name(name)?;
            let range = section.address()..section.address().checked_add(section.size())?;
            Some((range, Arc::from(section.data().ok()?)))
        };
        let segments = file.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        });
        Some(Unwinding {
            segments: segments.collect(),
            text: file
                .section_by_name(".text")
                .map(|text| text.address()..text.address().saturating_add(text.size())),
            eh_frame: section(".eh_frame"),
            eh_frame_hdr: section(".eh_frame_hdr"),
            debug_frame: section(".debug_frame").map(|(_, data)| data),
        })
    }

    /// Returns where the file's address 0 is in the process.
    fn base_of(&self, mapping: &ImageMapping) -> Option<u64> {
        let of = |(offset, size, address): &(u64, u64, u64)| {
            // A mapping begins at a page boundary, a segment anywhere in the page.
            let end = mapping.offset.saturating_add(mapping.range.end - mapping.range.start);
            (*offset < end && mapping.offset < offset.saturating_add(*size)).then(|| {
                mapping
                    .range
                    .start
                    .wrapping_add(*offset)
                    .wrapping_sub(mapping.offset)
                    .wrapping_sub(*address)
            })
        };
        self.segments.iter().find_map(of)
    }
}
