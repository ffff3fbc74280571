//! The ways in which C libraries and runtimes look a function up in a vDSO, written down from what they do, on our image.

#[path = "../src/elf.rs"]
#[allow(dead_code)]
mod elf;

use elf::*;
use fastpath_image::{Instance, Vdso, is_fastpath, own_vdso, page_abi};

const VERSION: &str = "LINUX_2.6";
const FUNCTIONS: [&str; 13] = [
    "__vdso_clock_gettime",
    "__vdso_gettimeofday",
    "__vdso_time",
    "__vdso_clock_getres",
    "__vdso_getcpu",
    "__vdso_getrandom",
    "__vdso_sgx_enter_enclave",
    "clock_gettime",
    "gettimeofday",
    "time",
    "clock_getres",
    "getcpu",
    "getrandom",
];

/// Where a loader finds a function, from the start of the image. Loaders trust a vDSO, so these panic where they would crash.
type Lookup = fn(&[u8], &str) -> Option<u64>;

const LOOKUPS: [(&str, Lookup); 5] = [
    ("glibc", glibc),
    ("musl, by DT_HASH", musl_by_hash),
    ("musl, by DT_GNU_HASH", musl_by_gnu_hash),
    ("Go", go),
    ("parse_vdso.c", parse_vdso),
];

fn word(bytes: &[u8], at: u64) -> u32 {
    u32_at(bytes, at).expect("in the image")
}

fn sysv_hash(name: &str) -> u32 {
    let mut hash = 0_u32;
    for byte in name.bytes() {
        hash = (hash << 4).wrapping_add(byte.into());
        hash ^= hash >> 24 & 0xf0;
    }
    hash & 0x0fff_ffff
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes()
        .fold(5381, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

/// glibc (elf/dl-lookup.c): Bloom filter, bucket, chain; a symbol with value 0 or no section is none; the version by its number,
/// whose name was read from DT_VERDEF.
fn glibc(bytes: &[u8], name: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words, shift] = [0, 4, 8, 12].map(|at| word(bytes, table + at));
    assert!(bloom_words.is_power_of_two());
    let hash = gnu_hash(name);
    let bloom = u64_at(bytes, table + 16 + 8 * u64::from((hash / 64) & (bloom_words - 1))).unwrap();
    if bloom >> (hash & 63) & (bloom >> (hash >> shift & 63)) & 1 == 0 {
        return None;
    }
    let bucket_table = table + 16 + 8 * u64::from(bloom_words);
    let chain_table = bucket_table + 4 * u64::from(buckets);
    let mut index = word(bytes, bucket_table + 4 * u64::from(hash % buckets));
    if index == 0 {
        return None;
    }
    loop {
        let here = word(bytes, chain_table + 4 * u64::from(index - first));
        if (here ^ hash) >> 1 == 0 {
            let symbol = elf.symbol(index).unwrap();
            let defined = symbol.value != 0 && symbol.section != SHN_UNDEF;
            if defined && symbol.name == name.as_bytes() && has_version(&elf, &symbol) {
                return Some(symbol.value);
            }
        }
        if here & 1 == 1 {
            return None;
        }
        index += 1;
    }
}

fn has_version(elf: &Elf<'_>, symbol: &Symbol<'_>) -> bool {
    let wanted = symbol.version.expect("versioned") & VERSION_MASK;
    elf.versions()
        .iter()
        .any(|&(index, flags, name)| index == wanted && flags & VER_FLG_BASE == 0 && name == VERSION.as_bytes())
}

/// musl (src/internal/vdso.c): all symbols up to a count, first that fits.
fn musl(bytes: &[u8], name: &str, symbols: u32) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    (0..symbols).find_map(|index| {
        let symbol = elf.symbol(index).unwrap();
        let fits = matches!(symbol.kind(), 0 | 1 | 2 | 5)
            && matches!(symbol.binding(), 1 | 2 | 10)
            && symbol.section != SHN_UNDEF
            && symbol.name == name.as_bytes()
            && has_version(&elf, &symbol);
        fits.then_some(symbol.value)
    })
}

/// musl up to 1.2.5 demands DT_HASH.
fn musl_by_hash(bytes: &[u8], name: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let count = word(bytes, elf.dynamic_offset(DT_HASH).unwrap() + 4);
    musl(bytes, name, count)
}

/// Later ones count by DT_GNU_HASH where there is no DT_HASH.
fn musl_by_gnu_hash(bytes: &[u8], name: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words] = [0, 4, 8].map(|at| word(bytes, table + at));
    let bucket_table = table + 16 + 8 * u64::from(bloom_words);
    let chain_table = bucket_table + 4 * u64::from(buckets);
    let mut last = (0..buckets)
        .map(|bucket| word(bytes, bucket_table + 4 * u64::from(bucket)))
        .max()
        .unwrap();
    while word(bytes, chain_table + 4 * u64::from(last - first)) & 1 == 0 {
        last += 1;
    }
    musl(bytes, name, last + 1)
}

