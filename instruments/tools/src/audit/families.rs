//! Known code that reads the CPU's counter, by words in a file that prove that it is there.

use std::io;

use memchr::memmem;

use fastpath_code::bytes::{self, Bytes};

/// A library, or a part of a program, that reads the counter itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Whether it tests the counter all the time: then its times are right where other programs' are not.
    pub is_checked: bool,
    /// Any of these is a proof.
    words: &'static [&'static [u8]],
}

/// All of them. A Rust program has the paths of its crates in the messages of its panics, stripped or not. A function's
/// name is in a library that exports it or a program that calls it there, and in a program that is not stripped.
///
/// | family | where the words come from |
/// |---|---|
/// | quanta, minstant, fastant | the crates' src/lib.rs and src/tsc_now.rs, and the mangled names of their functions |
/// | Abseil | class `UnscaledCycleClock` of absl/base/internal/unscaledcycleclock.h |
/// | DPDK | `rte_get_tsc_hz` of lib/eal/include/generic/rte_cycles.h |
/// | UCX | `ucs_arch_get_clocks_per_sec` of src/ucs/arch/cpu.h |
/// | Valkey, Redis | what src/monotonic.c logs of its clock, if built with USE_PROCESSOR_CLOCK |
/// | PostgreSQL | variables of src/common/instr_time.c, which the server of version 19 exports to its extensions |
/// | HotSpot | the flag of its flight recorder's clock, src/hotspot/share/runtime/globals.hpp |
/// | fastpath | the name of its page (`fastpath_page::MEMFD_NAME`): its programs test the counter all the time |
static FAMILIES: [Family; 10] = [
    clock("quanta", &[b"/quanta-0.", b"_ZN6quanta"]),
    clock("minstant", &[b"/minstant-0.", b"_ZN8minstant"]),
    clock("fastant", &[b"/fastant-0.", b"_ZN7fastant"]),
    clock("Abseil", &[b"UnscaledCycleClock"]),
    clock("DPDK", &[b"rte_get_tsc_hz"]),
    clock("UCX", &[b"ucs_arch_get_clocks_per_sec"]),
    clock("Valkey's and Redis's clock", &[b"X86 TSC @ %", b"ARM CNTVCT @ %"]),
    clock("PostgreSQL's timing clock", &[b"timing_tsc_enabled"]),
    clock("HotSpot's flight recorder", &[b"UseFastUnorderedTimeStamps"]),
    FASTPATH,
];
/// It contains the words of the others.
const FASTPATH: Family = Family {
    is_checked: true,
    ..clock("fastpath", &[b"fastpath-page"])
};

const fn clock(name: &'static str, words: &'static [&'static [u8]]) -> Family {
    Family {
        name,
        is_checked: false,
        words,
    }
}

/// Most bytes of a file that are searched: those of larger ones are debug information.
const SEARCHED: u64 = 256 << 20;

/// Returns the families that a file contains.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn find<B: Bytes + ?Sized>(bytes: &B) -> io::Result<Vec<&'static Family>> {
    const LONGEST: u64 = 64;
    let mut found = [false; FAMILIES.len()];
    bytes::in_pieces(bytes, 0, bytes.length().min(SEARCHED), (0, LONGEST), |piece| {
        for (family, found) in FAMILIES.iter().zip(&mut found) {
            *found = *found
                || family
                    .words
                    .iter()
                    .any(|word| memmem::find(piece.bytes, word).is_some());
        }
    })?;
    let found = FAMILIES.iter().zip(found).filter(|(_, found)| *found);
    let found: Vec<&Family> = found.map(|(family, _)| family).collect();
    let is_own = found.iter().any(|family| family.is_checked);
    Ok(found.into_iter().filter(|family| family.is_checked == is_own).collect())
}

impl serde::Serialize for Family {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl schemars::JsonSchema for Family {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Family".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_named_by_its_words_and_not_by_its_bare_name() {
        let found = |text: &str| -> Vec<&str> {
            let families = find(text.as_bytes()).unwrap().into_iter();
            families.map(|family| family.name).collect()
        };
        assert_eq!(
            found("/index.crates.io-1949cf8c6b5b557f/quanta-0.12.6/src/lib.rs"),
            ["quanta"]
        );
        assert_eq!(found("\0rte_get_tsc_hz\0 X86 TSC @ %ld ticks/us").len(), 2);
        assert_eq!(found("\0timing_tsc_enabled\0"), ["PostgreSQL's timing clock"]);
        assert_eq!(found("fastpath-page /quanta-0."), ["fastpath"]);
        assert_eq!(found("quanta, minstant, DPDK, redis"), [""; 0]);
    }
}
