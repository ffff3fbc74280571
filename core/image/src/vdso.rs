//! Reads any vDSO's symbols: ours, and any kernel's.

use crate::elf::{
    Elf, ElfError, NT_GNU_BUILD_ID, SHN_ABS, SHN_UNDEF, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_NOTYPE, VERSYM_VERSION,
};

/// The exports of a vDSO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vdso {
    machine: u16,
    is_64: bool,
    bias: u64,
    soname: Option<String>,
    build_id: Option<Vec<u8>>,
    exports: Vec<Export>,
}

/// One defined symbol of a vDSO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name, such as `__vdso_clock_gettime`.
    pub name: String,
    /// Its version, such as `LINUX_2.6`.
    pub version: Option<String>,
    /// Its offset from the start of the image in memory, in bytes.
    pub offset: u64,
    /// Its size as the vDSO states it, in bytes.
    pub size: u64,
    /// Whether it is a function, and not a constant or the name of a version.
    pub is_function: bool,
}

impl Vdso {
    /// Reads the symbols from a vDSO's bytes as they are in memory. Symbols that lie beyond the bytes are left out.
    pub fn parse(bytes: &[u8]) -> Result<Vdso, ElfError> {
        let elf = Elf::parse(bytes)?;
        let versions = elf.versions();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let exports = elf
            .symbols()
            .map(|(_, symbol)| symbol)
            .filter(|symbol| symbol.section != SHN_UNDEF && matches!(symbol.binding, STB_GLOBAL | STB_WEAK))
            .map(|symbol| Export {
                name: text(symbol.name),
                version: symbol.version.and_then(|version| {
                    let wanted = version & VERSYM_VERSION;
                    let (.., name) = versions.iter().find(|(index, ..)| *index == wanted)?;
                    Some(text(name))
                }),
                offset: elf.offset_of(symbol.value),
                size: symbol.size,
                is_function: symbol.section != SHN_ABS && matches!(symbol.kind, STT_FUNC | STT_NOTYPE),
            })
            .collect();
        Ok(Vdso {
            machine: elf.machine,
            is_64: elf.is_64(),
            bias: elf.bias(),
            soname: elf.soname().map(text),
            build_id: elf
                .notes
                .iter()
                .find(|note| note.name == b"GNU" && note.kind == NT_GNU_BUILD_ID)
                .map(|note| note.description.to_vec()),
            exports,
        })
    }

    /// Returns the defined symbols, in the symbol table's order.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Returns the offset of a function from the start of the image in memory, in bytes.
    pub fn find(&self, name: &str) -> Option<u64> {
        let export = self
            .exports
            .iter()
            .find(|export| export.is_function && export.name == name);
        export.map(|export| export.offset)
    }

    /// Returns the name that the vDSO gives itself, such as `linux-vdso.so.1`.
    pub fn soname(&self) -> Option<&str> {
        self.soname.as_deref()
    }

    /// Returns the build id.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// Returns the address that the vDSO was linked to: 0, except in old kernels.
    pub fn bias(&self) -> u64 {
        self.bias
    }

    /// Returns the ELF machine number, such as 62 for x86-64.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Returns whether this is a 64-bit vDSO.
    pub fn is_64(&self) -> bool {
        self.is_64
    }
}
