//! Puts the image's code for reads where every unwinder finds call frames: into the kernel's own vDSO.
//!
//! It stands in the place of the kernel's gettimeofday, and `clock_gettime` begins with a jump there. The kernel's
//! gettimeofday goes on as a copy in the region, which only a caller that asks for the time zone gets to. The kernel's
//! clock_gettime stays in its place, for the clocks that no page answers; the instructions that the jump displaces stand
//! behind the image's code. So a thread is in code with call frames, unless no anchor answers (`slow_path.rs`).
//!
//! All of it is one write within one page: fastpath may be killed before or after it.

use std::ops::Range;

use fastpath_code::rescue::{copied, is_branch};
use fastpath_image::Image;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

use super::call_frames::{self, Frames, keeps_frame};
use super::{Change, Displaced, EntryPoint, JournalRecord, Purpose, x86};

/// A planned body.
#[derive(Debug, Clone)]
pub(crate) struct EntryBody {
    /// Offsets in the image of the code: of gettimeofday and clock_gettime, which are neighbours.
    pub code: Range<u64>,
    /// Offset of clock_gettime in the body.
    pub clock_gettime: u64,
    /// Offsets in the vDSO of the kernel's clock_gettime.
    pub kernels: Range<u64>,
    /// Displaced instructions of the kernel's clock_gettime, which are put behind the code and [`MOVED`], and the jump back.
    pub thunk: Vec<u8>,
    /// Offsets in the body of addresses in the page, of eight bytes each.
    pub addresses: Vec<usize>,
}

/// What a gettimeofday executes that was moved, because the kernel's is not there any more: the system call.
/// `xor %eax, %eax; mov $96, %al; syscall; ret`.
pub const MOVED: [u8; 7] = [0x31, 0xc0, 0xb0, 0x60, 0x0f, 0x05, 0xc3];

/// An instance of the image.
#[derive(Clone, Copy)]
pub struct Source<'i> {
    pub bytes: &'i [u8],
    /// Address at which it will be mapped.
    pub at: u64,
    /// Addresses where it finds the kernel's clock_gettime and gettimeofday.
    pub clock_gettime: u64,
    pub gettimeofday: u64,
    /// The functions that the body's code calls, right behind it and in order.
    pub slow_path: &'i [Frames],
}

impl Source<'_> {
    /// Returns the offsets of the slow path.
    pub fn slow_path_code(&self) -> Range<u64> {
        match self.slow_path {
            [] => 0..0,
            [first, ..] => first.function.start..self.slow_path[self.slow_path.len() - 1].function.end,
        }
    }
}

/// Size of the largest function that is replaced: the journal keeps its bytes, and the region the copy.
const MOST_BYTES: usize = 1024;
/// Byte of the kernel's function behind the code: `int3`, which no thread gets to.
const FILLER: u8 = 0xcc;

impl EntryBody {
    /// Plans the code of an image, which will be mapped at an address, in the place of the kernel's `gettimeofday`, whose
    /// copy is to be at `copy_at`; `all` are the frames of the vDSO. Returns the change of the call frame information, too.
    pub fn plan(
        (image, image_at): (&Image, u64),
        gettimeofday: &EntryPoint<'_>,
        clock_gettime: &EntryPoint<'_>,
        all: &[Frames],
        copy_at: u64,
    ) -> Result<(EntryBody, Displaced, JournalRecord), String> {
        let (first, second) = super::function_of(image, "gettimeofday")
            .zip(super::function_of(image, "clock_gettime"))
            .ok_or("not both are served")?;
        let code = first.start..second.end;
        let size = gettimeofday.bytes().len();
        if first.end > second.start || code.end - code.start > size as u64 || size > MOST_BYTES {
            return Err("its gettimeofday is too small, or too large".into());
        }
        let at = gettimeofday.address();
        require_no_frames(&relocated(image.bytes(), &code, image_at, at, |target| target)?)?;
        let vdso = gettimeofday.code;
        let frames = Frames::find(all, gettimeofday.range()).ok_or("its gettimeofday has no call frames")?;
        let middle = at + 1..at + size as u64;
        let is_into = |i: &Instruction| is_branch(i) && middle.contains(&i.near_branch_target());
        let mut others = all.iter().filter(|other| other.function != frames.function);
        if others.any(|other| other.code.iter().any(is_into)) {
            return Err("its gettimeofday is part of another function".into());
        }
        let (copy, moved) = x86::copy_function(gettimeofday, &frames.code, copy_at)?;
        // Then the return address of a thread in a callee is what its stack pointer points to (attach/frames.rs).
        let has_no_frame = |call: &Instruction| {
            let callee = call.near_branch_target().wrapping_sub(gettimeofday.base);
            let frames = all.iter().find(|frames| frames.function.start == callee);
            frames.is_some_and(|frames| frames.has_none(vdso))
        };
        if !frames.calls().all(has_no_frame) {
            return Err("its gettimeofday calls functions with frames".into());
        }
        let displaced = Displaced {
            at: 0,
            jump: vec![FILLER; size],
            thunk: copy,
            moved,
        };
        let body_at = at + second.start - code.start;
        let thunk_at = (code.end - code.start) as usize + MOVED.len();
        let thunk = thunk_in_body(frames, all, clock_gettime, body_at, at, thunk_at, size);
        let (thunk, program) = thunk.ok_or("its gettimeofday has no room for the kernel's clock_gettime")?;
        let frames = Change {
            address: gettimeofday.base + frames.program.start as u64,
            original: vdso[frames.program.clone()].to_vec(),
            replacement: program,
        };
        let addresses = image.page_addresses().filter(|at| code.contains(at));
        let addresses = addresses.map(|at| (at - code.start) as usize);
        let body = EntryBody {
            addresses: addresses.collect(),
            code,
            clock_gettime: body_at - at,
            kernels: clock_gettime.range(),
            thunk,
        };
        Ok((body, displaced, JournalRecord::new(frames, Purpose::EntryBody)))
    }

