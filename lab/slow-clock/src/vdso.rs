//! The kernel's vDSO, changed to take the path that it takes on a host whose clocksource has no counter for programs.
//!
//! `__arch_get_hw_counter` (arch/x86/include/asm/vdso/gettimeofday.h) reads the TSC if the clock mode of the vvar page
//! is VDSO_CLOCKMODE_TSC, and has the caller make the system call if it is none that it knows. The change is the number
//! that it compares with: no mode is equal to it. The rest is the kernel's own code and data, so COARSE clocks and
//! `time` stay in the vDSO, as they do there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use fastpath_image::own_vdso;
use fastpath_measure::path::{TRIES, establish};
use fastpath_measure::{Clock, VdsoCall};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};

/// VDSO_CLOCKMODE_TSC, arch/x86/include/asm/vdso/clocksource.h.
const MODE_TSC: u8 = 1;
/// A number that is no clock mode.
const NO_MODE: u8 = 0x7e;
/// Most instructions between the test of the mode and the read of the counter.
const MOST_BETWEEN: usize = 4;
/// The functions that read the counter.
const FUNCTIONS: [&str; 2] = ["__vdso_clock_gettime", "__vdso_gettimeofday"];

/// The test of the clock mode before one read of the counter.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ModeTest {
    /// Offset of the comparison in the vDSO, in bytes.
    at: u64,
    /// Bytes of the comparison. The last is the number.
    bytes: Vec<u8>,
}

/// What to change in the vDSO of a 64-bit program.
pub struct SlowVdso {
    tests: Vec<ModeTest>,
}

impl SlowVdso {
    /// Finds the tests in the vDSO of this process, changes them there, and verifies that its reads of clocks are
    /// system calls then.
    pub fn of_this_kernel() -> Result<SlowVdso, String> {
        let own = own_vdso().map_err(|e| format!("the kernel's vDSO: {e}"))?;
        let own = own.ok_or("the kernel gives programs no vDSO: its clocks are slow already")?;
        let mut tests: Vec<ModeTest> = Vec::new();
        for name in FUNCTIONS {
            let export = own.vdso.exports().iter().find(|export| export.name == name);
            let export = export.ok_or_else(|| format!("the kernel's vDSO has no {name}"))?;
            let (start, size) = (export.offset as usize, export.size as usize);
            let code = own.bytes.get(start..start.saturating_add(size)).unwrap_or_default();
            let found = mode_tests(code, export.offset);
            if found.is_empty() {
                return Err(format!(
                    "{name} of the kernel's vDSO has no test of the clock mode that is known"
                ));
            }
            tests.extend(found);
        }
        let vdso = SlowVdso { tests };
        vdso.give_to("self")?;
        verify()?;
        Ok(vdso)
    }

    /// Changes the vDSO of a process. A program with another vDSO, a 32-bit one, is left alone, and so is a process
    /// that has ended.
    pub fn give_to(&self, pid: &str) -> Result<(), String> {
        match self.change(pid) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(()),
            result => result.map_err(|e| e.to_string()),
        }
    }

    fn change(&self, pid: &str) -> io::Result<()> {
        let Some(base) = vdso_base(&fs::read(format!("/proc/{pid}/auxv"))?) else {
            return Ok(());
        };
        // A program that is being killed has no memory, and reads of it return nothing.
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        for test in &self.tests {
            let mut bytes = vec![0; test.bytes.len()];
            if memory.read_at(&mut bytes, base + test.at)? < bytes.len() {
                return Ok(());
            }
            if bytes != test.bytes {
                return Err(io::Error::other("its vDSO is not this kernel's"));
            }
            // One byte: a thread on another CPU executes the comparison before or after the change.
            memory.write_all_at(&[NO_MODE], base + test.at + bytes.len() as u64 - 1)?;
        }
        Ok(())
    }
}

/// Returns the address of the vDSO by the auxiliary vector of a 64-bit program.
fn vdso_base(auxv: &[u8]) -> Option<u64> {
    let (words, _) = auxv.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (pairs, _) = words.as_chunks();
    let pair = pairs.iter().find(|[kind, _]| *kind == libc::AT_SYSINFO_EHDR);
    pair.map(|[_, value]| *value)
}

