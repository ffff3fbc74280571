//! Processes by name and by control group.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::attach;
use crate::common::{Pid, Running, fastpath, finish, install, skip, start, wait_until};

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
        finish(fastpath(&["attach", "--clocks", "all", &name])).expect_success();
        assert!(both.iter().all(|running| is_attached(running.pid())), "{name}");
        finish(fastpath(&["detach", &name])).expect_success();
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
fn a_command_for_one_process_refuses_a_name_that_several_have() {
    let (_place, name, program) = napper(false);
    let one = asleep(&program);
    let outcome = finish(fastpath(&["doctor", "--json", &name]));
    let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!(report["facts"]["process"]["pid"], one.pid().0, "{report:#}");
    let another = asleep(&program);
    for command in [&["doctor"][..], &["trace", "-d", "1", "-p"]] {
        let outcome = finish(fastpath(&[command, &[&name[..]]].concat()));
        let listed = [&one, &another].map(|running| running.pid().0.to_string());
        assert!(
            !outcome.status.success() && listed.iter().all(|pid| outcome.err.contains(pid)),
            "{outcome:#?}"
        );
    }
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
