//! The form that each ISA fills in.

use std::ffi::CStr;

use crate::{AnsweredCalls, CpuFeatures, KERNEL_FUNCTIONS, SystemCalls};

/// What an ISA differs in.
#[derive(Debug)]
pub struct IsaFacts {
    /// Its name as users see it, which is also that of its folders. `qemu-NAME` is its emulator.
    pub name: &'static CStr,
    /// Its name in Rust (`target_arch`).
    pub rust_name: &'static str,
    /// Whether its pointers have 64 bits.
    pub is_64: bool,
    /// Machine number of its ELF files (EM_* of `elf.h`).
    pub elf_machine: u16,
    /// The tables by which its unwinders find frames.
    pub unwind: Unwind,
    /// System call numbers.
    pub calls: SystemCalls,
    /// The other calls that the image for hosts answers; `None` where there is no such image.
    pub answered: Option<AnsweredCalls>,
    /// The instruction that makes a system call, as bytes.
    pub system_call: &'static [u8],
    /// Prefix of the names of its vDSO's functions.
    pub prefix: &'static str,
    /// The exports of its image: those of the newest kernel that fastpath knows.
    pub vdso: &'static [Version],
    /// The functions that its image only passes on to the kernel's, by plain names.
    pub forwarded: &'static [&'static str],
    /// The counter.
    pub counter: Counter,
    /// Whether a program can read its CPU's number from a register, so that a vDSO's getcpu is faster than the system
    /// call.
    pub has_cpu_number: bool,
    /// Clang's name of the target.
    pub clang_target: &'static str,
    /// Compiler flags for the programs that the image supports.
    pub machine_flags: &'static [&'static str],
    /// Further compiler flags for the image.
    pub image_flags: &'static [&'static str],
    /// The largest memory page of the kernels that run its programs, in bytes.
    pub largest_page: u64,
    /// Alignment of the image's hot functions, in bytes: a cache line or half of one, where there is room for it.
    pub hot_alignment: usize,
    /// The folder under `core/image/vdso/` with code that it shares with another ISA.
    pub shared_folder: Option<&'static str>,
    /// The largest distance of the page from the image's start that the image's code reaches, and a description of it.
    pub page_reach: (u64, &'static str),
    /// The largest distance that the jump spans by which programs are redirected; `None` if none are.
    pub jump_reach: Option<u64>,
    /// The instructions of which a function that is called through a pointer begins with one; all have the same size.
    pub landing_pads: &'static [[u8; 4]],
    /// What the image states of its code to loaders; `None` if its kernel's programs cannot ask for any of it.
    pub property: Option<Property>,
    /// Adds a distance to that of the page in the reference at an offset.
    pub move_page_reference: fn(image: &mut [u8], at: usize, by: i64),
    /// Replaces the ordered counter read at an offset by the best one that the CPU has.
    pub improve_counter_read: fn(image: &mut [u8], at: usize, cpu: CpuFeatures),
    /// Writes a jump, at an offset of an image at an address, to the function whose address is in a slot.
    pub jump_to_slot: fn(image: &mut [u8], at: usize, slot_at: usize, image_address: u64),
    /// Returns where a function at an address continues, if its code begins with a jump, after a landing pad or not.
    pub jump_target: fn(code: &[u8], address: u64) -> Option<u64>,
}

/// The counter and its barriers.
#[derive(Debug)]
pub struct Counter {
    /// The barrier that orders earlier loads before later ones, as the assembler writes it; empty where the CPU never
    /// reorders them.
    pub load_barrier: &'static str,
    /// The ordered read as it is assembled, before an instance replaces it by a better one: bytes, and a mask of the
    /// bits that are the same at every place.
    pub read: &'static [(u8, u8)],
    /// What is wrong if a read takes as long as a system call: a kernel or firmware emulates it. `None` where none
    /// does.
    pub trapped: Option<&'static str>,
    /// Where the CPU states whether the counter has one rate.
    pub invariant_source: &'static str,
    /// What is wrong if it does not.
    pub not_invariant: &'static str,
}

/// A property of a file by which loaders decide whether a process may enforce where branches and returns go.
#[derive(Debug)]
pub struct Property {
    /// `GNU_PROPERTY_X86_FEATURE_1_AND` or its like (`elf.h`).
    pub kind: u32,
    /// Its bits for the image.
    pub features: u32,
    /// Its bits for the image for hosts.
    pub features_for_hosts: u32,
}

impl Property {
    /// Indirect branches go to landing pads: `GNU_PROPERTY_X86_FEATURE_1_IBT`, `GNU_PROPERTY_AARCH64_FEATURE_1_BTI`.
    pub const LANDING_PADS: u32 = 1;
    /// Each return goes to behind its call: `GNU_PROPERTY_X86_FEATURE_1_SHSTK`.
    pub const SHADOW_STACK: u32 = 2;
}

/// The tables of unwinders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    /// `.eh_frame`, found by PT_GNU_EH_FRAME.
    EhFrame,
    /// `.ARM.exidx`, found by PT_ARM_EXIDX.
    ArmExidx,
}

/// The functions of one version of a vDSO.
#[derive(Debug)]
pub struct Version {
    /// Its name, such as `LINUX_2.6`.
    pub name: &'static str,
    /// Full names.
    pub functions: &'static [&'static str],
    /// Weak symbols: second names of functions.
    pub weak: &'static [&'static str],
}

/// The further exports of an image for hosts (`core/image/vdso/hosts`).
pub static HOSTS_VERSION: Version = Version {
    name: "FASTPATH_0.1",
    functions: &["__fastpath_syscall", "__fastpath_answer"],
    weak: &[],
};

impl IsaFacts {
    /// Returns the kernel's functions that have a slot in its image, by plain names, in the order of the slots.
    pub fn slots(&self) -> &'static [&'static str] {
        // The two after the first seven are of 32-bit vDSOs only.
        &KERNEL_FUNCTIONS[..if self.is_64 { 7 } else { 9 }]
    }

    /// Returns whether the image exports a function of this plain name.
    pub fn exports(&self, function: &str) -> bool {
        let mut names = self.vdso.iter().flat_map(|version| version.functions);
        names.any(|name| name.strip_prefix(self.prefix) == Some(function))
    }

    /// Returns the size of the instruction that an exported function begins with, as the target of an indirect call.
    pub fn landing_pad(&self) -> usize {
        self.landing_pads.first().map_or(0, |pad| pad.len())
    }

    /// Returns whether its vDSO has the functions also under their names without the prefix.
    pub(crate) fn has_second_names(&self) -> bool {
        self.vdso.iter().any(|version| !version.weak.is_empty())
    }
}

/// Returns the pattern of bytes that are the same at every place.
pub(crate) const fn exactly<const N: usize>(bytes: [u8; N]) -> [(u8, u8); N] {
    let mut pattern = [(0, 0xff); N];
    let mut index = 0;
    while index < N {
        pattern[index].0 = bytes[index];
        index += 1;
    }
    pattern
}
