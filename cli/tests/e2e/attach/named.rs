//! Processes by name and by control group.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::attach;
use crate::common::command::start_in_group;
use crate::common::terminal::give_terminal;
use crate::common::{Outcome, Pid, Running, fastpath, finish, install, needs_root, skip, start, tool, wait_until};

/// Returns a directory with a copy of sleep(1), under a name that no other process of this machine has.
fn napper(long: bool) -> (tempfile::TempDir, String, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let tail = if long { "-with-a-name-that-is-cut" } else { "" };
    let unique = directory
        .path()
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let name = format!("nap{}{tail}", unique.trim_start_matches('.'));
    let sleep = std::fs::canonicalize("/bin/sleep").expect("sleep");
    let program = install(sleep, directory.path().join(&name), 0o755);
    (directory, name, program)
}

fn asleep(program: &str) -> Running {
    let mut command = Command::new(program);
    command.arg("1000");
    let running = start(command);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    running
}

fn is_attached(pid: Pid) -> bool {
    pid.read("maps").contains("memfd:fastpath-region")
}

#[test]
fn all_processes_of_a_name_are_attached_and_detached() {
    for long in [false, true] {
        let (_place, name, program) = napper(long);
        let both = [asleep(&program), asleep(&program)];
        let lists_both = |outcome: Outcome, how: &str| {
            let outcome = outcome.expect_success();
            for running in &both {
                let line = format!("fastpath: {}: {how} ({:.15})\n", running.pid().0, name);
                assert!(
                    outcome.err.contains(&line) && outcome.out.is_empty(),
                    "{line}{outcome:#?}"
                );
            }
        };
        lists_both(finish(fastpath(&["attach", "--clocks", "all", &name])), "attached");
        assert!(both.iter().all(|running| is_attached(running.pid())), "{name}");
        lists_both(finish(fastpath(&["detach", &name])), "detached");
        assert!(!both.iter().any(|running| is_attached(running.pid())), "{name}");
    }
}

#[test]
fn a_name_that_no_process_has_is_exit_status_3_and_the_others_are_attached() {
    let (_place, name, program) = napper(false);
    let running = asleep(&program);
    let outcome = finish(fastpath(&["attach", "--clocks", "all", "no-such-program", &name])).expect_code(3);
    assert!(
        outcome.err.contains("no process is called no-such-program"),
        "{outcome:#?}"
    );
    assert!(is_attached(running.pid()));
}

#[test]
fn without_proc_no_command_says_that_there_are_no_processes() {
    needed!(needs_root(), tool("unshare"));
    for arguments in [
        "status",
        "detach --all",
        "attach no-such-program",
        "doctor no-such-program",
    ] {
        let mut command = Command::new("unshare");
        let script = format!("umount -l /proc; exec {} {arguments}", env!("CARGO_BIN_EXE_fastpath"));
        command.args(["--mount", "sh", "-c", &script]);
        let outcome = finish(command).expect_code(69);
        assert!(outcome.err.contains("/proc"), "{arguments}: {outcome:#?}");
    }
}

