//! Programs for x86-64, and how an x86-64 kernel shows its programs.

mod i386;
mod instructions;
mod registers;
pub mod running;
pub mod sites;
mod waits;
mod wrapper;

pub use registers::{Registers, WAITS_ON_FUTEX};

use fastpath_image::Isa;

use super::{Abi, Hook};

/// Returns the ABI of the program whose registers these are.
pub fn for_registers(registers: &Registers) -> &'static dyn Abi {
    if registers.is_32_bit() { &i386::I386 } else { &X86_64 }
}

/// Returns the ABI of programs for this instruction set, if such a kernel starts them.
pub fn of_isa(isa: Isa) -> Option<&'static dyn Abi> {
    match isa {
        Isa::X86_64 => Some(&X86_64),
        Isa::I386 => Some(&i386::I386),
        _ => None,
    }
}

/// Largest distance of a region from the vDSO: well within the reach of a jump, 2 GiB.
pub const REACH: u64 = 1 << 30;
/// End of the address space of programs that ask for no more, with four levels of page tables
/// (Documentation/arch/x86/x86_64/mm.rst).
pub const CEILING: u64 = 0x7fff_ffff_f000;

/// The System V ABI for x86-64, with 64-bit pointers.
struct X86_64;

/// The ABI of the host's own programs.
pub const NATIVE: &dyn Abi = &X86_64;
/// Most tails from which the calls of one program are made: one reaches all of its code.
pub const MOST_TAILS: usize = 1;

static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_x86_64.rs"));

/// Room for the code of [`Abi::batch`].
const BATCH_BYTES: usize = 112;

/// Makes the calls of the table in rbx, which the return trampoline does not restore. The result replaces the number.
const BATCH: [u8; 63] = [
    0x8b, 0x03, //             1: mov (%rbx), %eax
    0x8b, 0x4b, 0x04, //          mov 4(%rbx), %ecx
    0x48, 0x8b, 0x7b, 0x08, //    mov 8(%rbx), %rdi
    0x48, 0x8b, 0x73, 0x10, //    mov 16(%rbx), %rsi
    0x48, 0x8b, 0x53, 0x18, //    mov 24(%rbx), %rdx
    0x4c, 0x8b, 0x53, 0x20, //    mov 32(%rbx), %r10
    0x4c, 0x8b, 0x43, 0x28, //    mov 40(%rbx), %r8
    0x4c, 0x8b, 0x4b, 0x30, //    mov 48(%rbx), %r9
    0xd1, 0xe9, //                shr %ecx
    0x73, 0x02, //                jnc 3f
    0x8b, 0x3f, //                mov (%rdi), %edi
    0xd1, 0xe9, //             3: shr %ecx
    0x73, 0x03, //                jnc 4f
    0x45, 0x8b, 0x00, //          mov (%r8), %r8d; 4:
    0x0f, 0x05, //                syscall
    0x48, 0x89, 0x03, //          mov %rax, (%rbx)
    0x48, 0x3b, 0x43, 0x38, //    cmp 56(%rbx), %rax
    0x75, 0x0a, //                jne 2f
    0x48, 0x83, 0xc3, 0x40, //    add $64, %rbx
    0x48, 0x83, 0x3b, 0xff, //    cmpq $-1, (%rbx)
    0x75, 0xc1, //                jne 1b; 2:
];

impl Abi for X86_64 {
    fn isa(&self) -> Isa {
        Isa::X86_64
    }

