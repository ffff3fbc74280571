//! The exit statuses and documents of `fastpath audit`.

use std::process::Command;

use crate::common::{fastpath, finish, helper_program};

/// A static program for x86-64 that makes the system call itself, of the fuzzer's corpus.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/any/x86_64");

#[test]
fn a_finding_at_the_requested_level_is_exit_status_1() {
    let outcome = finish(fastpath(&["audit", OWN])).expect_code(1);
    assert!(
        outcome.out.contains("static-without-vdso") && outcome.out.contains("1 errors"),
        "{outcome:#?}"
    );
    finish(fastpath(&["audit", "--fail-on", "never", OWN])).expect_code(0);
    finish(fastpath(&["audit", "--fail-on", "note", "/bin/true"])).expect_code(0);
}

#[test]
fn a_file_for_which_there_is_no_memory_is_reported_and_not_examined() {
    let directory = tempfile::tempdir().expect("a directory");
    let large = directory.path().join("large");
    std::fs::copy(OWN, &large).expect("a copy");
    let file = std::fs::File::options().write(true).open(&large).expect("a file");
    file.set_len(400 << 20).expect("its length");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 200000 && exec \"$0\" audit --rescue \"$1\""]);
    command.arg(env!("CARGO_BIN_EXE_fastpath")).arg(&large);
    let said = finish(command).expect_success().err;
    assert!(said.contains("it cannot be read: out of memory"), "{said}");
}

#[test]
fn a_finding_names_rescue_with_the_number_of_calls_that_it_redirects() {
    let program = needed!(helper_program("raw-calls", "cc", &[]));
    let outcome = finish(fastpath(&["audit", "--json", &program])).expect_code(0);
    let report: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    let finding = &report["findings"][0];
    let (proven, all) = (&finding["rescuable"], &finding["site_count"]);
    assert!(
        proven.as_u64() > Some(0) && proven.as_u64() <= all.as_u64(),
        "{finding:#}"
    );
    let outcome = finish(fastpath(&["audit", &program])).expect_code(0);
    let words: Vec<&str> = outcome.out.split_whitespace().collect();
    let remedy = format!("redirect {proven} of {all} calls.");
    assert!(words.join(" ").contains(&remedy), "{outcome:#?}");
}

#[test]
fn a_missing_path_is_exit_status_66() {
    let outcome = finish(fastpath(&["audit", "/nowhere", OWN])).expect_code(66);
    assert!(
        outcome.err.contains("/nowhere") && outcome.out.contains("static-without-vdso"),
        "{outcome:#?}"
    );
}

#[test]
fn json_and_sarif_are_one_line_each() {
    for form in ["--json", "--sarif"] {
        let outcome = finish(fastpath(&["audit", form, OWN])).expect_code(1);
        let value: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
        assert!(outcome.out.lines().count() == 1 && value.is_object(), "{outcome:#?}");
    }
    finish(fastpath(&["audit", "--json", "--sarif", OWN])).expect_code(2);
}
