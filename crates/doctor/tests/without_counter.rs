//! A program that was forbidden to read the counter is examined and not killed. Alone in its process: the permission is
//! the thread's, and those that it starts inherit it.
#![cfg(target_arch = "x86_64")]

use fastpath_doctor::{Options, Verdict, examine};
use std::path::Path;

#[test]
fn where_the_counter_is_forbidden_that_is_what_is_found() {
    // SAFETY: prctl with integers, of this thread.
    let forbidden = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
    assert_eq!(forbidden, 0);
    let options = Options {
        root: Path::new("/"),
        pid: None,
    };
    let report = examine(&options).unwrap();
    assert!(!report.facts.counter.evidence.is_readable);
    assert_eq!(report.verdict, Verdict::Slow);
    let found = report
        .findings
        .iter()
        .find(|finding| finding.id == "counter-forbidden")
        .unwrap();
    assert!(found.says.contains("SIGSEGV"), "{found:?}");
    assert!(report.remedies.iter().any(|remedy| remedy.id == "allow-counter"));
    assert!(!report.remedies.iter().any(|remedy| remedy.id == "run"));
}
