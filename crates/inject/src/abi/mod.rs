//! What differs between instruction sets, and between the 64- and the 32-bit programs of one machine.
//!
//! A new one is a form to be filled in: [`Abi`] says what a program's kernel interface looks like, and a host's folder says
//! besides how its kernel shows registers (`Registers`), which ABI a program has (`of`), and what the system calls look like that
//! must not go unnoticed (`sites`).

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "aarch64")]
use aarch64 as host;
#[cfg(target_arch = "x86_64")]
use x86_64 as host;

#[cfg(target_arch = "x86_64")]
pub use host::running;
pub use host::{Registers, of, of_isa, sites};

use fastpath_image::{Image, Isa};

use crate::error::{Error, Result};

/// The system calls that are made in a program, and those that a visit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Close,
    Execve,
    Execveat,
    ExitGroup,
    Getpid,
    #[cfg(target_arch = "x86_64")]
    MemfdCreate,
    Mmap,
    Mprotect,
    Munmap,
    Prctl,
    Recvmsg,
    Socketpair,
}

/// Its number in the kernel interface of the host's own programs.
fn number_on_this_host(call: Call) -> u64 {
    let number = match call {
        Call::Close => libc::SYS_close,
        Call::Execve => libc::SYS_execve,
        Call::Execveat => libc::SYS_execveat,
        Call::ExitGroup => libc::SYS_exit_group,
        Call::Getpid => libc::SYS_getpid,
        #[cfg(target_arch = "x86_64")]
        Call::MemfdCreate => libc::SYS_memfd_create,
        Call::Mmap => libc::SYS_mmap,
        Call::Mprotect => libc::SYS_mprotect,
        Call::Munmap => libc::SYS_munmap,
        Call::Prctl => libc::SYS_prctl,
        Call::Recvmsg => libc::SYS_recvmsg,
        Call::Socketpair => libc::SYS_socketpair,
    };
    number as u64
}

/// The code that stays in a program: `hook/`, compiled for its ABI.
#[derive(Debug)]
pub struct Hook {
    /// Flat bytes for the region's page [`crate::region::HOOK`].
    pub code: &'static [u8],
    /// Offset of the code that a thunk calls before a system call.
    pub before_syscall: u64,
    /// The same for Go, whose stacks have no room; only where calls are found by their sites.
    pub before_syscall_go: Option<u64>,
    /// Offset of the code that stands in for the program's entry point; only where libraries have sites.
    pub entry: Option<u64>,
}

/// What this build has for the programs of an ABI.
pub fn of_this_build(abi: &dyn Abi) -> Result<(&'static Image, &'static Hook)> {
    Image::of(abi.isa()).zip(abi.hook()).ok_or_else(|| {
        Error::Unsupported(format!(
            "it is an {} program, and this build of fastpath has no image for those (building one takes clang and lld)",
            abi.isa()
        ))
    })
}

/// Bytes of a system call instruction of the host's own programs.
#[cfg(target_arch = "x86_64")]
pub const CALL_BYTES: u16 = 2;

/// The ABI of the host's own programs.
#[cfg(target_arch = "x86_64")]
pub fn of_isa_of_this_host() -> Result<&'static dyn Abi> {
    let abi = Isa::of_name(std::env::consts::ARCH).and_then(of_isa);
    abi.ok_or_else(|| Error::Unsupported("programs of this host's instruction set are not served".into()))
}

/// The kernel interface of one kind of program.
pub trait Abi: Sync {
    /// Whose programs these are.
    fn isa(&self) -> Isa;

    /// Bytes of a pointer, of a `long`, and of a cell of the initial stack.
    fn word(&self) -> usize;

    /// The number of a system call.
    fn number(&self, call: Call) -> u64;

    /// A system call instruction of [`Abi::instruction`] bytes, and behind it an rt_sigreturn.
    fn gadget(&self) -> &'static [u8];

    /// Bytes of a system call instruction.
    fn instruction(&self) -> usize;

    /// `from`, changed to make a system call by the instruction at `pc`.
    fn call_registers(&self, from: &Registers, pc: u64, sp: u64, number: u64, args: [u64; 6]) -> Registers;

    /// What rt_sigreturn reads to bring a program that has not run yet to `registers` and `mask`.
    fn signal_frame(&self, registers: &Registers, mask: u64) -> Vec<u8>;

    /// How far above the frame's first byte rt_sigreturn expects the stack pointer.
    fn above_frame(&self) -> u64;

    /// The code for its programs. None: this build left it out.
    fn hook(&self) -> Option<&'static Hook>;

    /// The thunk at `at` that AT_SYSINFO is pointed at, in an ABI whose C libraries make their system calls by what stands there:
    /// calls the hook's `door` and goes on to `next`. None: the calls are found by their sites.
    fn sysinfo_thunk(&self, at: u64, door: u64, next: u64) -> Option<Vec<u8>>;

    /// Whether a program may have been forbidden to read the counter (PR_SET_TSC, prctl(2)).
    fn counter_may_be_forbidden(&self) -> bool;
}
