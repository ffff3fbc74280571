//! Copies instructions of x86-64 to another address, in their length: iced-x86's encoder, which could move any, first makes
//! tables for half a millisecond.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

/// Returns the copies at `at` of the instructions `code` for x86-64 at `from`, each as long as before. An operand that is
/// relative to the address of its instruction keeps its place, and so does the target of a branch out of the code, but
/// that `target` may replace it.
pub fn copied(code: &[u8], from: u64, at: u64, target: impl Fn(u64) -> u64) -> Result<Vec<u8>, String> {
    let mut copies = code.to_vec();
    let is_inside = |address: &u64| (from..from + code.len() as u64).contains(address);
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        let offsets = decoder.get_constant_offsets(&instruction);
        let (operand, place, size) = if instruction.is_ip_rel_memory_operand() {
            let operand = instruction.ip_rel_memory_address();
            (operand, offsets.displacement_offset(), offsets.displacement_size())
        } else if is_branch(&instruction) && !is_inside(&instruction.near_branch_target()) {
            let operand = target(instruction.near_branch_target());
            (operand, offsets.immediate_offset(), offsets.immediate_size())
        } else {
            continue;
        };
        let end = (start + instruction.len()) as u64;
        match i32::try_from(operand.wrapping_sub(at + end) as i64) {
            Ok(distance) if size == 4 => {
                let place = start + place;
                copies[place..place + 4].copy_from_slice(&distance.to_le_bytes());
            }
            _ => return Err("it cannot be moved: an operand is out of reach".into()),
        }
    }
    Ok(copies)
}

/// Returns whether an instruction branches to an address that it states.
pub fn is_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    ) && instruction.near_branch_target() != 0
}
