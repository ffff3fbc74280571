//! Other users can use `run`, and setuid programs keep their privileges.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::common::{
    NOBODY, SERVED, comes_to, finish, helper_program, install, needs_root, program, served, skip, tool, unprivileged,
};

/// A directory that other users can enter, with fastpath and some programs.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place { directory };
        place.permit(place.directory.path(), 0o755);
        place.install("fastpath", env!("CARGO_BIN_EXE_fastpath"), 0o755);
        place
    }

    fn permit(&self, path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    fn install(&self, name: &str, from: &str, mode: u32) -> String {
        install(from, self.directory.path().join(name), mode)
    }

    /// As the user `nobody`: the command alone, or under `fastpath run OPTIONS`.
    fn as_nobody(&self, options: Option<&[&str]>, command: &[&str]) -> Command {
        let mut run = unprivileged();
        if let Some(options) = options {
            run.arg(self.directory.path().join("fastpath")).args(options);
        }
        run.args(command);
        run
    }
}

#[test]
fn a_user_without_privileges_is_served_like_root() {
    needed!(needs_root(), tool("setpriv"));
    let place = Place::new();
    let script = "id -u; exec grep -c memfd:fastpath-page /proc/self/maps";
    let run = || place.as_nobody(Some(SERVED), &["sh", "-c", script]);
    comes_to(run, 0, &format!("{NOBODY}\n1"));
}

#[test]
fn a_setuid_program_keeps_its_privileges() {
    let ((), _, setuid) = needed!(needs_root(), tool("setpriv"), program("setuid"));
    let place = Place::new();
    let setuid = place.install("setuid", &setuid, 0o4755);
    let bare = finish(place.as_nobody(None, &[&setuid])).expect_success().out;
    if !bare.contains("euid 0 secure 1") {
        return skip("setuid has no effect in the temporary directory");
    }

    // As a descendant of a served program, in each way in which shells start programs.
    for script in ["\"$0\"", "\"$0\"; :", "exec \"$0\"", "sh -c \"$0\" | cat"] {
        let run = place.as_nobody(Some(SERVED), &["sh", "-c", script, &setuid]);
        assert_eq!(finish(run).expect_success().out, bare, "{script}");
    }

    // As the program of `run`: untouched, or not at all.
    let run = place.as_nobody(Some(&["run", "--clocks", "all", "--"]), &[&setuid]);
    let outcome = finish(run).expect_success();
    assert_eq!(outcome.out, bare);
    assert!(
        outcome.err.lines().count() == 1 && outcome.err.contains("privileges"),
        "{outcome:#?}"
    );
    let outcome = finish(place.as_nobody(Some(SERVED), &[&setuid])).expect_code(125);
    assert_eq!(outcome.out, "");
}

#[test]
fn setgid_programs_and_programs_with_capabilities_keep_them() {
    let ((), _, setuid) = needed!(needs_root(), tool("setpriv"), program("setuid"));
    let place = Place::new();
    let setgid = place.install("setgid", &setuid, 0o755);
    chown(&setgid, Some(0), Some(0)).expect("chown");
    place.permit(Path::new(&setgid), 0o2755);
    let capable = place.install("capable", &setuid, 0o755);
    let granted = tool("setcap").is_some_and(|setcap| {
        let mut grant = Command::new(setcap);
        grant.args(["cap_net_raw+ep", &capable]);
        finish(grant).status.success()
    });
    for program in [Some(&setgid), granted.then_some(&capable)].into_iter().flatten() {
        let bare = finish(place.as_nobody(None, &[program])).expect_success().out;
        assert!(bare.contains("secure 1"), "{bare}");
        let run = place.as_nobody(Some(SERVED), &["sh", "-c", "\"$0\"; :", program]);
        assert_eq!(finish(run).expect_success().out, bare);
    }
}

#[test]
fn an_unreadable_program_runs_untouched() {
    let ((), _, clock) = needed!(needs_root(), tool("setpriv"), program("clock-glibc-static"));
    let place = Place::new();
    let secret = place.install("secret", &clock, 0o711);
    let run = place.as_nobody(Some(&["run", "--clocks", "all", "--"]), &[&secret, "10", "MONOTONIC"]);
    let outcome = finish(run).expect_success();
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:#?}");
    let run = place.as_nobody(Some(SERVED), &["sh", "-c", "\"$0\" 10 MONOTONIC; :", &secret]);
    finish(run).expect_success();
}

#[test]
fn a_setuid_program_that_replaces_the_examined_one_is_not_injected() {
    let ((), _, privileged, exchanged) = needed!(
        needs_root(),
        tool("setpriv"),
        helper_program("privileged", "cc", &[]),
        helper_program("exchanged", "cc", &[])
    );
    let place = Place::new();
    let plain = place.install("plain", &privileged, 0o755);
    let setuid = place.install("setuid", &privileged, 0o4755);
    let exchanged = place.install("exchanged", &exchanged, 0o755);
    if finish(place.as_nobody(None, &[&setuid])).out.trim() != "root untouched" {
        return skip("setuid has no effect in the temporary directory");
    }
    let links = place.directory.path().join("links");
    std::fs::create_dir(&links).expect("mkdir");
    place.permit(&links, 0o777);
    let link = links.join("link");
    let id = NOBODY.to_string();
    // Root's helper, which may trace every process, and another user's processes.
    let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    let command = [
        &user[..],
        &[&exchanged, "400", link.to_str().expect("UTF-8"), &plain, &setuid],
    ];
    // On a busy host, each exec of a row can find the same program.
    let mut said = String::new();
    for _ in 0..10 {
        said += &finish(served(&command.concat())).expect_success().out;
        let count = |line: &str| said.lines().filter(|said| *said == line).count();
        assert_eq!(count("root served"), 0, "{said}");
        if count("root untouched") > 0 && count("user served") > 0 {
            return;
        }
    }
    panic!("only one of the two programs ran: {said}");
}
