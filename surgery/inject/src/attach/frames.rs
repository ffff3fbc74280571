//! Addresses to which interrupted threads will return: those in the signal frames on their stacks.

use std::ops::Range;

use nix::sys::uio::RemoteIoVec;

use super::mapping_at::Mappings;
use super::threads::Stopped;
use crate::abi::host::running;
use crate::error::Result;
use crate::target::memory::{Pagemap, kernels_page};
use crate::target::tracee::Tracee;

/// Bytes of a stack that are searched, from the stack pointer on. Handlers are usually not deep: they run on small
/// alternate stacks.
const DEPTH: u64 = 64 << 10;
/// Limit of stacks per thread: a handler on an alternate stack interrupted code on another stack, which may have been a
/// handler too.
const MOST_STACKS: usize = 8;

/// Stacks of a process whose threads are all stopped. A page that is not present must not be read: the thread that
/// would provide it (userfaultfd(2)) is stopped as well.
pub struct Stacks {
    mappings: Mappings,
    pagemap: Pagemap,
}

/// Limits of one read from many stacks: its pieces (UIO_MAXIOV, include/uapi/linux/uio.h), and its bytes.
const MOST_PIECES: usize = 1024;
const MOST_BYTES: usize = 256 << 10;

impl Stacks {
    /// Opens the stacks of a process.
    pub fn read(pid: i32) -> Result<Stacks> {
        Ok(Stacks {
            mappings: Mappings::read(pid)?,
            pagemap: Pagemap::open(pid),
        })
    }

    /// Returns the stack from `at` on, up to the end of the mapping that `at` is in.
    fn extent(&self, at: u64) -> Option<Range<u64>> {
        let mapping = self.mappings.readable_at(at)?;
        Some(at..mapping.end.min(at.saturating_add(DEPTH)))
    }

    /// Returns the threads whose frames must be examined one by one: those whose stack may contain a signal frame, or
    /// a word that `is_telling`, or is not readable.
    ///
    /// Reads many stacks at once: a call costs more than the few hundred bytes of most.
    pub fn to_examine<'t>(&self, threads: &'t [Stopped], is_telling: impl Fn(u64) -> bool) -> Vec<&'t Stopped> {
        let mut found = Vec::new();
        let mut several = Several::default();
        for thread in threads {
            let at = thread.registers.sp() & !7;
            let pieces = self.extent(at).map_or(Vec::new(), |extent| self.pages(extent));
            if !several.has_room_for(&pieces) {
                several.read(&is_telling, &mut found);
            }
            several.add(thread, &pieces);
        }
        several.read(&is_telling, &mut found);
        found
    }

    /// Returns the parts of a range that are in memory.
    fn pages(&self, Range { mut start, end }: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for is_present in self.pagemap.present(start..end) {
            let next = ((start / kernels_page() + 1) * kernels_page()).min(end);
            match ranges.last_mut() {
                _ if !is_present => {}
                Some(last) if last.end == start => last.end = next,
                _ => ranges.push(start..next),
            }
            start = next;
        }
        ranges
    }
}

/// Stacks of several threads that are read by one call.
#[derive(Default)]
struct Several<'t> {
    /// Threads, with the number of bytes of each.
    threads: Vec<(&'t Stopped, usize)>,
    pieces: Vec<RemoteIoVec>,
    bytes: usize,
    buffer: Vec<u8>,
    /// Words of one stack.
    words: Vec<u64>,
}

impl<'t> Several<'t> {
    fn has_room_for(&self, pieces: &[Range<u64>]) -> bool {
        self.pieces.len() + pieces.len() <= MOST_PIECES && self.bytes + length(pieces) <= MOST_BYTES
    }

    fn add(&mut self, thread: &'t Stopped, pieces: &[Range<u64>]) {
        let bytes = length(pieces);
        self.threads.push((thread, bytes));
        self.bytes += bytes;
        self.pieces.extend(pieces.iter().map(|piece| RemoteIoVec {
            base: piece.start as usize,
            len: (piece.end - piece.start) as usize,
        }));
    }

    /// Reads and removes them, and adds to `found` those that must be examined.
    fn read(&mut self, is_telling: impl Fn(u64) -> bool, found: &mut Vec<&'t Stopped>) {
        self.buffer.resize(self.bytes.max(self.buffer.len()), 0);
        let read = match self.threads.first() {
            Some((thread, _)) => thread.look().read_pieces(&mut self.buffer[..self.bytes], &self.pieces),
            None => 0,
        };
        let mut rest = &self.buffer[..read];
        for (thread, bytes) in self.threads.drain(..) {
            let Some((stack, behind)) = rest.split_at_checked(bytes) else {
                // The read ended at a piece that is not readable.
                rest = &[];
                found.push(thread);
                continue;
            };
            rest = behind;
            self.words.clear();
            let (words, _) = stack.as_chunks();
            self.words.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
            if running::signal_frames(&self.words).next().is_some() || self.words.iter().any(|word| is_telling(*word)) {
                found.push(thread);
            }
        }
        self.pieces.clear();
        self.bytes = 0;
    }
}

