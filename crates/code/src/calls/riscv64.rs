//! RISC-V: instructions have one or two half words, so code is decoded forwards from each half word before an `ecall`
//! (`vote`). Forgetting a register wrongly misses a call; keeping it wrongly invents one.

use fastpath_image::Isa;
use memchr::memmem;

use super::{By, Found, Piece, Site, call_of, half, vote, word};

/// Bytes before a system call in which to look for its number.
const BEFORE: usize = 64;
/// The register of the number.
const A7: usize = 17;
const SP: usize = 2;
/// Registers that a function may change, by the ABI: ra, t0 to t2, a0 to a7, t3 to t6.
const TEMPORARY: [usize; 16] = [1, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31];

pub(super) fn find(piece: &Piece<'_>, address: u64, found: &mut Found) {
    let isa = Isa::Riscv64;
    for at in memmem::find_iter(piece.bytes, isa.facts().system_call) {
        let here = address.wrapping_add(at as u64);
        if piece.own.contains(&at)
            && here.is_multiple_of(2)
            && found.is_affordable()
            && let Some(number) = vote(piece.bytes, at, BEFORE, is_wide, step, |registers: &Registers| {
                registers.0[A7]
            })
            && let Some(call) = call_of(isa, number.into())
        {
            found.add(Site {
                address: here,
                call,
                by: By::SystemCall,
            });
        }
    }
}

fn is_wide(first: u16) -> bool {
    first & 3 == 3
}

/// The known values of the registers, their lower 32 bits.
#[derive(Default)]
struct Registers([Option<u32>; 32]);

impl Registers {
    fn set(&mut self, register: u32, value: Option<u32>) {
        self.0[register as usize] = value;
    }

    fn add(&mut self, to: u32, from: u32, constant: i32) {
        let value = if from == 0 { Some(0) } else { self.0[from as usize] };
        self.set(to, value.map(|value| value.wrapping_add_signed(constant)));
    }

    fn call(&mut self) {
        for register in TEMPORARY {
            self.0[register] = None;
        }
    }

    /// Forgets all registers, because the next instruction is reached from elsewhere.
    fn jump(&mut self) {
        self.0 = [None; 32];
    }
}

/// Steps over one instruction.
fn step(bytes: &[u8], at: usize, registers: &mut Registers) -> Option<()> {
    let first = half(bytes, at)?;
    if is_wide(first) {
        wide(word(bytes, at)?, registers);
    } else {
        compressed(first.into(), registers);
    }
    Some(())
}

fn wide(instruction: u32, registers: &mut Registers) {
    let target = instruction >> 7 & 31;
    let source = instruction >> 15 & 31;
    let constant = instruction as i32 >> 20;
    match (instruction & 0x7f, instruction >> 12 & 7) {
        // addi, addiw; lui
        (0x13 | 0x1b, 0) => registers.add(target, source, constant),
        (0x37, _) => registers.set(target, Some(instruction & 0xffff_f000)),
        // Stores, branches, fences, loads and arithmetic of floating point.
        (0x23 | 0x27 | 0x63 | 0x0f | 0x07 | 0x43 | 0x47 | 0x4b | 0x4f, _) => {}
        // jal, jalr
        (0x6f | 0x67, _) if target == 0 => registers.jump(),
        (0x6f | 0x67, _) => registers.call(),
        // ecall; ebreak and privileged instructions
        (0x73, 0) if instruction == 0x73 => registers.set(10, None),
        (0x73, 0) => registers.jump(),
        _ => registers.set(target, None),
    }
}

fn compressed(instruction: u32, registers: &mut Registers) {
    let target = instruction >> 7 & 31;
    let source = instruction >> 2 & 31;
    // Three bits, for x8 to x15.
    let (low, high) = (8 + (instruction >> 2 & 7), 8 + (instruction >> 7 & 7));
    let constant = ((instruction >> 7 & 32 | source) << 26) as i32 >> 26;
    match (instruction & 3, instruction >> 13) {
        // c.addi4spn; loads; stores, and those of floating point, which write none; the rest
        (0, 0 | 2 | 3) => registers.set(low, None),
        (0, 1 | 5..=7) => {}
        (0, _) => {
            registers.set(low, None);
            registers.set(high, None);
        }
        // c.addi, c.addiw; c.li; c.addi16sp; c.lui
        (1, 0 | 1) => registers.add(target, target, constant),
        (1, 2) => registers.add(target, 0, constant),
        (1, 3) if target as usize == SP => registers.set(target, None),
        (1, 3) => registers.set(target, Some((constant << 12) as u32)),
        // Arithmetic; c.j; c.beqz, c.bnez
        (1, 4) => registers.set(high, None),
        (1, 5) => registers.jump(),
        (1, _) => {}
        // c.slli, c.lwsp, c.ldsp
        (2, 0 | 2 | 3) => registers.set(target, None),
        (2, 4) => {
            let is_second = instruction >> 12 & 1 != 0;
            match (is_second, target, source) {
                // c.jr; c.ebreak; c.jalr; c.mv; c.add
                (false, _, 0) | (true, 0, 0) => registers.jump(),
                (true, _, 0) => registers.call(),
                (false, ..) => registers.add(target, source, 0),
                (true, ..) => registers.set(target, None),
            }
        }
        // Stores and loads of floating point.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Call, calls_of};
    use super::*;

    /// Finds the calls in half words.
    fn found(code: &[u16]) -> Vec<(u64, Call)> {
        calls_of(Isa::Riscv64, code.iter().map(|half| half.to_le_bytes()))
    }

    #[test]
    fn a_number_is_followed_into_a7() {
        assert_eq!(found(&[0x0893, 0x0710, 0x0073, 0]), [(4, Call::ClockGettime)]); // li a7, 113
        assert_eq!(found(&[0x0893, 0x0a90, 0x852e, 0x0073, 0]), [(6, Call::Gettimeofday)]); // li a7, 169; c.mv a0, a1
        assert_eq!(found(&[0x0793, 0x0710, 0x88be, 0x0073, 0]), [(6, Call::ClockGettime)]); // li a5, 113; c.mv a7, a5
        assert_eq!(found(&[0x47fd, 0x8893, 0x0527, 0x0073, 0]), [(6, Call::ClockGettime)]); // c.li a5, 31; addi a7, a5, 82
    }

    #[test]
    fn a_number_that_does_not_arrive_is_not_one() {
        assert_eq!(found(&[0x0893, 0x0710, 0x4885, 0x0073, 0]), []); // c.li a7, 1
        assert_eq!(found(&[0x0893, 0x0710, 0x8082, 0x0073, 0]), []); // c.ret
        assert_eq!(found(&[0x0893, 0x0710, 0x00ef, 0x0080, 0x0073, 0]), []); // jal
        assert_eq!(found(&[0x0893, 0x0710, 0xb883, 0x0005, 0x0073, 0]), []); // ld a7, (a1)
        assert_eq!(found(&[0x0813, 0x0710, 0x0073, 0]), []); // li a6, 113
        assert_eq!(found(&[0x0073, 0]), []);
    }
}
