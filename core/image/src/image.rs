//! The images that the build made.

use crate::built;
use fastpath_isa::Isa;

/// Images consist of pages of this size, and are mapped at multiples of it, whatever the kernel's page size.
pub(crate) const PAGE_SIZE: usize = 4096;

/// A function that an image exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, such as `__vdso_clock_gettime`.
    pub name: &'static str,
    /// Its offset from the image's start, in bytes.
    pub offset: u64,
    /// Size of its code, in bytes.
    pub size: u64,
    /// Offset of its entry in the dynamic symbol table.
    pub(crate) symbol_at: usize,
}

/// The synthetic vDSO of one ISA as the build made it. A process runs an [`crate::Instance`] of it.
#[derive(Debug)]
pub struct Image {
    pub(crate) isa: Isa,
    pub(crate) bytes: &'static [u8],
    pub(crate) functions: &'static [Function],
    /// Offset of the slots for the kernel's functions (`vdso/slots.h`).
    pub(crate) slots_at: usize,
    /// Functions that make the system call where a process's kernel has no such function, by plain names.
    pub(crate) calls: &'static [(&'static str, u64)],
    /// Offsets of the counter reads.
    pub(crate) counter_reads: &'static [usize],
    /// Offsets of the code's references to the page.
    pub(crate) page_references: &'static [usize],
    /// Offsets of the code that becomes the page's address ([`crate::Instance::pin`]).
    pub(crate) page_addresses: &'static [usize],
    pub(crate) system_calls: &'static [u64],
}

impl Image {
    /// Default offset of the page: the 4096 bytes below the image.
    pub const DEFAULT_PAGE_OFFSET: i64 = -4096;

    /// Returns the image of an ISA, or `None` if this build left it out for lack of a compiler.
    pub fn for_isa(isa: Isa) -> Option<&'static Image> {
        built::IMAGES[isa as usize].as_ref()
    }

    /// Returns the image for the guests of a host: its two further functions answer more calls than those for clocks
    /// (`fastpath_page::answers`), and it needs the pages of these below that of the clocks. `None` for an ISA that has
    /// none (it is made for x86-64 and AArch64), or if this build left it out for lack of a compiler.
    pub fn for_hosts(isa: Isa) -> Option<&'static Image> {
        built::IMAGES_FOR_HOSTS[isa as usize].as_ref()
    }

    /// Returns the image of the ISA that this was compiled for.
    pub fn host() -> &'static Image {
        &built::HOST
    }

    /// Returns the ISA of its programs.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the ELF file, which is mapped as it is.
    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// Returns the bytes to map: whole pages of 4096 bytes.
    pub fn size(&self) -> usize {
        self.bytes.len().next_multiple_of(PAGE_SIZE)
    }

    /// Returns every function that it exports, including those of signal return.
    pub fn functions(&self) -> &'static [Function] {
        self.functions
    }

    /// Returns the offset of a function from the image's start, in bytes.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let function = self.functions.iter().find(|function| function.name == name);
        function.map(|function| function.offset)
    }

    /// Returns the offset of a function by its name without the prefix.
    fn plain(&self, name: &str) -> Option<u64> {
        let mut functions = self.functions.iter();
        let function = functions.find(|function| plain_name(function.name) == name);
        function.map(|function| function.offset)
    }

    /// Returns the offset of the function to which a signal handler with SA_SIGINFO returns, on ISAs whose vDSO has it.
    pub fn rt_sigreturn(&self) -> Option<u64> {
        self.plain("rt_sigreturn")
    }

    /// Returns the offset of the function to which any other signal handler returns, on i386.
    pub fn sigreturn(&self) -> Option<u64> {
        self.plain("sigreturn")
    }

    /// Returns the offsets of the addresses, of eight bytes each, in an instance that is pinned.
    pub fn page_addresses(&self) -> impl Iterator<Item = u64> {
        self.page_addresses.iter().map(|at| *at as u64 + 2)
    }

    /// Returns, for each system call that the image makes itself, the offset right behind the instruction: the thread's
    /// program counter when the call is trapped.
    pub fn system_calls(&self) -> &'static [u64] {
        self.system_calls
    }
}

/// Returns the name of a vDSO's function without its prefix.
pub(crate) fn plain_name(name: &str) -> &str {
    name.strip_prefix("__vdso_")
        .or_else(|| name.strip_prefix("__kernel_"))
        .unwrap_or(name)
}
