//! The instruction sets that have an image.

use crate::elf::{EM_386, EM_AARCH64, EM_ARM, EM_X86_64};

/// An instruction set, as Linux distinguishes them by the ELF files of programs.
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

impl Isa {
    /// All ISAs.
    pub const ALL: [Isa; 4] = [Isa::X86_64, Isa::I386, Isa::Aarch64, Isa::Arm];

    /// The ISA that this was compiled for.
    #[cfg(target_arch = "x86_64")]
    pub const HOST: Isa = Isa::X86_64;
    /// The ISA that this was compiled for.
    #[cfg(target_arch = "x86")]
    pub const HOST: Isa = Isa::I386;
    /// The ISA that this was compiled for.
    #[cfg(target_arch = "aarch64")]
    pub const HOST: Isa = Isa::Aarch64;
    /// The ISA that this was compiled for.
    #[cfg(target_arch = "arm")]
    pub const HOST: Isa = Isa::Arm;

    /// Returns the name, which is also that of the folder under `vdso/`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::X86_64 => "x86_64",
            Isa::I386 => "i386",
            Isa::Aarch64 => "aarch64",
            Isa::Arm => "arm",
        }
    }

    /// Returns the ISA of this name, or of this name in Rust.
    pub fn of_name(name: &str) -> Option<Isa> {
        let name = if name == "x86" { "i386" } else { name };
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Returns whether its pointers have 64 bits.
    pub const fn is_64(self) -> bool {
        matches!(self, Isa::X86_64 | Isa::Aarch64)
    }

    /// Returns whether it has x86's counter and instructions.
    pub const fn is_x86(self) -> bool {
        matches!(self, Isa::X86_64 | Isa::I386)
    }

    /// Returns the machine number in an ELF file's header.
    pub const fn elf_machine(self) -> u16 {
        match self {
            Isa::X86_64 => EM_X86_64,
            Isa::I386 => EM_386,
            Isa::Aarch64 => EM_AARCH64,
            Isa::Arm => EM_ARM,
        }
    }

    /// Returns the ISA of an ELF file with this machine number and class.
    pub fn of_elf(machine: u16, is_64: bool) -> Option<Isa> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.elf_machine() == machine && isa.is_64() == is_64)
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}
