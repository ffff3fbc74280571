//! Makes the changes of a journal in a process whose threads are all stopped.

use crate::error::Error;
use crate::plan::redirection::Record;
use crate::target::tracee::Tracee;

/// Reason why no change was made.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// The process has other bytes there than the plan was made for.
    #[error("the code at {address:#x} changed meanwhile")]
    Changed {
        /// Address of the code.
        address: u64,
    },
    /// The system does not permit the change.
    #[error(
        "the kernel does not let fastpath write the code of its vDSO (sealed mappings, or proc_mem.force_override): {why}"
    )]
    Sealed {
        /// The system's answer.
        why: String,
    },
    /// Another error.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Makes all changes, or none.
pub fn apply(tracee: &mut Tracee, records: &[Record]) -> Result<(), NotApplied> {
    let pieces: Vec<_> = records
        .iter()
        .map(|Record { change, .. }| (change.address, &change.original[..]))
        .collect();
    if let Some(address) = tracee.memory()?.first_changed(&pieces)? {
        return Err(NotApplied::Changed { address });
    }
    write(tracee, records)
}

/// Makes all changes, or none. The plan has just compared the bytes, at the same stop of the program.
pub fn write(tracee: &mut Tracee, records: &[Record]) -> Result<(), NotApplied> {
    for (done, record) in records.iter().enumerate() {
        if let Err(e) = tracee.write(record.change.address, &record.change.replacement) {
            revert(tracee, &records[..done])?;
            return Err(NotApplied::Sealed { why: e.to_string() });
        }
    }
    Ok(())
}

/// Takes changes back, the last one first.
pub fn revert(tracee: &mut Tracee, records: &[Record]) -> Result<(), Error> {
    let mut records = records.iter().rev();
    records.try_for_each(|Record { change, .. }| tracee.write(change.address, &change.original))
}
