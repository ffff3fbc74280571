//! Makes the changes of a journal in a process whose threads are all stopped.

use crate::error::Error;
use crate::plan::redirection::{Change, JournalRecord};
use crate::target::memory::{CodePages, PAGE};
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
pub fn apply(tracee: &mut Tracee, records: &[JournalRecord]) -> Result<(), NotApplied> {
    let memory = tracee.memory()?;
    let code = CodePages::new(&memory);
    let changes: Vec<&Change> = records.iter().map(|record| &record.change).collect();
    for change in &changes {
        if !code.has(change.address, &change.original)? {
            return Err(NotApplied::Changed {
                address: change.address,
            });
        }
    }
    write(tracee, &code, &changes)
}

/// Makes all changes, or none. The plan has just compared the bytes, at the same stop of the program.
pub fn write(tracee: &mut Tracee, code: &CodePages<'_>, changes: &[&Change]) -> Result<(), NotApplied> {
    let page = |address: u64| address / PAGE;
    let last = |change: &Change| change.address + change.original.len() as u64 - 1;
    let are_in_one_page = |one: &&Change, next: &&Change| {
        page(last(one)) == page(one.address) && [next.address, last(next)].map(page) == [page(one.address); 2]
    };
    let mut done = 0;
    for some in changes.chunk_by(are_in_one_page) {
        let pieces = some.iter().map(|change| (change.address, &change.replacement[..]));
        if let Err(e) = code.write(&pieces.collect::<Vec<_>>()) {
            revert(tracee, &changes[..done])?;
            return Err(NotApplied::Sealed { why: e.to_string() });
        }
        done += some.len();
    }
    Ok(())
}

/// Takes changes back, the last one first.
pub fn revert(tracee: &mut Tracee, changes: &[&Change]) -> Result<(), Error> {
    let mut changes = changes.iter().rev();
    changes.try_for_each(|change| tracee.write(change.address, &change.original))
}
