//! The ABI is unchanged: names, versions, sizes, offsets and numbers are the same in the header, the libraries and
//! Rust.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::process::Command;

use crate::{destination, libraries, run, source, text, versioned};
use fastpath::*;

#[test]
fn the_shared_library_exports_the_list_and_nothing_else() {
    let output = run(Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(libraries().join("libfastpath.so")));
    let mut exported: Vec<(String, String)> = text(&output)
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, _, _, kind, _, _, section, name, ..] = fields[..] else {
                return None;
            };
            let (name, version) = name.split_once("@@").unwrap_or((name, "none"));
            let is_exported = kind == "FUNC" || kind == "NOTYPE" || kind == "OBJECT";
            // The version's own symbol is absolute.
            (is_exported && section.parse::<u32>().is_ok()).then(|| (name.to_owned(), version.to_owned()))
        })
        .collect();
    exported.sort();
    assert_eq!(exported, versioned());
}

#[test]
fn the_shared_library_is_found_by_its_major_version() {
    let output = run(Command::new("readelf")
        .args(["--dynamic", "--wide"])
        .arg(libraries().join("libfastpath.so")));
    let soname = format!("[libfastpath.so.{}]", env!("CARGO_PKG_VERSION_MAJOR"));
    assert!(text(&output).contains(&soname), "{}", text(&output));
    let file = libraries()
        .join("libfastpath.so")
        .canonicalize()
        .expect("a link to the library");
    let name = format!("libfastpath.so.{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(file.file_name().and_then(|name| name.to_str()), Some(&*name));
}

#[test]
fn the_static_library_brings_no_symbol_of_anybody_elses() {
    let output = run(Command::new("readelf")
        .args(["--symbols", "--wide"])
        .arg(libraries().join("libfastpath.a")));
    let mut defined: Vec<String> = text(&output)
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, _, _, _, "GLOBAL" | "WEAK", _, section, name] = fields[..] else {
                return None;
            };
            (section != "UND").then(|| name.to_owned())
        })
        .collect();
    defined.sort();
    let listed: Vec<String> = versioned().into_iter().map(|(name, _)| name).collect();
    assert_eq!(defined, listed);
}

#[test]
fn the_header_declares_each_function_of_the_list_and_no_other() {
    let header = std::fs::read_to_string(destination().join("usr/include/fastpath.h")).expect("the header");
    let mut declared: Vec<&str> = header
        .lines()
        // A declaration begins a line, with its type.
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("fastpath_"))
        .collect();
    declared.sort_unstable();
    let listed = versioned();
    let listed: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(declared, listed);
}