fn length(pieces: &[Range<u64>]) -> usize {
    pieces.iter().map(|piece| (piece.end - piece.start) as usize).sum()
}

/// Upper limit of the stack that a function of the kernel's vDSO uses, in bytes (the frames are of some hundred bytes).
const VDSO_FRAME: u64 = 1024;

/// Contents of a stopped thread's stack.
pub struct Frames {
    /// Program counters in signal frames.
    pub interrupted: Vec<u64>,
    /// Stack pointers with which the thread is in the code of the kernel's vDSO, or will be when a handler returns.
    in_vdso: Vec<u64>,
    /// All words of the stack from an address on, return addresses among them.
    words: Vec<(u64, Vec<u64>)>,
    /// Alternate signal stacks among the words that this thread is not on.
    others_stacks: Vec<Range<u64>>,
    /// Whether a part of the stack is in memory and cannot be read (memfd_secret(2)): it may contain signal frames.
    pub is_unreadable: bool,
}

impl Frames {
    /// Reads the stack of a thread that is at `pc`, and whose stack pointer is `sp`.
    pub fn read(tracee: &Tracee, pc: u64, sp: u64, stacks: &Stacks) -> Frames {
        let mut frames = Frames {
            interrupted: Vec::new(),
            in_vdso: stacks.mappings.is_vdso(pc).then_some(sp).into_iter().collect(),
            words: Vec::new(),
            others_stacks: Vec::new(),
            is_unreadable: false,
        };
        let mut seen: Vec<Range<u64>> = Vec::new();
        let mut to_see = vec![sp & !7];
        while let Some(at) = to_see.pop() {
            if seen.len() >= MOST_STACKS || seen.iter().any(|range| range.contains(&at)) {
                continue;
            }
            let Some(extent) = stacks.extent(at) else {
                continue;
            };
            seen.push(extent.clone());
            for range in stacks.pages(extent) {
                let bytes = (range.end - range.start) as usize;
                let words = tracee.read_present(range.start, bytes);
                // Where the kernel does not report which pages are present, an absent page gives the same result.
                frames.is_unreadable |= words.len() < bytes / 8 && stacks.pagemap.is_known();
                for frame in running::signal_frames(&words) {
                    let frame_at = range.start + 8 * frame.at as u64;
                    // Of another thread, whose stacks are in the same mapping (Go's are), or of one that used this memory
                    // before: a thread's handler on its alternate stack has its stack pointer there.
                    let is_other = |stack: &Range<u64>| stack.contains(&frame_at) && !stack.contains(&at);
                    if let Some(other) = frame.alternate_stack.filter(is_other) {
                        frames.others_stacks.push(other);
                        continue;
                    }
                    frames.interrupted.push(frame.pc);
                    frames
                        .in_vdso
                        .extend(stacks.mappings.is_vdso(frame.pc).then_some(frame.sp));
                    to_see.push(frame.sp & !7);
                }
                frames.words.push((range.start, words));
            }
        }
        let is_on = |stack: &Range<u64>| seen.iter().any(|extent| stack.contains(&extent.start));
        frames.others_stacks.retain(|stack| !is_on(stack));
        frames
    }

    /// Returns where functions of the kernel's vDSO that have no frame of their own will return.
    pub fn returned_to(&self) -> impl Iterator<Item = u64> {
        let word_at = |sp: &u64| {
            let at = |(start, words): &(u64, Vec<u64>)| Some(*words.get(sp.checked_sub(*start)? as usize / 8)?);
            self.words.iter().find_map(at)
        };
        self.in_vdso.iter().filter_map(word_at)
    }

    /// Returns whether a word of the stack may point into one of these ranges of fastpath's code. Words that equal
    /// `used_up` do not count.
    ///
    /// Return addresses of this code's own calls do not count: a thread that will return to such an address has its
    /// program counter in this code too, or in a signal frame, or in the kernel's vDSO, the only other code that it
    /// calls. Otherwise the address is left from a call that has returned.
    pub fn mention(&self, tracee: &Tracee, ranges: &[Range<u64>], used_up: Option<u64>) -> bool {
        let is_ours = |address: u64| ranges.iter().any(|range| range.contains(&address));
        let is_behind_own_call = |word: u64| {
            let before = tracee.read_present(word - running::BEFORE_BYTES, running::BEFORE_BYTES as usize);
            before.first().is_some_and(|bytes| {
                running::is_behind_door(*bytes) || running::called_by(*bytes, word).is_some_and(is_ours)
            })
        };
        let is_of_call_to_vdso = |at: u64| {
            self.in_vdso
                .iter()
                .any(|sp| (*sp..sp.saturating_add(VDSO_FRAME)).contains(&at))
        };
        let words = self
            .words
            .iter()
            .flat_map(|(start, words)| (*start..).step_by(8).zip(words));
        let is_its_own = |at: &u64| !self.others_stacks.iter().any(|range| range.contains(at));
        let mut words = words.filter(|(at, word)| is_ours(**word) && is_its_own(at));
        words.any(|(at, word)| {
            let may_be_left = Some(*word) == used_up || is_behind_own_call(*word);
            is_of_call_to_vdso(at) || self.interrupted.contains(word) || !may_be_left
        })
    }
}
