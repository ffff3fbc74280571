//! Any policy file parses to a policy or to an error message that says what is wrong, within a short time.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::time::Duration;

use fastpath_daemon::{Policy, ProcessFacts};

#[test]
fn whatever_the_bytes_they_are_a_policy_or_told_what_is_wrong() {
    let seeds = mutations::corpus("policy");
    let (mut policies, mut mistakes) = (0, 0);
    mutations::feed(&seeds, Duration::from_secs(5), 5, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match Policy::parse(&text) {
            Ok(policy) => {
                policies += 1;
                let path = Some(text.into_owned());
                let _ = policy.decide(&ProcessFacts {
                    uid: 0,
                    executable: path.clone(),
                    cgroup: path,
                });
            }
            Err(why) => {
                mistakes += 1;
                assert!(!why.is_empty());
            }
        }
    });
    assert!(policies > 0 && mistakes > 0, "{policies} policies, {mistakes} mistakes");
}
