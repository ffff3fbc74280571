//! System calls for time, and for the CPU's number, that a file's own code makes: a system-call instruction that is
//! reached with such a call's number in the register for it. The number is followed only through the straight line of
//! code before the instruction. Beside them, the places that read the CPU's counter themselves.

mod aarch64;
mod arm;
mod thumb;
pub(crate) mod x86;
pub(crate) mod x86_registers;

use fastpath_image::Isa;
use memchr::memmem;

use crate::bytes::{self, Bytes, Piece};
use crate::elf::Part;

/// A system call by which a program reads a clock, or asks for a clock's resolution or for its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TimeCall {
    ClockGettime,
    /// 32-bit ISAs have separate calls with 64-bit time.
    ClockGettime64,
    Gettimeofday,
    Time,
    /// No finding: programs ask for a clock's resolution seldom. `audit --rescue` lists it.
    ClockGetres,
    ClockGetresTime64,
    /// No finding: it reads no clock. `audit --rescue` lists it.
    Getcpu,
}

impl TimeCall {
    /// All of them, in the order of their values.
    pub const ALL: [TimeCall; 7] = [
        TimeCall::ClockGettime,
        TimeCall::ClockGettime64,
        TimeCall::Gettimeofday,
        TimeCall::Time,
        TimeCall::ClockGetres,
        TimeCall::ClockGetresTime64,
        TimeCall::Getcpu,
    ];

    /// Returns the name as in the manual.
    pub fn name(self) -> &'static str {
        match self {
            TimeCall::ClockGettime => "clock_gettime",
            TimeCall::ClockGettime64 => "clock_gettime64",
            TimeCall::Gettimeofday => "gettimeofday",
            TimeCall::Time => "time",
            TimeCall::ClockGetres => "clock_getres",
            TimeCall::ClockGetresTime64 => "clock_getres_time64",
            TimeCall::Getcpu => "getcpu",
        }
    }

    /// Returns whether it reads a clock.
    pub fn reads_a_clock(self) -> bool {
        !matches!(
            self,
            TimeCall::ClockGetres | TimeCall::ClockGetresTime64 | TimeCall::Getcpu
        )
    }

    /// Returns whether its first argument is a clock.
    pub fn takes_a_clock(self) -> bool {
        !matches!(self, TimeCall::Gettimeofday | TimeCall::Time | TimeCall::Getcpu)
    }

    /// Returns the calls that an ISA has, with their numbers.
    pub fn numbers(isa: Isa) -> impl Iterator<Item = (u32, TimeCall)> {
        let calls = &isa.facts().calls;
        let number = |call: TimeCall| match call {
            TimeCall::ClockGettime => Some(calls.clock_gettime),
            TimeCall::ClockGettime64 => calls.clock_gettime64,
            TimeCall::Gettimeofday => Some(calls.gettimeofday),
            TimeCall::Time => calls.time,
            TimeCall::ClockGetres => Some(calls.clock_getres),
            TimeCall::ClockGetresTime64 => calls.clock_getres_time64,
            TimeCall::Getcpu => Some(calls.getcpu),
        };
        let all = TimeCall::ALL.into_iter();
        all.filter_map(move |call| number(call).map(|number| (number, call)))
    }
}

/// The means of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// `syscall`, `sysenter`, `int $0x80`, i386's call through the thread's block, `svc #0`, `ecall`.
    SystemCall,
    /// A call of an address in the vsyscall page.
    Vsyscall,
}

/// One place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodeSite {
    /// Its address as the file states it, before relocation.
    pub address: u64,
    pub call: TimeCall,
    pub by: CallKind,
}

/// Returns the call of this number. An i386 program's number is also that of `int $0x80` in an x86-64 program.
fn call_of(isa: Isa, number: u64) -> Option<TimeCall> {
    let found = TimeCall::numbers(isa).find(|(known, _)| u64::from(*known) == number);
    found.map(|(_, call)| call)
}

/// A place in the code that reads the CPU's counter: `rdtsc`, `rdtscp`, `mrs` of CNTVCT_EL0 or CNTVCTSS_EL0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CounterRead {
    /// Its address as the file states it, before relocation.
    pub address: u64,
    /// Its place in the file.
    pub offset: u64,
    /// Whether the straight line of code behind it scales all 64 bits, by a product of twice the width or of floating
    /// point, as for a time. Counts of cycles, bounds of loops and seeds are not scaled.
    pub is_scaled: bool,
}

/// Largest number of sites that are kept of one file: no program has as many.
const MOST_SITES: usize = 10_000;
/// Most system-call instructions, or bytes that look like one, that are examined in a file. The largest programs have
/// some thousand.
const MOST_CANDIDATES: usize = 200_000;

/// The calls in a file.
#[derive(Default)]
pub struct FoundCalls {
    pub sites: Vec<CodeSite>,
    /// The places that read the counter. None are looked for on Arm, whose programs may not read it in most kernels.
    pub counter_reads: Vec<CounterRead>,
    candidates: usize,
}

