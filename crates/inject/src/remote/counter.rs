//! Whether a program may read the counter.

use nix::errno::Errno;

use super::RemoteCalls;
use crate::abi::Call;
use crate::error::{Error, Result};

/// PR_TSC_ENABLE, prctl(2).
const ENABLED: u32 = 1;

/// Returns whether the program may read the counter: under PR_SET_TSC it would be killed.
pub fn counter_is_readable(calls: &mut RemoteCalls<'_>) -> Result<bool> {
    let at = calls.scratch();
    let arguments = [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0];
    match calls.call("prctl(PR_GET_TSC)", Call::Prctl, arguments) {
        // A kernel that does not know PR_GET_TSC does not forbid the counter.
        Err(Error::Remote {
            errno: Errno::EINVAL, ..
        }) => return Ok(true),
        asked => asked?,
    };
    let mut mode = [0; 4];
    calls.tracee().read(at, &mut mode)?;
    Ok(u32::from_le_bytes(mode) == ENABLED)
}
