//! Chooses the clocks that the page answers.

use fastpath_measure::{Assume, Clocks};
use fastpath_page::ClockSet;

/// Returns the clocks that the page answers; none if programs only start without a vDSO. The error: nothing needs to be
/// done, for this reason.
///
/// `auto` measures for a millisecond at most. With `rescue`, all clocks are
/// served unless others are named: a program's own system calls are slow on every host.
pub fn select(clocks: Option<&Clocks>, rescue: bool, without_vdso: bool) -> Result<ClockSet, String> {
    match clocks {
        None if rescue => Ok(ClockSet::ALL),
        None if without_vdso => Ok(ClockSet::NONE),
        Some(Clocks::Set(set)) => Ok(*set),
        None | Some(Clocks::Auto) => measure(without_vdso),
    }
}

fn measure(without_vdso: bool) -> Result<ClockSet, String> {
    let assume = if without_vdso { Assume::NoVdso } else { Assume::SamePath };
    let measured = fastpath_measure::measure_for_auto(assume);
    let slow = measured.iter().filter(|m| m.is_slow);
    let set = slow.fold(ClockSet::NONE, |set, m| set.union(ClockSet::of_id(m.clock.id() as u32)));
    if set.is_empty() {
        let worst = measured.iter().filter_map(|m| m.ns).fold(0.0, f64::max);
        return Err(format!(
            "every clock is on its fast path here (at most {worst:.0} ns a call): nothing needs fixing"
        ));
    }
    Ok(set)
}
