//! Whether a kernel's function may be called in place of a system call, which keeps all vector registers: the functions
//! are called by C's rules, under which they may change them.

use fastpath_code::rescue::is_branch;
use fastpath_image::{Isa, Vdso};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Register};

/// Returns whether the functions of these names, as far as the vDSO has them, and all code that they jump to or call
/// use general registers only.
pub fn uses_general_registers(vdso: &[u8], parsed: &Vdso, names: &[&str]) -> bool {
    let exports = parsed.exports().iter().filter(|export| export.is_function);
    let mut wanted = exports.filter(|export| names.contains(&super::plain_name(&export.name)));
    match Isa::of_elf(parsed.machine(), parsed.is_64()) {
        Some(Isa::Aarch64) => wanted.all(|export| words_are_general(vdso, export.offset, export.size)),
        Some(Isa::X86_64) => instructions_are_general(vdso, 64, wanted.map(|export| export.offset).collect()),
        Some(Isa::I386) => instructions_are_general(vdso, 32, wanted.map(|export| export.offset).collect()),
        _ => false,
    }
}

/// Follows x86 code from these offsets on.
fn instructions_are_general(vdso: &[u8], bits: u32, mut next: Vec<u64>) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut factory = InstructionInfoFactory::new();
    while let Some(start) = next.pop() {
        let Some(code) = usize::try_from(start).ok().and_then(|start| vdso.get(start..)) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(bits, code, start, DecoderOptions::NONE);
        while decoder.can_decode() && seen.insert(decoder.ip()) {
            let instruction = decoder.decode();
            let used = factory.info(&instruction).used_registers();
            if instruction.is_invalid() || !used.iter().all(|used| is_general(used.register())) {
                return false;
            }
            if is_branch(&instruction) {
                next.push(instruction.near_branch_target());
            }
            match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::Return => break,
                // Its target is not known.
                FlowControl::IndirectBranch | FlowControl::IndirectCall => return false,
                _ => {}
            }
        }
    }
    true
}

fn is_general(register: Register) -> bool {
    register.is_gpr() || register.is_segment_register() || register.is_ip() || register == Register::None
}

/// Examines an AArch64 function. One that calls another does not pass.
fn words_are_general(vdso: &[u8], start: u64, size: u64) -> bool {
    let end = start.checked_add(size);
    let range = end.and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
    let Some(code) = range.and_then(|range| vdso.get(range)) else {
        return false;
    };
    let (words, rest) = code.as_chunks();
    let is_inside = |at: usize, distance: i64| {
        let target = (4 * at as i64).wrapping_add(distance);
        (0..code.len() as i64).contains(&target)
    };
    // Arm ARM, C4.1: loads and stores with V, data processing of SIMD and floating point, SVE and SME; calls, and
    // branches to registers other than RET.
    let is_general = |(at, word): (usize, &[u8; 4])| {
        let word = u32::from_le_bytes(*word);
        let is_vector_access = word & 0x0e00_0000 == 0x0c00_0000;
        let is_vector_operation = word & 0x0e00_0000 == 0x0e00_0000;
        let is_scalable = word & 0x1e00_0000 == 0x0400_0000 || word & 0x1e00_0000 == 0;
        let is_return = word & 0xffe0_0000 == 0xd640_0000;
        let is_call = word & 0xfc00_0000 == 0x9400_0000 || (word & 0xfe00_0000 == 0xd600_0000 && !is_return);
        let leaves = word & 0xfc00_0000 == 0x1400_0000 && !is_inside(at, i64::from((word << 6) as i32 >> 6) * 4);
        !(is_vector_access || is_vector_operation || is_scalable || is_call || leaves)
    };
    !words.is_empty() && rest.is_empty() && words.iter().enumerate().all(is_general)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_clock_functions_do_and_getrandom_does_not() {
        let bytes = fastpath_image::own_vdso().unwrap().expect("a vDSO").bytes;
        let parsed = Vdso::parse(&bytes).unwrap();
        assert!(uses_general_registers(
            &bytes,
            &parsed,
            &["clock_gettime", "gettimeofday", "time"]
        ));
        if parsed.exports().iter().any(|export| export.name == "__vdso_getrandom") {
            assert!(!uses_general_registers(&bytes, &parsed, &["getrandom"]));
        }
    }
}
