//! An assembler for the few BPF instructions that fastpath's programs need, with labels
//! (Documentation/bpf/standardization/instruction-set.rst).

use std::collections::HashMap;

/// A register of the BPF machine. R1 to R5 are a helper's arguments, R0 its result; R6 to R9 survive a call.
#[derive(Clone, Copy)]
pub struct Register(u8);

pub const R0: Register = Register(0);
pub const R1: Register = Register(1);
pub const R2: Register = Register(2);
pub const R3: Register = Register(3);
pub const R4: Register = Register(4);
pub const R6: Register = Register(6);
pub const R7: Register = Register(7);
pub const R8: Register = Register(8);
pub const R9: Register = Register(9);
/// The frame pointer.
pub const FP: Register = Register(10);

/// Width of a load or store.
#[derive(Clone, Copy)]
pub enum Width {
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// One instruction as the kernel reads it: opcode, registers, offset, immediate.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A program under construction.
#[derive(Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    labels: HashMap<String, usize>,
    jumps: Vec<(usize, String)>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, dst: Register, src: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction {
            opcode,
            registers: dst.0 | src.0 << 4,
            offset,
            immediate,
        });
    }

    pub fn label(&mut self, name: impl Into<String>) {
        self.labels.insert(name.into(), self.code.len());
    }

    pub fn mov(&mut self, dst: Register, src: Register) {
        self.push(0xbf, dst, src, 0, 0);
    }

    pub fn set(&mut self, dst: Register, value: i32) {
        self.push(0xb7, dst, R0, 0, value);
    }

    pub(crate) fn set64(&mut self, dst: Register, value: u64) {
        self.push(0x18, dst, R0, 0, value as u32 as i32);
        self.push(0, R0, R0, 0, (value >> 32) as i32);
    }

    /// Loads a map's address, given its descriptor.
    pub fn map(&mut self, dst: Register, fd: i32) {
        const PSEUDO_MAP_FD: Register = Register(1);
        self.push(0x18, dst, PSEUDO_MAP_FD, 0, fd);
        self.push(0, R0, R0, 0, 0);
    }

    /// Loads an address in the stack frame.
    pub fn address(&mut self, dst: Register, offset: i16) {
        self.mov(dst, FP);
        self.add(dst, i32::from(offset));
    }

    pub fn add(&mut self, dst: Register, value: i32) {
        self.push(0x07, dst, R0, 0, value);
    }

    pub fn and(&mut self, dst: Register, value: i32) {
        self.push(0x57, dst, R0, 0, value);
    }

    pub(crate) fn shift_right(&mut self, dst: Register, bits: i32) {
        self.push(0x77, dst, R0, 0, bits);
    }

    pub fn load(&mut self, width: Width, dst: Register, base: Register, offset: i16) {
        self.push(0x61 | width as u8, dst, base, offset, 0);
    }

    pub fn store(&mut self, width: Width, base: Register, offset: i16, src: Register) {
        self.push(0x63 | width as u8, base, src, offset, 0);
    }

    pub fn store_value(&mut self, width: Width, base: Register, offset: i16, value: i32) {
        self.push(0x62 | width as u8, base, R0, offset, value);
    }

    /// Adds 64 bits atomically.
    pub fn atomic_add(&mut self, base: Register, offset: i16, src: Register) {
        self.push(0xdb, base, src, offset, 0);
    }

    fn jump(&mut self, opcode: u8, dst: Register, src: Register, value: i32, label: &str) {
        self.jumps.push((self.code.len(), label.to_owned()));
        self.push(opcode, dst, src, 0, value);
    }

    pub fn goto(&mut self, label: &str) {
        self.jump(0x05, R0, R0, 0, label);
    }

    pub fn if_is(&mut self, left: Register, value: i32, label: &str) {
        self.jump(0x15, left, R0, value, label);
    }

    pub fn if_is_not(&mut self, left: Register, value: i32, label: &str) {
        self.jump(0x55, left, R0, value, label);
    }

    pub fn if_equal(&mut self, left: Register, right: Register, label: &str) {
        self.jump(0x1d, left, right, 0, label);
    }

    /// Compares unsigned.
    pub fn if_at_most(&mut self, left: Register, value: i32, label: &str) {
        self.jump(0xb5, left, R0, value, label);
    }

    /// Compares unsigned.
    pub fn if_at_least(&mut self, left: Register, right: Register, label: &str) {
        self.jump(0x3d, left, right, 0, label);
    }

    pub fn call(&mut self, helper: i32) {
        self.push(0x85, R0, R0, 0, helper);
    }

    pub fn exit(&mut self) {
        self.set(R0, 0);
        self.push(0x95, R0, R0, 0, 0);
    }

    /// Returns the program. An undefined label is a bug in the calling crate and panics in every use.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let to = self.labels[label];
            self.code[*at].offset = (to as i64 - *at as i64 - 1) as i16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_their_labels_forwards_and_backwards() {
        let mut asm = Assembler::default();
        asm.label("start");
        asm.if_is(R1, 7, "end");
        asm.goto("start");
        asm.label("end");
        asm.exit();
        let offsets: Vec<i16> = asm.finish().iter().map(|one| one.offset).collect();
        assert_eq!(offsets, [1, -2, 0, 0]);
    }
}
