//! The paths on which a call is compared.

use crate::counter;
use crate::functions::{Functions, VdsoCall};

/// The path that a measurement belongs to: a column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Counter,
    Ours,
    KernelVdso,
    Syscall,
}

/// One path of one call, ready to be repeated.
pub(super) struct Subject {
    pub path: Path,
    pub repeat: Box<dyn Fn(u32)>,
}

/// Returns the paths to compare for a call, in the order of a round.
pub(super) fn subjects(
    call: VdsoCall,
    ours: Option<&Functions>,
    kernel: Option<Functions>,
    raw: Option<Functions>,
) -> Vec<Subject> {
    let mut subjects = Vec::new();
    if counter::usable() {
        subjects.push(Subject {
            path: Path::Counter,
            repeat: Box::new(counter::repeat),
        });
    }
    let places = [
        (Path::Ours, ours.copied()),
        (Path::KernelVdso, kernel),
        (Path::Syscall, raw),
    ];
    for (path, functions) in places {
        if let Some(functions) = functions.filter(|functions| functions.has(call)) {
            subjects.push(Subject {
                path,
                repeat: Box::new(move |calls| functions.repeat(call, calls)),
            });
        }
    }
    subjects
}
