//! Reads how the kernel steers its clocks (adjtimex(2), which changes nothing without a mode).

use fastpath_clock::{Leap, Ntp};

/// Mode that reads the rest of adjtime(3)'s slew, and changes nothing (include/uapi/linux/timex.h).
const ADJ_OFFSET_SS_READ: libc::c_uint = 0xa001;

/// Reads the kernel's state.
pub(crate) struct NtpWatch(());

impl NtpWatch {
    /// Returns `None` if a seccomp filter of this process refuses the call, or kills for it, which is tried in a child.
    pub(crate) fn new() -> Option<NtpWatch> {
        let both = || adjtimex(0).is_some() && adjtimex(ADJ_OFFSET_SS_READ).is_some();
        let watch = is_allowed(both).then_some(NtpWatch(()))?;
        watch.read().is_some().then_some(watch)
    }

    /// Returns the kernel's state.
    pub(crate) fn read(&self) -> Option<Ntp> {
        let timex = adjtimex(0)?;
        let single_shot = adjtimex(ADJ_OFFSET_SS_READ)?;
        let is_set = |bit: libc::c_int| timex.status & bit != 0;
        let unit_ns = if is_set(libc::STA_NANO) { 1 } else { 1_000 };
        Some(Ntp {
            freq: wide(timex.freq),
            tick_us: wide(timex.tick),
            offset_ns: wide(timex.offset).saturating_mul(unit_ns),
            constant: u32::try_from(timex.constant).unwrap_or(0),
            single_shot_us: wide(single_shot.offset),
            tai_s: timex.tai,
            leap: announced(timex.status),
            is_synchronized: !is_set(libc::STA_UNSYNC),
            // Beyond 16 s it means nothing, and a negative one neither.
            max_error_us: u64::try_from(wide(timex.maxerror)).unwrap_or(u64::MAX),
        })
    }
}

/// Returns one of the kernel's `long`s, of which an ISA of 32 bits has smaller ones.
fn wide(value: impl Into<i64>) -> i64 {
    value.into()
}

/// Returns the leap second that the status announces. The bits stay set until a daemon clears them, after the leap.
///
/// The call's result does not show whether the leap is still to come: it is TIME_ERROR while the clock is not
/// synchronized, and from midnight on what it will be after the leap, which the kernel makes at its next tick
/// (`__do_adjtimex` in kernel/time/ntp.c).
fn announced(status: libc::c_int) -> Option<Leap> {
    match status {
        _ if status & libc::STA_INS != 0 => Some(Leap::Insert),
        _ if status & libc::STA_DEL != 0 => Some(Leap::Delete),
        _ => None,
    }
}

/// Returns the struct that the call fills in.
fn adjtimex(modes: libc::c_uint) -> Option<libc::timex> {
    // SAFETY: a timex of zeros is valid; the call fills it in.
    unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        timex.modes = modes;
        (libc::adjtimex(&mut timex) >= 0).then_some(timex)
    }
}

/// Returns whether this thread has a seccomp filter (proc(5), Seccomp in /proc/PID/status), also if that cannot be
/// read.
fn is_filtered() -> bool {
    let mode = fastpath_os::Status::read("thread-self")
        .ok()
        .and_then(|status| status.number("Seccomp"));
    mode != Some(0)
}

/// Returns whether this process may make the calls of `attempt`, which makes system calls only. Where there is a
/// filter, which can refuse them or kill for them, a child tries it.
pub(crate) fn is_allowed(attempt: impl FnOnce() -> bool) -> bool {
    if !is_filtered() {
        return true;
    }
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let succeeds = attempt();
        // SAFETY: _exit ends the child without running any code of the parent.
        unsafe { libc::_exit(i32::from(!succeeds)) }
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    let waited = unsafe { libc::waitpid(child, &mut status, libc::__WALL) };
    child > 0 && waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leap_second_is_announced_by_the_status_alone() {
        for other in [0, libc::STA_UNSYNC, libc::STA_PLL | libc::STA_NANO] {
            assert_eq!(announced(libc::STA_INS | other), Some(Leap::Insert));
            assert_eq!(announced(libc::STA_DEL | other), Some(Leap::Delete));
            assert_eq!(announced(other), None);
        }
    }

    #[test]
    fn a_machines_tick_is_near_its_nominal_length() {
        let Some(ntp) = NtpWatch::new().and_then(|watch| watch.read()) else {
            return;
        };
        // The limits of the call (adjtimex(2)).
        assert!((9_000..=11_000).contains(&ntp.tick_us), "{ntp:?}");
        assert!(ntp.freq.abs() <= 500 << 16, "{ntp:?}");
    }
}