/// Go (runtime/vdso_linux.go): DT_VERDEF is followed without a look whether it is there, then DT_GNU_HASH without its Bloom filter.
fn go(bytes: &[u8], name: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let mut definition = elf.dynamic_offset(DT_VERDEF).unwrap();
    let version = loop {
        let half = |at| u16_at(bytes, definition + at).unwrap();
        let aux = definition + u64::from(word(bytes, definition + 12));
        let is_base = half(2) & VER_FLG_BASE != 0;
        let hash_fits = word(bytes, definition + 8) == 0x3ae_75f6;
        if !is_base && hash_fits && elf.string(word(bytes, aux).into()) == Some(VERSION.as_bytes()) {
            break half(4) & VERSION_MASK;
        }
        let next = word(bytes, definition + 16);
        assert_ne!(next, 0, "{VERSION} is not defined");
        definition += u64::from(next);
    };
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words] = [0, 4, 8].map(|at| word(bytes, table + at));
    let bucket_table = table + 16 + 8 * u64::from(bloom_words);
    let chain_table = bucket_table + 4 * u64::from(buckets);
    let hash = gnu_hash(name);
    let mut index = word(bytes, bucket_table + 4 * u64::from(hash % buckets));
    if index < first {
        return None;
    }
    loop {
        let here = word(bytes, chain_table + 4 * u64::from(index - first));
        if here | 1 == hash | 1 {
            let symbol = elf.symbol(index).unwrap();
            let fits = matches!(symbol.kind(), STT_FUNC | STT_NOTYPE)
                && matches!(symbol.binding(), STB_GLOBAL | STB_WEAK)
                && symbol.section != SHN_UNDEF
                && symbol.name == name.as_bytes()
                && symbol.version.unwrap() & VERSION_MASK == version;
            if fits {
                return Some(symbol.value);
            }
        }
        if here & 1 == 1 {
            return None;
        }
        index += 1;
    }
}

/// The kernel's example (tools/testing/selftests/vDSO/parse_vdso.c) and everything made from it: DT_HASH with its chains.
fn parse_vdso(bytes: &[u8], name: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_HASH).unwrap();
    let buckets = word(bytes, table);
    let mut index = word(bytes, table + 4 * u64::from(2 + sysv_hash(name) % buckets));
    while index != 0 {
        let symbol = elf.symbol(index).unwrap();
        let fits = matches!(symbol.kind(), STT_FUNC | STT_NOTYPE)
            && matches!(symbol.binding(), STB_GLOBAL | STB_WEAK)
            && symbol.section != SHN_UNDEF
            && symbol.name == name.as_bytes()
            && has_version(&elf, &symbol);
        if fits {
            return Some(symbol.value);
        }
        index = word(bytes, table + 4 * u64::from(2 + buckets + index));
    }
    None
}

#[test]
fn every_loader_finds_every_function() {
    let instance = Instance::with_functions(|_| Some(0x1000));
    let vdso = Vdso::parse(instance.bytes()).unwrap();
    for (loader, look_up) in LOOKUPS {
        for name in FUNCTIONS {
            let found = look_up(instance.bytes(), name);
            assert!(found.is_some(), "{loader} does not find {name}");
            assert_eq!(found, vdso.find(name), "{loader}: {name}");
        }
        assert_eq!(look_up(instance.bytes(), "__vdso_no_such_thing"), None, "{loader}");
    }
}

#[test]
fn what_the_kernel_does_not_have_no_loader_finds() {
    let instance = Instance::new(None).unwrap();
    for (loader, look_up) in LOOKUPS {
        for name in FUNCTIONS {
            let is_forwarder = name.contains("getrandom") || name.contains("sgx");
            assert_eq!(
                look_up(instance.bytes(), name).is_none(),
                is_forwarder,
                "{loader}: {name}"
            );
        }
    }
}

#[test]
fn what_this_kernel_has_stays_reachable() {
    let kernel = own_vdso().unwrap().expect("these tests need a kernel with a vDSO");
    let instance = Instance::new(Some((&kernel.vdso, kernel.base))).unwrap();
    let ours = Vdso::parse(instance.bytes()).unwrap();
    for export in kernel.vdso.exports().iter().filter(|export| export.is_function) {
        assert!(ours.find(&export.name).is_some(), "{} disappeared", export.name);
        assert_eq!(export.version.as_deref(), Some(VERSION));
    }
}

#[test]
fn a_kernel_function_that_cannot_be_passed_on_is_refused_by_name() {
    let mut foreign = Instance::with_functions(|_| Some(0x1000)).bytes().to_vec();
    let at = foreign
        .windows(12)
        .position(|window| window == b"__vdso_time\0")
        .unwrap();
    foreign[at..at + 11].copy_from_slice(b"__vdso_warp");
    let vdso = Vdso::parse(&foreign).unwrap();
    let refused = Instance::new(Some((&vdso, 0))).unwrap_err();
    assert_eq!(refused.name, "__vdso_warp");
    assert!(refused.to_string().contains("__vdso_warp"));
}

#[test]
fn our_image_is_told_from_the_kernels() {
    let kernel = own_vdso().unwrap().expect("these tests need a kernel with a vDSO");
    let instance = Instance::new(Some((&kernel.vdso, kernel.base))).unwrap();
    assert!(is_fastpath(instance.bytes()));
    assert_eq!(page_abi(instance.bytes()), Some(fastpath_page::layout::ABI));
    assert!(!is_fastpath(&kernel.bytes));
    assert!(!is_fastpath(b"not an ELF file"));
}
