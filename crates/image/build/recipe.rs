//! The build's facts about each ISA. The rest is in its folder under `vdso/`.

use fastpath_elf::Isa;

pub struct Recipe {
    pub isa: Isa,
    /// The folder of `vdso/` with the headers that it shares with another ISA.
    pub shared: Option<&'static str>,
    /// The files of `vdso/` with its functions, besides [`COMMON`] and those of its folder.
    pub functions: &'static [&'static str],
    /// Clang's name of the target.
    pub target: &'static str,
    /// Compiler flags for this ISA only.
    pub flags: &'static [&'static str],
    /// The ordered read of the counter as it is assembled, before an instance replaces it by a better one: bytes, and a
    /// mask of the bits that are the same at every place.
    pub counter_read: &'static [(u8, u8)],
}

/// Files of every image.
pub const COMMON: &[&str] = &[
    "clock_gettime.c",
    "gettimeofday.c",
    "clock_getres.c",
    "latch.c",
    "note.S",
    "slots.c",
];

const fn exactly<const N: usize>(bytes: [u8; N]) -> [(u8, u8); N] {
    let mut pattern = [(0, 0xff); N];
    let mut index = 0;
    while index < N {
        pattern[index].0 = bytes[index];
        index += 1;
    }
    pattern
}

const X86_64: Recipe = Recipe {
    isa: Isa::X86_64,
    shared: Some("x86"),
    functions: &["time.c", "getcpu.c"],
    target: "x86_64-linux-gnu",
    // endbr64 at every function: a process that enforces indirect branch tracking calls them through pointers.
    flags: &["-m64", "-fcf-protection=branch", "-mgeneral-regs-only"],
    // lfence; rdtsc
    counter_read: &exactly([0x0f, 0xae, 0xe8, 0x0f, 0x31]),
};

const I386: Recipe = Recipe {
    isa: Isa::I386,
    shared: Some("x86"),
    functions: &["clock_gettime64.c", "time.c", "getcpu.c"],
    target: "i386-linux-gnu",
    // The code is position independent because it gets addresses from pointers.h. For code that gets them from the
    // compiler, -fPIC would keep the GOT's address in a register, and there is no GOT. The last three flags make it fit
    // a page; the hot code is the same.
    flags: &[
        "-m32",
        "-march=i686",
        "-mgeneral-regs-only",
        "-fno-pic",
        "-mstack-alignment=8",
        "-falign-functions=1",
        "-Os",
    ],
    // lfence; rdtsc
    counter_read: X86_64.counter_read,
};

const AARCH64: Recipe = Recipe {
    isa: Isa::Aarch64,
    shared: None,
    functions: &["getcpu.c"],
    target: "aarch64-linux-gnu",
    // Landing pads at every function, as endbr64 above. x18 is reserved for the platform, which may be any.
    flags: &["-mgeneral-regs-only", "-mbranch-protection=bti", "-ffixed-x18"],
    // isb; mrs Xt, CNTVCT_EL0
    counter_read: &[
        (0xdf, 0xff),
        (0x3f, 0xff),
        (0x03, 0xff),
        (0xd5, 0xff),
        (0x40, 0xe0),
        (0xe0, 0xff),
        (0x3b, 0xff),
        (0xd5, 0xff),
    ],
};

const ARM: Recipe = Recipe {
    isa: Isa::Arm,
    shared: None,
    functions: &["clock_gettime64.c"],
    target: "arm-linux-gnueabi",
    flags: &["-march=armv7-a", "-marm", "-mfloat-abi=soft", "-funwind-tables"],
    // isb; mrrc p15, 1, Rt, Rt2, c14
    counter_read: &[
        (0x6f, 0xff),
        (0xf0, 0xff),
        (0x7f, 0xff),
        (0xf5, 0xff),
        (0x1e, 0xff),
        (0x0f, 0x0f),
        (0x50, 0xf0),
        (0xec, 0xff),
    ],
};

/// The ISAs that `vdso/` has a folder for.
pub const RECIPES: &[Recipe] = &[X86_64, I386, AARCH64, ARM];

pub fn of(isa: Isa) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.isa == isa)
}