    /// Returns the code for the address `at`, with the slow path at `slow_path_at`. The image itself does not use what is
    /// in the body: a thread may be in it after a detach.
    pub fn code(&self, at: u64, source: Source<'_>, slow_path_at: u64) -> Result<Vec<u8>, String> {
        let moved_at = at + self.code.end - self.code.start;
        let thunk_at = moved_at + MOVED.len() as u64;
        // The code asks the kernel for its gettimeofday only where it was moved.
        let moved = (source.gettimeofday, moved_at);
        let mut code = self.copied(&self.code, at, source, (thunk_at, Some(moved)), slow_path_at)?;
        code.extend(MOVED);
        code.extend(&self.thunk);
        Ok(code)
    }

    /// Returns this part of the image for the address `at`, with the displaced instructions at `thunk_at`, another function of the
    /// kernel replaced by the code at `moved`, and the slow path at `slow_path_at`.
    pub fn copied(
        &self,
        part: &Range<u64>,
        at: u64,
        source: Source<'_>,
        (thunk_at, moved): (u64, Option<(u64, u64)>),
        slow_path_at: u64,
    ) -> Result<Vec<u8>, String> {
        // The image falls back to the kernel by a jump through a slot.
        let through_slot = |target: u64| {
            let jump = source.bytes.get(target.checked_sub(source.at)? as usize..)?;
            let jump = Decoder::with_ip(64, jump, target, DecoderOptions::NONE).decode();
            let is_jump = jump.code() == Code::Jmp_rm64 && jump.is_ip_rel_memory_operand();
            let slot = jump
                .ip_rel_memory_address()
                .checked_sub(source.at)
                .filter(|_| is_jump)? as usize;
            Some(u64::from_le_bytes(source.bytes.get(slot..slot + 8)?.try_into().ok()?))
        };
        let slow_path = source.slow_path_code();
        let target = |target: u64| match target.wrapping_sub(source.at) {
            offset if slow_path.contains(&offset) => slow_path_at + offset - slow_path.start,
            _ => match through_slot(target) {
                Some(kernels) if kernels == source.clock_gettime => thunk_at,
                Some(kernels) => moved
                    .filter(|(function, _)| *function == kernels)
                    .map_or(target, |(_, to)| to),
                None => target,
            },
        };
        relocated(source.bytes, part, source.at, at, target)
    }
}

/// Returns the functions of an image right behind this code that it branches to, and those that these do.
pub fn functions_behind(code: &Range<u64>, image: &[u8]) -> Vec<Frames> {
    let mut all = call_frames::read(image, 0).unwrap_or_default();
    all.sort_unstable_by_key(|frames| frames.function.start);
    let behind = all.partition_point(|frames| frames.function.start < code.end);
    let mut reached = code.start..code.end;
    let mut end = behind;
    for Frames { function, .. } in &all[behind..] {
        let before = all.iter().filter(|frames| reached.contains(&frames.function.start));
        let mut before = before.flat_map(|frames| &frames.code);
        if !before.any(|i| is_branch(i) && i.near_branch_target() == function.start) {
            break;
        }
        reached.end = function.end;
        end += 1;
    }
    all.drain(behind..end).collect()
}

/// Returns the code of an image at `image_at` as it is at `at`.
fn relocated(
    image: &[u8],
    code: &Range<u64>,
    image_at: u64,
    at: u64,
    target: impl Fn(u64) -> u64,
) -> Result<Vec<u8>, String> {
    let bytes = image.get(code.start as usize..code.end as usize);
    let bytes = bytes.ok_or("the image is shorter")?;
    copied(bytes, image_at + code.start, at, target)
}

/// Returns the displaced instructions of clock_gettime as they stand behind the image's code, at this offset, and the
/// description of all; `None` if there is no room for them, or their frames are not understood.
fn thunk_in_body(
    frames: &Frames,
    all: &[Frames],
    clock_gettime: &EntryPoint<'_>,
    body_at: u64,
    at: u64,
    thunk_at: usize,
    size: usize,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let thunk = x86::displace(clock_gettime, 64, body_at, at + thunk_at as u64)
        .ok()?
        .thunk;
    let displaced = thunk.len().checked_sub(x86::JUMP_BYTES)?;
    let is_same = displaced >= x86::JUMP_BYTES && clock_gettime.bytes().starts_with(&thunk[..displaced]);
    if !is_same || thunk_at + thunk.len() > size {
        return None;
    }
    let of_clock_gettime = Frames::find(all, clock_gettime.range())?;
    let program = frames.with_thunk(clock_gettime.code, thunk_at, of_clock_gettime, &thunk[..displaced])?;
    Some((thunk, program))
}

/// Refuses code that needs more than one rule: that its caller is right above the stack pointer, with all its registers.
fn require_no_frames(code: &[u8]) -> Result<(), String> {
    let mut factory = InstructionInfoFactory::new();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let has_none = decoder.iter().all(|instruction| match instruction.flow_control() {
        FlowControl::Return => instruction.code() == Code::Retnq,
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => false,
        _ => keeps_frame(&mut factory, &instruction),
    });
    has_none
        .then_some(())
        .ok_or_else(|| "the image's code has frames".into())
}
