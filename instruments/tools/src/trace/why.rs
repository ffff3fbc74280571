//! Reasons why a call entered the kernel.

use crate::program::Program;
use crate::trace::call::{CallAbi, CallSite};
use crate::trace::process::{self, ProgramImage};
use crate::trace::symbols::{self, Frame};
use fastpath_code::TimeCall;
use fastpath_measure::{Clock, ClockKind, Path, Probe};
use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// Reason why a call entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// A jump to the vsyscall page, which traps.
    Vsyscall,
    /// CPU time, alarm clocks and devices' clocks, which only the kernel has, on every host.
    KernelOnly,
    /// This host's vDSO does not answer this clock or function, though it answers others.
    NotInVdso,
    /// The vDSO answers no clock on this host: its clocksource cannot be read in user space.
    Clocksource,
    /// The process has no vDSO.
    NoVdso,
    /// A static program that never asks for a vDSO.
    StaticBinary,
    /// A `syscall` instruction in the program's own code, or `syscall(2)`.
    OwnInstruction,
    /// The C library made the call itself.
    Libc,
    /// The vDSO did not answer this time.
    VdsoFellBack,
    /// The mapping that contains the call is not known.
    Unknown,
}

impl Serialize for Why {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl schemars::JsonSchema for Why {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Why".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": Why::ALL.map(Why::word) })
    }
}

impl Why {
    /// All reasons.
    pub const ALL: [Why; 10] = [
        Why::Vsyscall,
        Why::KernelOnly,
        Why::NotInVdso,
        Why::Clocksource,
        Why::NoVdso,
        Why::StaticBinary,
        Why::OwnInstruction,
        Why::Libc,
        Why::VdsoFellBack,
        Why::Unknown,
    ];

    /// Returns it in a word, as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Why::Vsyscall => "vsyscall",
            Why::KernelOnly => "kernel-only",
            Why::NotInVdso => "not-in-vdso",
            Why::Clocksource => "clocksource",
            Why::NoVdso => "no-vdso",
            Why::StaticBinary => "static-binary",
            Why::OwnInstruction => "own-instruction",
            Why::Libc => "libc",
            Why::VdsoFellBack => "vdso-fell-back",
            Why::Unknown => "unknown",
        }
    }

    /// Returns it in a sentence.
    pub fn says(self) -> &'static str {
        match self {
            Why::Vsyscall => "jumps to the vsyscall page, which traps to the kernel",
            Why::KernelOnly => "only the kernel can answer this clock, on every host",
            Why::NotInVdso => "this kernel's vDSO does not answer it",
            Why::Clocksource => "the kernel's clocksource cannot be read in user space (fastpath doctor says why)",
            Why::NoVdso => "the process has no vDSO",
            Why::StaticBinary => "static binary that never asks for the vDSO",
            Why::OwnInstruction => "makes the system call with an instruction of its own",
            Why::Libc => "its C library makes the system call without the vDSO",
            Why::VdsoFellBack => "the vDSO passed the call on to the kernel",
            Why::Unknown => "unknown: the mapping at the call could not be seen",
        }
    }
}

