//! Lookups of a function in our image, implemented as C libraries and runtimes do it.

use fastpath_image::elf::*;
use fastpath_image::{
    Image, Instance, InstanceConfig, Isa, KernelFunctions, Placement, Vdso, is_fastpath, own_vdso, page_abi,
};

/// Returns the offset at which a loader finds a function of a version. Loaders trust a vDSO, so these panic where they
/// would crash.
type Lookup = fn(&[u8], &str, &str) -> Option<u64>;

const LOOKUPS: [(&str, Lookup); 6] = [
    ("glibc", glibc),
    ("musl, by DT_HASH", musl_by_hash),
    ("musl, by DT_GNU_HASH", musl_by_gnu_hash),
    ("Go", go),
    ("parse_vdso.c", parse_vdso),
    ("rustix", rustix),
];

/// Returns the size of a word of a Bloom filter, that of a pointer.
fn bloom_word_size(elf: &Elf<'_>) -> u64 {
    if elf.is_64() { 8 } else { 4 }
}

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

/// glibc (elf/dl-lookup.c): Bloom filter, bucket, chain; ignores a symbol with value 0 or no section; the version by
/// its number, whose name was read from DT_VERDEF.
fn glibc(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words, shift] = [0, 4, 8, 12].map(|at| word(bytes, table + at));
    assert!(bloom_words.is_power_of_two());
    let hash = gnu_hash(name);
    let size = bloom_word_size(&elf);
    let bits = 8 * size as u32;
    let bloom_at = table + 16 + size * u64::from((hash / bits) & (bloom_words - 1));
    let bloom = if elf.is_64() {
        u64_at(bytes, bloom_at).unwrap()
    } else {
        word(bytes, bloom_at).into()
    };
    if bloom >> (hash % bits) & (bloom >> ((hash >> shift) % bits)) & 1 == 0 {
        return None;
    }
    let bucket_table = table + 16 + size * u64::from(bloom_words);
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
            if defined && symbol.name == name.as_bytes() && has_version(&elf, &symbol, version) {
                return Some(symbol.value);
            }
        }
        if here & 1 == 1 {
            return None;
        }
        index += 1;
    }
}

fn has_version(elf: &Elf<'_>, symbol: &Symbol<'_>, version: &str) -> bool {
    let wanted = symbol.version.expect("versioned") & VERSYM_VERSION;
    elf.versions()
        .iter()
        .any(|&(index, flags, name)| index == wanted && flags & VER_FLG_BASE == 0 && name == version.as_bytes())
}

/// musl (src/internal/vdso.c): all symbols up to a count, first that fits.
fn musl(bytes: &[u8], name: &str, version: &str, symbols: u32) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    (0..symbols).find_map(|index| {
        let symbol = elf.symbol(index).unwrap();
        let fits = matches!(symbol.kind, 0 | 1 | 2 | 5)
            && matches!(symbol.binding, 1 | 2 | 10)
            && symbol.section != SHN_UNDEF
            && symbol.name == name.as_bytes()
            && has_version(&elf, &symbol, version);
        fits.then_some(symbol.value)
    })
}

/// musl up to 1.2.5 requires DT_HASH.
fn musl_by_hash(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let count = word(bytes, elf.dynamic_offset(DT_HASH).unwrap() + 4);
    musl(bytes, name, version, count)
}

/// Later versions of musl count by DT_GNU_HASH where there is no DT_HASH.
fn musl_by_gnu_hash(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words] = [0, 4, 8].map(|at| word(bytes, table + at));
    let bucket_table = table + 16 + bloom_word_size(&elf) * u64::from(bloom_words);
    let chain_table = bucket_table + 4 * u64::from(buckets);
    let mut last = (0..buckets)
        .map(|bucket| word(bytes, bucket_table + 4 * u64::from(bucket)))
        .max()
        .unwrap();
    while word(bytes, chain_table + 4 * u64::from(last - first)) & 1 == 0 {
        last += 1;
    }
    musl(bytes, name, version, last + 1)
}

