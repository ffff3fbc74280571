//! Seccomp filters (seccomp(2)): what a filter answers to a system call in every case, whatever the call's arguments
//! are.
//!
//! A filter is a program of classic BPF, which the kernel has checked: it only jumps forward, and reads nothing but
//! struct seccomp_data. The kernel itself executes filters in this way when one is installed, to skip it for calls that
//! it always allows (`seccomp_is_const_allow` in kernel/seccomp.c). That gives up at the first word that is unknown;
//! here both branches are followed.

use std::collections::HashSet;
use std::fmt;

/// Most instructions of a filter (BPF_MAXINSNS in include/uapi/linux/bpf_common.h).
pub const MOST_INSTRUCTIONS: usize = 4096;

/// Most instructions that are followed, on all paths together. The longest path has as many as the filter.
const MOST_STEPS: usize = 16 * MOST_INSTRUCTIONS;

/// Scratch words (BPF_MEMWORDS in include/uapi/linux/filter.h).
const WORDS: usize = 16;

/// struct seccomp_data: the call's number, the architecture, the address after the instruction, and six arguments.
const DATA_BYTES: u32 = 64;
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const ADDRESS_AT: [u32; 2] = [8, 12];

/// One instruction (struct sock_filter in include/uapi/linux/filter.h).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

/// A system call as a filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilteredCall {
    /// AUDIT_ARCH_* of include/uapi/linux/audit.h.
    pub arch: u32,
    /// The call's number there.
    pub number: u32,
}

/// What a filter answers to a call, whatever its arguments and the address of its instruction are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    /// SECCOMP_RET_ALLOW in every case: the filter has no effect on the call.
    Allowed,
    /// Another answer in some or all cases. The first that was found.
    Not(Action),
    /// The filter has too many paths, computes its answer from the arguments, or has an instruction that no filter
    /// should have.
    Unknown,
}

/// A filter's answer (SECCOMP_RET_* of include/uapi/linux/seccomp.h), with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action(u32);

impl Action {
    fn is_allow(self) -> bool {
        self.0 & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_ALLOW
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = self.0 & libc::SECCOMP_RET_DATA;
        let name = match self.0 & libc::SECCOMP_RET_ACTION_FULL {
            libc::SECCOMP_RET_ERRNO => return write!(f, "SECCOMP_RET_ERRNO (errno {data})"),
            libc::SECCOMP_RET_TRAP => "SECCOMP_RET_TRAP",
            libc::SECCOMP_RET_USER_NOTIF => "SECCOMP_RET_USER_NOTIF",
            libc::SECCOMP_RET_TRACE => "SECCOMP_RET_TRACE",
            libc::SECCOMP_RET_LOG => "SECCOMP_RET_LOG",
            libc::SECCOMP_RET_KILL_THREAD => "SECCOMP_RET_KILL_THREAD",
            // Also for an answer that it does not know.
            _ => "SECCOMP_RET_KILL_PROCESS",
        };
        f.write_str(name)
    }
}

impl Filter {
    /// Takes a filter's instructions.
    pub fn new(instructions: &[Instruction]) -> Filter {
        Filter(instructions.to_vec())
    }

    /// Returns whether these are its instructions.
    pub fn is(&self, instructions: &[Instruction]) -> bool {
        self.0 == instructions
    }

    /// Returns whether an answer may depend on the address of the instruction that makes a call.
    pub fn reads_the_address(&self) -> bool {
        let is_load = |one: &Instruction| u32::from(one.code) == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let mut loads = self.0.iter().filter(|one| is_load(one));
        loads.any(|one| ADDRESS_AT.contains(&one.k))
    }

    /// Returns what the filter answers to a call.
    pub fn verdict(&self, call: FilteredCall) -> FilterVerdict {
        let mut pending = vec![Machine::default()];
        let mut seen = HashSet::new();
        let mut steps = 0;
        while let Some(mut state) = pending.pop() {
            loop {
                steps += 1;
                if steps > MOST_STEPS {
                    return FilterVerdict::Unknown;
                }
                let Some(next) = self.0.get(state.at).and_then(|one| state.step(*one, call)) else {
                    return FilterVerdict::Unknown;
                };
                match next {
                    Next::Here => {}
                    // Paths that meet again in the same state continue as one.
                    Next::Either(places) => {
                        for at in places {
                            state.at = at;
                            if seen.insert(state) {
                                pending.push(state);
                            }
                        }
                        break;
                    }
                    Next::Answer(action) if action.is_allow() => break,
                    Next::Answer(action) => return FilterVerdict::Not(action),
                }
            }
        }
        FilterVerdict::Allowed
    }
}

/// State of a filter's execution. A word is `None` if it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Machine {
    /// Index of the next instruction.
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    scratch: [Option<u32>; WORDS],
}

impl Default for Machine {
    /// The kernel clears A and X first, and refuses a filter that loads a scratch word before it stores it.
    fn default() -> Machine {
        Machine {
            at: 0,
            a: Some(0),
            x: Some(0),
            scratch: [None; WORDS],
        }
    }
}

/// How a filter goes on after an instruction.
enum Next {
    /// At the state's instruction.
    Here,
    /// With the same words at one of these indices.
    Either([usize; 2]),
    Answer(Action),
}