/// Determines the reasons of sites; reads each program once.
pub(crate) struct Judge<'a> {
    native: &'a Probe,
    programs: HashMap<String, Option<Program>>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(native: &'a Probe) -> Judge<'a> {
        Judge {
            native,
            programs: HashMap::new(),
        }
    }

    pub(crate) fn why(&mut self, site: &CallSite, image: &ProgramImage, place: &Frame) -> Why {
        if site.abi == CallAbi::Vsyscall {
            return Why::Vsyscall;
        }
        if is_kernel_only(site) {
            return Why::KernelOnly;
        }
        let Some(library) = place.library.as_deref() else {
            return Why::Unknown;
        };
        let host = self.of_host(site);
        // On 32-bit ABIs every system call is made in the vDSO.
        if symbols::is_vdso(library) && site.abi == CallAbi::Native {
            return host.unwrap_or(Why::VdsoFellBack);
        }
        let program = self.program(site.pid, image);
        if program
            .as_ref()
            .is_some_and(|program| program.asks_for_vdso == Some(false))
        {
            return Why::StaticBinary;
        }
        if !image.has_kernel_vdso() {
            return Why::NoVdso;
        }
        if let Some(host) = host {
            return host;
        }
        let is_of_libc = place.is_go_between() || is_static_libc(place, program.as_ref());
        if is_of_libc && place.function.as_deref() != Some("syscall") {
            // Programs started here get no vDSO either, though the kernel maps one (`fastpath run --without-vdso`).
            return if self.has_no_vdso() { Why::NoVdso } else { Why::Libc };
        }
        if symbols::is_vdso(library) {
            return Why::Unknown;
        }
        Why::OwnInstruction
    }

    /// Returns whether this process has no vDSO.
    fn has_no_vdso(&self) -> bool {
        self.native.host.vdso.is_none()
    }

    /// Returns why the vDSO answers no clock on this host; `None` if it answers some.
    fn of_host(&self, site: &CallSite) -> Option<Why> {
        // Without a vDSO, this process's paths do not show what the kernel's vDSO would answer.
        if self.has_no_vdso() {
            return None;
        }
        let path = match (site.function, Clock::from_id(site.clock)) {
            (TimeCall::ClockGettime | TimeCall::ClockGettime64, Some(clock)) => {
                let report = self.native.clocks.iter().find(|report| report.clock == clock)?;
                report.measured.path
            }
            (function, _) => {
                let of = |name: &str| name.starts_with(function.name());
                let report = self.native.functions.iter().find(|report| of(&report.function))?;
                report.measured.path
            }
        };
        if path != Path::Syscall {
            return None;
        }
        let clocks = self.native.clocks.iter();
        let counters = clocks.filter(|report| report.clock.kind() == ClockKind::Counter);
        let is_any_fast = counters.into_iter().any(|report| report.measured.path == Path::Vdso);
        Some(if is_any_fast { Why::NotInVdso } else { Why::Clocksource })
    }

    fn program(&mut self, pid: u32, image: &ProgramImage) -> Option<Program> {
        let path = image.program.clone()?;
        let read = |path: &String| crate::program::read(process::open(pid, path)?);
        self.programs.entry(path.clone()).or_insert_with(|| read(&path)).clone()
    }
}

fn is_kernel_only(site: &CallSite) -> bool {
    let of_clock = || Clock::from_id(site.clock).is_none_or(|clock| clock.kind() == ClockKind::KernelOnly);
    matches!(site.function, TimeCall::ClockGettime | TimeCall::ClockGettime64) && of_clock()
}

