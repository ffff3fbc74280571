//! The images that the build made.

use crate::built;
use crate::vdso::Vdso;
use fastpath_elf::Isa;

/// Images are made of pages of this size, and mapped at multiples of it, whatever the kernel's pages are.
pub const PAGE_SIZE: usize = 4096;

/// A function that an image exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Such as `__vdso_clock_gettime`.
    pub name: &'static str,
    /// Bytes from the image's first.
    pub offset: u64,
    /// Bytes of code.
    pub size: u64,
    /// Where its entry of the dynamic symbol table lies.
    pub(crate) symbol_at: usize,
}

/// The synthetic vDSO of one ISA as the build made it. To run it in a process, take an [`crate::Instance`].
#[derive(Debug)]
pub struct Image {
    pub(crate) isa: Isa,
    pub(crate) bytes: &'static [u8],
    pub(crate) functions: &'static [Function],
    /// Where the slots for the kernel's functions begin (`vdso/slots.h`).
    pub(crate) slots_at: usize,
    /// What makes the system call where a process's kernel has no such function, by plain names.
    pub(crate) calls: &'static [(&'static str, u64)],
    /// Where the counter is read.
    pub(crate) counter_reads: &'static [usize],
    /// Where the code refers to the page.
    pub(crate) page_references: &'static [usize],
    pub(crate) system_calls: &'static [u64],
}

impl Image {
    /// Where the page lies if nothing else is said: in the 4096 bytes below the image.
    pub const DEFAULT_PAGE_OFFSET: i64 = -4096;

    /// The image of an ISA. `None`: this build left it out, for want of a compiler.
    pub fn of(isa: Isa) -> Option<&'static Image> {
        built::IMAGES[isa as usize].as_ref()
    }

    /// The image of the ISA that this was compiled for.
    pub fn host() -> &'static Image {
        &built::HOST
    }

    /// Whose programs it is for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The ELF file. It is mapped as it is.
    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// Bytes to map: whole pages of 4096 bytes.
    pub fn size(&self) -> usize {
        self.bytes.len().next_multiple_of(PAGE_SIZE)
    }

    /// Every function that it exports, those of signal return included.
    pub fn functions(&self) -> &'static [Function] {
        self.functions
    }

    /// Where a function lies, in bytes from the image's first.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let function = self.functions.iter().find(|function| function.name == name);
        function.map(|function| function.offset)
    }

    /// Returns the names of the functions of a kernel's vDSO that this image has no symbol for: functions of a kernel that is newer than
    /// the image. A program that gets the image does not find them, as on an older kernel.
    pub fn lacks<'v>(&self, vdso: &'v Vdso) -> impl Iterator<Item = &'v str> {
        let functions = vdso.exports().iter().filter(|export| export.is_function);
        let missing = functions.filter(|export| self.symbol(&export.name).is_none());
        missing.map(|export| export.name.as_str())
    }

    /// Where a signal handler with SA_SIGINFO returns to, on ISAs whose vDSO has that.
    pub fn rt_sigreturn(&self) -> Option<u64> {
        self.symbol("__kernel_rt_sigreturn")
    }

    /// Where any other signal handler returns to, on i386.
    pub fn sigreturn(&self) -> Option<u64> {
        self.symbol("__kernel_sigreturn")
    }

    /// For each system call that the image makes itself, the offset right behind the instruction: that is where the thread is
    /// found by whoever traps the call.
    pub fn system_calls(&self) -> &'static [u64] {
        self.system_calls
    }
}
