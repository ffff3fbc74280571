//! Any bytes from a socket are parsed as a message or refused.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::time::Duration;

use fastpath_protocol::{Answer, DaemonStatus, Operation, Request};

#[test]
fn whatever_the_bytes_they_are_a_message_or_refused_with_a_sentence() {
    let seeds = mutations::corpus("message");
    let (mut messages, mut refused) = (0, 0);
    mutations::feed(&seeds, Duration::from_secs(5), 5, |bytes| {
        match Request::parse(bytes) {
            Ok((_, request)) => {
                messages += 1;
                assert_eq!(request.bytes(), bytes);
            }
            Err(refusal) => {
                refused += 1;
                assert!(!refusal.sentence.is_empty());
            }
        }
        for operation in Operation::ALL {
            let _ = Answer::parse(bytes, *operation);
        }
        let _ = serde_json::from_slice::<DaemonStatus>(bytes);
    });
    assert!(messages > 0 && refused > 0, "{messages} messages, {refused} refused");
}