#[test]
fn the_version_is_the_same_everywhere() {
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let expected = number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"));
    assert_eq!(fastpath_version(), expected);
    assert_eq!(crate::pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    compile_assertions(&format!("_Static_assert(FASTPATH_VERSION == {expected}, \"\");\n"));
}

macro_rules! layout {
    ($text:ident, $rust:ident as $c:literal: $($field:ident),+) => {
        let _ = writeln!($text, "_Static_assert(sizeof({}) == {}, \"size of {}\");", $c, size_of::<$rust>(), $c);
        let _ = writeln!($text, "_Static_assert(_Alignof({}) == {}, \"alignment of {}\");", $c, align_of::<$rust>(), $c);
        $(let _ = writeln!(
            $text,
            "_Static_assert(offsetof({}, {}) == {}, \"{} of {}\");",
            $c, stringify!($field), offset_of!($rust, $field), stringify!($field), $c
        );)+
    };
}

#[test]
fn every_struct_lies_in_c_as_in_rust() {
    let mut text = String::new();
    layout!(text, Function as "struct fastpath_function": name, offset, size);
    layout!(text, KernelFunction as "struct fastpath_kernel_function": name, address);
    layout!(text, InstanceOptions as "struct fastpath_instance_options": size, flags, address, page_offset, cpu_features,
        kernel_function_count, kernel_functions);
    layout!(text, CAnswers as "struct fastpath_answers": size, reserved, page, store, context);
    layout!(text, CSite as "struct fastpath_site": size, is_proven, address, number, is_argument, reason);
    layout!(text, CPatch as "struct fastpath_patch": size, length, address, original, replacement, thunk_length, reserved, thunk);
    layout!(text, PageOptions as "struct fastpath_page_options": size, flags, hres_res_ns, coarse_res_ns, cpu, node);
    layout!(text, CWithdrawal as "struct fastpath_withdrawal": boottime_ns, ahead_ns, reason, reserved);
    layout!(text, Verdict as "struct fastpath_verdict": size, distrust, warp_cycles, cpu_features, cpus, cpus_tested, reserved);
    layout!(text, PublisherOptions as "struct fastpath_publisher_options": size, flags, clocks, fraction_bits, multiplier, offset,
        read_counter, read_clock, context);
    layout!(text, CBracket as "struct fastpath_bracket": before_cycles, time_ns, after_cycles);
    layout!(text, CSample as "struct fastpath_sample": size, clocks, monotonic, realtime, monotonic_raw, boottime, tai);
    layout!(text, CTrap as "struct fastpath_trap": size, clock_id, image, image_address, pc, answered_ns);
    layout!(text, CState as "struct fastpath_state": size, clocks, withdrawn_reason, seeded, refreshes, residual_ns, age_ns, cap_ns,
        drift_ns, next_window_ns, ns_per_cycle);
    let mut number = |name: &str, value: i64| {
        let _ = writeln!(text, "_Static_assert({name} == {value}, \"{name}\");");
    };
    number("sizeof(fastpath_publisher)", PUBLISHER_SIZE as i64);
    number("_Alignof(fastpath_publisher)", PUBLISHER_ALIGN as i64);
    number("FASTPATH_PUBLISHER_SIZE", PUBLISHER_SIZE as i64);
    number("FASTPATH_PUBLISHER_ALIGN", PUBLISHER_ALIGN as i64);
    number("FASTPATH_WITHDRAWALS", WITHDRAWALS as i64);
    number("FASTPATH_PAGE_SIZE", fastpath_page::PAGE_SIZE as i64);
    number(
        "FASTPATH_PAGE_OFFSET_DEFAULT",
        fastpath_image::Image::DEFAULT_PAGE_OFFSET,
    );
    number(
        "FASTPATH_PAGE_CPU_SEGMENT",
        fastpath_page::layout::FLAG_CPU_SEGMENT.into(),
    );
    number("FASTPATH_PAGE_ONE_CPU", fastpath_page::layout::FLAG_ONE_CPU.into());
    number("FASTPATH_CLOCKS_ALL", fastpath_page::ClockSet::ALL.0.into());
    number("FASTPATH_INSTANCE_NO_CLOCKS", INSTANCE_NO_CLOCKS.into());
    number("FASTPATH_INSTANCE_CPU_FEATURES", INSTANCE_CPU_FEATURES.into());
    number("FASTPATH_CPU_RDTSCP", CPU_RDTSCP.into());
    number("FASTPATH_CPU_CNTVCTSS", CPU_CNTVCTSS.into());
    number("FASTPATH_CPU_FENCE", CPU_FENCE.into());
    number("FASTPATH_ON_DEMAND", ON_DEMAND.into());
    number("FASTPATH_EXAMINE_CPUS", EXAMINE_CPUS.into());
    number("FASTPATH_TRUST_COUNTER", TRUST_COUNTER.into());
    number("FASTPATH_NOT_INVARIANT", NOT_INVARIANT.into());
    number("FASTPATH_NOT_READABLE", NOT_READABLE.into());
    number("FASTPATH_WARP", WARP.into());
    number("FASTPATH_COUNTER_TRAPS", COUNTER_TRAPS.into());
    number("FASTPATH_NOT_COMPARED", NOT_COMPARED.into());
    number(
        "FASTPATH_REASON_HOST",
        fastpath_publish::host::Reason::FIRST_OF_HOST.into(),
    );
    for (name, error) in [
        ("EINVAL", Error::INVALID),
        ("ESIZE", Error::SIZE),
        ("ENOSPACE", Error::NO_SPACE),
        ("EPLACEMENT", Error::PLACEMENT),
        ("EBUSY", Error::BUSY),
        ("ESAMPLE", Error::SAMPLE),
        ("EPAGE", Error::PAGE),
        ("ECOUNTER", Error::COUNTER),
        ("ESTORE", Error::STORE),
    ] {
        number(&format!("FASTPATH_{name}"), error.0.into());
    }
    number("FASTPATH_PATCH_SIZE", PATCH_SIZE as i64);
    number("FASTPATH_THUNK_SIZE", THUNK_SIZE as i64);
    number("FASTPATH_ANSWERS_SIZE", ANSWERS_SIZE as i64);
    number("FASTPATH_ANSWERS_OFFSET", ANSWERS_OFFSET);
    number("FASTPATH_RING_OFFSET", RING_OFFSET);
    number("FASTPATH_ANSWERS_DESCRIPTORS", ANSWERS_DESCRIPTORS.into());
    number("FASTPATH_CREDENTIALS", CREDENTIALS.into());
    for identity in fastpath_page::answers::Identity::ALL {
        let name = format!("FASTPATH_{identity:?}").to_uppercase();
        number(&name, identity as i64);
    }
    for isa in fastpath_image::Isa::ALL {
        let name = format!("FASTPATH_{}", isa.name().to_uppercase());
        number(&name, number_of(isa).into());
    }
    compile_assertions(&text);
}

fn compile_assertions(text: &str) {
    let file = destination().join(format!("assertions-{:?}.c", std::thread::current().id()));
    std::fs::write(&file, format!("#include <fastpath.h>\n{text}")).expect("a file in the target directory");
    run(Command::new("cc")
        .args(["-std=c11", "-Werror", "-fsyntax-only", "-I"])
        .arg(destination().join("usr/include"))
        .arg(file));
}

#[test]
fn the_header_is_c11_and_cpp17_without_a_warning() {
    let compilers: [(&str, &[&str]); 3] = [
        ("gcc", &["-std=c11", "-xc"]),
        ("clang", &["-std=c11", "-xc", "-Wconversion"]),
        ("clang", &["-std=c++17", "-xc++", "-Wconversion"]),
    ];
    for (compiler, arguments) in compilers {
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .args(arguments)
            .arg(source().join("include/fastpath.h")));
    }
}

#[test]
fn no_function_name_of_any_image_is_too_long_for_the_header() {
    for isa in fastpath_image::Isa::ALL {
        let Some(image) = fastpath_image::Image::for_isa(isa) else {
            continue;
        };
        assert!(!image.functions().is_empty());
        assert!(
            image.functions().iter().all(|function| function.name.len() < 32),
            "{isa}"
        );
    }
}
