//! Any bytes, read as a policy, and as a path that it is applied to.
#![no_main]

use fastpath_daemon::{Facts, Policy};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(policy) = Policy::parse(&text) {
        let path = Some(text.into_owned());
        let _ = policy.decide(&Facts {
            uid: 0,
            executable: path.clone(),
            cgroup: path,
        });
    }
});
