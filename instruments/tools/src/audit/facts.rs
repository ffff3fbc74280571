//! Facts about a file apart from its code: the names of the vDSO's functions that it looks up, and the runtime that is
//! linked into it.

use std::io;

use memchr::memmem;

use fastpath_code::bytes::{self, Bytes};
use fastpath_code::calls::TimeCall;
use fastpath_code::elf::{Elf, Kind};

/// The functions of the vDSO that a file contains by name, as a lookup requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Lookups {
    /// `clock_gettime`.
    pub clock_gettime: bool,
    /// `gettimeofday`.
    pub gettimeofday: bool,
    /// `time`.
    pub time: bool,
}

impl Lookups {
    /// Returns whether the file looks for any of them. Then its system calls are fallbacks: musl's clock_gettime, for
    /// instance, ends in gettimeofday where the kernel is too old for clock_gettime.
    pub fn any(self) -> bool {
        self.clock_gettime || self.gettimeofday || self.time
    }
}

/// The language runtime in a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Runtime {
    /// `glibc`, `musl`, `go`.
    pub name: &'static str,
    /// A version (`1.2.5`) or a range of versions (`2.35 to 2.37`, `1.2.0 or newer`).
    pub version: Option<String>,
}

/// Result of [`of`].
#[derive(Debug, Default)]
pub(crate) struct FileFacts {
    pub lookups: Lookups,
    pub runtime: Option<Runtime>,
}

/// The names of the vDSO's functions, which start with `__vdso_` on x86 and Arm and with `__kernel_` on AArch64.
const LOOKUPS: [(&[u8], TimeCall); 5] = [
    (b"__vdso_clock_gettime", TimeCall::ClockGettime),
    (b"__kernel_clock_gettime", TimeCall::ClockGettime),
    (b"__vdso_gettimeofday", TimeCall::Gettimeofday),
    (b"__kernel_gettimeofday", TimeCall::Gettimeofday),
    (b"__vdso_time", TimeCall::Time),
];
const CLOCK_GETTIME64: &[u8] = b"__vdso_clock_gettime64";

/// Strings of every glibc since 2.26, and of the static ones before.
const GLIBC: [&[u8]; 2] = [b"GLIBC_TUNABLES", b"FATAL: kernel too old\n"];
/// The banner of musl's loader, which is in its shared library.
const MUSL_LOADER: &[u8] = b"musl libc (";
/// Strings of a static musl: an environment variable, and strerror's text for unknown numbers. A library that has them may
/// contain parts of musl that are no C library of its process, as Firefox's does (wasi-libc).
const STATIC_MUSL: [&[u8]; 2] = [b"MUSL_LOCPATH", b"No error information\0"];

/// Tunables with the minor version of glibc that introduced them. A static glibc does not state its version, but it
/// contains the names of all its tunables, and most releases have new ones. (glibc.rtld.nns is left out: distributions
/// have backported it.)
const TUNABLES: [(&[u8], u8); 9] = [
    (b"glibc.malloc.tcache_count", 26),
    (b"glibc.elision.enable", 27),
    (b"glibc.pthread.mutex_spin_count", 29),
    (b"glibc.mem.tagging", 33),
    (b"glibc.pthread.stack_cache_size", 34),
    (b"glibc.malloc.hugetlb", 35),
    (b"glibc.pthread.stack_hugetlb", 38),
    (b"glibc.rtld.enable_secure", 40),
    (b"glibc.rtld.execstack", 41),
];

/// Searches all mapped parts of a file.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn read<B: Bytes + ?Sized>(bytes: &B, elf: &Elf) -> io::Result<FileFacts> {
    const LONGEST: u64 = 64;
    let is_static = elf.kind == Kind::StaticProgram;
    let mut facts = FileFacts::default();
    let (mut is_glibc, mut is_musl, mut has_64) = (false, false, false);
    let mut newest = None;
    let mut stated = None;
    for part in &elf.mapped {
        bytes::in_pieces(bytes, part.offset, part.size, (0, LONGEST), |piece| {
            let has = |word: &[u8]| memmem::find(piece.bytes, word).is_some();
            // Every name in the table contains one of these, and few files contain either.
            if has(b"__vdso_") || has(b"__kernel_") {
                for (name, call) in LOOKUPS {
                    let known = match call {
                        TimeCall::Gettimeofday => &mut facts.lookups.gettimeofday,
                        TimeCall::Time => &mut facts.lookups.time,
                        _ => &mut facts.lookups.clock_gettime,
                    };
                    *known = *known || has(name);
                }
                has_64 = has_64 || has(CLOCK_GETTIME64);
            }
            is_glibc = is_glibc || GLIBC.iter().any(|word| has(word));
            is_musl = is_musl || has(MUSL_LOADER) || (is_static && STATIC_MUSL.iter().any(|word| has(word)));
            if has(b"glibc.") {
                newest = newest.max(
                    TUNABLES
                        .iter()
                        .filter(|(name, _)| has(name))
                        .map(|(_, minor)| *minor)
                        .max(),
                );
            }
            if stated.is_none() && has(MUSL_LOADER) {
                stated = fastpath_image::musl_version(piece.bytes);
            }
        })?;
    }
    facts.runtime = if let Some(version) = &elf.go {
        let version = version.strip_prefix("go").unwrap_or(version);
        Some(runtime("go", Some(version.to_owned())))
    } else if is_glibc {
        Some(runtime("glibc", Some(glibc_version(newest))))
    } else if is_musl {
        let is_32_bit = !elf.isa.is_64();
        // Since 1.2.0, time has 64 bits on every machine; where it did not before, the function's name says so.
        let generation =
            (is_32_bit && facts.lookups.any()).then_some(if has_64 { "1.2.0 or newer" } else { "before 1.2.0" });
        Some(runtime("musl", stated.or(generation.map(str::to_owned))))
    } else {
        None
    };
    Ok(facts)
}

fn runtime(name: &'static str, version: Option<String>) -> Runtime {
    Runtime { name, version }
}

/// Returns the version by the newest tunable in the file.
fn glibc_version(newest: Option<u8>) -> String {
    let Some(newest) = newest else {
        return "before 2.26".to_owned();
    };
    match TUNABLES.iter().map(|(_, minor)| *minor).find(|minor| *minor > newest) {
        Some(next) if next == newest + 1 => format!("2.{newest}"),
        Some(next) => format!("2.{newest} to 2.{}", next - 1),
        None => format!("2.{newest} or newer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_glibcs_version_follows_from_its_tunables() {
        assert_eq!(glibc_version(None), "before 2.26");
        assert_eq!(glibc_version(Some(29)), "2.29 to 2.32");
        assert_eq!(glibc_version(Some(33)), "2.33");
        assert_eq!(glibc_version(Some(35)), "2.35 to 2.37");
        assert_eq!(glibc_version(Some(41)), "2.41 or newer");
    }
}
