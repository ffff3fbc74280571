//! The kernel's messages about clocks: from its own buffer, or else from the file of a log daemon.

use super::facts::KernelLog;
use super::root::{Root, permission};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KMSG: &str = "/dev/kmsg";
/// Files where a syslog daemon stores the kernel's messages, and where some distributions store those of the boot.
const FILES: [&str; 3] = ["/var/log/kern.log", "/var/log/dmesg", "/var/log/messages"];
/// Bytes read from the end of a log file.
const TAIL: u64 = 8 << 20;
/// Longest wait for journalctl.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Most lines that are kept.
const MOST_LINES: usize = 40;

/// Returns the log's lines about clocks. If no source can be read, each one is listed as not visible.
pub(super) fn read(root: &Root) -> Option<KernelLog> {
    let mut refused = Vec::new();
    let mut note = |source: &str, error: io::Error| refused.push((source.to_owned(), error));
    match read_kmsg(root) {
        Ok(text) => return Some(of_kmsg(&text)),
        Err(error) => note(KMSG, error),
    }
    if root.is_host() {
        match read_syslog() {
            Ok(text) => return Some(of_text("syslog(2)", &text)),
            Err(error) => note("syslog(2)", error),
        }
    }
    for file in FILES {
        match tail(root, file) {
            Ok(text) if text.contains("Linux version") => return Some(of_text(file, since_boot(&text))),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => note(file, error),
            _ => {}
        }
    }
    if root.is_host() {
        match journal() {
            Ok(text) if !text.trim().is_empty() => return Some(of_text("journalctl -k -b", &text)),
            Ok(_) => note(
                "journalctl -k -b",
                io::Error::other("it shows this user none of the kernel's messages"),
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => note("journalctl -k -b", error),
        }
    }
    let sources: Vec<&str> = refused.iter().map(|(source, _)| source.as_str()).collect();
    let first = refused.first().map(|(_, error)| error.to_string()).unwrap_or_default();
    root.miss(
        "the kernel's log, which says why a clocksource was rejected",
        &sources.join(", "),
        &first,
        &permission(
            "CAP_SYSLOG",
            "run doctor as root, or look at `sudo dmesg | grep -iE 'tsc|clocksource'`",
        ),
    );
    None
}

/// Reads the device. Each read(2) returns one record; at the end it would block.
fn read_kmsg(root: &Root) -> io::Result<String> {
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(root.path_of(KMSG))?;
    let mut text = Vec::new();
    if !file.metadata()?.file_type().is_char_device() {
        file.read_to_end(&mut text)?;
        return Ok(String::from_utf8_lossy(&text).into_owned());
    }
    let mut record = [0; 8192];
    loop {
        // SAFETY: reads at most the buffer's length into it.
        let count = unsafe { libc::read(file.as_raw_fd(), record.as_mut_ptr().cast(), record.len()) };
        if count > 0 {
            text.extend_from_slice(&record[..count as usize]);
            continue;
        }
        if count == 0 {
            break;
        }
        match io::Error::last_os_error() {
            // EPIPE: records were overwritten during the reads; the next read continues after them.
            error if error.raw_os_error() == Some(libc::EPIPE) => {}
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error if error.kind() == io::ErrorKind::WouldBlock => break,
            error => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads the log with klogctl(3), which may be allowed where /dev/kmsg is missing, as in many containers.
fn read_syslog() -> io::Result<String> {
    const READ_ALL: libc::c_int = 3;
    const SIZE_BUFFER: libc::c_int = 10;
    // SAFETY: this request returns a size, and uses neither the pointer nor the length.
    let size = unsafe { libc::klogctl(SIZE_BUFFER, std::ptr::null_mut(), 0) };
    if size < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0u8; size as usize];
    // SAFETY: the kernel writes at most the buffer's size into it.
    let count = unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), size) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    buffer.truncate(count as usize);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

fn tail(root: &Root, file: &str) -> io::Result<String> {
    use std::io::Seek;
    let mut opened = root.open(file)?;
    let length = opened.metadata()?.len();
    opened.seek(io::SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    opened.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the lines of the last boot. A file can contain many boots; each begins with the kernel's version.
fn since_boot(text: &str) -> &str {
    let at = text.rfind("Linux version").unwrap_or(0);
    &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..]
}

fn journal() -> io::Result<String> {
    let mut child = Command::new("journalctl")
        .args([
            "-k",
            "-b",
            "-o",
            "cat",
            "--no-pager",
            "-q",
            "--grep",
            "tsc|clocksource|arch_timer",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let begun = Instant::now();
    let pipe = child.stdout.take();
    // A pipe holds 64 KiB, and the lines about clocks are a few KiB. Anything beyond that is not read.
    let ended = loop {
        match child.try_wait()? {
            Some(_) => break true,
            None if begun.elapsed() > TIMEOUT => break false,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
        return Err(io::Error::other(format!("no answer in {} ms", TIMEOUT.as_millis())));
    }
    let mut text = String::new();
    pipe.map(|mut pipe| pipe.read_to_string(&mut text)).transpose()?;
    Ok(text)
}

/// Parses records as Documentation/ABI/testing/dev-kmsg defines them: `priority,sequence,microseconds,flags;message`,
/// and lines of detail that begin with a blank.
fn of_kmsg(text: &str) -> KernelLog {
    let records = text.lines().filter(|line| !line.starts_with(' '));
    let fields = records.filter_map(|line| line.split_once(';'));
    let mut first = None;
    let mut lines = Vec::new();
    for (head, message) in fields {
        let mut head = head.split(',');
        let priority: u32 = head.next().and_then(|p| p.parse().ok()).unwrap_or(0);
        first = first.or(head.next().map(str::to_owned));
        // The low three bits are the level; facility 0 is the kernel. Other facilities are from user space and prove
        // nothing.
        if priority >> 3 == 0 {
            lines.push(message);
        }
    }
    KernelLog {
        source: KMSG.to_owned(),
        is_complete: first.is_some_and(|sequence| sequence == "0"),
        lines: about_clocks(lines.into_iter()),
    }
}

/// The name that a log daemon gives the kernel.
const DAEMONS: &str = " kernel: ";

/// Parses lines as dmesg or a log daemon writes them.
fn of_text(source: &str, text: &str) -> KernelLog {
    // A daemon's file has the lines of other programs, too, which prove nothing.
    let is_daemons = text.contains(DAEMONS);
    let of_kernel = text.lines().filter(|line| !is_daemons || line.contains(DAEMONS));
    KernelLog {
        source: source.to_owned(),
        // journalctl was asked for lines about clocks only; the only other line is the first, the kernel's version.
        is_complete: source.starts_with("journalctl") || text.contains("Linux version"),
        lines: about_clocks(of_kernel.map(bare)),
    }
}

/// Returns the message without priority, date and time stamp: `<6>[    0.000000] tsc: ...`, `Jan 1 00:00:00 host
/// kernel: [ 0.0] tsc: ...`.
fn bare(line: &str) -> &str {
    let line = line.split_once(DAEMONS).map_or(line, |(_, message)| message);
    let line = line
        .strip_prefix('<')
        .and_then(|l| l.split_once('>'))
        .map_or(line, |(_, message)| message);
    let stamped = line.strip_prefix('[').and_then(|l| l.split_once("] "));
    match stamped {
        Some((stamp, message)) if stamp.trim().parse::<f64>().is_ok() => message,
        _ => line,
    }
}

/// Words that occur only in messages about clocks.
const WORDS: [&str; 9] = [
    "clocksource",
    "tsc:",
    "TSC",
    "arch_timer",
    "hpet",
    "kvm-clock",
    "Hypervisor detected",
    "vsyscall",
    // "PIT calibration deviates from HPET: ...": arch/x86/kernel/tsc.c.
    "calibration deviates",
];

fn about_clocks<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    // The command line, which the kernel repeats in its log, is read from /proc.
    let wanted = |line: &&str| WORDS.iter().any(|word| line.contains(word)) && !line.contains("ommand line:");
    let mut kept: Vec<String> = lines.filter(wanted).map(|line| line.trim().to_owned()).collect();
    if kept.len() > MOST_LINES {
        // The first lines show the clocksource that was chosen at boot, the last ones whether it was kept.
        kept.drain(MOST_LINES / 2..kept.len() - MOST_LINES / 2);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::facts::has_no_names;
    use super::super::root::tests::Tree;
    use super::*;

    const RECORDS: &str = "\
6,0,0,-;Linux version 6.1.0-13-amd64
6,1,0,-;Command line: BOOT_IMAGE=/vmlinuz tsc=reliable
6,512,100,-;tsc: Detected 2399.998 MHz processor
12,513,120,-;somebody says TSC is great
4,700,9000000,-;clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:
 SUBSYSTEM=clocksource
6,701,9000010,-;usb 1-1: new device
";

    const FILE: &str = "\
Nov  1 00:00:00 h kernel: [    0.000000] Linux version 5.10
Nov  1 00:00:00 h kernel: [    1.000000] tsc: Marking TSC unstable due to clocksource watchdog
Nov  2 00:00:00 h kernel: [    0.000000] Linux version 6.1
Nov  2 00:00:00 h chronyd[70]: Marking TSC unstable due to a joke
Nov  2 00:00:00 h kernel: [    0.300000] clocksource: Switched to clocksource tsc
";

    const CPUINFO: &str = "\
vendor_id\t: GenuineIntel
flags\t\t: fpu tsc constant_tsc nonstop_tsc
bogomips\t: 4799.99
<6>[    0.000000] tsc: Refined TSC clocksource calibration: 2095.078 MHz
";

    #[test]
    fn whatever_a_kernels_log_contains_it_is_read() {
        let long = RECORDS.repeat(MOST_LINES);
        let seeds = [RECORDS, FILE, CPUINFO, &long].map(|text| text.as_bytes().to_vec());
        crate::mutations::feed(&seeds, Duration::from_secs(5), 2, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            for log in [of_kmsg(&text), of_text("/var/log/kern.log", since_boot(&text))] {
                assert!(log.lines.len() <= MOST_LINES);
                for line in log.lines {
                    let _ = (has_no_names(&line), crate::arch::rate_of_log_line(&line));
                }
            }
            let (flags, _) = crate::host::flags(&text);
            let _ = (crate::host::vendor(&text), crate::arch::rate_of_cpuinfo(&text, &flags));
        });
    }

    #[test]
    fn the_kernels_own_lines_about_clocks_are_kept_and_nobody_elses() {
        let tree = Tree::new(&[("dev/kmsg", RECORDS)]);
        let log = read(&tree.root()).unwrap();
        assert_eq!((log.source.as_str(), log.is_complete), ("/dev/kmsg", true));
        assert_eq!(log.lines.len(), 2, "{log:?}");
        assert!(log.lines[0].starts_with("tsc: Detected") && log.lines[1].contains("unstable"));
    }

    #[test]
    fn lines_that_could_name_a_device_or_an_address_are_told() {
        for line in [
            "usb 1-2: SerialNumber: TSC0042",
            "kvm-clock: cpu 0, msr 12e01001, primary cpu clock",
            "hpet0: at MMIO 0xfed00000, IRQs 2, 8, 0",
        ] {
            assert!(!has_no_names(line), "{line}");
        }
        for line in [
            "tsc: Detected 2399.998 MHz processor",
            "Measured 4711 cycles TSC warp between CPUs, turning off TSC clock.",
            "[Firmware Bug]: TSC ADJUST: CPU0: -1 force to 0",
        ] {
            assert!(has_no_names(line), "{line}");
        }
    }

    #[test]
    fn a_buffer_that_has_lost_its_beginning_is_not_called_complete() {
        let log = of_kmsg("6,9042,0,-;clocksource: Switched to clocksource hpet\n");
        assert!(!log.is_complete);
        assert_eq!(log.lines, ["clocksource: Switched to clocksource hpet"]);
    }

    #[test]
    fn a_log_file_is_read_from_its_last_boot_on() {
        let tree = Tree::new(&[("var/log/kern.log", FILE)]);
        let root = tree.root();
        let log = read(&root).unwrap();
        assert_eq!(log.lines, ["clocksource: Switched to clocksource tsc"]);
        assert!(log.is_complete && root.into_unseen().is_empty());
    }

    #[test]
    fn a_log_that_cannot_be_read_is_missed_once_with_what_to_do() {
        let root = Tree::new(&[]).root();
        assert!(read(&root).is_none());
        let unseen = root.into_unseen();
        assert_eq!(unseen.len(), 1);
        assert!(unseen[0].remedy.contains("root"), "{unseen:?}");
    }

    #[test]
    fn time_stamps_and_priorities_are_taken_off() {
        assert_eq!(bare("<6>[    0.000053] tsc: Detected"), "tsc: Detected");
        assert_eq!(bare("[   12.5] tsc: x"), "tsc: x");
        assert_eq!(
            bare("[Firmware Bug]: TSC ADJUST differs"),
            "[Firmware Bug]: TSC ADJUST differs"
        );
    }

    #[test]
    fn of_many_lines_the_first_and_the_last_are_kept() {
        let lines: Vec<String> = (0..100).map(|i| format!("tsc: {i}")).collect();
        let kept = about_clocks(lines.iter().map(String::as_str));
        assert_eq!(kept.len(), MOST_LINES);
        assert_eq!((kept[0].as_str(), kept[39].as_str()), ("tsc: 0", "tsc: 99"));
    }
}
