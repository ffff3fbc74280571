//! The image made ready for one process.

use crate::Image;
use crate::built;
use crate::vdso::Vdso;

/// The functions that the image passes on, in the order of the slots (`vdso/slots.h`).
const FUNCTIONS: [&str; 7] = [
    "clock_gettime",
    "gettimeofday",
    "time",
    "clock_getres",
    "getcpu",
    "getrandom",
    "sgx_enter_enclave",
];
const SLOT_SIZE: usize = 8;
/// What a vDSO for x86-64 puts before a function's name; the name alone is a weak alias.
const PREFIX: &str = "__vdso_";

/// `rdtscp` and a no-op of two bytes, in place of `lfence; rdtsc`.
const RDTSCP: [u8; 5] = [0x0f, 0x01, 0xf9, 0x66, 0x90];

/// The kernel's vDSO has a function that the image does not know. Put in its place, the image would make it disappear.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this kernel's vDSO exports {name}, which fastpath cannot pass on; the program is better off with the kernel's own"
)]
pub struct UnforwardedExport {
    /// The function's name.
    pub name: String,
}

/// The image's bytes with the addresses of one process in them.
#[derive(Clone, Debug)]
pub struct Instance {
    bytes: Vec<u8>,
}

impl Instance {
    /// The image for a process with this kernel vDSO at this address, or without one: what the page does not answer then becomes a
    /// system call.
    pub fn new(kernel: Option<(&Vdso, u64)>) -> Result<Instance, UnforwardedExport> {
        let Some((vdso, base)) = kernel else {
            return Ok(Instance::with_functions(|_| None));
        };
        for export in vdso.exports().iter().filter(|export| export.is_function) {
            let function = export.name.strip_prefix(PREFIX).unwrap_or(&export.name);
            if !FUNCTIONS.contains(&function) {
                return Err(UnforwardedExport {
                    name: export.name.clone(),
                });
            }
        }
        Ok(Instance::with_functions(|function| {
            let offset = vdso
                .find(&format!("{PREFIX}{function}"))
                .or_else(|| vdso.find(function))?;
            Some(base.wrapping_add(offset))
        }))
    }

    /// The image with the kernel's functions wherever they are in the process. `address` gets their names without a prefix.
    pub fn with_functions(address: impl Fn(&str) -> Option<u64>) -> Instance {
        let mut bytes = Image::bytes().to_vec();
        let addresses = FUNCTIONS.map(address);
        for (slot, address) in addresses.iter().enumerate() {
            let at = built::SLOTS_OFFSET + slot * SLOT_SIZE;
            bytes[at..at + SLOT_SIZE].copy_from_slice(&address.unwrap_or(0).to_le_bytes());
        }
        for &(slot, entry) in built::FORWARDED_SYMBOLS {
            if addresses[slot].is_none() {
                hide(&mut bytes, entry);
            }
        }
        if has_rdtscp() {
            for &at in built::ORDERED_COUNTER_READS {
                bytes[at..at + RDTSCP.len()].copy_from_slice(&RDTSCP);
            }
        }
        Instance { bytes }
    }

    /// What belongs at the address right after the page.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Makes a symbol undefined. Every loader passes over it then, as if this kernel did not have the function; the hash tables stay
/// as they are.
fn hide(bytes: &mut [u8], entry: usize) {
    const SECTION: usize = 6;
    const VALUE: usize = 8;
    const SIZE: usize = 16;
    const END: usize = 24;
    bytes[entry + SECTION..entry + VALUE].fill(0);
    bytes[entry + VALUE..entry + SIZE].fill(0);
    bytes[entry + SIZE..entry + END].fill(0);
}

/// RDTSCP, where there is one, is the ordered read: on AMD it does not depend on the kernel having made LFENCE wait for
/// execution, and here (Zen 4) it takes 0.3 ns less.
fn has_rdtscp() -> bool {
    use std::arch::x86_64::__cpuid;
    const EXTENDED_FEATURES: u32 = 0x8000_0001;
    const RDTSCP_BIT: u32 = 1 << 27;
    __cpuid(0x8000_0000).eax >= EXTENDED_FEATURES && __cpuid(EXTENDED_FEATURES).edx & RDTSCP_BIT != 0
}
