//! Whether a program may read the counter.

use nix::errno::Errno;

use super::{RemoteCall, RemoteCalls};
use crate::abi::Call;
use crate::error::{Error, Result};

/// PR_TSC_ENABLE, prctl(2).
const ENABLED: u32 = 1;

/// Asks whether the program may read the counter (under PR_SET_TSC it would be killed), and makes another call. The kernel
/// stores the answer at `at`.
pub(super) fn with_question(calls: &mut RemoteCalls<'_>, at: u64, then: RemoteCall) -> Result<bool> {
    let question = RemoteCall {
        what: "prctl(PR_GET_TSC)",
        call: Call::Prctl,
        arguments: [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0],
        expected: 0,
    };
    let both = [question, then];
    match calls.call_all(&both) {
        Ok(()) => {}
        // A kernel that does not know PR_GET_TSC does not forbid the counter.
        Err(other) if other.call == 0 && is_unknown(&other.error) => {
            calls.call_all(&both[1..])?;
            return Ok(true);
        }
        Err(other) => return Err(other.error),
    }
    let mut mode = [0; 4];
    calls.tracee().read(at, &mut mode)?;
    Ok(u32::from_le_bytes(mode) == ENABLED)
}

fn is_unknown(error: &Error) -> bool {
    let errno = Errno::EINVAL;
    matches!(error, Error::Remote { errno: found, .. } if *found == errno)
}