/// rustix (backend/linux_raw/vdso.rs), and parse_vdso.c since it supports DT_GNU_HASH: does not check whether the
/// symbol has a section.
fn rustix(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words] = [0, 4, 8].map(|at| word(bytes, table + at));
    let bucket_table = table + 16 + bloom_word_size(&elf) * u64::from(bloom_words);
    let chain_table = bucket_table + 4 * u64::from(buckets);
    let hash = gnu_hash(name);
    let mut index = word(bytes, bucket_table + 4 * u64::from(hash % buckets));
    if index == 0 {
        return None;
    }
    loop {
        let here = word(bytes, chain_table + 4 * u64::from(index - first));
        let symbol = elf.symbol(index).unwrap();
        let fits = here | 1 == hash | 1
            && matches!(symbol.kind, STT_FUNC | STT_NOTYPE)
            && matches!(symbol.binding, STB_GLOBAL | STB_WEAK)
            && symbol.name == name.as_bytes()
            && has_version(&elf, &symbol, version);
        if fits {
            let is_inside = symbol.value <= bytes.len() as u64;
            assert!(is_inside || !RUSTIX_LOOKS_UP.contains(&name), "rustix panics");
            return Some(symbol.value);
        }
        if here & 1 == 1 {
            return None;
        }
        index += 1;
    }
}

/// Functions that rustix looks up, on any ISA.
const RUSTIX_LOOKS_UP: [&str; 6] = [
    "__vdso_clock_gettime",
    "__vdso_clock_gettime64",
    "__vdso_getcpu",
    "__kernel_vsyscall",
    "__kernel_clock_gettime",
    "__kernel_rt_sigreturn",
];

/// Go (runtime/vdso_linux.go): follows DT_VERDEF without checking that it exists, then DT_GNU_HASH without its Bloom
/// filter.
fn go(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    // Constants in its sources for each version that it looks for.
    let version_hash = match version {
        "LINUX_2.6" => 0x3ae_75f6,
        "LINUX_2.6.39" => 0x75f_cb89,
        _ => sysv_hash(version),
    };
    let mut definition = elf.dynamic_offset(DT_VERDEF).unwrap();
    let index_of_version = loop {
        let half = |at| u16_at(bytes, definition + at).unwrap();
        let aux = definition + u64::from(word(bytes, definition + 12));
        let is_base = half(2) & VER_FLG_BASE != 0;
        let hash_fits = word(bytes, definition + 8) == version_hash;
        if !is_base && hash_fits && elf.string(word(bytes, aux).into()) == Some(version.as_bytes()) {
            break half(4) & VERSYM_VERSION;
        }
        let next = word(bytes, definition + 16);
        assert_ne!(next, 0, "{version} is not defined");
        definition += u64::from(next);
    };
    let table = elf.dynamic_offset(DT_GNU_HASH).unwrap();
    let [buckets, first, bloom_words] = [0, 4, 8].map(|at| word(bytes, table + at));
    let bucket_table = table + 16 + bloom_word_size(&elf) * u64::from(bloom_words);
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
            let fits = matches!(symbol.kind, STT_FUNC | STT_NOTYPE)
                && matches!(symbol.binding, STB_GLOBAL | STB_WEAK)
                && symbol.section != SHN_UNDEF
                && symbol.name == name.as_bytes()
                && symbol.version.unwrap() & VERSYM_VERSION == index_of_version;
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

/// The kernel's example (tools/testing/selftests/vDSO/parse_vdso.c) and its derivatives: DT_HASH with its chains.
fn parse_vdso(bytes: &[u8], name: &str, version: &str) -> Option<u64> {
    let elf = Elf::parse(bytes).unwrap();
    let table = elf.dynamic_offset(DT_HASH).unwrap();
    let buckets = word(bytes, table);
    let mut index = word(bytes, table + 4 * u64::from(2 + sysv_hash(name) % buckets));
    while index != 0 {
        let symbol = elf.symbol(index).unwrap();
        let fits = matches!(symbol.kind, STT_FUNC | STT_NOTYPE)
            && matches!(symbol.binding, STB_GLOBAL | STB_WEAK)
            && symbol.section != SHN_UNDEF
            && symbol.name == name.as_bytes()
            && has_version(&elf, &symbol, version);
        if fits {
            return Some(symbol.value);
        }
        index = word(bytes, table + 4 * u64::from(2 + buckets + index));
    }
    None
}

fn images() -> impl Iterator<Item = &'static Image> {
    Isa::ALL.into_iter().filter_map(Image::for_isa)
}

