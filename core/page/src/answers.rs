//! The two pages by which the image for hosts answers more calls than those for clocks.
//!
//! The C side, with the rules for readers, is `core/image/vdso/hosts/answers.h`; the build of the image asserts that every offset
//! agrees. A host writes the answers with [`Answers`]; the ring is written by the image.
//!
//! What the host must do is one rule: an answer is [invalidated](Answers::invalidate) before the call that changes it
//! takes effect, and [set](Answers::set) after it.

use std::convert::Infallible;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::{Field, Struct, fields_of};

/// Descriptors that can be marked: those below.
pub const DESCRIPTORS: u32 = 1024;
/// Size of each of the two pages, in bytes.
pub const PAGE_SIZE: usize = 4096;
/// Offset of the answers page from the clocks' page, in bytes.
pub const ANSWERS_OFFSET: i64 = -(PAGE_SIZE as i64);
/// Offset of the ring from the clocks' page, in bytes.
pub const RING_OFFSET: i64 = -2 * PAGE_SIZE as i64;

/// Bit of `flags`: getrandom(2) and reads of marked descriptors are answered from the ring.
const RANDOM: u64 = 1;

/// An answer that is one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Identity {
    Pid,
    /// Only while the process has one thread.
    Tid,
    Ppid,
    Pgid,
    Sid,
    Uid,
    Euid,
    Suid,
    Fsuid,
    Gid,
    Egid,
    Sgid,
    Fsgid,
}

impl Identity {
    /// Every one, in the order of the words.
    pub const ALL: [Identity; 13] = {
        use Identity::*;
        [
            Pid, Tid, Ppid, Pgid, Sid, Uid, Euid, Suid, Fsuid, Gid, Egid, Sgid, Fsgid,
        ]
    };
    /// Those that the set*id calls change.
    pub const CREDENTIALS: [Identity; 8] = {
        use Identity::*;
        [Uid, Euid, Suid, Fsuid, Gid, Egid, Sgid, Fsgid]
    };
}

/// `struct fp_answers`
#[repr(C)]
struct Layout {
    words: [u64; 32],
    changes: u64,
    flags: u64,
    unmapped: u64,
    reserved: [u64; 29],
    urandom: [u64; DESCRIPTORS as usize / 64],
}

/// `struct fp_ring`
#[repr(C)]
struct Ring {
    state: u64,
    reserved: [u64; 63],
    known: [u64; 64],
    bytes: [u8; 3072],
}

const CHANGES: usize = offset_of!(Layout, changes) / 8;
const FLAGS: usize = offset_of!(Layout, flags) / 8;
const UNMAPPED: usize = offset_of!(Layout, unmapped) / 8;
const URANDOM: usize = offset_of!(Layout, urandom) / 8;

/// Number of 8-byte words of an answers page that are used.
pub const WORDS: usize = size_of::<Layout>() / 8;

/// The memory of an answers page, as its host reaches it.
pub trait Memory {
    /// Error of a store.
    type Error;

    /// Returns the word at this index, which only the host writes: what was last stored there, or 0.
    fn load(&self, index: usize) -> u64;

    /// Stores a word. Stores take effect in their order.
    fn store(&mut self, index: usize, word: u64) -> Result<(), Self::Error>;
}

/// An answers page that is mapped in the host too.
#[derive(Clone, Copy, Debug)]
pub struct Mapped(NonNull<AtomicU64>);

// SAFETY: it is only accessed by atomic operations.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Takes a page that is mapped here.
    ///
    /// # Safety
    /// `page` is aligned to 8 bytes, and [`PAGE_SIZE`] bytes stay writable for as long as this is used.
    pub unsafe fn new(page: NonNull<u8>) -> Mapped {
        Mapped(page.cast())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        // SAFETY: the index is within the page, which the caller of `new` has guaranteed.
        unsafe { self.0.add(index).as_ref() }
    }
}

impl Memory for Mapped {
    type Error = Infallible;

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    fn store(&mut self, index: usize, word: u64) -> Result<(), Infallible> {
        self.word(index).store(word, Ordering::Release);
        // Before whatever the host does next, such as the call for which it invalidates an answer.
        fence(Ordering::SeqCst);
        Ok(())
    }
}

/// The writer of one process's answers. A page of zeros answers nothing.
#[derive(Clone, Debug)]
pub struct Answers<M>(pub M);

impl<M: Memory> Answers<M> {
    /// Makes answers invalid: from now on the guest makes these calls. Before a call that changes them.
    pub fn invalidate(&mut self, identities: &[Identity]) -> Result<(), M::Error> {
        if identities.iter().all(|identity| self.0.load(*identity as usize) == 0) {
            return Ok(());
        }
        for &identity in identities {
            if self.0.load(identity as usize) != 0 {
                self.0.store(identity as usize, 0)?;
            }
        }
        // A reader that sees the new number sees none of the old values.
        self.count(CHANGES)
    }

    /// Makes an answer valid.
    pub fn set(&mut self, identity: Identity, value: u32) -> Result<(), M::Error> {
        if self.0.load(identity as usize) == word(value) {
            return Ok(());
        }
        self.invalidate(&[identity])?;
        self.0.store(identity as usize, word(value))
    }

    /// Returns an answer, if it is valid.
    pub fn get(&self, identity: Identity) -> Option<u32> {
        let stored = self.0.load(identity as usize);
        Some(stored as u32).filter(|value| word(*value) == stored)
    }

