//! The auxiliary vector of a program before its first instruction. The program finds its vDSO through it.

use std::io;

use nix::unistd::Pid;

use crate::arch;
use crate::memory::Memory;

/// include/uapi/linux/auxvec.h.
const AT_NULL: u64 = 0;
const AT_IGNORE: u64 = 1;
const AT_SYSINFO_EHDR: u64 = 33;
const WORD: u64 = 8;

/// Points AT_SYSINFO_EHDR to `image`; without one, removes the entry, so that the program finds no vDSO.
pub fn point_to(image: Option<u64>, guest: Pid, memory: &Memory) -> io::Result<()> {
    let mut registers = arch::registers(guest)?;
    let stack = arch::stack_pointer(&registers);
    let auxv = find(memory, stack)?;
    let mut entry = auxv;
    loop {
        match (memory.word(entry)?, image) {
            (AT_SYSINFO_EHDR, Some(image)) => return memory.write(entry + WORD, &image.to_ne_bytes()),
            (AT_SYSINFO_EHDR, None) => return memory.write(entry, &AT_IGNORE.to_ne_bytes()),
            (AT_NULL, None) => return Ok(()),
            (AT_NULL, Some(image)) => {
                // This kernel has no vDSO: everything before the vector's end moves down by one entry.
                let moved = stack - 2 * WORD;
                let mut bytes = vec![0; (entry - stack) as usize];
                memory.read(stack, &mut bytes)?;
                bytes.extend_from_slice(&AT_SYSINFO_EHDR.to_ne_bytes());
                bytes.extend_from_slice(&image.to_ne_bytes());
                memory.write(moved, &bytes)?;
                arch::set_stack_pointer(&mut registers, moved);
                return Ok(arch::set_registers(guest, &registers)?);
            }
            _ => entry += 2 * WORD,
        }
    }
}

/// Returns the address behind argc, the arguments and their NULL, the environment and its NULL.
fn find(memory: &Memory, stack: u64) -> io::Result<u64> {
    let arguments = memory.word(stack)?;
    let mut at = stack + (1 + arguments + 1) * WORD;
    while memory.word(at)? != 0 {
        at += WORD;
    }
    Ok(at + WORD)
}
