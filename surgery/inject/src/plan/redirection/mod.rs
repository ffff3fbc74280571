//! Plans the redirection of the entry points of a kernel's vDSO to the image, as a function of bytes.
//!
//! The kernel's vDSO stays where it is. Only the first bytes of an entry point are overwritten, with a jump towards the
//! image (`stub.rs`); the displaced instructions go to a thunk, which ends in a jump to the code after them. So the kernel's
//! functions stay callable, with their data in place, and nothing that a thread, a signal frame or the kernel refers to
//! changes its address.
//!
//! In programs for x86-64, the image's code is also put into the vDSO, and the jump goes there (`entry_body.rs`).

mod aarch64;
mod call_frames;
mod entry_body;
mod journal;
mod plan_region;
mod slow_path;
mod stub;
mod x86;

use std::ops::Range;

use fastpath_image::vdso::Export;
use fastpath_image::{Image, Instance, InstanceConfig, Isa, KernelFunctions, Vdso};
use fastpath_page::ClockSet;

use crate::error::{Error, Result};
use crate::plan::region;
use crate::target::maps::Mapping;
use call_frames::Frames;
use entry_body::{EntryBody, Source};
use slow_path::SlowPath;

pub use journal::{Change, Journal, JournalRecord, JournalState, MOST_RECORDS, PatchState, Purpose};
pub use plan_region::{RegionPlan, region_for};

/// Name of the memory that a region is mapped from. The memory holds the image, the hook, the thunks and the journal,
/// so the region is complete as soon as it is mapped, and /proc/PID/maps identifies it.
pub const REGION_NAME: &str = "fastpath-region";

/// Returns whether a mapping is of the memory of a region. A file of any file system may have such a name.
pub(crate) fn is_region(mapping: &Mapping) -> bool {
    let name = mapping.name.strip_prefix("/memfd:");
    mapping.is_memory("/memfd:") && name.is_some_and(|name| name.starts_with(REGION_NAME))
}

/// Returns the address of the region among these mappings.
pub(crate) fn region_in(maps: &[Mapping]) -> Option<u64> {
    let mut regions = maps.iter().filter(|m| is_region(m) && m.offset < region::SIZE);
    regions.next().map(|m| m.start.wrapping_sub(m.offset))
}

/// Redirection of the entry points of one vDSO to an image, and its thunks.
#[derive(Debug, Clone, Default)]
pub struct Redirection {
    /// Code for the address that the plan was made for: the displaced instructions of each entry, and the jump back.
    pub thunks: Vec<u8>,
    /// Functions that the image falls back to.
    pub kernel: KernelFunctions,
    /// Changes to the vDSO; each is one write, within one page.
    pub patches: Vec<JournalRecord>,
    /// Plain names of the functions that go to the image.
    functions: Vec<&'static str>,
    /// Addresses in the region and the vDSO that patches contain: the patch, and the offset in it of eight bytes.
    addresses: Vec<(usize, usize)>,
    /// Overwritten instructions that are not the first of a function.
    pub moved: Vec<Moved>,
    /// Functions that the image would serve, and that cannot be redirected.
    pub left_alone: Vec<LeftAlone>,
    /// The image's code in the vDSO, if it is put there: the first patch.
    body: Option<EntryBody>,
    /// For a program that is starting.
    slow_path: SlowPath,
}

/// A thread that is about to execute the instruction `from` may execute the one at `to` instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// An address inside a change.
    pub from: u64,
    /// Address of the instruction's copy in the thunk.
    pub to: u64,
}

/// A function that stays on the kernel's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftAlone {
    /// Plain name of the function.
    pub function: &'static str,
    /// Reason.
    pub why: String,
}

/// Displaced instructions of one entry point.
struct Displaced {
    /// Offset of the patch from the function's start, in bytes.
    at: usize,
    /// The jump that is written over them.
    jump: Vec<u8>,
    thunk: Vec<u8>,
    /// Offsets from the patch's start, and into the thunk.
    moved: Offsets,
}

/// Offsets of instructions in two places.
type Offsets = Vec<(usize, usize)>;

