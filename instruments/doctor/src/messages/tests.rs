//! Lines of real logs, the table in the documentation, and the kernels' images.

use super::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn what_kernels_write_when_they_reject_a_counter_is_understood() {
    let lines = [
        (
            "tsc: Marking TSC unstable due to clocksource watchdog",
            CauseKind::Watchdog,
        ),
        (
            "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:",
            CauseKind::Watchdog,
        ),
        (
            "clocksource: timekeeping watchdog on CPU3: hpet read-back delay of 316000ns, attempt 4, marking unstable",
            CauseKind::Watchdog,
        ),
        (
            "clocksource: timekeeping watchdog on CPU227: wd-tsc-wd excessive read-back delay of 153560ns vs. limit of 125000ns, wd-wd \
             read-back delay only 11440ns, attempt 3, marking tsc unstable",
            CauseKind::Watchdog,
        ),
        (
            "clocksource: Marking clocksource tsc unstable due to frequency skew",
            CauseKind::Watchdog,
        ),
        (
            "clocksource: Marking clocksource tsc-early unstable due to inter CPU skew",
            CauseKind::Unsynchronized,
        ),
        (
            "tsc: Marking TSC unstable due to TSC halts in idle",
            CauseKind::NotInvariant,
        ),
        (
            "tsc: Marking TSC unstable due to TSC halts in idle states deeper than C2",
            CauseKind::NotInvariant,
        ),
        (
            "tsc: Marking TSC unstable due to TSC halt in AMD C1E",
            CauseKind::NotInvariant,
        ),
        (
            "tsc: Marking TSC unstable due to TSCs unsynchronized",
            CauseKind::Unsynchronized,
        ),
        (
            "tsc: Marking TSC unstable due to check_tsc_sync_source failed",
            CauseKind::Unsynchronized,
        ),
        (
            "Measured 28745 cycles TSC warp between CPUs, turning off TSC clock.",
            CauseKind::Unsynchronized,
        ),
        (
            "tsc: Marking TSC unstable due to boot parameter",
            CauseKind::CommandLine,
        ),
        (
            "tsc: Marking TSC unstable due to boot parameter notsc",
            CauseKind::CommandLine,
        ),
        ("tsc: Fast TSC calibration failed", CauseKind::NotCalibrated),
        (
            "[Firmware Bug]: TSC ADJUST differs: CPU0 0 --> -5. Restoring",
            CauseKind::Unsynchronized,
        ),
        ("arch_timer: CPU0: Trapping CNTVCT access", CauseKind::Trapped),
        (
            "arch_timer: Enabling global workaround for ARM erratum 858921",
            CauseKind::Trapped,
        ),
    ];
    for (line, kind) in lines {
        assert_eq!(explain(line).map(|message| message.kind), Some(kind), "{line}");
    }
    for line in [
        "clocksource: Switched to clocksource tsc",
        "tsc: Fast TSC calibration using PIT",
        "spectre: workaround for something",
        "clocksource: wd-tsc-wd read-back delay of 150000ns, clock-skew test skipped!",
        "clocksource: Watchdog hpet read timed out. Readout sequence took: 60000ns",
    ] {
        assert!(explain(line).is_none(), "{line}");
    }
}

/// FASTPATH_WRITE_DOCS=1 writes the table.
#[test]
fn the_table_in_the_docs_is_that_of_the_code() {
    let path = format!("{ROOT}/docs/doctor.md");
    let docs = std::fs::read_to_string(&path).expect("docs/doctor.md");
    const HEAD: &str = "| message contains | Linux | meaning | what helps |\n|---|---|---|---|\n";
    let (before, rest) = docs.split_once(HEAD).expect("the table's head");
    let (_, after) = rest.split_once("\n\"False").expect("the table's end");
    let rows: String = MESSAGES.iter().map(row).collect();
    let wanted = format!("{before}{HEAD}{rows}\n\"False{after}");
    if std::env::var_os("FASTPATH_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("docs/doctor.md");
    } else {
        assert!(docs == wanted, "run me with FASTPATH_WRITE_DOCS=1");
    }
}

fn row(message: &Message) -> String {
    let version = |(major, minor): Version| format!("{major}.{minor}");
    let kernels = match message.kernels {
        (FIRST, LAST) => "all".to_owned(),
        (FIRST, until) => format!("before {}", version(until)),
        (since, LAST) => format!("{} and newer", version(since)),
        (since, until) => format!("{}, before {}", version(since), version(until)),
    };
    let doubt = match message.can_be_false {
        true => format!("; {FALSE_ALARM}"),
        false => String::new(),
    };
    let (words, meaning) = (message.words, message.meaning);
    format!(
        "| `{words}` | {kernels} | {meaning}{doubt} | {} |\n",
        helps(message.kind)
    )
}

fn helps(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::Unsynchronized => {
            "`fastpath run`, if the differences are constant; newer firmware. Never `tsc=reliable`"
        }
        CauseKind::Watchdog => "`fastpath run`, if doctor finds no fault; `tsc=reliable` at your own risk",
        CauseKind::CommandLine => "remove the parameter",
        CauseKind::NotCalibrated => "`fastpath run`; newer firmware",
        CauseKind::Hypervisor => "a setting of the hypervisor, which doctor names",
        CauseKind::NotInvariant | CauseKind::Trapped => "nothing: that counter is not fit for clocks",
        CauseKind::Choice | CauseKind::StandIn => unreachable!("no message says so"),
    }
}

