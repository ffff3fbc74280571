//! Programs and archives for tests.

use std::io::Write;

/// A static program for x86-64 that makes the system call itself.
pub fn program() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0x40_0078_u64, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0_u64, 0x40_0000, 0x40_0000, 127, 127, 4096] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(b"\xb8\xe4\0\0\0\x0f\x05");
    elf
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}
