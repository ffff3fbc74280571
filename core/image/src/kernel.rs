//! The functions of a process's own vDSO, to which the image falls back.

use crate::vdso::Vdso;
use fastpath_isa::KERNEL_FUNCTIONS as FUNCTIONS;

/// The prefixes of functions in vDSOs. x86-64 has most of them without one as well.
const PREFIXES: [&str; 3] = ["__vdso_", "__kernel_", ""];

/// Addresses of a kernel's vDSO functions in one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFunctions {
    addresses: [u64; FUNCTIONS.len()],
}

impl KernelFunctions {
    /// The functions of a process without a vDSO: calls that the page does not answer become system calls.
    pub const NONE: KernelFunctions = KernelFunctions {
        addresses: [0; FUNCTIONS.len()],
    };

    /// Returns the functions of this vDSO, whose first byte is at `base`. Functions that no image falls back to are
    /// left out.
    pub fn from_vdso(vdso: &Vdso, base: u64) -> KernelFunctions {
        let functions = || vdso.exports().iter().filter(|export| export.is_function);
        KernelFunctions::from_fn(|function| {
            let is_it = |name: &str| {
                PREFIXES
                    .iter()
                    .any(|prefix| name.strip_prefix(prefix) == Some(function))
            };
            let export = functions().find(|export| is_it(&export.name))?;
            Some(base.wrapping_add(export.offset))
        })
    }

    /// Returns whether this is the plain name of a function of a kernel's vDSO.
    pub fn is_known(function: &str) -> bool {
        FUNCTIONS.contains(&function)
    }

    /// Returns the functions to whose plain names, such as `clock_gettime`, `address` gives an address.
    pub fn from_fn(mut address: impl FnMut(&str) -> Option<u64>) -> KernelFunctions {
        KernelFunctions {
            addresses: FUNCTIONS.map(|function| address(function).unwrap_or(0)),
        }
    }

    /// Returns the same functions with this one added. A name that no vDSO has changes nothing.
    #[must_use]
    pub fn with(mut self, function: &str, address: u64) -> KernelFunctions {
        if let Some(index) = FUNCTIONS.iter().position(|&known| known == function) {
            self.addresses[index] = address;
        }
        self
    }

    /// Returns the address of the function of this name, prefixed or not.
    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        let index = FUNCTIONS
            .iter()
            .position(|&known| PREFIXES.iter().any(|prefix| name.strip_prefix(prefix) == Some(known)))?;
        Some(self.addresses[index]).filter(|address| *address != 0)
    }

    /// Returns the address of the function of this plain name; 0 if there is none.
    pub fn address(&self, function: &str) -> u64 {
        let index = FUNCTIONS.iter().position(|&known| known == function);
        index.map_or(0, |index| self.addresses[index])
    }

    /// Returns all addresses; 0 for functions that are not there.
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses
    }
}
