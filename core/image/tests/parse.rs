//! What is read of a vDSO. `mutations` feeds any bytes.

use fastpath_image::{ElfError, Image, Vdso, own_vdso};

const CLASS: usize = 4;
const LOAD_VADDR: usize = 64 + 16;

#[test]
fn our_image_reads_as_what_it_is() {
    let vdso = Vdso::parse(Image::host().bytes()).unwrap();
    assert_eq!(vdso.soname(), Some("linux-vdso.so.1"));
    assert_eq!((vdso.machine(), vdso.is_64(), vdso.bias()), (62, true, 0));
    let export = vdso
        .exports()
        .iter()
        .find(|export| export.name == "__vdso_clock_gettime")
        .unwrap();
    assert_eq!(export.version.as_deref(), Some("LINUX_2.6"));
    assert!(export.is_function && export.size > 0);
    assert_eq!(vdso.find("LINUX_2.6"), None, "a version is no function");
}

#[test]
fn the_kernels_own_vdso_is_read() {
    let kernel = own_vdso().unwrap().expect("these tests need a kernel with a vDSO");
    assert_eq!(kernel.vdso.soname(), Some("linux-vdso.so.1"));
    assert!(kernel.vdso.build_id().is_some_and(|id| id.len() >= 8));
    let libc_finds = kernel.vdso.find("__vdso_clock_gettime").unwrap();
    assert!((libc_finds as usize) < kernel.bytes.len());
}

#[test]
fn a_vdso_linked_to_a_high_address_gives_the_same_offsets() {
    // As kernels before 3.16 did: all addresses are moved, offsets in the file are not.
    const LINKED_AT: u64 = 0xffff_ffff_ff70_0000;
    let mut moved = Image::host().bytes().to_vec();
    let mut add = |at: usize| {
        let value = u64::from_le_bytes(moved[at..at + 8].try_into().unwrap());
        moved[at..at + 8].copy_from_slice(&value.wrapping_add(LINKED_AT).to_le_bytes());
    };
    for segment in 0..4 {
        add(LOAD_VADDR + 56 * segment);
    }
    let dynamic = u64::from_le_bytes(Image::host().bytes()[64 + 56 + 8..][..8].try_into().unwrap()) as usize;
    let tags: Vec<u64> = Image::host().bytes()[dynamic..]
        .chunks_exact(16)
        .map(|entry| u64::from_le_bytes(entry[..8].try_into().unwrap()))
        .take_while(|&tag| tag != 0)
        .collect();
    let mut symbols = 0;
    for (index, tag) in tags.into_iter().enumerate() {
        if matches!(tag, 4..=6 | 0x6fff_fef5 | 0x6fff_fff0 | 0x6fff_fffc) {
            if tag == 6 {
                let at = dynamic + 16 * index + 8;
                symbols = u64::from_le_bytes(Image::host().bytes()[at..at + 8].try_into().unwrap()) as usize;
            }
            add(dynamic + 16 * index + 8);
        }
    }
    let ours = Vdso::parse(Image::host().bytes()).unwrap();
    // The values of all symbols, after the empty one.
    for at in (symbols + 24..).step_by(24).take(ours.exports().len()) {
        add(at + 8);
    }
    let moved = Vdso::parse(&moved).unwrap();
    assert_eq!(moved.bias(), LINKED_AT);
    for export in ours.exports().iter().filter(|export| export.is_function) {
        assert_eq!(moved.find(&export.name), Some(export.offset), "{}", export.name);
    }
}

#[test]
fn what_is_no_elf_file_is_refused() {
    let refused = |bytes: &[u8]| Vdso::parse(bytes).unwrap_err();
    assert_eq!(refused(b""), ElfError::Magic);
    assert_eq!(refused(b"MZ\x90\0"), ElfError::Magic);
    assert_eq!(refused(b"\x7fELF\x02\x01"), ElfError::Header);
    let mut unknown = Image::host().bytes().to_vec();
    unknown[CLASS] = 3;
    assert_eq!(refused(&unknown), ElfError::Class(3));
    unknown[CLASS] = 2;
    unknown[CLASS + 1] = 2;
    assert_eq!(refused(&unknown), ElfError::ByteOrder(2));
    assert_eq!(refused(&Image::host().bytes()[..100]), ElfError::ProgramHeaders);
}
