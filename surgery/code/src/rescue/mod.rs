//! Finds the system calls for time, and for the CPU's number, that a program's own code makes, and proves for each whether it can be redirected to
//! an image without any other effect.
//!
//! [`analyse`] reads an ELF file of x86-64 or AArch64. A site is *proven* if the bytes of a jump beside the system call
//! can be replaced, and nothing can jump between them; any other is refused with its [`Reason`]. [`thunk::thunk`] makes
//! the code to which the jump goes.

mod aarch64;
mod change;
mod file;
mod frames;
pub mod thunk;
pub mod window;
mod x86;

use std::collections::HashSet;
use std::fmt;

use crate::{CallKind, TimeCall};
use fastpath_isa::Isa;

pub use window::{Reason, Window};
pub use x86::copy::{copied, encoded, is_branch};

/// Most sites of a file that is analysed. The most of any program known are some hundred.
const MOST_SITES: usize = 4096;

/// Calls that a site may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Its code sets this call's number.
    One(TimeCall),
    /// The number is an argument, as in libc's `syscall()`: the thunk compares it.
    Any,
}

/// One system call instruction, or one load of an address in the vsyscall page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RescueSite {
    /// Address of the instruction as the file states it, before relocation.
    pub address: u64,
    pub calls: Calls,
    pub by: CallKind,
    /// The bytes to replace, or the reason why the site is left alone.
    pub window: Result<Window, Reason>,
}

/// The sites of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Analysis {
    /// Sites, lowest address first.
    pub sites: Vec<RescueSite>,
    /// Lowest address that the file states for its segments, at the start of its page: a file that is mapped elsewhere is
    /// moved by the difference.
    pub lowest: u64,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Calls::One(call) => call.name(),
            Calls::Any => "any call",
        })
    }
}

/// Returns the addresses of the system calls whose number is an argument.
fn dynamic(isa: Isa, part: &file::Part<'_>) -> Vec<u64> {
    let sites = match isa {
        Isa::Aarch64 => aarch64::dynamic(part.bytes),
        _ => x86::window::dynamic(part.bytes),
    };
    sites.into_iter().map(|at| part.address + at as u64).collect()
}

/// Returns the addresses of what can be a system call. AArch64's have the number that an instruction shortly before
/// loads.
fn all(isa: Isa, part: &file::Part<'_>) -> Vec<(u64, Option<u32>)> {
    let sites = match isa {
        Isa::Aarch64 => aarch64::all(part.bytes),
        _ => x86::window::all(part.bytes).map(|at| (at, None)).collect(),
    };
    sites
        .into_iter()
        .map(|(at, number)| (part.address + at as u64, number))
        .collect()
}

/// The code of a file near some sites. On x86 it must be followed first: its instructions can only be told from where
/// they begin.
struct Code<'a, 'f> {
    file: &'a file::File<'f>,
    flow: Option<x86::flow::Flow>,
}

impl<'a, 'f> Code<'a, 'f> {
    fn around(file: &'a file::File<'f>, sites: impl IntoIterator<Item = u64>) -> Code<'a, 'f> {
        let is_x86 = file.isa != Isa::Aarch64;
        Code {
            file,
            flow: is_x86.then(|| x86::flow::Flow::around(file, sites)),
        }
    }

    fn number(&self, address: u64) -> Option<u32> {
        x86::window::number(self.file, self.flow.as_ref()?, address)
    }

    fn window(&self, address: u64, by: CallKind, keeps_first: bool) -> Result<Window, Reason> {
        match &self.flow {
            Some(flow) => x86::window::find(self.file, flow, address, by, keeps_first),
            None => aarch64::find(self.file, address),
        }
    }
}

/// One system call instruction of any call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnySite {
    /// Address of the instruction as the file states it, before relocation.
    pub address: u64,
    /// The call's number, if an instruction shortly before loads it. Other code may come there with another one.
    pub number: Option<u32>,
    /// Whether the number is an argument of a function for any call, as libc's `syscall()`.
    pub is_argument: bool,
    /// The bytes to replace, or the reason why the site is left alone.
    pub window: Result<Window, Reason>,
}