/// Returns whether it is a libc function in a static program.
fn is_static_libc(place: &Frame, program: Option<&Program>) -> bool {
    const NAMES: [&str; 6] = [
        "clock_gettime",
        "gettimeofday",
        "time",
        "clock_getres",
        "getcpu",
        "sched_getcpu",
    ];
    let function = place.function.as_deref().unwrap_or_default();
    let name = function.trim_start_matches('_').trim_start_matches("GI_");
    let name = name.trim_start_matches('_');
    // glibc's names of the 64-bit functions on 32-bit ISAs, and of the functions that its IFUNCs choose without a vDSO.
    let is_libcs = |known: &&str| matches!(name.strip_prefix(*known), Some("" | "64" | "_syscall" | "_time64"));
    program.is_some_and(|program| program.is_static) && NAMES.iter().any(is_libcs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::process::{ImageMapping, Processes};

    /// No process has this number (it is above the limit of pid_max).
    const NOBODY: u32 = 5_000_000;
    const LIBC: &str = "/lib/libc.so.6";

    /// Returns a host where the vDSO answers everything but `slow`.
    fn host(slow: &[Clock]) -> Probe {
        let mut probe = Probe::run();
        probe.host.vdso.get_or_insert(fastpath_measure::VdsoFacts {
            address: String::new(),
            build_id: None,
            is_fastpath: false,
        });
        for report in &mut probe.clocks {
            let is_slow = report.clock.kind() == ClockKind::KernelOnly || slow.contains(&report.clock);
            report.measured.path = if is_slow { Path::Syscall } else { Path::Vdso };
        }
        for report in &mut probe.functions {
            report.measured.path = Path::Vdso;
        }
        probe
    }

    /// Returns the reason of a dynamic program's call, whose instruction is in this function of this file.
    fn why(probe: &Probe, clock: Clock, library: Option<&str>, function: &str, has_vdso: bool) -> Why {
        let mut processes = Processes::default();
        processes.exec(NOBODY, "x".to_owned(), 1);
        if has_vdso {
            let mapping = ImageMapping {
                range: 0x1000..0x2000,
                offset: 0,
                path: "[vdso]".to_owned(),
            };
            processes.map(NOBODY, mapping);
        }
        let site = CallSite {
            pid: NOBODY,
            function: TimeCall::ClockGettime,
            abi: CallAbi::Native,
            clock: clock.id(),
            ip: 0,
        };
        let place = Frame {
            function: Some(function.to_owned()),
            library: library.map(str::to_owned),
        };
        Judge::new(probe).why(&site, processes.at(&site, 2, ""), &place)
    }

    #[test]
    fn a_call_in_the_programs_own_code_is_distinguished_from_one_in_libc() {
        let healthy = host(&[]);
        let of = |library, function| why(&healthy, Clock::MONOTONIC, library, function, true);
        assert_eq!(of(Some("/bin/x"), "main"), Why::OwnInstruction);
        assert_eq!(of(Some(LIBC), "syscall"), Why::OwnInstruction);
        assert_eq!(of(Some(LIBC), "clock_gettime"), Why::Libc);
        assert_eq!(of(Some("[vdso]"), "__vdso_clock_gettime"), Why::VdsoFellBack);
        assert_eq!(of(None, ""), Why::Unknown);
        let cpu_time = why(&healthy, Clock::PROCESS_CPUTIME_ID, Some(LIBC), "clock_gettime", true);
        assert_eq!(cpu_time, Why::KernelOnly);
        let without = why(&healthy, Clock::MONOTONIC, Some(LIBC), "clock_gettime", false);
        assert_eq!(without, Why::NoVdso);
    }

    /// Regression test: the kernel's clocksource was blamed.
    #[test]
    fn a_tracer_without_a_vdso_reports_that_and_not_the_kernels_clocksource() {
        let counters: Vec<Clock> = Clock::ALL.to_vec();
        let mut probe = host(&counters);
        probe.host.vdso = None;
        let of = |library| why(&probe, Clock::MONOTONIC, Some(library), "clock_gettime", true);
        assert_eq!(of(LIBC), Why::NoVdso);
        assert_eq!(of("[vdso]"), Why::VdsoFellBack);
    }

    #[test]
    fn only_the_functions_of_a_static_libc_are_libcs() {
        let program = Program {
            is_static: true,
            ..Program::default()
        };
        let is_libcs = |function: &str| {
            let place = Frame {
                function: Some(function.to_owned()),
                library: Some("/bin/x".to_owned()),
            };
            is_static_libc(&place, Some(&program))
        };
        for function in [
            "time",
            "__clock_gettime",
            "__GI___clock_gettime64",
            "time_syscall",
            "gettimeofday",
        ] {
            assert!(is_libcs(function), "{function}");
        }
        for function in ["timer_tick", "time_of_day_cache", "timestamp", "getcpu_usage", "main"] {
            assert!(!is_libcs(function), "{function}");
        }
    }

    #[test]
    fn a_clock_that_the_vdso_lacks_is_not_an_unreadable_clocksource() {
        let counters: Vec<Clock> = Clock::ALL
            .iter()
            .copied()
            .filter(|clock| clock.kind() == ClockKind::Counter)
            .collect();
        let old = host(&[Clock::TAI]);
        for place in ["[vdso]", LIBC] {
            assert_eq!(
                why(&old, Clock::TAI, Some(place), "clock_gettime", true),
                Why::NotInVdso
            );
        }
        let sick = host(&counters);
        assert_eq!(why(&sick, Clock::TAI, Some("[vdso]"), "", true), Why::Clocksource);
        assert_eq!(
            why(&sick, Clock::MONOTONIC_COARSE, Some("[vdso]"), "", true),
            Why::VdsoFellBack
        );
    }
}
