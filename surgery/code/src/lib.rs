//! Finds the system calls for time, and for the CPU's number, that a program's own code makes. [`rescue`] proves which of them can be redirected.
//! [`clock_id`] finds which clock a vDSO's function reads at each of its instructions, and [`epilogue`] where a
//! function returns to.
//!
//! The file is read in bounded pieces and never mapped. Nothing in it is trusted: every table and every list has a limit.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod bytes;
pub mod calls;
pub mod clock_id;
pub mod elf;
pub mod epilogue;
pub mod rescue;

pub use bytes::{Bytes, OnDisk};
pub use calls::{CallKind, CodeSite, TimeCall};

/// Returns the places in a file that make a system call for time or for the CPU's number, lowest address first. None,
/// if it is not run on one of the ISAs of the images.
///
/// # Errors
/// The reason why an ELF file cannot be judged.
pub fn calls_for_time<B: Bytes + ?Sized>(bytes: &B) -> Result<Vec<CodeSite>, String> {
    let Some(elf) = elf::read(bytes)? else {
        return Ok(Vec::new());
    };
    let found = calls::find(elf.isa, bytes, &elf.code).map_err(|e| format!("it cannot be read: {e}"))?;
    Ok(found.sites)
}
