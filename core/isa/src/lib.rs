//! What an instruction set differs in: one file for each ISA, with the same few names in each.
//!
//! - `FACTS` ([`IsaFacts`]) is for every ISA, on every host: numbers, names, instructions, and how its image is compiled.
//!   The constants of the C and assembler code are generated from it ([`c::header`], [`c::version_script`]).
//! - `cpu` is code for the CPU that this was compiled for: the ordered read of its counter, and the barriers around it.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod aarch64;
mod arm;
mod bytes;
pub mod c;
mod calls;
mod facts;
mod features;
mod i386;
mod x86;
mod x86_64;

pub use calls::{AnsweredCalls, SystemCalls};
pub use facts::{Counter, HOSTS_VERSION, IsaFacts, Property, Unwind, Version};
pub use features::CpuFeatures;
pub use i386::jump as i386_jump;

#[cfg(target_arch = "aarch64")]
pub use aarch64::cpu;
#[cfg(target_arch = "arm")]
pub use arm::cpu;
#[cfg(target_arch = "x86")]
pub use i386::cpu;
#[cfg(target_arch = "x86_64")]
pub use x86_64::cpu;

/// An instruction set, as Linux distinguishes them by the ELF files of programs.
///
/// The order is that of the numbers in `fastpath.h`, so a new one is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// 64-bit x86.
    X86_64,
    /// 32-bit x86, alone or under a 64-bit kernel.
    I386,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit Arm, version 7-A or later.
    Arm,
}

/// The plain names of all functions of kernels' vDSOs.
///
/// Images fall back to them, but for the last two, which no image exports. They unlock robust futexes (Linux 7.2): a program
/// has them by the kernel's own vDSO, where alone the kernel looks for a thread that it must help.
pub const KERNEL_FUNCTIONS: [&str; 12] = [
    "clock_gettime",
    "gettimeofday",
    "time",
    "clock_getres",
    "getcpu",
    "getrandom",
    "sgx_enter_enclave",
    "clock_gettime64",
    "clock_getres_time64",
    "vsyscall",
    "futex_robust_list64_try_unlock",
    "futex_robust_list32_try_unlock",
];

impl Isa {
    /// All ISAs.
    pub const ALL: [Isa; 4] = [Isa::X86_64, Isa::I386, Isa::Aarch64, Isa::Arm];

    /// The ISA that this was compiled for.
    pub const HOST: Isa = cpu::ISA;