fn instance(image: &Image, kernel: KernelFunctions) -> Instance {
    let options = InstanceConfig {
        kernel,
        ..InstanceConfig::at(Placement::at(0x7000_0000))
    };
    Instance::new(image, &options).unwrap()
}

fn with_everything(image: &Image) -> Instance {
    instance(image, KernelFunctions::from_fn(|_| Some(0x1000)))
}

fn of_kernel(vdso: &Vdso, base: u64) -> Instance {
    let image = Image::host();
    instance(image, KernelFunctions::from_vdso(vdso, base))
}

/// Returns the names and versions of an image's exports.
fn functions(image: &Image) -> Vec<(String, String)> {
    let vdso = Vdso::parse(image.bytes()).unwrap();
    let functions = vdso.exports().iter().filter(|export| export.is_function);
    functions
        .map(|export| (export.name.clone(), export.version.clone().expect("versioned")))
        .collect()
}

#[test]
fn every_loader_finds_every_function() {
    for image in images() {
        let (isa, instance) = (image.isa(), with_everything(image));
        let vdso = Vdso::parse(instance.bytes()).unwrap();
        let functions = functions(image);
        assert!(functions.len() >= 5);
        for (loader, look_up) in LOOKUPS {
            for (name, version) in &functions {
                let found = look_up(instance.bytes(), name, version);
                assert!(found.is_some(), "{isa}: {loader} does not find {name}");
                assert_eq!(found, vdso.find(name), "{isa}: {loader}: {name}");
                assert_eq!(found, image.symbol(name), "{isa}: {loader}: {name}");
            }
            let (_, version) = &functions[0];
            assert_eq!(
                look_up(instance.bytes(), "__vdso_no_such_thing", version),
                None,
                "{isa}: {loader}"
            );
        }
    }
}

#[test]
fn what_the_kernel_does_not_have_no_loader_finds() {
    for image in images() {
        let instance = instance(image, KernelFunctions::NONE);
        for (loader, look_up) in LOOKUPS {
            for (name, version) in functions(image) {
                let facts = image.isa().facts();
                let plain = name.strip_prefix(facts.prefix).unwrap_or(&name);
                let is_forwarder = facts.forwarded.contains(&plain);
                assert_eq!(
                    look_up(instance.bytes(), &name, &version).is_none(),
                    is_forwarder,
                    "{}: {loader}: {name}",
                    image.isa()
                );
            }
        }
    }
}

#[test]
fn our_image_is_told_from_the_kernels() {
    let kernel = own_vdso().unwrap().expect("these tests need a kernel with a vDSO");
    let instance = of_kernel(&kernel.vdso, kernel.base);
    assert!(is_fastpath(instance.bytes()));
    assert_eq!(page_abi(instance.bytes()), Some(fastpath_page::layout::ABI));
    assert!(!is_fastpath(&kernel.bytes));
    assert!(!is_fastpath(b"not an ELF file"));
}

#[test]
fn a_page_beyond_the_codes_reach_is_refused() {
    const GIB: i64 = 1 << 30;
    for image in images() {
        let with_page_at = |page_offset| {
            let placement = Placement {
                address: 0x1000_0000,
                page_offset,
            };
            Instance::new(image, &InstanceConfig::at(placement))
        };
        let isa = image.isa();
        let reach = isa.facts().page_reach.0.next_power_of_two() as i64;
        assert!(
            reach
                == if isa == Isa::Aarch64 || !isa.is_64() {
                    4 * GIB
                } else {
                    2 * GIB
                }
        );
        let (within, beyond) = (reach - GIB, reach);
        assert!(with_page_at(within).is_ok() && with_page_at(-within).is_ok(), "{isa}");
        assert!(with_page_at(beyond).is_err() && with_page_at(-beyond).is_err(), "{isa}");
        if !isa.is_64() {
            // Modulo 4 GiB, both are the same page.
            let above = with_page_at(3 * GIB).unwrap();
            assert_eq!(above.bytes(), with_page_at(-GIB).unwrap().bytes(), "{isa}");
        }
    }
}