/// Functions that gain by the image. It would only pass the others on (time, getcpu, getrandom), or answers them only
/// as fast as the kernel does without the counter (clock_getres).
pub(crate) const SERVED: [&str; 3] = ["clock_gettime", "clock_gettime64", "gettimeofday"];
/// Alignment of a thunk in bytes.
const THUNK_ALIGNMENT: usize = 16;

/// Plans the redirection of the vDSO `vdso`, mapped at `vdso_base`, to `image` in the region at
/// `region_at`. `clocks` are those that the page will answer.
pub fn plan(image: &Image, vdso: &[u8], vdso_base: u64, region_at: u64, clocks: ClockSet) -> Result<Redirection> {
    let (image_at, thunks_at) = (region_at + region::IMAGE, region_at + region::ENTRY_THUNKS);
    let parsed = parse(vdso)?;
    let is_inside = |e: &&Export| e.offset.checked_add(e.size).is_some_and(|end| end <= vdso.len() as u64);
    let functions = parsed.exports().iter().filter(|e| e.is_function);
    let exports: Vec<_> = functions.filter(is_inside).collect();
    let mut redirection = Redirection {
        thunks: Vec::new(),
        kernel: KernelFunctions::from_fn(|function| {
            let export = exports.iter().find(|e| plain_name(&e.name) == function)?;
            Some(vdso_base + export.offset)
        }),
        patches: Vec::new(),
        functions: Vec::new(),
        addresses: Vec::new(),
        moved: Vec::new(),
        left_alone: Vec::new(),
        body: None,
        slow_path: SlowPath::default(),
    };
    let frames = match image.isa() {
        Isa::X86_64 => call_frames::read(vdso, vdso_base).unwrap_or_default(),
        _ => Vec::new(),
    };
    if !frames.is_empty() && clocks.contains(ClockSet::REALTIME) {
        redirection.take_body((image, image_at), vdso, vdso_base, &exports, &frames, thunks_at);
    }
    for function in SERVED {
        let has_entry_body = redirection.body.is_some();
        if function == "gettimeofday" && (has_entry_body || !clocks.contains(ClockSet::REALTIME)) {
            continue;
        }
        let Some(export) = exports.iter().find(|e| plain_name(&e.name) == function) else {
            continue;
        };
        let Some(in_image) = function_of(image, function) else {
            continue;
        };
        let same_place = |e: &&&Export| e.offset == export.offset;
        if let Some(other) = exports
            .iter()
            .filter(same_place)
            .find(|e| plain_name(&e.name) != function)
        {
            let why = format!("{} is the same code", other.name);
            redirection.left_alone.push(LeftAlone { function, why });
            continue;
        }
        let entry = EntryPoint::new(vdso, vdso_base, export);
        let thunk_offset = redirection.thunks.len().next_multiple_of(THUNK_ALIGNMENT);
        let thunk_at = thunks_at + thunk_offset as u64;
        let before = redirection.patches.len();
        let target = match &redirection.body {
            Some(body) => Ok(redirection.patches[0].change.address + body.clock_gettime),
            None => redirection.add_stub(image.isa(), function, &entry, image_at + in_image.start),
        };
        let displaced = target.and_then(|target| match image.isa() {
            Isa::X86_64 => x86::displace(&entry, 64, target, thunk_at),
            Isa::I386 => x86::displace(&entry, 32, target, thunk_at),
            _ => aarch64::displace(&entry, target, thunk_at),
        });
        match displaced.and_then(|displaced| entry.within_a_page(displaced)) {
            Ok(displaced) => redirection.add(function, &entry, displaced, thunk_offset, thunk_at),
            Err(why) => {
                redirection.patches.truncate(before);
                redirection.addresses.retain(|(patch, _)| *patch < before);
                redirection.left_alone.push(LeftAlone { function, why });
            }
        }
    }
    redirection.fill_body(image, region_at, (vdso, vdso_base), &frames)?;
    Ok(redirection)
}

fn parse(vdso: &[u8]) -> Result<Vdso> {
    Vdso::parse(vdso).map_err(|e| Error::Unsupported(format!("the kernel's vDSO: {e}")))
}

/// Returns the functions of the vDSO `vdso`, mapped at `vdso_base`.
pub(crate) fn functions_of(vdso: &[u8], vdso_base: u64) -> Result<KernelFunctions> {
    Ok(KernelFunctions::from_vdso(&parse(vdso)?, vdso_base))
}

