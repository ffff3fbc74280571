//! AArch64: every instruction has the size of a jump, so the jump replaces the `svc` alone, and no other code can jump
//! between the replaced bytes. A thunk compares the number, whoever jumps to it.

use crate::file::File;
use crate::thunk::{Place, Routine, Thunk};
use crate::window::{Kind, Reason, Window};

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
pub fn dynamic(code: &[u8]) -> Vec<usize> {
    let (words, _) = code.as_chunks::<WORD>();
    let at = |index: usize| words.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    let is_argument = |index: &usize| {
        let before = (1..=LOOK_BACK).map_while(|back| at(index.checked_sub(back)?));
        number_is_argument(before)
    };
    (0..words.len())
        .filter(|index| at(*index) == Some(SVC))
        .filter(is_argument)
        .map(|index| index * WORD)
        .collect()
}

/// Returns whether x8 comes from another register or from the stack, given the instructions before, latest first.
fn number_is_argument(mut latest_first: impl Iterator<Item = u32>) -> bool {
    // A branch, a call or an exception (Arm ARM, C4.1), or an instruction that may write x8.
    let decides = |instruction: &u32| instruction & 0x1c00_0000 == 0x1400_0000 || instruction & 0x1f == 8;
    latest_first.find(decides).is_some_and(|instruction| {
        // mov x8, xN or mov w8, wN; ldr x8, [sp, #imm]
        instruction & 0x7fe0_ffff == 0x2a00_03e8 || instruction & 0xffc0_03ff == 0xf940_03e8
    })
}

/// Returns the window of the `svc` at `address`.
pub fn find(file: &File<'_>, address: u64) -> Result<Window, Reason> {
    // Only what a function contains is code: there may be tables of data between functions.
    if !file.functions.iter().any(|function| function.contains(&address)) {
        return Err(Reason::NotReached);
    }
    let window = Window {
        isa: file.isa,
        kind: Kind::Behind,
        address,
        bytes: SVC.to_le_bytes().to_vec(),
    };
    window.unless_relocated(file)
}

/// Returns the thunk for a window: see [`crate::thunk::thunk`].
///
/// A system call changes x0 alone. x16 and x17, which the thunk needs, are saved on the stack: AArch64 has no red zone
/// below the stack pointer. A routine gets the address to continue at in x16, and leaves x17 as it likes.
pub fn thunk(place: Place<'_>, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
    const SAVE: u32 = 0xa9bf_47f0; // stp x16, x17, [sp, #-16]!
    const RESTORE: u32 = 0xa8c1_47f0; // ldp x16, x17, [sp], #16
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
    let mut bytes: Vec<u8> = code.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    wanted
        .iter()
        .for_each(|routine| bytes.extend(routine.address.to_le_bytes()));
    Some(Thunk {
        code: bytes,
        address: place.address,
        original: place.window.bytes.clone(),
        replacement: branch(place.address, place.at)?.to_le_bytes().to_vec(),
        moved: Vec::new(),
        in_call,
    })
}

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
}

/// Returns a `b` at `from` to `to`; `None` if it cannot reach.
fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from) as i64;
    (distance.unsigned_abs() < REACH).then_some(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
}
