//! The completions that bash, zsh and fish offer for an unfinished command line.

use std::path::Path;
use std::process::Command;

use crate::common::{Outcome, fastpath, finish, start, tool, wait_until};

/// Loads the script, as the shell does at the first completion, and prints the candidates for the last of the words.
const SHELLS: [(&str, &str, &str); 3] = [
    (
        "bash",
        "fastpath",
        r#"
        program=$1
        source "$2"
        complete -p "$program" >&2 || exit
        shift 2
        COMP_WORDS=("$program" "$@") COMP_CWORD=$# COMP_TYPE=9
        "_clap_complete_$program" "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        for word in "${COMPREPLY[@]}"; do printf '%s\n' "$word"; done
        "#,
    ),
    (
        "zsh",
        "_fastpath",
        r#"
        program=$1
        fpath=(${2:h})
        compdef() { [[ $2 == $program ]] }
        _describe() { print -rl -- ${(P)3} }
        autoload -U _$program
        shift 2
        words=($program "$@") CURRENT=$(($# + 1))
        _$program
        "#,
    ),
    (
        "fish",
        "fastpath.fish",
        r#"
        set program $argv[1]
        source $argv[2]
        complete --do-complete "$program $argv[3..]"
        "#,
    ),
];

/// Returns the value and the description of each candidate.
fn offered(shell: &str, script: &Path, program: &str, words: &[&str]) -> Vec<(String, String)> {
    let (_, _, text) = SHELLS.iter().find(|(name, ..)| *name == shell).expect("a shell");
    let programs = Path::new(env!("CARGO_BIN_EXE_fastpath")).parent().expect("a directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
    let mut command = Command::new(shell);
    match shell {
        "bash" => command.args(["--norc", "--noprofile", "-c", text, "bash"]),
        "zsh" => command.args(["-f", "-c", text, "zsh"]),
        _ => command.args(["--no-config", "-c", text]),
    };
    command
        .arg(program)
        .arg(script)
        .args(words)
        .env("PATH", std::env::join_paths(path).expect("a path"));
    let Outcome { out, err, .. } = finish(command);
    assert!(!err.contains("error") && !err.contains("not found"), "{shell}: {err}");
    let separator = if shell == "zsh" { ':' } else { '\t' };
    let pair = |line: &str| {
        let (value, description) = line.split_once(separator).unwrap_or((line, ""));
        (value.to_owned(), description.to_owned())
    };
    out.lines().map(pair).collect()
}

/// Does the work for each shell of this machine, given a function that returns its candidates for the words after a
/// program.
fn in_each_shell(work: impl Fn(&str, &dyn Fn(&str, &[&str]) -> Vec<(String, String)>)) {
    for (shell, file, _) in SHELLS {
        if tool(shell).is_none() {
            continue;
        }
        let directory = tempfile::tempdir().expect("a directory");
        for program in ["fastpath", "fastpathd"] {
            let script = if program == "fastpath" {
                finish(fastpath(&["completions", shell]))
            } else {
                let mut daemon = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
                daemon.args(["--completions", shell]);
                finish(daemon)
            };
            let path = directory.path().join(file.replace("fastpath", program));
            std::fs::write(path, script.expect_success().out).expect("a file");
        }
        work(shell, &|program, words| {
            let script = directory.path().join(file.replace("fastpath", program));
            offered(shell, &script, program, words)
        });
    }
}

fn values(offered: Vec<(String, String)>) -> Vec<String> {
    offered.into_iter().map(|(value, _)| value).collect()
}

#[test]
fn shells_offer_processes_by_number_and_by_name() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("it runs", || running.pid().program() == "sleep");
    let pid = running.pid().0.to_string();
    in_each_shell(|shell, offered| {
        for words in [&["attach"][..], &["doctor"], &["trace", "-p"]] {
            let number = offered("fastpath", &[words, &[&pid[..pid.len() - 1]]].concat());
            let found = number.iter().find(|(value, _)| *value == pid);
            let (_, description) = found.unwrap_or_else(|| panic!("{shell} {words:?}: {number:?}"));
            // bash shows no descriptions.
            assert!(
                shell == "bash" || description == "sleep",
                "{shell} {words:?}: {number:?}"
            );
            let names = values(offered("fastpath", &[words, &["slee"]].concat()));
            assert!(names.contains(&"sleep".to_owned()), "{shell} {words:?}: {names:?}");
        }
        let kernels = values(offered("fastpath", &["attach", "kthread"]));
        assert!(!kernels.contains(&"kthreadd".to_owned()), "{shell}: {kernels:?}");
        let attached = values(offered("fastpath", &["detach", &pid]));
        assert!(!attached.contains(&pid), "{shell}: it is not attached: {attached:?}");
    });
    #[cfg(target_arch = "x86_64")]
    {
        finish(fastpath(&["attach", "--clocks", "all", &pid])).expect_success();
        in_each_shell(|shell, offered| {
            let attached = values(offered("fastpath", &["detach", &pid]));
            assert_eq!(attached, [pid.as_str()], "{shell}");
        });
        finish(fastpath(&["detach", &pid])).expect_success();
    }
}

#[test]
fn shells_offer_clocks_commands_options_and_programs() {
    in_each_shell(|shell, offered| {
        let is = |program: &str, words: &[&str], wanted: &[&str]| {
            assert_eq!(values(offered(program, words)), wanted, "{shell} {program} {words:?}");
        };
        is("fastpath", &["run", "--clocks", "a"], &["auto", "all"]);
        is(
            "fastpath",
            &["attach", "--clocks", "tai,MONO"],
            &["tai,MONOTONIC", "tai,MONOTONIC_RAW"],
        );
        is("fastpath", &["guard", "--clocks", "b"], &["boottime"]);
        is("fastpathd", &["--clocks", "r"], &["realtime"]);
        is("fastpath", &["stat"], &["status"]);
        is("fastpath", &["status", "--w"], &["--watch"]);
        is("fastpath", &["run", "--", "mktem"], &["mktemp"]);
        is("fastpathd", &["--check"], &["--check-policy"]);
    });
}