impl Machine {
    /// Executes an instruction; returns `None` if its result is an unknown answer, or it is none that filters have
    /// (`seccomp_check_filter` in kernel/seccomp.c).
    fn step(&mut self, one: Instruction, call: FilteredCall) -> Option<Next> {
        let code = u32::from(one.code);
        let k = one.k;
        self.at += 1;
        match code & 7 {
            libc::BPF_LD => self.a = self.load(code, k, call)?,
            libc::BPF_LDX => self.x = self.load_index(code, k)?,
            libc::BPF_ST if code == libc::BPF_ST => *self.scratch.get_mut(k as usize)? = self.a,
            libc::BPF_STX if code == libc::BPF_STX => *self.scratch.get_mut(k as usize)? = self.x,
            libc::BPF_ALU => return self.compute(code, k),
            libc::BPF_JMP => return self.jump(code, one),
            libc::BPF_RET if code == libc::BPF_RET | libc::BPF_K => return Some(Next::Answer(Action(k))),
            libc::BPF_RET if code == libc::BPF_RET | BPF_A => return Some(Next::Answer(Action(self.a?))),
            libc::BPF_MISC if code == libc::BPF_MISC | libc::BPF_TAX => self.x = self.a,
            libc::BPF_MISC if code == libc::BPF_MISC | libc::BPF_TXA => self.a = self.x,
            _ => return None,
        }
        Some(Next::Here)
    }

    fn load(&self, code: u32, k: u32, call: FilteredCall) -> Option<Option<u32>> {
        const SIZE: u32 = libc::BPF_W;
        match code & !7 {
            of if of == SIZE | libc::BPF_ABS => match k {
                NUMBER_AT => Some(Some(call.number)),
                ARCH_AT => Some(Some(call.arch)),
                k if k < DATA_BYTES && k % 4 == 0 => Some(None),
                _ => None,
            },
            of if of == SIZE | libc::BPF_LEN => Some(Some(DATA_BYTES)),
            libc::BPF_IMM => Some(Some(k)),
            libc::BPF_MEM => self.scratch.get(k as usize).copied(),
            _ => None,
        }
    }

    fn load_index(&self, code: u32, k: u32) -> Option<Option<u32>> {
        match code & !7 {
            of if of == libc::BPF_W | libc::BPF_LEN => Some(Some(DATA_BYTES)),
            libc::BPF_IMM => Some(Some(k)),
            libc::BPF_MEM => self.scratch.get(k as usize).copied(),
            _ => None,
        }
    }

    /// Returns the second operand of an instruction.
    fn operand(&self, code: u32, k: u32) -> Option<u32> {
        match code & libc::BPF_X {
            0 => Some(k),
            _ => self.x,
        }
    }

    fn compute(&mut self, code: u32, k: u32) -> Option<Next> {
        let operation = code & 0xf0;
        if operation == libc::BPF_NEG {
            self.a = self.a.map(u32::wrapping_neg);
            return Some(Next::Here);
        }
        let (a, operand) = (self.a, self.operand(code, k));
        let both = |compute: fn(u32, u32) -> u32| a.zip(operand).map(|(a, operand)| compute(a, operand));
        self.a = match operation {
            libc::BPF_ADD => both(u32::wrapping_add),
            libc::BPF_SUB => both(u32::wrapping_sub),
            libc::BPF_MUL => both(u32::wrapping_mul),
            libc::BPF_OR => both(|a, operand| a | operand),
            libc::BPF_AND => both(|a, operand| a & operand),
            libc::BPF_XOR => both(|a, operand| a ^ operand),
            // Shifts by 32 and more differ from kernel to kernel.
            libc::BPF_LSH => a.zip(operand).and_then(|(a, operand)| a.checked_shl(operand)),
            libc::BPF_RSH => a.zip(operand).and_then(|(a, operand)| a.checked_shr(operand)),
            // A division by zero ends the filter with the answer 0.
            libc::BPF_DIV => match operand? {
                0 => return Some(Next::Answer(Action(0))),
                operand => a.map(|a| a / operand),
            },
            _ => return None,
        };
        Some(Next::Here)
    }

    fn jump(&mut self, code: u32, one: Instruction) -> Option<Next> {
        let operation = code & 0xf0;
        if operation == libc::BPF_JA {
            self.at += one.k as usize;
            return Some(Next::Here);
        }
        let is_taken = |a: u32, operand: u32| match operation {
            libc::BPF_JEQ => Some(a == operand),
            libc::BPF_JGT => Some(a > operand),
            libc::BPF_JGE => Some(a >= operand),
            libc::BPF_JSET => Some(a & operand != 0),
            _ => None,
        };
        let (taken, not_taken) = (self.at + usize::from(one.jt), self.at + usize::from(one.jf));
        match self.a.zip(self.operand(code, one.k)) {
            Some((a, operand)) => {
                self.at = if is_taken(a, operand)? { taken } else { not_taken };
                Some(Next::Here)
            }
            None => {
                is_taken(0, 0)?;
                Some(Next::Either([taken, not_taken]))
            }
        }
    }
}

/// The accumulator as the answer (include/uapi/linux/filter.h), which libc has no name for.
const BPF_A: u32 = 0x10;

#[cfg(test)]
mod tests;