/// Returns the tests of the clock mode in a function: comparisons with [`MODE_TSC`], followed by a jump that skips the
/// read of the counter behind it.
fn mode_tests(code: &[u8], at: u64) -> Vec<ModeTest> {
    let decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.into_iter().collect();
    let reads =
        (0..instructions.len()).filter(|at| matches!(instructions[*at].mnemonic(), Mnemonic::Rdtsc | Mnemonic::Rdtscp));
    let tests = reads.filter_map(|read| {
        let before = &instructions[read.saturating_sub(MOST_BETWEEN)..read];
        let pair = before
            .windows(2)
            .rev()
            .find(|pair| pair[1].mnemonic() == Mnemonic::Jne)?;
        let compare = pair[0];
        let is_test = compare.code() == Code::Cmp_rm32_imm8 && compare.immediate8() == MODE_TSC;
        let bytes = || code[(compare.ip() - at) as usize..][..compare.len()].to_vec();
        is_test.then(|| ModeTest {
            at: compare.ip(),
            bytes: bytes(),
        })
    });
    tests.collect()
}

/// Verifies that this process reads the clocks as a process of an HPET host does.
fn verify() -> Result<(), String> {
    let mut calls: Vec<(VdsoCall, u64)> = Vec::new();
    calls.extend(
        Clock::SERVED
            .iter()
            .map(|clock| (VdsoCall::ClockGettime(*clock), TRIES)),
    );
    calls.push((VdsoCall::Gettimeofday, TRIES));
    calls.extend([Clock::REALTIME_COARSE, Clock::MONOTONIC_COARSE].map(|clock| (VdsoCall::ClockGettime(clock), 0)));
    calls.push((VdsoCall::Time, 0));
    let (calls, expected): (Vec<VdsoCall>, Vec<u64>) = calls.into_iter().unzip();
    for ((call, expected), evidence) in calls.iter().zip(expected).zip(establish(&calls)) {
        let made = evidence.syscalls.map_err(|why| format!("{call}: {why}"))?;
        if made != expected {
            return Err(format!(
                "the changed vDSO makes {made} system calls in {TRIES} calls of {call}, not {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comparison_that_guards_a_counter_read_is_a_test_of_the_mode() {
        // cmp eax, 1; jne; rdtscp
        let read = [0x83, 0xf8, 0x01, 0x75, 0x03, 0x0f, 0x01, 0xf9];
        let found = ModeTest {
            at: 0x1000,
            bytes: vec![0x83, 0xf8, 0x01],
        };
        assert_eq!(mode_tests(&read, 0x1000), [found]);
        // cmp r9d, 1; jne near; lfence; rdtsc
        let fenced = [
            0x41, 0x83, 0xf9, 0x01, 0x0f, 0x85, 5, 0, 0, 0, 0x0f, 0xae, 0xe8, 0x0f, 0x31,
        ];
        assert_eq!(mode_tests(&fenced, 0)[0].bytes, fenced[..4]);
        // Another number, no jump, no read.
        assert_eq!(mode_tests(&[0x83, 0xf8, 0x02, 0x75, 0x03, 0x0f, 0x01, 0xf9], 0), []);
        assert_eq!(mode_tests(&[0x83, 0xf8, 0x01, 0x90, 0x90, 0x0f, 0x01, 0xf9], 0), []);
        assert_eq!(mode_tests(&read[..5], 0), []);
    }

    #[test]
    fn the_vdso_of_a_64_bit_program_alone_is_found() {
        let pairs = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(vdso_base(&pairs(&[6, 4096, 33, 0x7fff_0000, 0, 0])), Some(0x7fff_0000));
        assert_eq!(vdso_base(&pairs(&[6, 33, 0, 0])), None);
        let of_32_bits: Vec<u8> = [33u32, 0xf7fc_0000, 0, 0]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        assert_eq!(vdso_base(&of_32_bits), None);
    }
}
