//! Names that another user chooses: they neither command the terminal of root, nor deceive root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{NOBODY, fastpath, finish, install, needs_root, start, wait_until};

/// A red name that sets the terminal's title, ends in a new line, and turns and hides what follows.
const NAME: &str = "\u{1b}[31mE\u{7}\n\u{202e}\u{200b}";

#[test]
fn a_process_with_a_hostile_name_is_shown_with_its_name_escaped() {
    needed!(needs_root());
    let directory = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("chmod");
    let program = install("/usr/bin/sleep", directory.path().join(NAME), 0o755);
    // The user may not be able to execute fastpath where it was built.
    let copy = install(env!("CARGO_BIN_EXE_fastpath"), directory.path().join("fastpath"), 0o755);
    let mut command = Command::new(copy);
    command.args(["run", "--clocks", "all", "--", &program, "1000"]);
    command.uid(NOBODY).gid(NOBODY);
    command.env("FASTPATH_SOCKET", directory.path().join("none"));
    let running = start(command);
    wait_until("the program", || running.pid().read("comm").starts_with('\u{1b}'));
    let pid = running.pid().0.to_string();
    let policy = directory.path().join("policy.toml");
    std::fs::write(&policy, "[[rule]]\nuser = \"65534\"\naction = \"attach\"\n").expect("write");
    let daemon = |option: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
        command.arg("--policy").arg(&policy).arg(option);
        command
    };
    let commands = [
        fastpath(&["doctor", &pid]),
        fastpath(&["doctor", "--verbose", &pid]),
        fastpath(&["doctor", "--json", &pid]),
        fastpath(&["status"]),
        fastpath(&["status", "--json"]),
        fastpath(&["trace", "-p", &pid, "--duration", "0.2"]),
        fastpath(&["detach", &pid]),
        daemon("--dry-run"),
        daemon("--check-policy"),
    ];
    let mut shown = String::new();
    for mut command in commands {
        command.env("FASTPATH_SOCKET", directory.path().join("none"));
        let words = format!("{command:?}");
        let outcome = finish(command);
        let text = outcome.out + &outcome.err;
        let raw = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202e}' | '\u{200b}');
        assert!(!text.contains(raw), "{words}: {text:?}");
        shown += &text;
    }
    assert!(shown.contains(r"\u{1b}[31mE\u{7}"), "{shown}");
}
