//! AArch64: every instruction has the size of a jump, so the jump replaces the `svc` alone, and no other code can jump
//! between the replaced bytes. A thunk compares the number, because code with another one may jump to the `svc` too.

use crate::rescue::change::{Change, Routine, Thunk, ThunkPlace};
use crate::rescue::file::File;
use crate::rescue::window::{Jump, Reason, Window, WindowKind};

/// Bytes of an instruction.
const WORD: usize = 4;
const SVC: u32 = 0xd400_0001;
/// Instructions before an `svc` that are searched for the source of its number: `syscall()` unpacks its arguments in about
/// twenty.
const LOOK_BACK: usize = 32;
/// Reach of `b` (Arm ARM, C6.2), less the size of a thunk.
const REACH: u64 = (128 << 20) - 4096;

/// Returns the offsets of the `svc` instructions in `code` whose number is an argument: `mov x8, xN` of glibc's and musl's
/// `syscall()` and of Go, or `ldr x8, [sp, ...]` of an older Go, and nothing else that may write x8 after it.
pub(crate) fn dynamic(code: &[u8]) -> Vec<usize> {
    // mov x8, xN or mov w8, wN; ldr x8, [sp, #imm]
    let is_argument = |source: u32| source & 0x7fe0_ffff == 0x2a00_03e8 || source & 0xffc0_03ff == 0xf940_03e8;
    let found = calls(code).filter(|(_, source)| source.is_some_and(is_argument));
    found.map(|(offset, _)| offset).collect()
}

/// Returns the offsets of all `svc` instructions, each with its number if an instruction shortly before loads it.
pub(crate) fn all(code: &[u8]) -> Vec<(usize, Option<u32>)> {
    // movz x8, #number or movz w8, #number
    let number = |source: u32| (source & 0x7fe0_001f == 0x5280_0008).then_some(source >> 5 & 0xffff);
    let found = calls(code).map(|(offset, source)| (offset, source.and_then(number)));
    found.collect()
}

/// Returns the offsets of all `svc` instructions, each with the last instruction before it that may write x8.
fn calls(code: &[u8]) -> impl Iterator<Item = (usize, Option<u32>)> {
    let (words, _) = code.as_chunks::<WORD>();
    let at = |index: usize| words.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    // A branch, a call or an exception (Arm ARM, C4.1), or an instruction that may write x8.
    let decides = |instruction: &u32| instruction & 0x1c00_0000 == 0x1400_0000 || instruction & 0x1f == 8;
    let source = move |index: usize| {
        let mut before = (1..=LOOK_BACK).map_while(|back| at(index.checked_sub(back)?));
        before.find(decides)
    };
    let found = (0..words.len()).filter(move |index| at(*index) == Some(SVC));
    found.map(move |index| (index * WORD, source(index)))
}

/// Returns the window of the `svc` at `address`.
pub(crate) fn find(file: &File<'_>, address: u64) -> Result<Window, Reason> {
    // Only what a function contains is code: there may be tables of data between functions.
    if !file.functions.iter().any(|function| function.contains(&address)) {
        return Err(Reason::NotReached);
    }
    let window = Window {
        isa: file.isa,
        kind: WindowKind::Behind,
        address,
        bytes: SVC.to_le_bytes().to_vec(),
        call_bytes: WORD,
        jump: Jump::First,
    };
    window.unless_relocated(file)
}

/// Returns the thunk for a window: see [`crate::rescue::change::thunk`].
///
/// A system call changes x0 alone. x16 and x17, which the thunk needs, are saved on the stack: AArch64 has no red zone
/// below the stack pointer. A routine gets the address to continue at in x16, and leaves x17 as it likes.
pub(crate) fn thunk(place: ThunkPlace<'_>, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
    let behind = place.address + WORD as u64;
    let mut code = Code {
        at: place.at,
        words: vec![SAVE],
    };
    let mut compared = Vec::new();
    for routine in wanted {
        // sub x16, x8, #number; cbz x16
        let number = Some(routine.number).filter(|number| *number < 1 << 12)?;
        code.words.push(0xd100_0110 | number << 10);
        compared.push(code.words.len());
        code.words.push(0xb400_0010);
    }
    code.words.push(RESTORE);
    let in_call = match otherwise {
        Some(otherwise) => {
            code.branch(otherwise)?;
            None
        }
        None => {
            code.words.push(SVC);
            let called = code.words.len() * WORD;
            code.branch(behind)?;
            Some((called as u16, WORD as u16))
        }
    };
    // The end, to which the routines come back.
    let end = code.words.len();
    code.words.push(RESTORE);
    code.branch(behind)?;
    // The literals are after the code: three words for each routine.
    let literals = (code.words.len() + 3 * wanted.len()).next_multiple_of(2);
    for (index, from) in compared.into_iter().enumerate() {
        let here = code.words.len();
        code.words[from] |= ((here - from) as u32) << 5;
        // adr x16, end; ldr x17, literal; br x17
        let back = (end as i32 - here as i32) as u32;
        code.words.push(0x1000_0010 | (back & 0x7_ffff) << 5);
        let forward = (literals + 2 * index - (here + 1)) as u32;
        code.words.push(0x5800_0011 | forward << 5);
        code.words.push(0xd61f_0220);
    }
    code.words.resize(literals, 0);
    code.finish(place, wanted.iter().map(|routine| routine.address), in_call)
}

