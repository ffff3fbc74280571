//! The stack that the kernel passes to a new program: argc, argv, envp, and the auxiliary vector (getauxval(3)).

use crate::error::{Error, Result};
use crate::target::tracee::Tracee;

/// Types of auxiliary vector entries, from include/uapi/linux/auxvec.h.
pub const AT_NULL: u64 = 0;
pub const AT_PHDR: u64 = 3;
pub const AT_BASE: u64 = 7;
pub const AT_ENTRY: u64 = 9;
pub const AT_SECURE: u64 = 23;
pub const AT_SYSINFO: u64 = 32;
pub const AT_SYSINFO_EHDR: u64 = 33;

/// Number of words read at a time.
const CHUNK: usize = 256;
/// Number of words that no stack accepted by execve exceeds (MAX_ARG_STRINGS bounds argc; 6 MiB of pointers bound the
/// rest).
const LIMIT: usize = 16 << 20;

/// Words from the stack pointer to the end of the auxiliary vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialStack {
    /// Address of argc.
    pub pointer: u64,
    /// Size of a word in bytes: 4 or 8.
    word: usize,
    words: Vec<u64>,
    auxv: usize,
}

impl InitialStack {
    /// Reads it from a program that has not run yet.
    pub fn read(tracee: &mut Tracee, pointer: u64, word: usize) -> Result<InitialStack> {
        let mut words = Vec::new();
        while words.len() < LIMIT {
            // The stack's top may be less than a chunk away.
            let at = pointer + (word * words.len()) as u64;
            let to_page_end = (4096 - at % 4096) as usize / word;
            words.extend(tracee.read_words(at, CHUNK.min(to_page_end), word)?);
            if let Some(stack) = InitialStack::parse(pointer, &words, word) {
                return Ok(stack);
            }
        }
        Err(Error::Unsupported("the program's initial stack has no end".into()))
    }

    fn parse(pointer: u64, words: &[u64], word: usize) -> Option<InitialStack> {
        let argc = usize::try_from(*words.first()?).ok()?;
        let envp = argc.checked_add(2)?;
        let auxv = envp + words.get(envp..)?.iter().position(|w| *w == 0)? + 1;
        let entries = words.get(auxv..)?.chunks_exact(2).position(|e| e[0] == AT_NULL)?;
        Some(InitialStack {
            pointer,
            word,
            words: words[..auxv + 2 * entries + 2].to_vec(),
            auxv,
        })
    }

    /// Returns the index of an entry's type.
    fn position(&self, kind: u64) -> Option<usize> {
        self.words[self.auxv..]
            .chunks_exact(2)
            .position(|e| e[0] == kind)
            .map(|i| self.auxv + 2 * i)
    }

    /// Returns the value of an entry.
    pub fn get(&self, kind: u64) -> Option<u64> {
        self.position(kind).map(|i| self.words[i + 1])
    }

    /// Returns the address of an entry's value.
    pub fn address_of(&self, kind: u64) -> Option<u64> {
        self.position(kind).map(|i| self.pointer + (self.word * (i + 1)) as u64)
    }

    /// Changes an entry, or inserts it before all others.
    pub fn set(&mut self, kind: u64, value: u64) {
        match self.position(kind) {
            Some(i) => self.words[i + 1] = value,
            None => {
                self.words.splice(self.auxv..self.auxv, [kind, value]);
            }
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, kind: u64) {
        if let Some(i) = self.position(kind) {
            self.words.drain(i..i + 2);
        }
    }

    /// Moves the whole stack to a place that does not overlap `old`, so that the old one stays valid until the stack
    /// pointer changes.
    pub fn place_below(&mut self, old: &InitialStack) {
        self.pointer = (old.pointer - (self.word * self.words.len()) as u64) & !15;
    }

    /// Returns its bytes, to be written at its pointer.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.words.iter().map(|w| w.to_le_bytes());
        bytes.flat_map(|bytes| bytes.into_iter().take(self.word)).collect()
    }

    /// Returns whether it has as many words as `other`.
    pub fn same_size(&self, other: &InitialStack) -> bool {
        self.words.len() == other.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> InitialStack {
        let words = [
            2,
            0x100,
            0x200,
            0,
            0x300,
            0,
            AT_SYSINFO_EHDR,
            0x7000,
            AT_ENTRY,
            0x400000,
            AT_NULL,
            0,
            99,
        ];
        InitialStack::parse(0x7ffe_0000_0010, &words, 8).unwrap()
    }

    #[test]
    fn an_existing_entry_is_replaced_in_place() {
        let mut stack = sample();
        let before = stack.clone();
        assert_eq!(stack.address_of(AT_SYSINFO_EHDR), Some(0x7ffe_0000_0010 + 7 * 8));
        stack.set(AT_SYSINFO_EHDR, 0x9000);
        assert_eq!(stack.get(AT_SYSINFO_EHDR), Some(0x9000));
        assert!(stack.same_size(&before));
    }

    #[test]
    fn a_missing_entry_is_inserted_and_the_arguments_stay() {
        let mut stack = sample();
        stack.remove(AT_SYSINFO_EHDR);
        assert_eq!(stack.get(AT_SYSINFO_EHDR), None);
        assert_eq!(stack.get(AT_ENTRY), Some(0x400000));
        let without = stack.clone();
        stack.set(AT_SYSINFO_EHDR, 0x9000);
        stack.place_below(&without);
        assert_eq!(stack.pointer % 16, 0);
        assert!(stack.pointer + stack.bytes().len() as u64 <= without.pointer);
        assert_eq!(&stack.bytes()[..48], &sample().bytes()[..48]);
    }

    #[test]
    fn a_stack_without_an_end_is_refused() {
        assert_eq!(InitialStack::parse(0, &[1, 5, 0, 7], 8), None);
        assert_eq!(InitialStack::parse(0, &[u64::MAX, 5], 8), None);
        assert_eq!(InitialStack::parse(0, &[], 8), None);
    }
}
