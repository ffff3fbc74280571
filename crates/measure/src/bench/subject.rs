//! The paths on which a call is compared.

use crate::clocks::Clock;
use crate::counter;
use crate::functions::{Call, Functions};
use std::hint::black_box;

/// The path that a measurement belongs to: a column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Counter,
    Ours,
    KernelVdso,
    Syscall,
    QuantaInstant,
    QuantaRaw,
}

/// One path of one call, ready to be repeated.
pub(super) struct Subject {
    pub path: Path,
    pub repeat: Box<dyn Fn(u32)>,
}

/// Returns the paths to compare for a call, in the order of a round.
pub(super) fn subjects(
    call: Call,
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
    // The library that a programmer would link instead answers this call only.
    if call == Call::ClockGettime(Clock::MONOTONIC) {
        subjects.push(Subject {
            path: Path::QuantaInstant,
            repeat: Box::new(repeat_quanta_instant),
        });
        let clock = quanta::Clock::new();
        subjects.push(Subject {
            path: Path::QuantaRaw,
            repeat: Box::new(move |calls| repeat_quanta_raw(&clock, calls)),
        });
    }
    subjects
}

#[inline(never)]
fn repeat_quanta_instant(calls: u32) {
    for _ in 0..calls {
        black_box(quanta::Instant::now());
    }
}

#[inline(never)]
fn repeat_quanta_raw(clock: &quanta::Clock, calls: u32) {
    for _ in 0..calls {
        black_box(clock.raw());
    }
}
