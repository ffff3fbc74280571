//! Whether a program may read the counter.

use nix::errno::Errno;

use super::{Indirect, RemoteCall, RemoteCalls};
use crate::abi::Call;
use crate::error::{Error, Result};

/// PR_TSC_ENABLE, prctl(2).
pub(super) const ENABLED: u64 = 1;

/// Asks whether the program may read the counter (under PR_SET_TSC it would be killed), and makes another call. The kernel
/// stores the answer as an int at `at`, where [`ENABLED`] is expected.
pub(super) fn with_question(calls: &mut RemoteCalls<'_>, at: u64, then: RemoteCall) -> Result<()> {
    let question = RemoteCall {
        what: "prctl(PR_GET_TSC)",
        call: Call::Prctl,
        arguments: [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0],
        indirect: Indirect::None,
        expected: 0,
    };
    let both = [question, then];
    match calls.call_all(&both) {
        Ok(()) => Ok(()),
        // A kernel that does not know PR_GET_TSC does not forbid the counter.
        Err(other) if other.call == 0 && is_unknown(&other.error) => {
            calls.tracee().write(at, &(ENABLED as u32).to_le_bytes())?;
            Ok(calls.call_all(&both[1..])?)
        }
        Err(other) => Err(other.error),
    }
}

fn is_unknown(error: &Error) -> bool {
    let errno = Errno::EINVAL;
    matches!(error, Error::Remote { errno: found, .. } if *found == errno)
}