/// All system calls of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllSites {
    /// Sites, lowest address first.
    pub sites: Vec<AnySite>,
    /// As [`Analysis::lowest`].
    pub lowest: u64,
}

/// Returns every system call instruction of an ELF file that its functions reach, for [`thunk::to_entry`]. A file that
/// is not one, of another ISA than x86-64 and AArch64, without section headers or with broken tables has none.
pub fn analyse_all(bytes: &[u8]) -> AllSites {
    let Some(mut file) = file::File::parse(bytes) else {
        return AllSites::default();
    };
    if file.add_tables(bytes).is_none() {
        return AllSites::default();
    }
    let calls: Vec<(u64, Option<u32>)> = file.code.iter().flat_map(|part| all(file.isa, part)).collect();
    let code = Code::around(&file, calls.iter().map(|(address, _)| *address));
    let arguments: HashSet<u64> = file.code.iter().flat_map(|part| dynamic(file.isa, part)).collect();
    let site = |(address, number): (u64, Option<u32>)| AnySite {
        address,
        number: number.or_else(|| code.number(address)),
        is_argument: arguments.contains(&address),
        window: code.window(address, CallKind::SystemCall, false),
    };
    let mut sites: Vec<AnySite> = calls.into_iter().map(site).collect();
    sites.retain(|site| site.window != Err(Reason::NotReached));
    sites.sort_by_key(|site| site.address);
    AllSites {
        sites,
        lowest: file.lowest(),
    }
}

/// Returns the window of the `syscall` at the offset `call` of x86-64 code, whose address in the file is `address`, by the
/// bytes near it alone. `ends`: addresses at which functions end, as far as they are known, in order.
pub fn window_by_bytes(code: &[u8], address: u64, call: usize, ends: &[u64]) -> Result<Window, Reason> {
    x86::window::find_by_bytes(code, address, call, ends)
}

/// Returns the sites of an ELF file. A file that is not one, or of another ISA, has none. All of a file without section
/// headers (its relocations and call frames cannot be found) or with broken tables are left alone.
///
/// # Errors
/// A message, if the file is broken.
pub fn analyse(bytes: &[u8]) -> Result<Analysis, String> {
    analyse_found(bytes, || crate::calls_for_time(bytes))
}

/// The same where [`crate::calls_for_time`] was called before.
pub fn analyse_found(
    bytes: &[u8],
    found: impl FnOnce() -> Result<Vec<crate::CodeSite>, String>,
) -> Result<Analysis, String> {
    let Some(mut file) = file::File::parse(bytes) else {
        return Ok(Analysis::default());
    };
    let mut wanted: Vec<(u64, Calls, CallKind)> = found()?
        .into_iter()
        .map(|site| (site.address, Calls::One(site.call), site.by))
        .collect();
    let arguments = file.code.iter().flat_map(|part| dynamic(file.isa, part));
    wanted.extend(arguments.map(|address| (address, Calls::Any, CallKind::SystemCall)));
    // Stable: a known number is before the same site without.
    wanted.sort_by_key(|(address, ..)| *address);
    wanted.dedup_by_key(|(address, ..)| *address);
    if wanted.len() > MOST_SITES {
        return Err(format!("it has more than {MOST_SITES} system calls for time"));
    }
    if wanted.is_empty() {
        return Ok(Analysis::default());
    }
    if file.add_tables(bytes).is_none() {
        let left_alone = |(address, calls, by)| RescueSite {
            address,
            calls,
            by,
            window: Err(Reason::NoTables),
        };
        return Ok(Analysis {
            sites: wanted.into_iter().map(left_alone).collect(),
            lowest: file.lowest(),
        });
    }
    let code = Code::around(&file, wanted.iter().map(|(address, ..)| *address));
    // Go's form for all calls is that of some for one call, too.
    wanted.retain(|(address, calls, _)| *calls != Calls::Any || code.number(*address).is_none());
    let sites = wanted.into_iter().map(|(address, calls, by)| RescueSite {
        address,
        calls,
        by,
        window: match (calls, by) {
            (Calls::One(TimeCall::Time), CallKind::SystemCall) => Err(Reason::KernelsOnly),
            _ => code.window(address, by, true),
        },
    });
    Ok(Analysis {
        sites: sites.collect(),
        lowest: file.lowest(),
    })
}