/// Returns the thunk for a window: see [`crate::rescue::change::to_entry`].
///
/// The entry gets the address to continue at in x16. The call that it does not answer is three instructions before:
/// `ldp`, `svc`, `b`.
pub(crate) fn to_entry(place: ThunkPlace<'_>, entry: u64) -> Option<Thunk> {
    let behind = place.address + WORD as u64;
    let mut code = Code {
        at: place.at,
        // stp; adr x16, the second ldp; ldr x17, the literal; br x17
        words: vec![SAVE, 0x1000_0010 | 6 << 5, 0x5800_0011 | 8 << 5, 0xd61f_0220],
    };
    code.words.extend([RESTORE, SVC]);
    let called = code.words.len() * WORD;
    code.branch(behind)?;
    code.words.push(RESTORE);
    code.branch(behind)?;
    // The literal is at a multiple of its size.
    code.words.push(0);
    code.finish(place, [entry], Some((called as u16, WORD as u16)))
}

/// `stp x16, x17, [sp, #-16]!`
const SAVE: u32 = 0xa9bf_47f0;
/// `ldp x16, x17, [sp], #16`
const RESTORE: u32 = 0xa8c1_47f0;

/// Instructions at an address.
struct Code {
    at: u64,
    words: Vec<u32>,
}

impl Code {
    /// Appends a branch.
    fn branch(&mut self, to: u64) -> Option<()> {
        let here = self.at + (self.words.len() * WORD) as u64;
        self.words.push(branch(here, to)?);
        Some(())
    }

    /// Returns the thunk, with these literals behind its code.
    fn finish(
        self,
        place: ThunkPlace<'_>,
        literals: impl IntoIterator<Item = u64>,
        in_call: Option<(u16, u16)>,
    ) -> Option<Thunk> {
        let mut code: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        code.extend(literals.into_iter().flat_map(u64::to_le_bytes));
        let jump = branch(place.address, place.at)?.to_le_bytes();
        Some(Thunk {
            code,
            changes: vec![Change::new(place.address, &place.window.bytes, jump)],
            moved: Vec::new(),
            in_call,
        })
    }
}

/// Returns a `b` at `from` to `to`; `None` if it cannot reach.
fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from) as i64;
    (distance.unsigned_abs() < REACH).then_some(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
}

#[cfg(test)]
mod tests {
    use fastpath_isa::Isa;

    use super::*;
    use crate::rescue::file::Part;

    const MOV_X0_X1: u32 = 0xaa01_03e0;

    fn window() -> Window {
        Window {
            isa: Isa::Aarch64,
            kind: WindowKind::Behind,
            address: 0x2000,
            bytes: SVC.to_le_bytes().to_vec(),
            call_bytes: WORD,
            jump: Jump::First,
        }
    }

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn only_calls_whose_number_is_an_argument_are_of_any_number() {
        let found = |words: &[u32]| dynamic(&code(words));
        // mov w8, w0; mov x8, x3; ldr x8, [sp, #8]
        for source in [0x2a00_03e8, 0xaa03_03e8, 0xf940_07e8] {
            assert_eq!(found(&[source, MOV_X0_X1, SVC]), [8], "{source:#x}");
        }
        // mov x8, #113; ldr x8, [x1]; a call in between; no source at all.
        assert!(found(&[0xd280_0e28, SVC]).is_empty());
        assert!(found(&[0xf940_0028, SVC]).is_empty());
        assert!(found(&[0xaa03_03e8, 0x9400_0001, SVC]).is_empty());
        assert!(found(&[SVC]).is_empty());
    }

