//! The library with fastpathd itself.

use std::path::PathBuf;
use std::process::Command;

use super::{SERVED, kernel_is_fast, permit, preloaded_at, reason};
use crate::common::{
    Running, fastpath, finish, needs_root, program, skip, skip_namespaces, start, tool, torture, wait_until,
};

/// A daemon that listens where every user may connect.
pub struct Daemon {
    directory: tempfile::TempDir,
    process: Running,
}

impl Daemon {
    pub fn start() -> Daemon {
        let directory = tempfile::tempdir().expect("a directory");
        permit(directory.path(), 0o755);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
        command.arg("--socket").arg(directory.path().join("socket"));
        let process = start(command);
        let daemon = Daemon { directory, process };
        // It listens before it has examined the counter.
        wait_until("fastpathd's first answer", || {
            finish(daemon.verbose(&["true"])).expect_success().err == SERVED
        });
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn verbose(&self, command: &[impl AsRef<str>]) -> Command {
        let mut verbose = preloaded_at(&self.socket(), command);
        verbose.env("FASTPATH_PRELOAD_VERBOSE", "1");
        verbose
    }

    /// `fastpath ARGUMENTS`, with this daemon's socket.
    fn fastpath(&self, arguments: &[&str]) -> Command {
        let mut command = fastpath(arguments);
        command.env("FASTPATH_SOCKET", self.socket());
        command
    }
}

#[test]
fn a_program_is_served_with_correct_clocks() {
    let torture = needed!(program("torture"));
    let daemon = Daemon::start();
    let outcome = finish(daemon.verbose(&[&torture, "-s", "2", "-t", "2"])).expect_success();
    assert!(
        outcome.out.contains("\"violations\":0}") && outcome.err == SERVED,
        "{outcome:#?}"
    );
}

/// Regression test: `probe` and `guard` did not recognize fastpath where the library had put it: "goes by vdso".
#[test]
fn probe_and_guard_recognize_the_librarys_redirection() {
    let daemon = Daemon::start();
    let preloaded = |arguments: &[&str]| {
        let command = [&[env!("CARGO_BIN_EXE_fastpath")][..], arguments].concat();
        finish(preloaded_at(&daemon.socket(), &command))
    };
    preloaded(&["guard", "--path", "fastpath", "--max-ns", "100000"]).expect_success();
    // The page may be stale for a moment, if the daemon gets no CPU.
    wait_until("clocks on the page", || {
        let probe = preloaded(&["probe", "--json"]).expect_success();
        let probe: serde_json::Value = serde_json::from_str(&probe.out).expect("JSON");
        let is_ours = |name: &str| {
            let clocks = probe["clocks"].as_array().expect("a list");
            let found = clocks.iter().find(|clock| clock["clock"] == name).expect("a clock");
            found["path"] == "fastpath"
        };
        assert!(!is_ours("MONOTONIC_COARSE"), "{probe}");
        is_ours("MONOTONIC") && is_ours("REALTIME")
    });
}

#[test]
fn the_library_does_nothing_if_every_clock_is_fast() {
    if !kernel_is_fast() {
        return skip("the kernel's own clocks are slow here");
    }
    let daemon = Daemon::start();
    let mut command = daemon.verbose(&["true"]);
    command.env_remove("FASTPATH_PRELOAD_CLOCKS");
    let why = reason(command);
    assert!(
        why.starts_with("fastpathd declines: every clock is on its fast path"),
        "{why}"
    );
}

#[test]
fn the_variable_names_clocks_as_the_option_does() {
    let daemon = Daemon::start();
    let with = |clocks: &str, command: &[&str]| {
        let mut command = daemon.verbose(command);
        command.env("FASTPATH_PRELOAD_CLOCKS", clocks);
        command
    };
    let all = &["REALTIME", "MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "TAI"][..];
    let right = [
        ("all", all),
        (" All ", all),
        ("tai", &["TAI"]),
        ("monotonic-raw, CLOCK_Realtime", &["REALTIME", "MONOTONIC_RAW"]),
        ("monotonic,boottime,monotonic", &["MONOTONIC", "BOOTTIME"]),
    ];
    for (clocks, served) in right {
        let running = start(with(clocks, &["sleep", "1000"]));
        let mut shown = serde_json::Value::Null;
        wait_until("its clocks", || {
            let status = finish(daemon.fastpath(&["status", "--json"])).expect_success().out;
            let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
            let processes = status["processes"].as_array().expect("a list").iter();
            let found = processes.into_iter().find(|process| process["pid"] == running.pid().0);
            shown = found.map_or(serde_json::Value::Null, |process| process["clocks"].clone());
            shown.as_array().is_some_and(|clocks| !clocks.is_empty())
        });
        assert_eq!(shown, serde_json::json!(served), "{clocks}");
    }
    for wrong in [
        "wall",
        "monotonic,",
        ",",
        "auto,tai",
        "monotonicx",
        "MONOTONIC_COARSE",
        "CLOCK_ALL",
    ] {
        assert_eq!(
            reason(with(wrong, &["true"])),
            "FASTPATH_PRELOAD_CLOCKS names a clock that fastpath does not serve; valid: auto, all, or a list of REALTIME, MONOTONIC, \
             MONOTONIC_RAW, BOOTTIME, TAI",
            "{wrong}"
        );
    }
    // The same as without the variable.
    if kernel_is_fast() {
        for auto in ["", "auto", "AUTO"] {
            let why = reason(with(auto, &["true"]));
            assert!(why.contains("every clock is on its fast path"), "{auto}: {why}");
        }
    }
}

#[test]
fn programs_in_other_namespaces_read_their_own_clocks() {
    let ((), _, torture) = needed!(needs_root(), tool("unshare"), program("torture"));
    let daemon = Daemon::start();
    let preload = format!("LD_PRELOAD={}", super::library());
    let kinds: [&[&str]; 3] = [
        &["--time", "--monotonic", "50000", "--boottime", "100000"],
        &["--pid", "--fork", "--mount-proc"],
        &["--user", "--map-root-user", "--net", "--ipc", "--uts"],
    ];
    for kind in kinds {
        let read = ["env", &preload, &torture, "-s", "1", "-t", "1", "-m", "mixed,same"];
        let mut command = daemon.verbose(&[&["unshare"], kind, &read].concat());
        command.env_remove("LD_PRELOAD");
        let outcome = finish(command);
        if outcome.err.contains("unshare") {
            skip_namespaces();
            continue;
        }
        let outcome = outcome.expect_success();
        assert!(
            outcome.out.contains("\"violations\":0}") && outcome.err == SERVED,
            "{kind:?}: {outcome:#?}"
        );
    }
}

#[test]
fn a_process_under_the_library_can_be_detached_and_attached_again() {
    let clock = needed!(program("clock-glibc"));
    let daemon = Daemon::start();
    // The program would end at a step back.
    let running = start(daemon.verbose(&[&clock, "2000000000", "MONOTONIC"]));
    wait_until("its start", || running.pid().is_served());
    let pid = running.pid().0.to_string();
    let status = finish(daemon.fastpath(&["status"])).expect_success().out;
    let line = status.lines().find(|line| line.contains(&format!(" {pid} ")));
    assert!(line.is_some_and(|line| line.contains("attach")), "{status}");
    for _ in 0..3 {
        // Each succeeds only after the other.
        finish(daemon.fastpath(&["detach", &pid])).expect_success();
        finish(daemon.fastpath(&["attach", "--clocks", "all", &pid])).expect_success();
    }
    let before = running.pid().cpu_time();
    wait_until("it reads on", || running.pid().cpu_time() > before);
}

#[test]
fn programs_run_and_start_after_the_daemon_was_killed() {
    let torture = needed!(torture::endless("2"));
    let daemon = Daemon::start();
    let running = start(daemon.verbose(&torture));
    wait_until("its start", || running.pid().is_served());
    daemon.process.pid().signal(libc::SIGKILL);
    torture::go_on(&running);
    torture::end(running);
    assert_eq!(
        reason(daemon.verbose(&["true"])),
        "no daemon answers at its socket (errno 111)"
    );
}
