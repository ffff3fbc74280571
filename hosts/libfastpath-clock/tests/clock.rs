//! The clock without a daemon: by the kernel, then by a publisher of this process. (With one: cli/tests/e2e/daemon/clock.rs)

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Timer, SystemTime};

use libfastpath_clock::{Instant, Path, Source, check, evidence, now, now_bounded, now_unordered, open};

/// Reads in several threads, each of which must see no time from before one that another has shown.
fn read_in_threads(latest: &AtomicU64, reads: u32) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..reads {
                    let shown = now_unordered().max(latest.load(Ordering::SeqCst));
                    let time = now();
                    assert!(time >= shown, "{} ns back", shown - time);
                    assert!(now_unordered() >= time);
                    latest.fetch_max(time, Ordering::SeqCst);
                }
            });
        }
    });
}

/// One test: a process has one page.
#[test]
fn times_never_go_back_from_the_kernel_to_a_page_of_this_process() {
    // SAFETY: no other thread of this test reads the environment.
    unsafe { std::env::set_var("FASTPATH_SOCKET", "/nonexistent/fastpathd.sock") };
    let latest = AtomicU64::new(0);
    assert_eq!(open(false), Source::Kernel);
    let why = evidence();
    let reason = why.why_not.unwrap_or_default();
    assert!(!why.is_used && reason.contains("no daemon answers"), "{reason}");
    read_in_threads(&latest, 100_000);

    let source = open(true);
    let why = evidence();
    if source == Source::Kernel {
        // This host's counter is not believed, and the kernel goes on.
        assert!(why.why_not.is_some());
        return read_in_threads(&latest, 100_000);
    }
    assert_eq!((source, open(true)), (Source::Own, Source::Own));
    let mut reads = 0;
    let begun = Timer::now();
    while reads < 2_500_000 || !evidence().is_used {
        read_in_threads(&latest, 50_000);
        reads += 50_000;
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", evidence());
    }
}

/// Without fastpathd. (By a page, and while the clock is set: tests/slews/run)
#[test]
fn the_bounds_of_utc_contain_the_kernels_time_if_it_is_synchronized() {
    let before = SystemTime::now();
    match now_bounded() {
        Some(utc) => assert!(before <= *utc.end() && *utc.start() <= SystemTime::now(), "{utc:?}"),
        None => println!("the kernel's clock is not synchronized"),
    }
}

/// (Of other processes: cli/tests/e2e/daemon/clock.rs and kernels.rs)
#[test]
fn a_check_says_what_a_read_costs_and_judges_as_probe_does() {
    let found = check();
    let is_by_syscall = matches!(found.path, Path::None | Path::Syscall);
    assert!(
        found.is_slow.is_none_or(|is_slow| is_slow == is_by_syscall),
        "{found:?}"
    );
    assert!(found.read_ns > 0.0 && found.syscall_ns > 0.0, "{found:?}");
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    assert_eq!(found.clocksource, source.unwrap_or_default().trim());
    let [probe, here] = [
        include_str!("../../../instruments/measure/src/verdict.rs"),
        include_str!("../c/check.c"),
    ];
    for limit in ["SLOW_AGAINST_SYSCALL", "SLOW_AGAINST_COUNTER"] {
        let number = here.split_once(&format!("#define FP_{limit} ")).expect("a limit").1;
        let number = number.lines().next().unwrap_or_default();
        assert!(
            probe.contains(&format!("const {limit}: f64 = {number};")),
            "{limit} {number}"
        );
    }
}

#[test]
fn a_check_is_right_while_the_cpu_changes_its_speed() {
    let program = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("speeds");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/speeds.c");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=gnu11",
        "-O2",
        "-D_GNU_SOURCE",
        "-I",
        env!("OUT_DIR"),
        source,
        "-o",
    ]);
    assert!(compiler.arg(&program).status().is_ok_and(|status| status.success()));
    let outcome = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "slow 0, 100, 250, fast\n");
}

#[test]
fn an_instant_counts_as_that_of_the_standard_library() {
    let a = Instant::now();
    let second = Duration::from_secs(1);
    let b = a + second;
    assert_eq!((b - a, b - second, a - b), (second, a, Duration::ZERO));
    assert_eq!(
        (a.checked_duration_since(b), b.checked_duration_since(a)),
        (None, Some(second))
    );
    assert_eq!(
        (a.checked_sub(Duration::MAX), a.checked_add(Duration::MAX)),
        (None, None)
    );
    assert!(a.elapsed() < Duration::from_secs(1000) && a <= Instant::now());
}
