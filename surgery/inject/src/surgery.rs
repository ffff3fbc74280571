//! The steps of an installation in a program that is stopped at its exec.

use crate::error::{Error, Result};
use crate::redirection::Record;
use crate::redirection::apply::{apply, revert};
use crate::redirection::mapping::{self, Region};
use crate::remote::RemoteCalls;
use crate::stack::InitialStack;

/// Maps the region, then makes the changes that put it in force, then sets the initial stack `stack`. On an error the
/// program's memory is as it was, but for what `stays`, to which nothing refers then.
pub fn perform(calls: &mut RemoteCalls<'_>, region: &Region<'_>, stays: &[Record], stack: &InitialStack) -> Result<()> {
    region.map(calls)?;
    let done = put_in_force(calls, region, stays, stack);
    if done.is_err() {
        // A failure here leaves an unused part behind, never an incorrect one.
        let _ = mapping::unmap(calls, region.plan.at);
    }
    done
}

/// Each change leaves a program that works, because the region is complete: the order does not matter.
fn put_in_force(
    calls: &mut RemoteCalls<'_>,
    region: &Region<'_>,
    stays: &[Record],
    stack: &InitialStack,
) -> Result<()> {
    // Both may need the end of the vDSO's mapping.
    calls.end_batch()?;
    apply(calls.tracee(), stays).map_err(|e| Error::Unsupported(e.to_string()))?;
    let records = &region.plan.journal.records;
    apply(calls.tracee(), records).map_err(|e| Error::Unsupported(e.to_string()))?;
    // One write, and only after it is the stack pointer moved.
    if let Err(e) = calls.tracee().write(stack.pointer, &stack.bytes()) {
        revert(calls.tracee(), records)?;
        return Err(e);
    }
    calls.set_stack_pointer(stack.pointer);
    Ok(())
}
