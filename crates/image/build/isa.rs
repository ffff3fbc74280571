//! What the build has to know about each ISA. The rest is in its folder under `vdso/`.

use crate::check::Contract;

pub struct Isa {
    /// Folder under `vdso/`.
    pub folder: &'static str,
    /// Compiler flags that other ISAs do not know.
    pub flags: &'static [&'static str],
    /// What the finished image must satisfy.
    pub contract: fn(page_abi: u32) -> Contract,
    /// The functions that are only passed on, and their slots (`vdso/slots.h`).
    pub forwarded: &'static [(&'static str, usize)],
    /// The ordered read of the counter as it is assembled, before it is exchanged for a better one.
    pub ordered_counter_read: &'static [u8],
}

const X86_64: Isa = Isa {
    folder: "x86_64",
    // endbr64 at every function: a process that enforces indirect branch tracking calls them through pointers.
    flags: &["-m64", "-fcf-protection=branch"],
    contract: Contract::x86_64,
    forwarded: &[
        ("__vdso_getrandom", 5),
        ("getrandom", 5),
        ("__vdso_sgx_enter_enclave", 6),
    ],
    // lfence; rdtsc
    ordered_counter_read: &[0x0f, 0xae, 0xe8, 0x0f, 0x31],
};

pub fn of_target(arch: &str) -> Result<Isa, String> {
    match arch {
        "x86_64" => Ok(X86_64),
        _ => Err(format!(
            "fastpath has no vDSO image for {arch} yet: it takes a folder vdso/{arch} and an entry in crates/image/build/isa.rs"
        )),
    }
}