/// Returns the offsets in an image of the function with this plain name.
pub(crate) fn function_of(image: &Image, name: &str) -> Option<Range<u64>> {
    let functions = image.functions();
    let function = functions.iter().find(|function| plain_name(function.name) == name);
    function.map(|function| function.offset..function.offset + function.size)
}

/// Returns the jump at `from` to `to` by which entry points are redirected.
pub(crate) fn jump(isa: Isa, from: u64, to: u64) -> std::result::Result<Vec<u8>, String> {
    match isa {
        Isa::X86_64 => x86::jump(64, from, to),
        Isa::I386 => x86::jump(32, from, to),
        Isa::Aarch64 => aarch64::jump(from, to),
        isa => Err(format!("programs of {isa} are not redirected")),
    }
}

impl Redirection {
    /// Puts the image's code into the vDSO, if it can be: without it, all is as good but for call frames.
    fn take_body(
        &mut self,
        image: (&Image, u64),
        vdso: &[u8],
        base: u64,
        exports: &[&Export],
        frames: &[Frames],
        thunks_at: u64,
    ) {
        let find = |name: &str| {
            let export = exports.iter().find(|export| plain_name(&export.name) == name)?;
            let same = exports.iter().filter(|other| other.offset == export.offset);
            let mut others = same.filter(|other| plain_name(&other.name) != name);
            others.next().is_none().then(|| EntryPoint::new(vdso, base, export))
        };
        let Some((gettimeofday, clock_gettime)) = find("gettimeofday").zip(find("clock_gettime")) else {
            return;
        };
        let planned = EntryBody::plan(image, &gettimeofday, &clock_gettime, frames, thunks_at);
        let planned = planned.and_then(|(body, displaced, frames)| {
            let displaced = gettimeofday.within_a_page(displaced)?;
            Ok((body, displaced, frames))
        });
        if let Ok((body, displaced, frames)) = planned {
            self.add("gettimeofday", &gettimeofday, displaced, 0, thunks_at);
            self.patches.push(frames);
            self.addresses.extend(body.addresses.iter().map(|place| (0, *place)));
            self.body = Some(body);
        }
    }