impl FoundCalls {
    fn add(&mut self, site: CodeSite) {
        if self.sites.len() < MOST_SITES {
            self.sites.push(site);
        }
    }

    fn add_counter_read(&mut self, address: u64, is_scaled: bool) {
        if self.counter_reads.len() < MOST_SITES {
            self.counter_reads.push(CounterRead {
                address,
                offset: 0,
                is_scaled,
            });
        }
    }

    /// Counts one more candidate and returns whether it may be examined.
    fn is_affordable(&mut self) -> bool {
        self.candidates += 1;
        self.candidates <= MOST_CANDIDATES
    }

    /// Returns whether every candidate was examined.
    pub fn is_complete(&self) -> bool {
        self.candidates <= MOST_CANDIDATES
    }
}

/// Examines each system-call instruction in the piece, on an ISA whose instructions are aligned words. `number_before`
/// reads the number from the code before it.
fn find_words(
    isa: Isa,
    number_before: fn(&[u8], usize) -> Option<u64>,
    piece: &Piece<'_>,
    address: u64,
    found: &mut FoundCalls,
) {
    for at in memmem::find_iter(piece.bytes, isa.facts().system_call) {
        let here = address.wrapping_add(at as u64);
        if piece.own.contains(&at)
            && here.is_multiple_of(4)
            && found.is_affordable()
            && let Some(call) = number_before(piece.bytes, at).and_then(|number| call_of(isa, number))
        {
            found.add(CodeSite {
                address: here,
                call,
                by: CallKind::SystemCall,
            });
        }
    }
}

/// Returns the value on which more than half of the decodings agree.
fn majority<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut votes: Vec<(T, usize)> = Vec::new();
    for value in values {
        match votes.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => votes.push((value, 1)),
        }
    }
    let all: usize = votes.iter().map(|(_, count)| count).sum();
    let most = votes.into_iter().find(|(_, count)| 2 * count > all);
    most.map(|(value, _)| value)
}

/// Finds the calls in code.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn find<B: Bytes + ?Sized>(isa: Isa, bytes: &B, code: &[Part]) -> std::io::Result<FoundCalls> {
    // Surroundings of a piece: enough for the straight lines that are followed and, on Arm, for constants and the
    // helper behind the code.
    let around = match isa {
        Isa::X86_64 | Isa::I386 => (256, 256),
        Isa::Aarch64 => (256, 0),
        Isa::Arm => (4 << 20, 4 << 20),
    };
    let mut found = FoundCalls::default();
    for part in code {
        let before = found.counter_reads.len();
        bytes::in_pieces(bytes, part.offset, part.size, around, |piece| {
            let address = part.address.wrapping_add(piece.offset);
            match isa {
                Isa::X86_64 | Isa::I386 => x86::find(isa, &piece, address, &mut found),
                Isa::Aarch64 => aarch64::find(&piece, address, &mut found),
                Isa::Arm => {
                    arm::find(&piece, address, &mut found);
                    thumb::find(&piece, address, &mut found);
                }
            }
        })?;
        for read in &mut found.counter_reads[before..] {
            read.offset = part.offset + (read.address - part.address);
        }
    }
    found.sites.sort_unstable_by_key(|site| site.address);
    found.sites.dedup();
    found.counter_reads.sort_unstable_by_key(|read| read.address);
    Ok(found)
}

/// Reads a little-endian word of 32 bits.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Reads a little-endian word of 16 bits.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Searches a test's code.
#[cfg(test)]
fn found_in(isa: Isa, code: &[u8]) -> FoundCalls {
    let part = Part {
        offset: 0,
        size: code.len() as u64,
        address: 0,
    };
    find(isa, code, &[part]).unwrap()
}

/// Finds the calls in a test's code.
#[cfg(test)]
fn sites_of(isa: Isa, code: &[u8]) -> Vec<(u64, TimeCall, CallKind)> {
    let sites = found_in(isa, code).sites.into_iter();
    sites.map(|site| (site.address, site.call, site.by)).collect()
}

/// Finds the reads of the counter in a test's code.
#[cfg(test)]
fn counter_reads_of(isa: Isa, code: &[u8]) -> Vec<(u64, bool)> {
    let reads = found_in(isa, code).counter_reads.into_iter();
    reads.map(|read| (read.address, read.is_scaled)).collect()
}

/// Finds the calls in words or half words, and asserts that all are system calls.
#[cfg(test)]
fn calls_of<const N: usize>(isa: Isa, code: impl Iterator<Item = [u8; N]>) -> Vec<(u64, TimeCall)> {
    let sites = sites_of(isa, &code.flatten().collect::<Vec<u8>>());
    sites.into_iter().map(|(at, call, _)| (at, call)).collect()
}
