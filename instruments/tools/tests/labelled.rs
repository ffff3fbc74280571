//! Precision, on programs whose label is known: every libc, language and vintage that packages and compilers provide.
//! The audit must give no false finding and miss none.
//!
//! Programs that are not available here are recorded in the file that FASTPATH_SKIPS names.

#[path = "../../../tests/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::Command;

use fastpath_image::Isa;
use fastpath_tools::audit::{AuditOptions, AuditRule, Progress, audit};
use skip::skip;

/// The rules that must be found; may be empty.
type Label = &'static [&'static str];

const CLEAN: Label = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Runs a command and returns its output if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.current_dir(root()).output().ok()?;
    if !output.status.success() {
        eprintln!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Asserts that the file has its label.
fn check(file: &Path, label: Label) {
    let options = AuditOptions {
        with_programs: true,
        ..AuditOptions::default()
    };
    let report = audit(&[file.to_owned()], &options, &Progress::default());
    let rules = report.findings.iter().map(|finding| finding.rule.id());
    // Some large programs, such as node, count cycles.
    let found: Vec<_> = rules
        .filter(|rule| *rule != "counter-read" || label.contains(rule))
        .collect();
    assert_eq!(
        found,
        label,
        "{}: {:?} {:?}",
        file.display(),
        report.findings,
        report.programs
    );
    assert_eq!(report.summary.programs, 1, "{}: {:?}", file.display(), report.unjudged);
}

/// Programs and libraries of Debian: their package, their path, and their label.
#[test]
#[ignore = "fetches packages, and takes 25 s"]
fn packages_of_four_isas_and_two_releases_are_judged_rightly() {
    const STATIC: Label = &["static-without-vdso"];
    const MUSL: Label = &["libc-without-vdso"];
    const STATIC_MUSL: Label = &["static-musl-without-vdso"];
    const PACKAGES: &str = "busybox-static bash-static zsh-static sash libc6 musl mksh";
    for (release, arches) in [
        ("bookworm", &["amd64", "i386", "arm64", "armhf"][..]),
        ("trixie", &["amd64", "armhf"]),
    ] {
        for (arch, gnu, musl) in [
            ("amd64", "x86_64-linux-gnu", "x86_64-linux-musl"),
            ("i386", "i386-linux-gnu", "i386-linux-musl"),
            ("arm64", "aarch64-linux-gnu", "aarch64-linux-musl"),
            ("armhf", "arm-linux-gnueabihf", "arm-linux-musleabihf"),
        ] {
            if !arches.contains(&arch) {
                continue;
            }
            // musl before 1.2.4 does not look for the vDSO on Arm.
            let is_old_musl = arch == "armhf" && release != "trixie";
            // One run of apt-get for all, which saves a minute; the reason why one is not available is printed below.
            let _ = Command::new(root().join("scripts/debian-packages"))
                .args([release, arch])
                .args(PACKAGES.split(' '))
                .output();
            // On the other architectures, klibc and dietlibc have one system call for all numbers, which is a
            // documented limit.
            let has_own_calls = arch == "arm64";
            for (package, file, label) in [
                ("busybox-static", "bin/busybox".to_owned(), CLEAN),
                ("bash-static", "bin/bash-static".to_owned(), CLEAN),
                ("zsh-static", "bin/zsh-static".to_owned(), CLEAN),
                ("sash", "bin/sash".to_owned(), CLEAN),
                ("libc6", format!("lib/{gnu}/libc.so.6"), CLEAN),
                ("libc6", format!("lib/{gnu}/libpthread.so.0"), CLEAN),
                ("libc6", format!("lib/{gnu}/librt.so.1"), CLEAN),
                (
                    "musl",
                    format!("lib/{musl}/libc.so"),
                    if is_old_musl { MUSL } else { CLEAN },
                ),
                (
                    "mksh",
                    format!("lib/{musl}/bin/mksh"),
                    if is_old_musl { STATIC_MUSL } else { CLEAN },
                ),
                (
                    "mksh",
                    "lib/diet/bin/mksh".to_owned(),
                    if has_own_calls { STATIC } else { CLEAN },
                ),
                (
                    "mksh",
                    "lib/klibc/bin/mksh".to_owned(),
                    if has_own_calls { STATIC } else { CLEAN },
                ),
            ] {
                let mut fetch = Command::new("scripts/debian-packages");
                let Some(folder) = output(fetch.args([release, arch, package])) else {
                    skip(format_args!("{package} of {release} for {arch} is not to be had"));
                    continue;
                };
                let file = Path::new(&folder).join(file);
                if file.exists() {
                    check(&file, label);
                } else {
                    // Not every release built every flavour.
                    eprintln!("{release}'s {package} for {arch} has no {}", file.display());
                }
            }
        }
    }
}

/// Programs that make the call themselves: compiled from `labelled/own.c`, without a C library.
#[test]
fn programs_that_make_the_call_themselves_are_found_on_every_isa() {
    let directory = tempfile::tempdir().unwrap();
    let mut programs: Vec<(Isa, &str, Label)> = vec![
        (Isa::X86_64, "-DWAY=2", &["vsyscall-page"]),
        (Isa::X86_64, "-DWAY=3", &["static-glibc-without-vdso"]),
        (Isa::Arm, "-mthumb -DWAY=1", &["static-without-vdso"]),
        (Isa::Arm, "-mthumb -DWAY=0", CLEAN),
    ];
    for isa in Isa::ALL {
        programs.push((isa, "-DWAY=1", &["static-without-vdso"]));
        programs.push((isa, "-DWAY=0", CLEAN));
    }
    for (isa, flags, label) in programs {
        let target = isa.facts().clang_target;
        for level in ["-O0", "-O2", "-Os"] {
            let file = directory.path().join("program");
            let mut clang = Command::new("clang");
            clang
                .arg(format!("--target={target}"))
                .args(isa.facts().machine_flags)
                .args(flags.split(' '))
                .arg(level);
            clang.args([
                "-nostdlib",
                "-static",
                "-ffreestanding",
                "-fno-stack-protector",
                "-fuse-ld=lld",
            ]);
            clang.arg("instruments/tools/tests/labelled/own.c").arg("-o").arg(&file);
            if output(&mut clang).is_none() {
                skip(format_args!("clang and lld build nothing for {target}"));
                continue;
            }
            // Without optimisation, a constant goes through memory, which the audit does not follow.
            if level == "-O0" && label == ["vsyscall-page"] {
                continue;
            }
            check(&file, label);
        }
    }
}

/// A dynamic program is clean, unless its own code makes the call, or reads the counter.
#[test]
fn programs_of_this_machines_compilers_are_judged_rightly() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("program");
    let clock = "tests/programs/clock.c";
    let own = "instruments/tools/tests/labelled/beside.c";
    let counter = "cli/tests/e2e/helpers/own-counter.c";
    for (tool, flags, source, label) in [
        ("cc", "-O2 -pthread -D_GNU_SOURCE", clock, CLEAN),
        ("cc", "-O2 -pthread -D_GNU_SOURCE -static", clock, CLEAN),
        ("cc", "-O2 -pthread -D_GNU_SOURCE -static-pie", clock, CLEAN),
        ("musl-gcc", "-O2 -pthread -D_GNU_SOURCE", clock, CLEAN),
        ("musl-gcc", "-O2 -pthread -D_GNU_SOURCE -static", clock, CLEAN),
        ("cc", "-O2", own, &["own-system-call"]),
        ("cc", "-O2 -DWITH_PART_OF_MUSL -shared -fPIC", own, &["own-system-call"]),
        ("cc", "-O2", counter, &["counter-as-clock"]),
        ("cc", "-O2 -static", counter, &["counter-as-clock"]),
        ("cc", "-O2 -DAS_SEED", counter, &["counter-read"]),
        ("rustc", "-O --edition 2024", "tests/programs/clock.rs", CLEAN),
    ] {
        if own == source && !cfg!(target_arch = "x86_64") {
            continue;
        }
        let mut compiler = Command::new(tool);
        compiler.args(flags.split(' ')).arg(source).arg("-o").arg(&file);
        if output(&mut compiler).is_none() {
            skip(format_args!("{tool} {flags} builds nothing here"));
            continue;
        }
        check(&file, label);
    }
    for program in ["node", "java", "python3", "perl"] {
        let Some(found) = output(Command::new("sh").args(["-c", &format!("readlink -f \"$(command -v {program})\"")]))
        else {
            continue;
        };
        // It may be a script that chooses among versions.
        if std::fs::read(&found).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")) {
            check(Path::new(&found), CLEAN);
        }
    }
}

