//! The completions that bash, zsh and fish offer for an unfinished command line.

use std::process::Command;

use crate::common::{fastpath, finish, tool};

/// Loads the script, and prints the candidates for the last of the words. zsh completes in its line editor only: it
/// parses the script.
const SHELLS: [(&str, &str); 3] = [
    (
        "bash",
        r#"
        source "$1"
        complete -p fastpath >/dev/null || exit
        shift
        COMP_WORDS=(fastpath "$@") COMP_CWORD=$#
        _fastpath fastpath "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
        "#,
    ),
    (
        "zsh",
        r#"zsh -n "$1" && grep -qx '#compdef fastpath' "$1" && grep -oe "${@[-1]}[a-z]*" "$1""#,
    ),
    (
        "fish",
        "source $argv[1]; complete --do-complete \"fastpath $argv[2..]\"",
    ),
];

#[test]
fn shells_offer_commands_and_options() {
    for (shell, text) in SHELLS {
        if tool(shell).is_none() {
            continue;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("script");
        let printed = finish(fastpath(&["completions", shell])).expect_success().out;
        std::fs::write(&script, printed).expect("a file");
        for (words, wanted) in [(&["stat"][..], "status"), (&["status", "--w"], "--watch")] {
            let mut command = Command::new(shell);
            command
                .args(["-c", text])
                .args((shell != "fish").then_some(shell))
                .arg(&script)
                .args(words);
            let offered = finish(command).expect_success();
            let is_offered = offered.out.lines().any(|line| line.split('\t').next() == Some(wanted));
            assert!(is_offered && offered.err.is_empty(), "{shell} {words:?}: {offered:?}");
        }
    }
}
