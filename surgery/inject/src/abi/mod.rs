//! The differences between instruction sets, and between the 64- and the 32-bit programs of one machine.
//!
//! To add one, fill in a form: [`Abi`] describes a program's kernel interface; a host's folder also describes how its
//! kernel shows registers (`Registers`), which ABI a program has (`of_isa`), and the shapes of the system calls that
//! the hook must see (`sites`).

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
pub mod host;
mod running;

pub use host::{Registers, for_registers, of_isa, sites};

use fastpath_image::{Image, Isa};

use crate::error::{Error, Result};

/// System calls that are made in a program, and those that a visit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Close,
    Execve,
    Execveat,
    ExitGroup,
    MemfdCreate,
    Mmap,
    Munmap,
    Prctl,
    Recvmsg,
    Socketpair,
}

/// Code that stays in a program: `hook/`, compiled for its ABI.
#[derive(Debug)]
pub struct Hook {
    /// Flat bytes for the region's page [`crate::plan::region::HOOK`].
    pub code: &'static [u8],
    /// Offset of the code that a thunk calls before a system call.
    pub before_syscall: u64,
    /// The same for Go, whose stacks have no room; only where calls are found by their sites.
    pub before_syscall_go: Option<u64>,
    /// Offset of the code that replaces the program's entry point; only where libraries have sites.
    pub entry: Option<u64>,
    /// Offset of the code with which a dynamic linker begins that is executed as a program; only where it is known how it begins.
    pub linker: Option<u64>,
    /// Calls for time that have a routine (`hook/ISA/rescue.S`): their names, the offsets of the routines, and those
    /// of the words for the addresses of the functions that answer.
    pub rescue: &'static [(&'static str, u64, u64)],
}

/// Returns the image and the hook of this build for the programs of an ABI.
pub fn of_this_build(abi: &dyn Abi) -> Result<(&'static Image, &'static Hook)> {
    Image::for_isa(abi.isa()).zip(abi.hook()).ok_or_else(|| {
        Error::Unsupported(format!(
            "it is an {} program, and this build of fastpath has no image for those (building one takes clang and lld)",
            abi.isa()
        ))
    })
}

/// Size in bytes of a system call instruction of the host's own programs.
pub const CALL_BYTES: u16 = Isa::HOST.facts().system_call.len() as u16;

/// Kernel interface of one kind of program.
pub trait Abi: Sync {
    /// Returns the instruction set of the programs.
    fn isa(&self) -> Isa;

    /// Returns the size in bytes of a pointer, of a `long`, and of a cell of the initial stack.
    fn word(&self) -> usize {
        if self.isa().is_64() { 8 } else { 4 }
    }

    /// Returns the number of a system call.
    fn number(&self, call: Call) -> u64 {
        let calls = &self.isa().facts().calls;
        let number = match call {
            Call::Close => calls.close,
            Call::Execve => calls.execve,
            Call::Execveat => calls.execveat,
            Call::ExitGroup => calls.exit_group,
            Call::MemfdCreate => calls.memfd_create,
            Call::Mmap => calls.mmap,
            Call::Munmap => calls.munmap,
            Call::Prctl => calls.prctl,
            Call::Recvmsg => calls.recvmsg,
            Call::Socketpair => calls.socketpair,
        };
        number.into()
    }

    /// Returns how mmap's last argument states an offset in bytes: mmap2, of 32-bit programs, counts in units of 4 KiB,
    /// whatever the size of a page.
    fn mmap_offset(&self, bytes: u64) -> u64 {
        match self.word() {
            4 => bytes / 4096,
            _ => bytes,
        }
    }

    /// Returns whether the entry points of the kernel's vDSO are redirected to the image. If not, AT_SYSINFO_EHDR points to the
    /// image, as in programs without a kernel's vDSO.
    fn redirects_vdso(&self) -> bool {
        true
    }

    /// Returns the system call instruction that works at any address.
    fn system_call(&self) -> &'static [u8];

    /// Returns `from`, changed to make a system call by the instruction at `pc`.
    fn call_registers(&self, from: &Registers, pc: u64, number: u64, args: [u64; 6]) -> Registers;

    /// Returns whether the code of [`Abi::trampoline`] at `from` gets to `to` without a change of any register.
    fn reaches(&self, _from: u64, _to: u64) -> bool {
        true
    }

    /// Returns the code at `at` that restores every register of `program` that a system call changes, and jumps to
    /// where the program was. It touches nothing else: neither the stack nor the flags, which a system call keeps.
    fn trampoline(&self, program: &Registers, at: u64) -> Vec<u8>;

    /// Returns the room in bytes for the code of [`Abi::batch`]; `None`: remote calls are made one by one.
    fn batch_bytes(&self) -> Option<usize> {
        None
    }

    /// Returns the code at `at` that makes the calls of a table (`remote/batch.rs`, [`Indirect`]), then sends `signal` to the process
    /// `process`, which it runs in, and jumps to the return trampoline at `trampoline`; and the offset at which the
    /// signal stops it.
    fn batch(
        &self,
        _program: &Registers,
        _at: u64,
        _trampoline: u64,
        _process: i32,
        _signal: i32,
    ) -> Option<(Vec<u8>, usize)> {
        None
    }

    /// Returns `from`, changed to execute the code of [`Abi::batch`] at `pc` for the table at `table`.
    fn batch_registers(&self, from: &Registers, pc: u64, table: u64) -> Registers {
        self.call_registers(from, pc, 0, [table, 0, 0, 0, 0, 0])
    }

    /// Returns whether the code of [`Abi::batch`], stopped by its signal with these registers, has made all calls of a table that
    /// ends at `end`, with the expected results. If not, or if it is unknown, the table says.
    fn is_batch_done(&self, _registers: &Registers, _end: u64) -> bool {
        false
    }

    /// Returns what a dynamic linker with this `code` at its entry point `at` calls first, to load a program, and where it goes on;
    /// `None` for other programs, and in an ABI whose hook does not need it.
    fn linker(&self, _code: &[u8], _at: u64) -> Option<[u64; 2]> {
        None
    }

    /// Returns the hook for its programs; `None` if this build left it out.
    fn hook(&self) -> Option<&'static Hook>;

    /// Returns the thunk at `at` for AT_SYSINFO, in an ABI whose C libraries make their system calls through that
    /// address: it calls the hook's `door` and goes on to `next`. `None`: the calls are found by their sites.
    fn sysinfo_thunk(&self, _at: u64, _door: u64, _next: u64) -> Option<Vec<u8>> {
        None
    }
}