#[test]
fn a_command_for_one_process_refuses_a_name_that_several_have() {
    let (_place, name, program) = napper(false);
    let one = asleep(&program);
    let outcome = finish(fastpath(&["doctor", "--json", &name]));
    let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!(report["facts"]["process"]["pid"], one.pid().0, "{report:#}");
    let another = asleep(&program);
    // By number, which the second has the lower of if the kernel has begun anew.
    let mut listed = [one.pid().0, another.pid().0];
    listed.sort_unstable();
    let listed = listed.map(|pid| pid.to_string());
    let outcome = finish(fastpath(&["trace", "-d", "1", "-p", &name]));
    assert!(
        !outcome.status.success() && listed.iter().all(|pid| outcome.err.contains(pid)),
        "{outcome:#?}"
    );
    // doctor judges them all.
    let outcome = finish(fastpath(&["doctor", "--json", &name]));
    assert_eq!(outcome.status.code(), finish(fastpath(&["doctor"])).status.code());
    let judged: Vec<serde_json::Value> = (outcome.out.lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let pids: Vec<_> = judged
        .iter()
        .map(|report| report["facts"]["process"]["pid"].to_string())
        .collect();
    assert_eq!(pids, listed, "{outcome:#?}");
    // Their host was examined once: what was measured differently does not tell them apart.
    assert_eq!(judged[0]["facts"]["clocks"], judged[1]["facts"]["clocks"]);
    let text = finish(fastpath(&["doctor", &name])).out;
    assert!(
        text.contains("2 processes are alike") && listed.iter().all(|pid| text.contains(pid)),
        "{text}"
    );
}

#[test]
fn detach_all_asks_root_on_a_terminal() {
    needed!(needs_root());
    // In namespaces of its own, where no process of another test is attached.
    let script = r#"
        exec >&0 2>&0
        mount -t proc proc /proc
        sleep 1000 & pid=$!
        until grep -q nanosleep "/proc/$pid/wchan"; do :; done
        "$0" attach -q --clocks all "$pid" || exit 40
        "$0" detach --all
        echo "said no: $?"
        grep -q fastpath-region "/proc/$pid/maps" || exit 41
        "$0" detach --all || exit 42
        ! grep -q fastpath-region "/proc/$pid/maps" || exit 43
        "$0" attach -q --clocks all "$pid" && "$0" detach --all --yes || exit 44
        kill "$pid"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_fastpath"));
    let mut terminal = give_terminal(&mut command);
    let running = start_in_group(command);
    terminal.type_in(b"n\ny\n");
    let shown = terminal.read_to_end(|_| {});
    running.finish().expect_success();
    let question = "fastpath: 1 process is attached. Detach all? [y/N] ";
    assert_eq!(shown.matches(question).count(), 2, "{shown}");
    assert!(
        shown.contains("fastpath: nothing was detached\nsaid no: 70\n"),
        "{shown}"
    );
}

#[test]
fn a_control_groups_processes_are_attached() {
    let Some(group) = Group::new() else {
        return skip("no control group can be made here");
    };
    let (_place, _, program) = napper(false);
    let (inside, outside) = (asleep(&program), asleep(&program));
    std::fs::write(group.0.join("cgroup.procs"), inside.pid().0.to_string()).expect("to move a process");
    let path = group.0.to_str().expect("UTF-8");
    finish(fastpath(&["attach", "--clocks", "all", "--cgroup", path])).expect_success();
    assert!(is_attached(inside.pid()) && !is_attached(outside.pid()));
    // Also by its path as the process sees it, whose last component is treated as a unit's name.
    let unit = group.0.file_name().expect("a name").to_string_lossy().into_owned();
    finish(fastpath(&["detach", "--unit", &unit])).expect_success();
    assert!(!is_attached(inside.pid()));
    finish(fastpath(&["detach", "--unit", "no-such-unit"])).expect_code(3);
}

#[test]
fn detach_takes_all_or_some_but_not_both() {
    let running = asleep("/bin/sleep");
    attach(running.pid()).expect_success();
    let pid = running.pid().0.to_string();
    for words in [
        &["detach", "--all", &pid][..],
        &["detach"],
        &["attach"],
        &["attach", "0"],
    ] {
        finish(fastpath(words)).expect_code(2);
    }
    assert!(is_attached(running.pid()));
}

/// A control group of this test's own, in the first hierarchy that allows one.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("fastpath-test-{}.service", std::process::id());
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"];
        let made = roots.iter().map(|root| Path::new(root).join(&name)).find(|group| {
            std::fs::create_dir(group).is_ok() && {
                let is_one = group.join("cgroup.procs").exists();
                if !is_one {
                    let _ = std::fs::remove_dir(group);
                }
                is_one
            }
        });
        made.map(Group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let procs = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let above = self.0.parent().unwrap_or(Path::new("/")).join("cgroup.procs");
        for pid in procs.lines() {
            let _ = std::fs::write(&above, pid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}
