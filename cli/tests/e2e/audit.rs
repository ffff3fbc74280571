//! The exit statuses and documents of `fastpath audit`.

use crate::common::{fastpath, finish};

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