    fn system_call(&self) -> &'static [u8] {
        &running::SYSCALL
    }

    fn call_registers(&self, from: &Registers, pc: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut r = from.0;
        r.rip = pc;
        // Outside any system call: nothing for the kernel to restart.
        r.orig_rax = u64::MAX;
        r.rax = number;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        Registers(r)
    }

    /// rcx and r11 are those that the `syscall` instruction changes.
    fn trampoline(&self, program: &Registers, _at: u64) -> Vec<u8> {
        let to = program.continuing().0;
        let mut code = Vec::new();
        // movabs
        for (opcode, value) in [
            ([0x48, 0xb8], to.rax),
            ([0x48, 0xb9], to.rcx),
            ([0x48, 0xba], to.rdx),
            ([0x48, 0xbe], to.rsi),
            ([0x48, 0xbf], to.rdi),
            ([0x49, 0xb8], to.r8),
            ([0x49, 0xb9], to.r9),
            ([0x49, 0xba], to.r10),
            ([0x49, 0xbb], to.r11),
        ] {
            code.extend(opcode);
            code.extend(value.to_le_bytes());
        }
        code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp *0(%rip)
        code.extend(to.rip.to_le_bytes());
        code
    }

    /// glibc's (sysdeps/x86_64/dl-machine.h: RTLD_START): `mov %rsp, %rdi; call _dl_start; mov %rax, %r12`.
    fn linker(&self, code: &[u8], at: u64) -> Option<[u64; 2]> {
        let [0x48, 0x89, 0xe7, 0xe8, d0, d1, d2, d3, 0x49, 0x89, 0xc4, ..] = *code else {
            return None;
        };
        let next = at + 8;
        Some([
            next.wrapping_add_signed(i32::from_le_bytes([d0, d1, d2, d3]).into()),
            next,
        ])
    }

    fn batch_bytes(&self) -> Option<usize> {
        Some(BATCH_BYTES)
    }

    fn batch(
        &self,
        program: &Registers,
        at: u64,
        trampoline: u64,
        process: i32,
        signal: i32,
    ) -> Option<(Vec<u8>, usize)> {
        let mut code = BATCH.to_vec();
        // mov $process, %edi; the same in %esi: it is its only thread; mov $signal, %edx; mov $SYS_tgkill, %eax
        for (opcode, value) in [
            (0xbf, process),
            (0xbe, process),
            (0xba, signal),
            (0xb8, libc::SYS_tgkill as i32),
        ] {
            code.push(opcode);
            code.extend(value.to_le_bytes());
        }
        code.extend(running::SYSCALL);
        let stop = code.len();
        // movabs $rbx, %rbx; jmp trampoline
        code.extend([0x48, 0xbb]);
        code.extend(program.0.rbx.to_le_bytes());
        code.push(0xe9);
        let distance = trampoline.wrapping_sub(at + code.len() as u64 + 4) as i64;
        code.extend(i32::try_from(distance).ok()?.to_le_bytes());
        (code.len() <= BATCH_BYTES).then_some((code, stop))
    }

    fn batch_registers(&self, from: &Registers, pc: u64, table: u64) -> Registers {
        let mut r = self.call_registers(from, pc, 0, [0; 6]);
        r.0.rbx = table;
        r
    }

    fn is_batch_done(&self, registers: &Registers, end: u64) -> bool {
        registers.0.rbx == end
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    #[test]
    fn the_code_of_a_batch_loops_to_its_start_and_ends_in_the_return_trampoline() {
        const AT: u64 = 0x7000;
        const TRAMPOLINE: u64 = 0x7100;
        // SAFETY: registers are plain integers, for which all-zero bytes are valid.
        let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        r.rbx = 0x1234_5678_9abc;
        let (code, stop) = X86_64.batch(&Registers(r), AT, TRAMPOLINE, 77, libc::SIGURG).unwrap();
        let decoder = Decoder::with_ip(64, &code, AT, DecoderOptions::NONE);
        let code: Vec<_> = decoder.into_iter().collect();
        assert!(code.iter().all(|i| !i.is_invalid()));
        let is_end = |i: &&iced_x86::Instruction| i.is_jcc_short() && i.mnemonic() == Mnemonic::Jne;
        let jumps: Vec<_> = code.iter().filter(is_end).collect();
        assert_eq!(
            (jumps[0].mnemonic(), jumps[1].near_branch_target()),
            (Mnemonic::Jne, AT)
        );
        let after_loop = jumps[1].next_ip();
        assert_eq!(jumps[0].near_branch_target(), after_loop);
        let signal: Vec<_> = code.iter().filter(|i| i.ip() >= after_loop).collect();
        let loaded: Vec<_> = signal
            .iter()
            .take(4)
            .map(|i| (i.op0_register(), i.immediate(1)))
            .collect();
        let expected = [
            (Register::EDI, 77),
            (Register::ESI, 77),
            (Register::EDX, libc::SIGURG as u64),
            (Register::EAX, libc::SYS_tgkill as u64),
        ];
        assert_eq!(loaded, expected);
        assert_eq!(
            (signal[4].mnemonic(), signal[4].next_ip()),
            (Mnemonic::Syscall, AT + stop as u64)
        );
        assert_eq!(
            (signal[5].op0_register(), signal[5].immediate(1)),
            (Register::RBX, r.rbx)
        );
        assert_eq!(signal[6].near_branch_target(), TRAMPOLINE);
    }

    #[test]
    fn a_return_trampoline_restores_every_register_that_a_remote_call_changes() {
        const AT: u64 = 0x7000;
        // SAFETY: registers are plain integers, for which all-zero bytes are valid.
        let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        [r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi] = std::array::from_fn(|i| 0x1111_0000 + i as u64);
        [r.r8, r.r9, r.r10, r.r11, r.rbp] = std::array::from_fn(|i| 0x2222_0000 + i as u64);
        (r.rip, r.orig_rax) = (0x5555_1002, u64::MAX);
        let changed_64 = [r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11];
        let changed_32 = [r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp];
        let cases: [(u32, &dyn Abi, &[u64]); 2] = [(64, &X86_64, &changed_64), (32, &i386::I386, &changed_32)];
        for (bits, abi, changed) in cases {
            let code = abi.trampoline(&Registers(r), AT);
            let mut decoder = Decoder::with_ip(bits, &code, AT, DecoderOptions::NONE);
            let restored: Vec<u64> = changed.iter().map(|_| decoder.decode().immediate(1)).collect();
            assert_eq!(restored, changed);
            let jump = decoder.decode();
            assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
            if bits == 64 {
                let at = (jump.ip_rel_memory_address() - AT) as usize;
                assert_eq!(code[at..], r.rip.to_le_bytes());
            } else {
                assert_eq!(jump.near_branch_target(), r.rip);
            }
        }
    }
}