#[test]
fn a_note_on_the_counter_names_the_known_code_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "cli/tests/e2e/helpers/own-counter.c", "-o"]);
    if output(compiler.arg(&file)).is_none() {
        return skip("cc builds nothing here");
    }
    let said = || {
        let report = audit(
            std::slice::from_ref(&file),
            &AuditOptions::default(),
            &Progress::default(),
        );
        let notes = report
            .findings
            .iter()
            .filter(|finding| finding.rule == AuditRule::CounterAsClock);
        notes.map(|note| note.names_family()).collect::<Vec<_>>()
    };
    assert_eq!(said(), [None]);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend_from_slice(b"/root/.cargo/registry/src/index/quanta-0.12.6/src/lib.rs");
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(said(), [Some("It contains quanta.".to_owned())]);
}

/// Go looks for the vDSO itself, since Go 1.11 on all four.
#[test]
#[ignore = "takes 20 s"]
fn gos_runtime_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("program");
    for (toolchain, arch) in [
        ("local", "amd64"),
        ("local", "386"),
        ("local", "arm64"),
        ("local", "arm"),
        ("go1.21.13", "amd64"),
    ] {
        let mut go = Command::new("sh");
        go.args(["-c", "cd tests/programs/clock-go && exec go build -o \"$0\" ."])
            .arg(&file);
        go.env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", toolchain)
            .env("GOARCH", arch);
        if output(&mut go).is_none() {
            skip(format_args!("Go ({toolchain}) builds nothing for {arch} here"));
            continue;
        }
        check(&file, CLEAN);
    }
}
