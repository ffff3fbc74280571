//! System calls for time, and for the CPU's number, that a file's own code makes: a system-call instruction that is
//! reached with such a call's number in the register for it. The number is followed only through the straight line of
//! code before the instruction. Beside them, the places that read the CPU's counter themselves.

mod aarch64;
mod arm;
mod thumb;
pub(crate) mod x86;

use fastpath_image::Isa;
use memchr::memmem;

use crate::bytes::{self, Bytes, Piece};
use crate::elf::Part;

/// The call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Call {
    #[serde(rename = "clock_gettime")]
    ClockGettime,
    #[serde(rename = "clock_gettime64")]
    ClockGettime64,
    #[serde(rename = "gettimeofday")]
    Gettimeofday,
    Time,
    /// No finding: programs ask for a clock's resolution seldom. `audit --rescue` lists it.
    #[serde(rename = "clock_getres")]
    ClockGetres,
    /// No finding: it reads no clock. `audit --rescue` lists it.
    Getcpu,
}

impl Call {
    /// Returns the name as in the manual.
    pub fn name(self) -> &'static str {
        match self {
            Call::ClockGettime => "clock_gettime",
            Call::ClockGettime64 => "clock_gettime64",
            Call::Gettimeofday => "gettimeofday",
            Call::Time => "time",
            Call::ClockGetres => "clock_getres",
            Call::Getcpu => "getcpu",
        }
    }

    /// Returns whether it reads a clock.
    pub fn reads_a_clock(self) -> bool {
        !matches!(self, Call::ClockGetres | Call::Getcpu)
    }
}

/// The means of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// `syscall`, `sysenter`, `int $0x80`, i386's call through the thread's block, `svc #0`, `ecall`.
    SystemCall,
    /// A call of an address in the vsyscall page.
    Vsyscall,
}

/// One place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Site {
    /// Its address as the file states it, before relocation.
    pub address: u64,
    pub call: Call,
    pub by: By,
}

/// Returns the call of this number. An i386 program's number is also that of `int $0x80` in an x86-64 program.
fn call_of(isa: Isa, number: u64) -> Option<Call> {
    let calls = &isa.facts().calls;
    let all = [
        (Some(calls.clock_gettime), Call::ClockGettime),
        (calls.clock_gettime64, Call::ClockGettime64),
        (Some(calls.gettimeofday), Call::Gettimeofday),
        (calls.time, Call::Time),
        (Some(calls.clock_getres), Call::ClockGetres),
        (Some(calls.getcpu), Call::Getcpu),
    ];
    let found = all.into_iter().find(|(known, _)| known.map(u64::from) == Some(number));
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
pub struct Found {
    pub sites: Vec<Site>,
    /// The places that read the counter. None are looked for on Arm, whose programs may not read it in most kernels.
    pub counter_reads: Vec<CounterRead>,
    candidates: usize,
}

impl Found {
    fn add(&mut self, site: Site) {
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
    found: &mut Found,
) {
    for at in memmem::find_iter(piece.bytes, isa.facts().system_call) {
        let here = address.wrapping_add(at as u64);
        if piece.own.contains(&at)
            && here.is_multiple_of(4)
            && found.is_affordable()
            && let Some(call) = number_before(piece.bytes, at).and_then(|number| call_of(isa, number))
        {
            found.add(Site {
                address: here,
                call,
                by: By::SystemCall,
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
pub fn find<B: Bytes + ?Sized>(isa: Isa, bytes: &B, code: &[Part]) -> std::io::Result<Found> {
    // Surroundings of a piece: enough for the straight lines that are followed and, on Arm, for constants and the
    // helper behind the code.
    let around = match isa {
        Isa::X86_64 | Isa::I386 => (256, 256),
        Isa::Aarch64 => (256, 0),
        Isa::Arm => (4 << 20, 4 << 20),
    };
    let mut found = Found::default();
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
fn found_in(isa: Isa, code: &[u8]) -> Found {
    let part = Part {
        offset: 0,
        size: code.len() as u64,
        address: 0,
    };
    find(isa, code, &[part]).unwrap()
}

/// Finds the calls in a test's code.
#[cfg(test)]
fn sites_of(isa: Isa, code: &[u8]) -> Vec<(u64, Call, By)> {
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
fn calls_of<const N: usize>(isa: Isa, code: impl Iterator<Item = [u8; N]>) -> Vec<(u64, Call)> {
    let sites = sites_of(isa, &code.flatten().collect::<Vec<u8>>());
    sites.into_iter().map(|(at, call, _)| (at, call)).collect()
}
