//! Copies instructions of x86 to another address, if possible in their length: iced-x86's encoder, which can move any, first
//! makes tables for half a millisecond.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Decoder, DecoderOptions, FlowControl, Instruction, InstructionBlock,
};

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

/// Returns the code of these instructions for `at`, and where each is in it. Refuses those that would become several: a
/// thread in front of one of them could not be moved.
pub fn encoded(bits: u32, instructions: &[Instruction], at: u64) -> Result<(Vec<u8>, Vec<usize>), String> {
    let block = InstructionBlock::new(instructions, at);
    let encoded = BlockEncoder::encode(bits, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
        .map_err(|e| format!("it cannot be moved: {e}"))?;
    // u32::MAX: it has become several.
    let offset = |offset: &u32| (*offset != u32::MAX).then_some(*offset as usize);
    let offsets: Option<_> = encoded.new_instruction_offsets.iter().map(offset).collect();
    let offsets = offsets.ok_or("it cannot be moved: a branch is out of reach")?;
    Ok((encoded.code_buffer, offsets))
}

/// Returns whether an instruction branches to an address that it states.
pub fn is_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    ) && instruction.near_branch_target() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_that_would_become_several_is_not_moved() {
        let instructions = |code: &[u8]| {
            Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE)
                .iter()
                .collect()
        };
        // nop; jrcxz or je to 0x1000
        let (jrcxz, je): (Vec<_>, Vec<_>) = (instructions(b"\x90\xe3\xfd"), instructions(b"\x90\x74\xfd"));
        assert_eq!(encoded(64, &jrcxz[..1], 0x9000), Ok((vec![0x90], vec![0])));
        assert_eq!(encoded(64, &je[1..], 0x9000).map(|(_, offsets)| offsets), Ok(vec![0]));
        assert!(encoded(64, &jrcxz[1..], 0x9000).is_err());
    }
}