    /// Lets random bytes be answered from the ring, or not.
    pub fn set_random(&mut self, is_on: bool) -> Result<(), M::Error> {
        let flags = self.0.load(FLAGS) & !RANDOM;
        self.0.store(FLAGS, if is_on { flags | RANDOM } else { flags })
    }

    /// Marks a descriptor as open for reading on /dev/urandom, or not. Returns whether it can be marked.
    pub fn mark_urandom(&mut self, descriptor: u32, is_marked: bool) -> Result<bool, M::Error> {
        if descriptor >= DESCRIPTORS {
            return Ok(false);
        }
        let (at, bit) = (URANDOM + descriptor as usize / 64, 1 << (descriptor % 64));
        let old = self.0.load(at);
        let new = if is_marked { old | bit } else { old & !bit };
        if new != old {
            self.0.store(at, new)?;
        }
        Ok(true)
    }

    /// Returns whether a descriptor is marked.
    pub fn is_urandom(&self, descriptor: u32) -> bool {
        descriptor < DESCRIPTORS && self.0.load(URANDOM + descriptor as usize / 64) >> (descriptor % 64) & 1 == 1
    }

    /// Takes the marks of all descriptors from the first to the last.
    pub fn unmark(&mut self, first: u32, last: u32) -> Result<(), M::Error> {
        for descriptor in first..=last.min(DESCRIPTORS - 1) {
            self.mark_urandom(descriptor, false)?;
        }
        Ok(())
    }

    /// Voids what the image knows about the guest's memory: before and after a call that may unmap memory or protect it
    /// from writing (munmap, mremap, mprotect, pkey_mprotect, shmdt, brk, and mmap or shmat at a fixed address).
    pub fn forget_memory(&mut self) -> Result<(), M::Error> {
        self.count(UNMAPPED)
    }

    fn count(&mut self, index: usize) -> Result<(), M::Error> {
        self.0.store(index, self.0.load(index).wrapping_add(1))
    }
}

/// Returns the word of a valid answer.
pub const fn word(value: u32) -> u64 {
    (!value as u64) << 32 | value as u64
}

/// Returns every field of the pages' structs, for the image's build to assert in C.
pub fn fields() -> Vec<Field> {
    let mut out = Vec::new();
    fields_of!(out, Layout as "fp_answers": words, changes, flags, unmapped, reserved, urandom);
    fields_of!(out, Ring as "fp_ring": state, reserved, known, bytes);
    out
}

/// Returns the size of the pages' structs.
pub fn structs() -> [Struct; 2] {
    [Struct::sized::<Layout>("fp_answers"), Struct::sized::<Ring>("fp_ring")]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the stores.
    #[derive(Default)]
    struct Recorded {
        words: [u64; 32],
        changes: u64,
        order: Vec<usize>,
    }

    impl Memory for Recorded {
        type Error = Infallible;

        fn load(&self, index: usize) -> u64 {
            self.words.get(index).copied().unwrap_or(self.changes)
        }

        fn store(&mut self, index: usize, word: u64) -> Result<(), Infallible> {
            match self.words.get_mut(index) {
                Some(place) => *place = word,
                None => self.changes = word,
            }
            self.order.push(index);
            Ok(())
        }
    }

    #[test]
    fn a_new_value_is_stored_after_the_old_one_was_removed_and_the_change_counted() {
        let mut answers = Answers(Recorded::default());
        answers.set(Identity::Uid, 7).unwrap();
        assert_eq!(answers.0.order, [Identity::Uid as usize]);
        answers.set(Identity::Uid, 8).unwrap();
        let uid = Identity::Uid as usize;
        assert_eq!(answers.0.order, [uid, uid, CHANGES, uid]);
        assert_eq!(answers.get(Identity::Uid), Some(8));
        answers.set(Identity::Uid, 8).unwrap();
        assert_eq!(answers.0.order.len(), 4);
        answers.invalidate(&Identity::CREDENTIALS).unwrap();
        assert_eq!(answers.get(Identity::Uid), None);
    }

    #[test]
    fn a_mixture_of_nothing_and_a_valid_word_is_not_valid() {
        for value in [0, 1, 0xff, 0x1234_5678, u32::MAX] {
            let whole = word(value).to_le_bytes();
            for mask in 0..255_u32 {
                let mut mixed = whole;
                for (at, byte) in mixed.iter_mut().enumerate() {
                    if mask >> at & 1 == 0 {
                        *byte = 0;
                    }
                }
                let mixed = u64::from_le_bytes(mixed);
                assert!(
                    mixed == word(value) || word(mixed as u32) != mixed,
                    "{value:#x} {mask:#x}"
                );
            }
        }
    }

    #[test]
    fn descriptors_are_marked_one_by_one() {
        let mut page = vec![0_u64; PAGE_SIZE / 8];
        // SAFETY: the page is aligned, and outlives its use.
        let mut answers = Answers(unsafe { Mapped::new(NonNull::new(page.as_mut_ptr()).unwrap().cast()) });
        for descriptor in [0, 3, 63, 64, 1023] {
            assert_eq!(answers.mark_urandom(descriptor, true), Ok(true));
            assert!(answers.is_urandom(descriptor));
        }
        assert_eq!(answers.mark_urandom(1024, true), Ok(false));
        assert!(!answers.is_urandom(1024));
        answers.unmark(3, u32::MAX).unwrap();
        assert!(answers.is_urandom(0));
        assert!((1..DESCRIPTORS).all(|descriptor| !answers.is_urandom(descriptor)));
    }
}
