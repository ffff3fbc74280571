//! Finds the system calls for time that a program's own code makes, and proves for each whether it can be redirected to
//! an image without any other effect.
//!
//! [`analyse`] reads an ELF file. A site is *proven* if whole instructions of at least five bytes beside the `syscall`
//! can be replaced by a jump, and nothing can jump between them ([`window`]); any other is refused with its [`Reason`].
//! [`thunk::thunk`] makes the code to which the jump goes. Only x86-64 so far: a file of another ISA has no sites.

mod bits;
mod file;
mod flow;
mod frames;
pub mod thunk;
pub mod window;

use std::fmt;

use fastpath_audit::{By, Call};

pub use window::{Reason, Window};

/// Calls that a site may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Its code sets this call's number.
    One(Call),
    /// The number is an argument, as in libc's `syscall()`: the thunk compares it.
    Any,
}

/// One system call instruction, or one load of an address in the vsyscall page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Address of the instruction as the file states it, before relocation.
    pub address: u64,
    pub calls: Calls,
    pub by: By,
    /// The bytes to replace, or the reason why the site is left alone.
    pub window: Result<Window, Reason>,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Calls::One(call) => call.name(),
            Calls::Any => "any call",
        })
    }
}

/// Returns the lowest address that a file states for its segments, at the start of its page: a file that is mapped
/// elsewhere is moved by the difference. `None` for a file that [`analyse`] does not examine.
pub fn lowest_address(bytes: &[u8]) -> Option<u64> {
    let file = file::File::parse(bytes)?;
    let parts = file.code.iter().chain(&file.data);
    Some(parts.map(|part| part.address).min()? & !4095)
}

/// Returns the sites of an ELF file, lowest address first. A file that is not one, or of another ISA, has none.
///
/// # Errors
/// A message, if the file is broken.
pub fn analyse(bytes: &[u8]) -> Result<Vec<Site>, String> {
    let Some(file) = file::File::parse(bytes) else {
        return Ok(Vec::new());
    };
    let found = fastpath_audit::clock_calls(bytes)?;
    let mut wanted: Vec<(u64, Calls, By)> = found
        .into_iter()
        .map(|site| (site.address, Calls::One(site.call), site.by))
        .collect();
    let dynamic = file.code.iter().flat_map(|part| {
        let sites = window::dynamic(part.bytes);
        sites.map(|at| (part.address + at as u64, Calls::Any, By::SystemCall))
    });
    wanted.extend(dynamic);
    wanted.sort_unstable_by_key(|(address, ..)| *address);
    wanted.dedup_by_key(|(address, ..)| *address);
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let flow = flow::Flow::of(&file);
    let sites = wanted.into_iter().map(|(address, calls, by)| Site {
        address,
        calls,
        by,
        window: window::find(&file, &flow, address, by),
    });
    Ok(sites.collect())
}