    /// Fills in the code of the image, which will be in the region at `region_at`.
    fn fill_body(&mut self, image: &Image, region_at: u64, vdso: (&[u8], u64), frames: &[Frames]) -> Result<()> {
        if let Some(body) = &self.body {
            let (image_at, thunks_at) = (region_at + region::IMAGE, region_at + region::ENTRY_THUNKS);
            let instance = self.instance(image, region_at)?;
            let source = Source {
                bytes: instance.bytes(),
                at: image_at,
                clock_gettime: self.kernel.address("clock_gettime"),
                gettimeofday: self.kernel.address("gettimeofday"),
                slow_path: &entry_body::functions_behind(&body.code, image.bytes()),
            };
            let patch = &mut self.patches[0];
            patch.purpose = Purpose::EntryBody;
            patch.thunk = image_at + body.code.start;
            patch.in_thunk = (body.code.end - body.code.start) as u16;
            let patch = &mut patch.change;
            let code = body.code(patch.address, source, image_at + source.slow_path_code().start);
            let code = code.map_err(Error::Unsupported)?;
            patch.replacement[..code.len()].copy_from_slice(&code);
            let slow_path = SlowPath::plan(body, patch, source, vdso, frames, &mut self.thunks, thunks_at);
            self.slow_path = slow_path.unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the instance of the image in the region at `region_at` that falls back to the kernel's functions.
    fn instance(&self, image: &Image, region_at: u64) -> Result<Instance> {
        let placement = region::placement(region_at, region::IMAGE);
        let options = InstanceConfig {
            kernel: self.kernel,
            ..InstanceConfig::at(placement)
        };
        let mut instance = Instance::new(image, &options).map_err(|e| Error::Unsupported(e.to_string()))?;
        instance.pin(image, placement.address);
        Ok(instance)
    }

    /// Returns the same for a vDSO and a region that lie this much higher, in programs for x86-64: the code refers to
    /// both by distances.
    fn higher_by(&self, distance: u64) -> Redirection {
        let mut moved = self.clone();
        moved.kernel = KernelFunctions::from_fn(|function| {
            let address = self.kernel.address(function);
            (address != 0).then(|| address.wrapping_add(distance))
        });
        for (patch, place) in &self.addresses {
            raise(&mut moved.patches[*patch].change.replacement, *place, distance);
            // What `run` has in its place; nothing if there is no slow path.
            if *patch == 0 {
                raise(&mut moved.slow_path.body, *place, distance);
            }
        }
        let slow_path = moved.slow_path.records.iter_mut().chain(&mut moved.slow_path.stays);
        let records = moved.patches.iter_mut().chain(slow_path);
        let addresses = records.flat_map(|record| [&mut record.change.address, &mut record.thunk]);
        let copies = moved.moved.iter_mut();
        let copies = copies.flat_map(|moved| [&mut moved.from, &mut moved.to]);
        let all = addresses.filter(|address| **address != 0).chain(copies);
        all.for_each(|address| *address = address.wrapping_add(distance));
        moved
    }

    fn add(
        &mut self,
        function: &'static str,
        entry: &EntryPoint<'_>,
        displaced: Displaced,
        thunk_offset: usize,
        thunk_at: u64,
    ) {
        let at = entry.offset + displaced.at;
        let address = entry.base + at as u64;
        self.thunks.resize(thunk_offset, 0);
        self.thunks.extend(displaced.thunk);
        self.kernel = self.kernel.with(function, thunk_at);
        self.moved.extend(displaced.moved.iter().map(|(from, to)| Moved {
            from: address + *from as u64,
            to: thunk_at + *to as u64,
        }));
        self.functions.push(function);
        let original = entry.code[at..at + displaced.jump.len()].to_vec();
        let change = Change {
            address,
            original,
            replacement: displaced.jump,
        };
        self.patches.push(JournalRecord::new(change, Purpose::Entry));
    }

    /// Returns why the redirection would not be worthwhile; `None` if clock_gettime is redirected.
    pub fn refusal(&self) -> Option<String> {
        if self
            .functions
            .iter()
            .any(|function| function.starts_with("clock_gettime"))
        {
            return None;
        }
        let why = self.left_alone.iter().find(|l| l.function.starts_with("clock_gettime"));
        Some(match why {
            Some(left) => format!("the kernel's {} cannot be redirected: {}", left.function, left.why),
            None => "the kernel's vDSO has no clock_gettime".to_owned(),
        })
    }
}

/// Raises the address that code contains at this offset.
fn raise(code: &mut [u8], at: usize, distance: u64) {
    if let Some(address) = code.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *address = u64::from_le_bytes(*address).wrapping_add(distance).to_le_bytes();
    }
}

/// One function of a vDSO.
struct EntryPoint<'v> {
    /// Bytes of the whole vDSO.
    code: &'v [u8],
    base: u64,
    offset: usize,
    size: usize,
}

impl<'v> EntryPoint<'v> {
    fn new(code: &'v [u8], base: u64, export: &Export) -> EntryPoint<'v> {
        EntryPoint {
            code,
            base,
            offset: export.offset as usize,
            size: export.size as usize,
        }
    }

    /// Returns the offsets of the function's code in the vDSO.
    fn range(&self) -> Range<u64> {
        self.offset as u64..(self.offset + self.size) as u64
    }

    /// Returns the function's own bytes.
    fn bytes(&self) -> &[u8] {
        let end = self.offset.saturating_add(self.size).min(self.code.len());
        self.code.get(self.offset..end).unwrap_or_default()
    }

    fn address(&self) -> u64 {
        self.base + self.offset as u64
    }

    /// Refuses a write that crosses a page: the death of the writer could cut it in two.
    fn within_a_page(&self, displaced: Displaced) -> std::result::Result<Displaced, String> {
        const PAGE: u64 = fastpath_page::PAGE_SIZE as u64;
        let first = self.address() + displaced.at as u64;
        let last = first + displaced.jump.len() as u64 - 1;
        if first / PAGE == last / PAGE {
            Ok(displaced)
        } else {
            Err("its first bytes lie in two pages".into())
        }
    }
}

fn plain_name(name: &str) -> &str {
    name.strip_prefix("__vdso_")
        .or_else(|| name.strip_prefix("__kernel_"))
        .unwrap_or(name)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod robust_futexes;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
