//! Hosts and processes as in the field, for tests.

use super::facts::*;
use fastpath_evidence::counter::Features;
use fastpath_evidence::{Evidence, Pair, Warp};
use fastpath_measure::clocks::{Clock, ClockKind};
use fastpath_measure::functions::VdsoCall;
use fastpath_measure::host::TimensOffset;
use fastpath_measure::path::Path;
use fastpath_measure::probe::{ClockReport, FunctionReport, MeasuredCall};
use fastpath_measure::verdict::{CallVerdict, judge};
use fastpath_measure::{ClockMonotonicity, Monotonicity, Steps};

const COUNTER_NS: f64 = 18.0;

fn measured(call: VdsoCall, path: Path, ns: f64, syscall_ns: f64) -> MeasuredCall {
    MeasuredCall {
        path,
        ns: Some(ns),
        syscall_ns: Some(syscall_ns),
        verdict: judge(call, path, Some(ns), Some(syscall_ns), Some(COUNTER_NS)),
        why: None,
    }
}

/// Returns a host whose counter clocks take this path at this cost; COARSE and the others are as usual.
fn clocks(path: Path, ns: f64, syscall_ns: f64) -> (Vec<ClockReport>, Vec<FunctionReport>) {
    let clock = |clock: &Clock| {
        let call = VdsoCall::ClockGettime(*clock);
        let measured = match clock.kind() {
            ClockKind::Counter => measured(call, path, ns, syscall_ns),
            ClockKind::Coarse => measured(call, Path::Vdso, 5.0, 130.0),
            ClockKind::KernelOnly => measured(call, Path::Syscall, 200.0, 200.0),
        };
        ClockReport {
            clock: *clock,
            id: clock.id(),
            measured,
        }
    };
    let function = |call: VdsoCall, path, ns, syscall_ns| FunctionReport {
        function: call.function().into(),
        measured: measured(call, path, ns, syscall_ns),
    };
    let functions = vec![
        function(VdsoCall::Gettimeofday, path, ns, syscall_ns),
        function(VdsoCall::Time, Path::Vdso, 3.0, 80.0),
        function(VdsoCall::Getcpu, Path::Vdso, 4.0, 90.0),
        function(VdsoCall::ClockGetres(Clock::MONOTONIC), Path::Vdso, 4.0, 110.0),
    ];
    (Clock::ALL.iter().map(clock).collect(), functions)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn own_process() -> Process {
    Process {
        pid: 4711,
        name: Some("fastpath".to_owned()),
        state: Some('R'),
        word_bits: Some(usize::BITS as u8),
        isa: Some(std::env::consts::ARCH.to_owned()),
        is_static: Some(false),
        vdso: Some(VdsoKind::Kernel),
        has_kernel_vdso: Some(true),
        has_vvar: Some(true),
        seccomp: Some(0),
        ..Process::default()
    }
}

/// Returns a server whose kernel reads the counter.
pub(super) fn healthy() -> Facts {
    let (clocks, functions) = clocks(Path::Vdso, 21.0, 130.0);
    let counter = super::arch::COUNTER_CLOCKSOURCES[0];
    Facts {
        kernel: KernelFacts {
            release: "6.12.9".to_owned(),
            machine: std::env::consts::ARCH.to_owned(),
            parameters: Some(Vec::new()),
        },
        machine: MachineFacts {
            cpu: Some("a CPU".to_owned()),
            cpus: 4,
            ..MachineFacts::default()
        },
        clocksource: Clocksource {
            current: Some(counter.to_owned()),
            available: strings(&[counter, "hpet"]),
        },
        log: Some(log(&["clocksource: Switched to clocksource tsc"])),
        counter: CounterFacts {
            name: "counter".into(),
            read_ns: Some(COUNTER_NS),
            evidence: Evidence {
                is_readable: true,
                features: Some(Features {
                    invariant: true,
                    ..Features::of_this_cpu()
                }),
                warp: Some(warp(4, -180, 150)),
                ..Evidence::default()
            },
            flags: Some(strings(super::arch::FLAGS)),
            measured: Some(rate(2_300_000_000.0)),
            stated: vec![stated(2_300_000_100.0)],
            ..CounterFacts::default()
        },
        clocks,
        rates: Vec::new(),
        is_synchronized: Some(true),
        monotonicity: None,
        functions,
        syscall_ns: Some(80.0),
        vsyscall: None,
        vdso: KernelVdso {
            is_mapped: true,
            functions: super::arch::FUNCTIONS.iter().map(|(name, _)| (*name).into()).collect(),
            lacks: Vec::new(),
        },
        mitigations: vec![Mitigation {
            name: "meltdown".to_owned(),
            status: "Not affected".to_owned(),
            taxes_system_calls: false,
        }],
        here: own_process(),
        process: None,
        counter_programs: None,
    }
}

pub(super) fn log(lines: &[&str]) -> KernelLog {
    KernelLog {
        source: "/dev/kmsg".to_owned(),
        is_complete: true,
        lines: strings(lines),
    }
}

pub(super) fn rate(hz: f64) -> MeasuredRate {
    MeasuredRate {
        hz,
        error_hz: 1000.0,
        against: "CLOCK_MONOTONIC_RAW".into(),
        over_ms: 150.0,
    }
}

pub(super) fn stated(hz: f64) -> Stated {
    Stated {
        source: "/dev/kmsg".to_owned(),
        by: StatedBy::Kernel,
        hz,
    }
}

/// Returns a host whose kernel's watchdog marked the TSC unstable.
pub(super) fn hpet() -> Facts {
    let (clocks, functions) = clocks(Path::Syscall, 1100.0, 1090.0);
    Facts {
        clocksource: Clocksource {
            current: Some("hpet".to_owned()),
            available: strings(&["hpet", "acpi_pm"]),
        },
        log: Some(log(&[
            "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
            "tsc: Marking TSC unstable due to clocksource watchdog",
            "clocksource: Switched to clocksource hpet",
        ])),
        clocks,
        functions,
        ..healthy()
    }
}

/// Returns a host where acpi_pm was chosen on the command line.
pub(super) fn acpi_pm() -> Facts {
    let mut facts = hpet();
    facts.clocksource = Clocksource {
        current: Some("acpi_pm".to_owned()),
        available: strings(&["acpi_pm"]),
    };
    facts.kernel.parameters = Some(strings(&["notsc", "clocksource=acpi_pm"]));
    facts.log = None;
    facts
}

/// Returns a cloud's Xen guest.
pub(super) fn xen() -> Facts {
    let mut facts = hpet();
    facts.clocksource = Clocksource {
        current: Some("xen".to_owned()),
        available: strings(&["xen", super::arch::COUNTER_CLOCKSOURCES[0], "hpet"]),
    };
    facts.machine.hypervisor = Some("Xen".to_owned());
    facts.log = Some(log(&["clocksource: Switched to clocksource xen"]));
    facts
}

/// Returns User Mode Linux: a vDSO of one page makes a system call for every clock, which the kernel below traps.
pub(super) fn user_mode_linux() -> Facts {
    let mut facts = hpet();
    (facts.clocks, facts.functions) = clocks(Path::Syscall, 14_650.0, 14_640.0);
    for report in &mut facts.clocks {
        if report.clock.kind() == ClockKind::Coarse {
            report.measured = measured(VdsoCall::ClockGettime(report.clock), Path::Syscall, 14_650.0, 14_640.0);
        }
    }
    facts.kernel.release = "6.1.176".to_owned();
    facts.machine.cpus = 1;
    facts.machine.stand_in = Some("User Mode Linux".into());
    facts.clocksource.current = Some("timer".to_owned());
    facts.clocksource.available = strings(&["timer"]);
    facts.syscall_ns = Some(14_540.0);
    facts.vdso.lacks = vec![("__vdso_clock_getres".into(), "5.3".into())];
    facts.log = None;
    facts.mitigations = Vec::new();
    facts
}

/// Returns gVisor in a sandbox's first seconds: its vDSO still makes system calls.
pub(super) fn gvisor() -> Facts {
    let mut facts = user_mode_linux();
    facts.kernel.release = "4.4.0".to_owned();
    facts.machine.cpus = 2;
    facts.machine.stand_in = Some(super::host::GVISOR.into());
    facts.clocksource = Clocksource::default();
    facts
}

/// Returns a host started with `vdso=0`.
pub(super) fn without_vdso_by_command_line() -> Facts {
    let mut facts = without_vdso();
    facts.kernel.parameters = Some(strings(&["vdso=0"]));
    facts
}

/// Returns a host whose processes are started by a sandbox without a vDSO.
pub(super) fn without_vdso() -> Facts {
    let (mut clocks, mut functions) = clocks(Path::Syscall, 140.0, 135.0);
    let measured_of_clocks = clocks
        .iter_mut()
        .map(|report| (VdsoCall::ClockGettime(report.clock), &mut report.measured));
    for (call, measured) in measured_of_clocks {
        if measured.path == Path::Vdso {
            *measured = self::measured(call, Path::Syscall, 130.0, 130.0);
        }
    }
    for report in &mut functions {
        report.measured = self::measured(VdsoCall::Time, Path::Syscall, 90.0, 90.0);
    }
    let mut facts = Facts {
        clocks,
        functions,
        ..healthy()
    };
    facts.vdso = KernelVdso::default();
    facts.here.vdso = Some(VdsoKind::None);
    facts.here.has_kernel_vdso = Some(false);
    facts.here.has_vvar = Some(false);
    facts
}

/// Returns a host that switches page tables and clears buffers at each system call.
pub(super) fn mitigated() -> Facts {
    let mitigation = |name: &str, status: &str| Mitigation {
        name: name.to_owned(),
        status: status.to_owned(),
        taxes_system_calls: true,
    };
    Facts {
        syscall_ns: Some(610.0),
        mitigations: vec![
            mitigation("mds", "Mitigation: Clear CPU buffers; SMT vulnerable"),
            mitigation("meltdown", "Mitigation: PTI"),
        ],
        ..hpet()
    }
}

/// Returns a container without /sys where the kernel log cannot be read.
pub(super) fn container() -> Facts {
    Facts {
        clocksource: Clocksource::default(),
        log: None,
        mitigations: Vec::new(),
        ..healthy()
    }
}

/// Returns a host with an old kernel whose vDSO answers few clocks.
pub(super) fn old_kernel() -> Facts {
    let mut facts = healthy();
    for report in &mut facts.clocks {
        if [Clock::BOOTTIME, Clock::TAI, Clock::MONOTONIC_RAW].contains(&report.clock) {
            report.measured = measured(VdsoCall::ClockGettime(report.clock), Path::Syscall, 150.0, 148.0);
        }
    }
    facts.functions[3].measured = measured(VdsoCall::ClockGetres(Clock::MONOTONIC), Path::Syscall, 110.0, 110.0);
    facts.vdso.lacks = vec![("__vdso_clock_getres".into(), "5.3".into())];
    facts.kernel.release = "4.19.0".to_owned();
    facts
}

/// Returns a host with Debian 12's kernel on AArch64: its vDSO has no getrandom yet, and no version has a getcpu.
pub(super) fn aarch64() -> Facts {
    let mut facts = healthy();
    facts.kernel.release = "6.1.0-42-arm64".to_owned();
    facts.kernel.machine = "aarch64".to_owned();
    facts.vdso.functions = vec![
        "__kernel_clock_gettime".into(),
        "__kernel_gettimeofday".into(),
        "__kernel_clock_getres".into(),
        "__kernel_rt_sigreturn".into(),
    ];
    facts.vdso.lacks = vec![("__kernel_getrandom".into(), "6.12".into())];
    facts.functions[2].measured = MeasuredCall {
        path: Path::Syscall,
        ns: Some(92.0),
        syscall_ns: Some(90.0),
        verdict: CallVerdict::SyscallOnly,
        why: None,
    };
    facts
}

/// Returns a host whose CPUs' counters differ.
pub(super) fn warped() -> Warp {
    warp(2, -90_000, -89_500)
}

/// Returns the comparison of this many CPUs, any two of which differ by this much.
fn warp(cpus: usize, least_cycles: i64, most_cycles: i64) -> Warp {
    let pair = |cpu, other| Pair {
        cpu,
        other,
        least_cycles,
        most_cycles,
    };
    Warp {
        cpus: (0..cpus).collect(),
        pairs: (0..cpus)
            .flat_map(|cpu| (cpu + 1..cpus).map(move |other| pair(cpu, other)))
            .collect(),
        ..Warp::default()
    }
}

/// Returns a host whose MONOTONIC goes back between CPUs.
pub(super) fn backward() -> Facts {
    let mut facts = healthy();
    let none = Steps {
        compared: 5_000,
        ..Steps::default()
    };
    facts.monotonicity = Some(Monotonicity {
        threads: 4,
        seconds: 0.03,
        reads: 15_000,
        clocks: vec![ClockMonotonicity {
            clock: Clock::MONOTONIC,
            same_thread: none,
            across_threads: Steps {
                backward: 12,
                worst_ns: 831,
                ..none
            },
            // The system call rounds in another way.
            with_syscalls: Steps {
                backward: 3,
                worst_ns: 1,
                ..none
            },
            unanswered: 0,
        }],
    });
    facts
}

/// Returns the same host with a CPU that does not promise that its counter keeps one rate.
pub(super) fn without_promise(mut facts: Facts) -> Facts {
    if let Some(features) = &mut facts.counter.evidence.features {
        features.invariant = false;
    }
    facts
}

/// Returns a process with the kernel's vDSO.
pub(super) fn process() -> Process {
    Process {
        pid: 7,
        name: Some("app".to_owned()),
        ..own_process()
    }
}

/// Returns a static program that never asks for a vDSO, on a healthy host.
pub(super) fn bypassing_process() -> Facts {
    let mut facts = healthy();
    facts.process = Some(Process {
        is_static: Some(true),
        asks_for_vdso: Some(false),
        ..process()
    });
    facts
}

/// Returns a 32-bit process on a host that lost its counter.
pub(super) fn other_isa() -> Facts {
    let mut facts = hpet();
    facts.process = Some(Process {
        word_bits: Some(32),
        isa: Some("i386".to_owned()),
        ..process()
    });
    facts
}

/// Returns a process that fastpath serves, on a host that lost its counter.
pub(super) fn served_process() -> Facts {
    let mut facts = hpet();
    facts.process = Some(Process {
        vdso: Some(VdsoKind::Fastpath),
        page: Some(PageFacts {
            serves: Some(vec!["REALTIME".into(), "MONOTONIC".into()]),
            refreshes: Some(100),
            ..PageFacts::default()
        }),
        ..process()
    });
    facts
}

/// Returns a process in a time namespace that is a day ahead.
pub(super) fn time_namespace() -> TimeNamespace {
    TimeNamespace {
        id: Some("time:[2]".to_owned()),
        is_ours: Some(true),
        offsets: vec![TimensOffset {
            clock: "monotonic".to_owned(),
            sec: 86_400,
            nsec: 0,
        }],
    }
}