/// FASTPATH_KERNELS names Debian's releases whose kernels are examined, in place of bookworm.
#[test]
#[ignore = "fetches a kernel, and takes 12 s"]
fn the_kernels_images_have_all_known_messages_about_the_tsc() {
    let releases = std::env::var("FASTPATH_KERNELS").unwrap_or_else(|_| "bookworm".to_owned());
    for release in releases.split_whitespace() {
        let image = match image_of(release) {
            Ok(image) => image,
            Err(why) => {
                crate::skip::skip(format_args!("Debian's kernel ({release}): {why}"));
                continue;
            }
        };
        match decompressed(&image) {
            Ok(kernel) => examine(version_of(&image), &kernel, release),
            Err(why) => crate::skip::skip(format_args!("{}: {why}", image.display())),
        }
    }
}

/// Returns the image of a release's kernel.
fn image_of(release: &str) -> Result<PathBuf, String> {
    const KERNEL: &str = "linux-image-cloud-amd64+";
    let unpack = |package: &str| {
        let output = Command::new(format!("{ROOT}/scripts/debian-packages"))
            .args([release, "amd64", package])
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let root = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then(|| PathBuf::from(root)).ok_or(said)
    };
    let root = unpack(KERNEL)?;
    let names = std::fs::read_to_string(root.join(".packages").join(KERNEL)).map_err(|error| error.to_string())?;
    let mut words = names.split_whitespace();
    let version = words.find_map(|name| {
        name.strip_prefix("linux-image-")
            .filter(|rest| rest.starts_with(char::is_numeric))
    });
    let version = version.ok_or("the package names no kernel")?;
    let image = root.join(format!("boot/vmlinuz-{version}"));
    if image.exists() {
        return Ok(image);
    }
    // Since Debian 14 the kernel itself is in a separate package.
    unpack(&format!("linux-binary-{version}"))?;
    Ok(root.join(format!("usr/lib/modules/{version}/vmlinuz")))
}

/// Returns the first two numbers of an image's version, which its path contains.
fn version_of(image: &Path) -> Version {
    let path = image.to_string_lossy();
    let parts = path
        .split(['/', '-'])
        .filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
    let numbers: Vec<u32> = parts
        .filter(|part| part.contains('.'))
        .flat_map(|part| part.split('.').map(|digits| digits.parse().unwrap_or(0)))
        .collect();
    assert!(numbers.len() >= 2, "{path}");
    (numbers[0], numbers[1])
}

/// Returns the kernel that an image unpacks when it is booted (Documentation/arch/x86/boot.rst).
fn decompressed(image: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::read(image)?;
    let word = |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]) as usize;
    let begin = (usize::from(file[0x1f1]) + 1) * 512 + word(0x248);
    let payload = &file[begin..begin + word(0x24c)];
    let program = match payload {
        [0x28, 0xb5, ..] => "zstd",
        [0x02, 0x21, ..] => "lz4",
        [0xfd, b'7', ..] => "xz",
        _ => "gzip",
    };
    // What follows the compressed data is its length, which these programs complain about.
    let packed = std::env::temp_dir().join(format!("fastpath-kernel-{}", std::process::id()));
    std::fs::write(&packed, payload)?;
    let output = Command::new(program)
        .args(["-d", "-c"])
        .stdin(std::fs::File::open(&packed)?)
        .stderr(Stdio::null())
        .output();
    std::fs::remove_file(&packed)?;
    let unpacked = output?.stdout;
    assert!(
        unpacked.starts_with(b"\x7fELF"),
        "{program} did not unpack {}",
        image.display()
    );
    Ok(unpacked)
}

fn examine(version: Version, image: &[u8], release: &str) {
    let has = |words: &str| image.windows(words.len()).any(|window| window == words.as_bytes());
    for message in MESSAGES {
        // Reasons are inserted into another string; those of modules and of other architectures are not in the image.
        let words = message.words.strip_prefix("due to ").unwrap_or(message.words);
        let is_elsewhere = words.contains("KVM") || message.kind == CauseKind::Trapped;
        let (since, until) = message.kernels;
        let expected = (since..until).contains(&version);
        assert!(
            is_elsewhere || has(words) == expected,
            "{release}: {words:?} must {} be in it",
            if expected { "" } else { "not" }
        );
    }
    let strings = image.split(|byte| !(b' '..=b'~').contains(byte));
    let about_tsc = |text: &&str| {
        text.contains("unstable")
            && ["clocksource", "TSC", "tsc"].iter().any(|word| text.contains(word))
            && text.contains(' ')
    };
    for text in strings
        .filter_map(|bytes| std::str::from_utf8(bytes).ok())
        .filter(about_tsc)
    {
        let others = ["Override clocksource", "VDSO_CLOCKMODE_PVCLOCK"];
        let is_other = others.iter().any(|words| text.contains(words));
        assert!(is_other || explain(text).is_some(), "{release}: unknown: {text}");
    }
}
