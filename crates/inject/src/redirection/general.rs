//! Whether a kernel's function may be called in place of a system call, which keeps all vector registers: the functions
//! are called by C's rules, under which they may change them.

use fastpath_image::Vdso;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Register};

/// Returns whether the functions of these names, as far as the vDSO has them, and all code that they jump to or call
/// use general registers only.
pub fn uses_general_registers(vdso: &[u8], parsed: &Vdso, names: &[&str]) -> bool {
    let exports = parsed.exports().iter().filter(|export| export.is_function);
    let wanted = exports.filter(|export| names.contains(&super::plain_name(&export.name)));
    let mut next: Vec<u64> = wanted.map(|export| export.offset).collect();
    let mut seen = std::collections::HashSet::new();
    let mut factory = InstructionInfoFactory::new();
    while let Some(start) = next.pop() {
        let Some(code) = usize::try_from(start).ok().and_then(|start| vdso.get(start..)) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        while decoder.can_decode() && seen.insert(decoder.ip()) {
            let instruction = decoder.decode();
            let used = factory.info(&instruction).used_registers();
            if instruction.is_invalid() || !used.iter().all(|used| is_general(used.register())) {
                return false;
            }
            next.extend(target(&instruction));
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

/// Returns the target of a direct jump or call.
fn target(instruction: &Instruction) -> Option<u64> {
    let is_branch = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    );
    Some(instruction.near_branch_target()).filter(|target| is_branch && *target != 0)
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
