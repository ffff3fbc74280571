//! Any bytes, read as a packet on a daemon's socket, and on its client's.
#![no_main]

use fastpath_protocol::{Answer, Operation, Request, Status};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = Request::parse(bytes);
    for operation in Operation::ALL {
        let _ = Answer::parse(bytes, *operation);
    }
    let _ = serde_json::from_slice::<Status>(bytes);
});
