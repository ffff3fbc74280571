//! Whether a program may read the counter.

use nix::errno::Errno;

use super::{RemoteCall, RemoteCalls};
use crate::abi::Call;
use crate::error::{Error, Result};

/// PR_TSC_ENABLE, prctl(2).
const ENABLED: u32 = 1;
const WHAT: &str = "prctl(PR_GET_TSC)";

/// Returns whether the program may read the counter: under PR_SET_TSC it would be killed.
pub fn counter_is_readable(calls: &mut RemoteCalls<'_>) -> Result<bool> {
    let at = calls.scratch();
    let asked = calls.call(WHAT, Call::Prctl, arguments(at)).map(drop);
    answer(calls, at, asked)
}

/// Returns the error for a program that may not.
pub fn counter_forbidden() -> Error {
    Error::Unsupported("the counter may not be read there (PR_SET_TSC)".into())
}

/// Returns the same question as one of several calls. The kernel stores its answer at `at`.
pub(super) fn question(at: u64) -> RemoteCall {
    RemoteCall {
        what: WHAT,
        call: Call::Prctl,
        arguments: arguments(at),
        expected: 0,
    }
}

/// Returns the answer at `at` to a question with the result `asked`.
pub(super) fn answer(calls: &mut RemoteCalls<'_>, at: u64, asked: Result<()>) -> Result<bool> {
    match asked {
        // A kernel that does not know PR_GET_TSC does not forbid the counter.
        Err(Error::Remote {
            errno: Errno::EINVAL, ..
        }) => return Ok(true),
        asked => asked?,
    }
    let mut mode = [0; 4];
    calls.tracee().read(at, &mut mode)?;
    Ok(u32::from_le_bytes(mode) == ENABLED)
}

fn arguments(at: u64) -> [u64; 6] {
    [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0]
}