    #[test]
    fn a_call_outside_of_all_functions_or_that_is_relocated_is_left_alone() {
        let bytes = code(&[SVC, SVC, SVC]);
        let mut file = File {
            isa: Isa::Aarch64,
            code: vec![Part {
                address: 0x1000,
                bytes: &bytes,
            }],
            data: Vec::new(),
            is_fixed: true,
            functions: std::iter::once(0x1000..0x1008).collect(),
            labels: Vec::new(),
            objects: Vec::new(),
            data_sections: Vec::new(),
            relocated: Vec::new(),
            entry: 0x1000,
        };
        assert_eq!(find(&file, 0x1004).unwrap().bytes, SVC.to_le_bytes());
        assert_eq!(find(&file, 0x1008), Err(Reason::NotReached));
        file.relocated.push(0x1000);
        assert_eq!(find(&file, 0x1004), Err(Reason::Relocated(0x1000)));
    }

    #[test]
    fn every_call_is_found_with_its_number_if_that_is_constant() {
        // mov x8, #172; mov w8, #178; mov x8, x3
        let words = [0xd280_1588, SVC, 0x5280_1648, MOV_X0_X1, SVC, 0xaa03_03e8, SVC];
        assert_eq!(all(&code(&words)), [(4, Some(172)), (16, Some(178)), (24, None)]);
    }

    #[test]
    fn a_thunk_leads_to_an_entry_and_makes_the_call_before_its_end() {
        let window = window();
        let (at, entry) = (0x5000_4000, 0x7fff_1234_5000);
        let thunk = crate::rescue::thunk::to_entry(&window, 0x5000_0000, at, entry).unwrap();
        let words: Vec<u32> = thunk
            .code
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let end = 7;
        assert_eq!(words[1], 0x1000_0010 | (end - 1) << 5, "adr x16, end");
        assert_eq!((words[end as usize - 3], words[end as usize - 2]), (RESTORE, SVC));
        for branch in [6, 8] {
            let (code, address) = (&thunk.code[4 * branch..], at + 4 * branch as u64);
            assert_eq!((Isa::Aarch64.facts().jump_target)(code, address), Some(0x5000_2004));
        }
        assert_eq!(thunk.code[40..], entry.to_le_bytes());
        assert_eq!(thunk.in_call, Some((24, 4)));
    }

    #[test]
    fn a_thunk_leads_to_the_routines_and_back() {
        let window = window();
        let routines = [("clock_gettime", 0x7000), ("gettimeofday", 0x8000)];
        let routines = routines.map(|(name, address)| Routine::for_call(Isa::Aarch64, name, address).unwrap());
        let place = |at| ThunkPlace {
            window: &window,
            address: 0x5000_2000,
            at,
            relay: None,
        };
        let (at, behind) = (0x5000_4000, 0x5000_2004);
        let thunk = super::thunk(place(at), &routines, None).unwrap();
        let jump_target = Isa::Aarch64.facts().jump_target;
        let change = &thunk.changes[0];
        assert_eq!(jump_target(&change.replacement, change.address), Some(at));
        let (in_thunk, in_place) = thunk.in_call.unwrap();
        assert_eq!(
            (in_place, &thunk.code[usize::from(in_thunk) - 4..][..4]),
            (4, &SVC.to_le_bytes()[..])
        );
        assert_eq!(
            jump_target(&thunk.code[in_thunk.into()..], at + u64::from(in_thunk)),
            Some(behind)
        );
        let word = |index: usize| u32::from_le_bytes(thunk.code[4 * index..][..4].try_into().unwrap());
        let mut seen = Vec::new();
        for index in (0..thunk.code.len() / 4).filter(|index| word(*index) & 0xff00_001f == 0xb400_0010) {
            let number = word(index - 1) >> 10 & 0xfff;
            // adr x16, end; ldr x17, literal
            let target = index + (word(index) >> 5 & 0x7_ffff) as usize;
            let end = target as i32 + ((word(target) << 8) as i32 >> 13);
            assert_eq!(word(end as usize), 0xa8c1_47f0);
            assert_eq!(
                jump_target(&thunk.code[4 * end as usize + 4..], at + 4 * end as u64 + 4),
                Some(behind)
            );
            let literal = 4 * (target + 1 + (word(target + 1) >> 5 & 0x7_ffff) as usize);
            assert_eq!(literal % 8, 0);
            seen.push((
                number,
                u64::from_le_bytes(thunk.code[literal..][..8].try_into().unwrap()),
            ));
        }
        assert_eq!(seen, [(113, 0x7000), (169, 0x8000)]);
        // Another place for other calls; out of reach.
        let other = super::thunk(place(at), &routines, Some(0x5000_9000)).unwrap();
        assert_eq!(other.in_call, None);
        assert!((0..other.code.len() / 4).all(|index| other.code[4 * index..][..4] != SVC.to_le_bytes()));
        assert_eq!(super::thunk(place(at + (1 << 28)), &routines, None), None);
    }
}