    /// Returns what this ISA differs in.
    pub const fn facts(self) -> &'static IsaFacts {
        match self {
            Isa::X86_64 => &x86_64::FACTS,
            Isa::I386 => &i386::FACTS,
            Isa::Aarch64 => &aarch64::FACTS,
            Isa::Arm => &arm::FACTS,
        }
    }

    /// Returns the name, which is also that of the folder under `core/image/vdso/`, `surgery/inject/hook/` and `surgery/preload/`.
    pub const fn name(self) -> &'static str {
        match self.facts().name.to_str() {
            Ok(name) => name,
            Err(_) => panic!("a name is ASCII"),
        }
    }

    /// Returns the ISA of this name, or of this name in Rust.
    pub fn of_name(name: &str) -> Option<Isa> {
        let mut isas = Isa::ALL.into_iter();
        isas.find(|isa| isa.name() == name || isa.facts().rust_name == name)
    }

    /// Returns whether its pointers have 64 bits.
    pub const fn is_64(self) -> bool {
        self.facts().is_64
    }

    /// Returns whether it has x86's counter and instructions.
    pub const fn is_x86(self) -> bool {
        matches!(self, Isa::X86_64 | Isa::I386)
    }

    /// Returns the machine number in an ELF file's header.
    pub const fn elf_machine(self) -> u16 {
        self.facts().elf_machine
    }

    /// Returns the number of the architecture for seccomp filters (AUDIT_ARCH_* of include/uapi/linux/audit.h).
    pub const fn audit_arch(self) -> u32 {
        const IS_64_BIT: u32 = 0x8000_0000;
        const IS_LITTLE_ENDIAN: u32 = 0x4000_0000;
        let width = if self.is_64() { IS_64_BIT } else { 0 };
        self.elf_machine() as u32 | IS_LITTLE_ENDIAN | width
    }

    /// Returns the ISA of an ELF file with this machine number and class.
    pub fn of_elf(machine: u16, is_64: bool) -> Option<Isa> {
        let mut isas = Isa::ALL.into_iter();
        isas.find(|isa| isa.elf_machine() == machine && isa.is_64() == is_64)
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isas_are_known_by_their_names_and_by_their_files() {
        for isa in Isa::ALL {
            assert_eq!(Isa::of_name(isa.name()), Some(isa));
            assert_eq!(Isa::of_name(isa.facts().rust_name), Some(isa));
            assert_eq!(Isa::of_elf(isa.elf_machine(), isa.is_64()), Some(isa));
            assert_eq!(Isa::ALL[isa as usize], isa);
        }
        assert_eq!(Isa::of_name(std::env::consts::ARCH), Some(Isa::HOST));
        assert_eq!(Isa::of_elf(62, false), None);
    }

    #[test]
    fn architectures_have_the_kernels_numbers() {
        let numbers = Isa::ALL.map(Isa::audit_arch);
        assert_eq!(numbers, [0xc000_003e, 0x4000_0003, 0xc000_00b7, 0x4000_0028]);
    }

    #[test]
    fn numbers_of_system_calls_are_those_of_this_kernels_headers() {
        let calls = Isa::HOST.facts().calls;
        for (number, header) in [
            (calls.adjtimex, libc::SYS_adjtimex),
            (calls.clock_adjtime, libc::SYS_clock_adjtime),
            (calls.clock_gettime, libc::SYS_clock_gettime),
            (calls.clock_getres, libc::SYS_clock_getres),
            (calls.clock_settime, libc::SYS_clock_settime),
            (calls.clone, libc::SYS_clone),
            (calls.close, libc::SYS_close),
            (calls.connect, libc::SYS_connect),
            (calls.execve, libc::SYS_execve),
            (calls.execveat, libc::SYS_execveat),
            (calls.exit_group, libc::SYS_exit_group),
            (calls.fcntl, libc::SYS_fcntl),
            (calls.futex, libc::SYS_futex),
            (calls.getcpu, libc::SYS_getcpu),
            (calls.getpid, libc::SYS_getpid),
            (calls.getsockopt, libc::SYS_getsockopt),
            (calls.gettid, libc::SYS_gettid),
            (calls.readlinkat, libc::SYS_readlinkat),
            (calls.gettimeofday, libc::SYS_gettimeofday),
            (calls.kill, libc::SYS_kill),
            (calls.memfd_create, libc::SYS_memfd_create),
            (calls.mprotect, libc::SYS_mprotect),
            (calls.munmap, libc::SYS_munmap),
            (calls.openat, libc::SYS_openat),
            (calls.ppoll, libc::SYS_ppoll),
            (calls.prctl, libc::SYS_prctl),
            (calls.pread64, libc::SYS_pread64),
            (calls.prlimit64, libc::SYS_prlimit64),
            (calls.read, libc::SYS_read),
            (calls.recvmsg, libc::SYS_recvmsg),
            (calls.rt_sigaction, libc::SYS_rt_sigaction),
            (calls.rt_sigprocmask, libc::SYS_rt_sigprocmask),
            (calls.rt_sigreturn, libc::SYS_rt_sigreturn),
            (calls.seccomp, libc::SYS_seccomp),
            (calls.sendmsg, libc::SYS_sendmsg),
            (calls.setns, libc::SYS_setns),
            (calls.settimeofday, libc::SYS_settimeofday),
            (calls.socket, libc::SYS_socket),
            (calls.socketpair, libc::SYS_socketpair),
            (calls.unshare, libc::SYS_unshare),
            (calls.wait4, libc::SYS_wait4),
            (calls.write, libc::SYS_write),
        ] {
            assert_eq!(number as libc::c_long, header);
        }
    }

    #[test]
    fn every_function_that_is_passed_on_has_a_slot_and_is_exported() {
        for isa in Isa::ALL {
            let facts = isa.facts();
            for function in facts.forwarded {
                assert!(facts.slots().contains(function), "{isa} {function}");
                assert!(facts.exports(function), "{isa} {function}");
            }
        }
    }

    #[test]
    fn the_version_script_exports_all_functions_and_nothing_else() {
        assert_eq!(
            c::version_script(&Isa::I386.facts().vdso.iter().collect::<Vec<_>>()),
            "LINUX_2.6 {\n\tglobal:\n\t\t__vdso_clock_gettime;\n\t\t__vdso_clock_gettime64;\n\t\t__vdso_gettimeofday;\n\t\t__vdso_time;\n\t\t\
             __vdso_clock_getres;\n\t\t__vdso_clock_getres_time64;\n\t\t__vdso_getcpu;\n};\n\n\
             LINUX_2.5 {\n\tglobal:\n\t\t__kernel_vsyscall;\n\t\t__kernel_sigreturn;\n\t\t__kernel_rt_sigreturn;\n\tlocal:\n\t\t*;\n};\n\n"
        );
    }
}
