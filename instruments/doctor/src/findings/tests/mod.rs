//! Verdicts on hosts and processes of the field (`samples.rs`).

use super::super::facts::{CounterProgram, CounterPrograms, CounterReads, ExecutedRead};
use super::super::facts::{OwnCalls, PageFacts, Reads, Stated};
use super::super::facts::{Process, StatedBy, VdsoKind};
use super::super::{DoctorReport, samples};
use super::*;
use fastpath_evidence::{Distrust, Drift, Residuals};
use fastpath_measure::ClockRate;
use fastpath_measure::clocks::Clock;
use fastpath_measure::path::Path;
use fastpath_measure::probe::MeasuredCall;
use fastpath_measure::verdict::CallVerdict;

#[cfg(target_arch = "x86_64")]
mod tsc;

/// Returns the report. That on the host alone is the same without names.
fn report(facts: Facts) -> DoctorReport {
    let said = |report: &DoctorReport| (report.verdict, report.findings.clone(), report.remedies.clone());
    let of_host = Facts {
        process: None,
        counter_programs: None,
        ..facts.clone()
    };
    let of_host = DoctorReport::from_facts(of_host, Vec::new());
    assert_eq!(said(&of_host.without_names()), said(&of_host));
    DoctorReport::from_facts(facts, Vec::new())
}

fn ids(report: &DoctorReport) -> Vec<&str> {
    report.findings.iter().map(|finding| &*finding.id).collect()
}

fn finding<'a>(report: &'a DoctorReport, id: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("{id} is not among {:?}", ids(report)))
}

/// Returns a healthy host with rates of its clocks against the RTC, MONOTONIC's and MONOTONIC_RAW's.
fn with_rates(mono_ppm: f64, raw_ppm: f64) -> Facts {
    let rate = |clock, ppm| ClockRate {
        clock,
        against: "RTC rtc0 (rtc_cmos)".to_owned(),
        ppm,
        bound_ppm: 600.0,
        over_s: 10.0,
    };
    Facts {
        rates: vec![rate(Clock::MONOTONIC, mono_ppm), rate(Clock::MONOTONIC_RAW, raw_ppm)],
        ..samples::healthy()
    }
}

#[test]
fn a_clock_that_is_fast_and_runs_at_a_wrong_rate_is_wrong_first_of_all() {
    let mut facts = with_rates(-47_600.0, -47_600.0);
    facts.kernel.parameters = Some(vec!["tsc_early_khz=2726000".into(), "tsc=reliable".into()]);
    facts.is_synchronized = Some(false);
    let found = report(facts);
    assert_eq!((found.verdict, &*found.findings[0].id), (Verdict::Wrong, "clock-rate"));
    assert_eq!(
        found.summary,
        "the kernel's clock runs 4.8 % slow against the RTC rtc0 (rtc_cmos): 10.000 s there, 9.524 here"
    );
    assert_eq!(found.findings[0].because.len(), 3);
    let remedies: Vec<&str> = found.remedies.iter().map(|remedy| &*remedy.id).collect();
    assert_eq!(remedies, ["synchronize", "command-line"]);
    // Where clocks are slow besides, a faster clock that is wrong is no remedy.
    let slow = Facts {
        rates: with_rates(5e5, 5e5).rates,
        ..samples::hpet()
    };
    assert!(report(slow).remedies.iter().all(|remedy| remedy.id != "run"));
}

#[test]
fn a_rate_within_the_bound_or_made_on_purpose_is_no_fault() {
    assert_eq!(ids(&report(with_rates(300.0, -599.0))), [""; 0]);
    for (mono_ppm, raw_ppm) in [(50_000.0, 10.0), (10.0, -48_000.0)] {
        let found = report(with_rates(mono_ppm, raw_ppm));
        assert_eq!((found.verdict, ids(&found)), (Verdict::Healthy, vec!["clock-adjusted"]));
    }
}

#[test]
fn an_alarm_about_a_misstated_rate_is_true() {
    let mut facts = samples::hpet();
    facts.kernel.parameters = Some(vec!["tsc_early_khz=2440000".into()]);
    facts.counter.stated = vec![samples::stated(2.44e9)];
    let found = report(facts);
    let unused = finding(&found, "counter-unused");
    let reasons: Vec<&str> = unused.because.iter().map(|because| &*because.says).collect();
    assert!(
        reasons[0].contains("was set on the kernel's command line"),
        "{reasons:?}"
    );
    assert!(reasons.iter().all(|why| !why.contains("false alarm")), "{reasons:?}");
    let remedy = found
        .remedies
        .iter()
        .find(|remedy| remedy.id == "command-line")
        .expect("a remedy");
    assert!(remedy.does.contains("tsc_early_khz=2440000"), "{remedy:?}");
}

#[test]
fn a_healthy_host_has_no_findings() {
    let report = report(samples::healthy());
    assert_eq!((report.verdict, ids(&report)), (Verdict::Healthy, vec![]));
    assert!(report.summary.contains("MONOTONIC 21.0 ns"), "{}", report.summary);
}

#[test]
fn a_clocksource_chosen_on_the_command_line_is_explained_without_the_log() {
    let report = report(samples::acpi_pm());
    let found = finding(&report, "counter-unused");
    assert!(found.because.iter().any(|why| why.says.contains("notsc")), "{found:?}");
    assert!(
        found
            .because
            .iter()
            .any(|why| why.says.contains("chosen on the kernel's command line"))
    );
}

#[test]
fn where_nothing_explains_the_clocksource_it_is_said_what_was_not_seen() {
    let mut facts = samples::acpi_pm();
    facts.kernel.parameters = Some(Vec::new());
    let report = report(facts);
    let found = finding(&report, "counter-unused");
    assert!(found.because[0].says.contains("log cannot be read"), "{found:?}");
    // Without /proc and /sys, nothing is said of what they would contain.
    let mut facts = samples::acpi_pm();
    facts.kernel.parameters = None;
    facts.counter.flags = None;
    facts.clocksource = Default::default();
    let report = self::report(facts);
    assert_eq!(
        finding(&report, "counter-unused").because[0].says,
        "the reason is unknown: the kernel's log, its command line, the CPU's flags, its list of clocksources cannot be read here"
    );
}

#[test]
fn a_32_bit_program_without_a_vdso_is_told_of_the_parameter() {
    let mut facts = samples::healthy();
    facts.kernel.parameters = Some(vec!["vdso32=0".to_owned()]);
    facts.process = Some(Process {
        vdso: Some(VdsoKind::None),
        ..samples::other_isa().process.expect("a process")
    });
    let report = report(facts);
    let because = &finding(&report, "process-without-vdso").because[0];
    assert_eq!(because.proof.as_ref().map(|proof| &*proof.shows), Some("vdso32=0"));
    let does: Vec<&str> = report.remedies.iter().map(|remedy| &*remedy.does).collect();
    assert!(
        does[0].starts_with("`fastpath run --clocks all -- PROGRAM`"),
        "{does:?}"
    );
    assert!(
        does.contains(&"remove `vdso32=0` from the kernel's command line"),
        "{does:?}"
    );
}

#[test]
fn a_32_bit_arm_program_without_a_vdso_is_told_of_the_kernels_configuration() {
    let mut facts = samples::healthy();
    facts.kernel.machine = "aarch64".to_owned();
    facts.process = Some(Process {
        isa: Some("arm".to_owned()),
        vdso: Some(VdsoKind::None),
        ..samples::other_isa().process.expect("a process")
    });
    let told = report(facts.clone());
    let because = &finding(&told, "process-without-vdso").because[0];
    assert!(because.says.contains("CONFIG_COMPAT_VDSO"), "{because:?}");
    let does: Vec<&str> = told.remedies.iter().map(|remedy| &*remedy.does).collect();
    assert!(
        does[0].starts_with("`fastpath run --clocks all -- PROGRAM`") && does[1].contains("CONFIG_COMPAT_VDSO=y"),
        "{does:?}"
    );
    // On a 32-bit kernel, it would be another reason.
    facts.kernel.machine = "armv7l".to_owned();
    assert!(finding(&report(facts), "process-without-vdso").because.is_empty());
}

#[test]
fn where_nobody_may_write_code_neither_run_nor_attach_is_advised() {
    let set = |values: &[&str]| {
        let mut facts = samples::hpet();
        let parameters = values.iter().map(|value| format!("proc_mem.force_override={value}"));
        facts.kernel.parameters = Some(parameters.collect());
        let report = report(facts);
        let refuses = report.findings.iter().any(|finding| finding.id == "run-refuses");
        let ids: Vec<String> = report.remedies.iter().map(|remedy| remedy.id.to_string()).collect();
        (refuses, ids)
    };
    let (refuses, ids) = set(&["always", "never"]);
    assert!(refuses && ids.contains(&"code-writable".to_owned()), "{ids:?}");
    assert!(!ids.iter().any(|id| id.starts_with("run") || id == "attach"), "{ids:?}");
    let (refuses, ids) = set(&["never", "ptrace"]);
    assert!(!refuses && ids.contains(&"run".to_owned()), "{ids:?}");
}

#[test]
fn in_a_sandbox_with_fast_clocks_nothing_needs_fixing() {
    let mut facts = samples::healthy();
    facts.machine.stand_in = samples::gvisor().machine.stand_in;
    for (function, slow) in facts
        .functions
        .iter_mut()
        .zip(samples::without_vdso().functions)
        .skip(2)
    {
        function.measured = MeasuredCall {
            verdict: CallVerdict::Slow,
            ..slow.measured
        };
    }
    let report = report(facts);
    assert_eq!(
        (report.verdict, ids(&report)),
        (Verdict::Healthy, vec!["function-not-in-vdso"])
    );
    assert_eq!(report.remedies, []);
}

#[test]
fn a_xen_guest_is_told_that_its_clock_is_xens() {
    let report = report(samples::xen());
    let found = finding(&report, "counter-unused");
    assert!(found.because.iter().any(|why| why.says.contains("Xen")), "{found:?}");
}

#[test]
fn without_a_vdso_all_clocks_are_slow_for_one_reason() {
    let report = report(samples::without_vdso());
    assert_eq!((report.verdict, ids(&report)), (Verdict::Slow, vec!["no-vdso"]));
    assert!(finding(&report, "no-vdso").because[0].says.contains("it was unmapped"));
}

#[test]
fn clocks_that_an_old_vdso_lacks_are_named_and_functions_too() {
    let report = report(samples::old_kernel());
    assert_eq!(ids(&report), ["clock-not-in-vdso", "function-not-in-vdso"]);
    let clocks = finding(&report, "clock-not-in-vdso");
    assert!(clocks.says.contains("BOOTTIME, TAI are not"), "{clocks:?}");
    assert!(!clocks.says.contains("REALTIME"));
    let functions = finding(&report, "function-not-in-vdso");
    assert!(functions.because[0].says.contains("5.3"), "{functions:?}");
}

#[test]
fn a_healthy_aarch64_host_is_not_blamed_for_getrandom_or_getcpu() {
    let report = report(samples::aarch64());
    assert_eq!((report.verdict, ids(&report)), (Verdict::Healthy, vec![]));
    assert!(report.remedies.is_empty(), "{:?}", report.remedies);
}

#[test]
fn a_slow_function_is_explained_by_its_own_absence_only() {
    let mut facts = samples::aarch64();
    facts.vdso.lacks.push(("__kernel_clock_getres".into(), "2.6.39".into()));
    facts.functions[3] = samples::old_kernel().functions[3].clone();
    let report = report(facts);
    let found = finding(&report, "function-not-in-vdso");
    assert!(
        found.says.contains("clock_getres") && !found.says.contains("getcpu"),
        "{found:?}"
    );
    let because: Vec<&str> = found.because.iter().map(|why| why.says.as_str()).collect();
    assert!(
        because.len() == 1 && because[0].contains("__kernel_clock_getres"),
        "{because:?}"
    );
}

#[test]
fn what_fastpath_passes_on_is_not_blamed_on_an_old_kernel() {
    let mut facts = samples::healthy();
    let without = samples::without_vdso();
    facts.functions[1] = without.functions[1].clone();
    facts.here.vdso = Some(VdsoKind::Fastpath);
    let report = report(facts);
    assert_eq!(ids(&report), ["function-not-served"]);
    assert!(report.remedies.is_empty(), "{:?}", report.remedies);
}

#[test]
fn expensive_system_calls_are_explained_by_the_mitigations() {
    let report = report(samples::mitigated());
    let found = finding(&report, "system-calls-expensive");
    assert_eq!(found.severity, Severity::Note);
    assert!(found.because[0].says.contains("mds, meltdown"), "{found:?}");
}

#[test]
fn a_container_that_hides_files_is_judged_by_what_was_measured() {
    let report = report(samples::container());
    assert_eq!((report.verdict, ids(&report)), (Verdict::Healthy, vec![]));
    assert!(
        report
            .evidence
            .iter()
            .any(|line| line.mark == super::super::Mark::Unknown)
    );
}

#[test]
fn counters_that_are_apart_are_wrong_where_the_kernel_reads_them() {
    let mut facts = samples::healthy();
    facts.counter.evidence.warp = Some(samples::warped());
    let wrong = report(facts);
    assert_eq!(wrong.verdict, Verdict::Wrong);
    assert!(finding(&wrong, "counters-apart").says.contains("89500"), "{wrong:?}");
    let mut facts = samples::hpet();
    facts.counter.evidence.warp = Some(samples::warped());
    let slow = report(facts);
    assert_eq!(slow.verdict, Verdict::Slow);
    assert_eq!(finding(&slow, "counters-apart").severity, Severity::Note);
}

#[test]
fn counters_that_drift_are_named_with_their_rates_and_offered_no_offsets() {
    let mut facts = samples::hpet();
    facts.counter.evidence.warp = Some(samples::warped());
    facts.counter.evidence.features.as_mut().unwrap().rdtscp = true;
    let drift = |ppm| Drift {
        cpu: 1,
        against: 0,
        ppm,
        error_ppm: 0.25,
    };
    facts.counter.drifts = vec![drift(0.1)];
    let steady = report(facts.clone());
    let says = &finding(&steady, "counters-apart").says;
    assert!(says.ends_with("; their rates differ by 0.35 ppm at most"), "{says}");
    facts.counter.drifts = vec![drift(-12.0)];
    let drifting = report(facts);
    let says = &finding(&drifting, "counters-apart").says;
    assert!(
        says.ends_with("; CPU 1's counter runs 12.00 ppm slower than CPU 0's (± 0.25)"),
        "{says}"
    );
    let by_offsets = |report: &DoctorReport| report.beliefs[1].distrust.is_none();
    assert!(by_offsets(&steady));
    let refused: Vec<&str> = drifting
        .beliefs
        .iter()
        .filter_map(|belief| belief.says.as_deref())
        .collect();
    let drift = "CPU 1's counter runs 12.00 ppm slower than CPU 0's (± 0.25)";
    assert_eq!(
        refused, [drift; 2],
        "the figure is named wherever the counter is refused"
    );
}

#[test]
fn a_clock_that_goes_backward_is_wrong_and_the_remedy_is_another_clocksource() {
    let report = report(samples::backward());
    assert_eq!(report.verdict, Verdict::Wrong);
    let found = finding(&report, "clock-backward");
    assert_eq!(
        found.says,
        "MONOTONIC goes backward, by up to 831 ns, as the kernel reads it"
    );
    let proofs: Vec<_> = found.proofs.iter().map(|proof| proof.source.as_str()).collect();
    assert_eq!(proofs, ["measured between threads"], "a nanosecond is rounding");
    let remedies: Vec<_> = report.remedies.iter().map(|remedy| &*remedy.id).collect();
    assert_eq!(remedies, ["leave-counter"]);
}

#[test]
fn a_rate_is_wrong_only_beyond_what_measuring_it_can_be_off() {
    let with = |hz: f64, by| {
        let mut facts = samples::healthy();
        facts.counter.stated = vec![Stated {
            by,
            ..samples::stated(hz)
        }];
        report(facts)
    };
    let measured = samples::healthy().counter.measured.unwrap().hz;
    assert_eq!(with(measured * 1.0004, StatedBy::Kernel).verdict, Verdict::Healthy);
    assert_eq!(with(measured * 1.04, StatedBy::Kernel).verdict, Verdict::Wrong);
    assert_eq!(with(measured * 1.04, StatedBy::CpuNominal).verdict, Verdict::Healthy);
}

#[test]
fn a_counter_that_nobody_vouches_for_is_a_risk_and_no_sickness() {
    let report = report(samples::without_promise(samples::healthy()));
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(ids(&report), ["counter-not-invariant", "run-refuses"]);
    assert!(finding(&report, "run-refuses").says.contains("--trust-counter` would"));
    assert_eq!(
        report.beliefs.each_ref().map(|belief| belief.distrust.clone()),
        [Some(Distrust::NotInvariant), None]
    );
    assert!(
        finding(&report, "counter-not-invariant")
            .says
            .contains("is read from it")
    );
    assert!(report.remedies.is_empty(), "{:?}", report.remedies);
}

#[test]
fn a_counter_that_traps_is_expensive_whatever_the_kernel_runs_on() {
    let mut facts = samples::healthy();
    facts.counter.read_ns = Some(1400.0);
    facts.machine.hypervisor = Some("VMware".to_owned());
    let report = report(facts);
    assert_eq!(report.verdict, Verdict::Slow);
    assert!(finding(&report, "counter-expensive").because[0].says.contains("VMware"));
}

#[test]
fn a_counter_that_may_not_be_read_is_no_healthy_host() {
    let mut facts = samples::healthy();
    facts.counter.evidence.is_readable = false;
    facts.counter.read_ns = None;
    assert_eq!(report(facts).verdict, Verdict::Slow);
}

#[test]
fn a_path_that_could_not_be_established_is_no_health() {
    let mut facts = samples::healthy();
    facts.here.seccomp = Some(2);
    for clock in &mut facts.clocks {
        clock.measured.verdict = CallVerdict::Unknown;
        clock.measured.path = Path::Unknown;
    }
    let report = report(facts);
    assert_eq!(report.verdict, Verdict::Unknown);
    assert!(finding(&report, "path-unknown").because[0].says.contains("seccomp"));
}

#[test]
fn a_process_on_the_kernels_path_is_as_well_as_its_host() {
    let of = |mut facts: Facts| {
        facts.process = Some(samples::process());
        report(facts)
    };
    assert_eq!(of(samples::healthy()).verdict, Verdict::Healthy);
    let slow = of(samples::hpet());
    assert_eq!(slow.verdict, Verdict::Slow);
    assert!(slow.summary.starts_with("app (7): "), "{}", slow.summary);
    let gain = slow.gains.iter().find(|gain| gain.clock == Clock::MONOTONIC).unwrap();
    assert_eq!((gain.now_ns, gain.under_fastpath_ns), (1100.0, 21.6));
    assert!(of(samples::healthy()).gains.is_empty());
}

#[test]
fn an_executed_read_of_the_counter_as_a_clock_is_wrong_where_cpus_differ() {
    let with = |mut facts: Facts, samples: u64| {
        let executed = ExecutedRead {
            address: 0x1040,
            is_scaled: true,
            samples,
        };
        facts.process = Some(Process {
            counter_reads: vec![CounterReads {
                file: "/opt/file".to_owned(),
                families: vec!["quanta".into()],
                places: 5,
                clocks: 3,
                executed: if samples == 0 { Vec::new() } else { vec![executed] },
                ..CounterReads::default()
            }],
            reads: Some(Reads {
                samples: 600,
                ..Reads::default()
            }),
            ..samples::process()
        });
        report(facts)
    };
    let because = |report: &DoctorReport| -> Vec<String> {
        let found = finding(report, "process-reads-counter");
        found.because.iter().map(|one| one.says.clone()).collect()
    };
    let fine = with(samples::healthy(), 300);
    assert_eq!(fine.verdict, Verdict::Healthy);
    let found = finding(&fine, "process-reads-counter");
    assert!(found.says.contains("300 of 600 samples"), "{}", found.says);
    assert!(found.proofs[0].shows.contains("contains quanta"), "{found:?}");
    assert!(because(&fine)[0].contains("no harm"), "{fine:?}");
    let mut guest = samples::healthy();
    guest.machine.hypervisor = Some("KVM".to_owned());
    assert!(because(&with(guest, 300))[1].contains("may jump"));
    let mut apart = samples::hpet();
    apart.counter.evidence.warp = Some(samples::warped());
    let wrong = with(apart.clone(), 300);
    assert_eq!(wrong.verdict, Verdict::Wrong);
    assert!(because(&wrong)[0].contains("differ by 38.9 µs or more"), "{wrong:?}");
    assert!(wrong.remedies.iter().any(|remedy| remedy.id == "read-the-clock"));
    assert_ne!(with(apart, 0).verdict, Verdict::Wrong, "not executed");
    let mut trapped = samples::healthy();
    trapped.counter.read_ns = Some(1400.0);
    assert!(because(&with(trapped, 300))[0].contains("emulated here, and costs 1400 ns"));
    assert!(because(&with(samples::hpet(), 300))[1].contains("from hpet: if it rejected the counter"));
}

#[test]
fn a_host_whose_counters_differ_names_the_programs_that_read_them() {
    let mut facts = samples::hpet();
    facts.counter.evidence.warp = Some(samples::warped());
    let program = |pid| CounterProgram {
        pid,
        name: "server".to_owned(),
        families: vec!["DPDK".into()],
        ..CounterProgram::default()
    };
    facts.counter_programs = Some(CounterPrograms {
        programs: (1..=7).map(program).collect(),
        unexamined: 4,
    });
    let report = report(facts);
    let found = finding(&report, "counter-programs");
    assert!(found.says.contains("wrong, not slow"), "{}", found.says);
    assert!(
        found.says.contains("server (1, DPDK), ") && found.says.contains("2 others"),
        "{}",
        found.says
    );
    assert!(found.because[0].says.starts_with("4 processes"), "{found:?}");
}

fn with_own_calls(is_program: bool, rule: &'static str) -> Facts {
    let mut facts = samples::healthy();
    facts.process = Some(Process {
        own_calls: vec![OwnCalls {
            file: "/opt/file".to_owned(),
            is_program,
            rule: rule.into(),
            calls: vec!["clock_gettime".into()],
            places: 3,
            rescuable: Some(2),
            rescued: 0,
        }],
        ..samples::process()
    });
    facts
}

#[test]
fn a_programs_own_calls_are_slow_and_a_librarys_are_noted() {
    for (is_program, rule, verdict) in [
        (true, "own-system-call", Verdict::Slow),
        (true, "vsyscall-page", Verdict::Slow),
        (false, "vsyscall-page", Verdict::Slow),
        (false, "libc-without-vdso", Verdict::Slow),
        (false, "own-system-call", Verdict::Healthy),
    ] {
        let report = report(with_own_calls(is_program, rule));
        assert_eq!(report.verdict, verdict, "{rule} {is_program}");
        assert!(report.findings[0].says.contains("clock_gettime"), "{report:#?}");
    }
}

#[test]
fn calls_that_can_be_redirected_have_a_remedy() {
    let mut facts = with_own_calls(true, "own-system-call");
    let pid = facts.process.as_ref().unwrap().pid;
    let says = report(facts.clone()).findings[0].says.clone();
    assert!(
        says.contains(&format!("`fastpath attach --rescue {pid}` redirects 2 of 3")),
        "{says}"
    );
    facts.process.as_mut().unwrap().own_calls[0].rescued = 3;
    let report = report(facts);
    assert_eq!(report.verdict, Verdict::Healthy);
    assert!(
        report.findings[0].says.contains("fastpath answers it in 3 places"),
        "{report:#?}"
    );
}

#[test]
fn a_served_process_is_healthy_on_a_sick_host() {
    let served = report(samples::served_process());
    assert_eq!(served.verdict, Verdict::Healthy);
    assert!(served.summary.contains("fast by fastpath"), "{}", served.summary);
    assert!(served.gains.is_empty() && !served.remedies.iter().any(|remedy| remedy.id == "run"));
}

#[test]
fn a_process_that_is_served_on_somebodys_word_is_well_and_that_is_said() {
    let mut facts = samples::without_promise(samples::served_process());
    facts.process.as_mut().unwrap().page.as_mut().unwrap().experience = Some(Residuals {
        allows_non_invariant: true,
        ..Residuals::default()
    });
    let report = report(facts);
    assert_eq!(report.verdict, Verdict::Healthy);
    let served = finding(&report, "process-served");
    assert!(served.because[0].says.contains("--trust-counter"), "{served:?}");
}

#[test]
fn a_withdrawn_page_has_the_reason_and_a_stale_one_its_publisher() {
    let with = |page: PageFacts| {
        let mut facts = samples::served_process();
        facts.process.as_mut().unwrap().page = Some(page);
        report(facts)
    };
    let withdrawn = with(PageFacts {
        serves: Some(Vec::new()),
        withdrawn: Some("the counter stopped".to_owned()),
        ..PageFacts::default()
    });
    assert_eq!(withdrawn.verdict, Verdict::Slow);
    assert!(
        finding(&withdrawn, "process-page-withdrawn")
            .says
            .contains("the counter stopped")
    );
    let stale = with(PageFacts {
        serves: Some(Vec::new()),
        ..PageFacts::default()
    });
    assert!(
        finding(&stale, "process-page-stale").because[0]
            .says
            .contains("publisher")
    );
    assert_eq!(with(PageFacts::default()).verdict, Verdict::Unknown);
}

/// Regression test: such a process was called healthy on a host whose own clocks are fast.
#[test]
fn a_process_without_a_vdso_is_slow_on_a_healthy_host() {
    let with = |page: PageFacts| {
        let mut facts = samples::healthy();
        facts.process = samples::served_process().process;
        facts.process.as_mut().unwrap().page = Some(page);
        report(facts)
    };
    let unserved = PageFacts {
        serves: Some(Vec::new()),
        is_without_vdso: Some(true),
        ..PageFacts::default()
    };
    let hooks_only = with(PageFacts {
        clocks: Some(Vec::new()),
        ..unserved.clone()
    });
    let publisher_gone = with(PageFacts {
        clocks: Some(vec!["MONOTONIC".into()]),
        ..unserved.clone()
    });
    let withdrawn = with(PageFacts {
        withdrawn: Some("the counter stopped".to_owned()),
        ..unserved.clone()
    });
    for (report, id) in [
        (&hooks_only, "process-not-served"),
        (&publisher_gone, "process-page-stale"),
        (&withdrawn, "process-page-withdrawn"),
    ] {
        assert_eq!(report.verdict, Verdict::Slow, "{id}: {}", report.summary);
        assert!(
            finding(report, id).says.contains("system call"),
            "{id}: {}",
            report.summary
        );
    }
    // With the kernel's fast vDSO behind the page nothing is slow, and fastpath makes nothing faster.
    let behind = with(PageFacts {
        clocks: Some(vec!["MONOTONIC".into()]),
        is_without_vdso: Some(false),
        ..unserved
    });
    assert_eq!(behind.verdict, Verdict::Healthy);
    assert!(!behind.summary.contains("by fastpath"), "{}", behind.summary);
}

#[test]
fn a_process_of_another_isa_is_named_and_no_gain_is_claimed() {
    let report = report(samples::other_isa());
    let says = &finding(&report, "process-other-isa").says;
    assert!(says.contains("i386 program"), "{says}");
    assert!(report.gains.is_empty(), "{:?}", report.gains);
}

#[test]
fn a_process_that_cannot_be_looked_into_is_not_judged_by_the_host() {
    for facts in [samples::healthy(), samples::hpet()] {
        let mut facts = facts;
        facts.process = Some(Process {
            vdso: None,
            ..samples::process()
        });
        assert_eq!(report(facts).verdict, Verdict::Unknown);
    }
}

#[test]
fn a_program_that_makes_its_system_calls_itself_is_slow_on_any_host() {
    let report = report(samples::bypassing_process());
    assert_eq!(report.verdict, Verdict::Slow);
    assert!(
        report.summary.contains("makes the system call itself, 130 ns"),
        "{}",
        report.summary
    );
    assert!(report.gains.is_empty());
}

#[test]
fn threads_of_the_kernel_and_zombies_read_no_clocks() {
    for (process, id) in [
        (
            Process {
                is_kernel_thread: true,
                ..samples::process()
            },
            "process-of-kernel",
        ),
        (
            Process {
                state: Some('Z'),
                ..samples::process()
            },
            "process-ended",
        ),
        (
            Process {
                state: Some('Z'),
                first_thread_ended: true,
                ..samples::process()
            },
            "process-without-first-thread",
        ),
    ] {
        let mut facts = samples::healthy();
        facts.process = Some(process);
        let report = report(facts);
        assert_eq!((report.verdict, ids(&report)), (Verdict::Unknown, vec![id]));
    }
}

#[test]
fn notes_do_not_make_a_host_sick() {
    let mut facts = samples::healthy();
    facts.kernel.parameters = Some(vec!["tsc=reliable".to_owned()]);
    facts.here.time_namespace = Some(samples::time_namespace());
    facts.counter.evidence.is_trapped = true;
    let report = report(facts);
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(ids(&report), ["counter-unwatched", "run-refuses", "time-namespace"]);
}

#[test]
fn cpus_whose_counter_the_kernel_answers_and_the_threads_there_are_named() {
    let mut facts = samples::healthy();
    facts.counter.trapped_cpus = vec![2, 3];
    facts.process = Some(Process {
        cpus_of_threads: vec![0, 3, 1, 2, 3],
        ..samples::process()
    });
    let found = finding(&report(facts.clone()), "counter-slow-on-some-cpus").clone();
    assert!(found.says.contains("on CPU 2, 3"), "{}", found.says);
    assert!(
        found.because[0].says.contains("3 of the 5 threads"),
        "{:?}",
        found.because
    );
    // Where every read is slow, that is said of the counter.
    facts.counter.trapped_cpus = vec![0, 1, 2, 3];
    assert!(!ids(&report(facts)).contains(&"counter-slow-on-some-cpus"));
}

#[test]
fn what_was_asked_about_comes_first_then_the_gravest() {
    let mut facts = samples::hpet();
    // Nothing depends on a counter that is not used.
    facts.kernel.parameters = Some(vec!["tsc=reliable".to_owned()]);
    facts.here.time_namespace = Some(samples::time_namespace());
    facts.process = Some(Process {
        vdso: None,
        ..samples::process()
    });
    assert_eq!(
        ids(&report(facts)),
        ["process-unseen", "counter-unused", "time-namespace"]
    );
}

/// Regression test: under a user-mode kernel, doctor reported "guest of KVM" and advised QEMU's invtsc and
/// tsc=reliable; under gVisor, it advised a kernel newer than 4.4.0.
#[test]
fn a_program_that_acts_as_a_kernel_is_named_and_gets_no_advice_for_kernels() {
    let cases = [
        (samples::user_mode_linux(), &["run", "attach", "host"][..]),
        (samples::gvisor(), &["again", "host"][..]),
    ];
    for (facts, expected) in cases {
        let name = facts.machine.stand_in.clone().unwrap();
        let report = report(facts);
        assert_eq!(report.verdict, Verdict::Slow);
        let unused = finding(&report, "counter-unused");
        assert!(
            unused.because.len() == 1 && unused.because[0].says.contains(&*name),
            "{unused:?}"
        );
        let remedies: Vec<&str> = report.remedies.iter().map(|remedy| &*remedy.id).collect();
        assert_eq!(remedies, expected, "{name}");
    }
    // Once gVisor's vDSO reads the counter, there is nothing to look at again.
    let calibrated = Facts {
        machine: samples::gvisor().machine,
        ..samples::old_kernel()
    };
    let report = report(Facts {
        clocks: samples::healthy().clocks,
        ..calibrated
    });
    finding(&report, "function-not-in-vdso");
    assert!(report.remedies.is_empty(), "{:?}", report.remedies);
}

#[test]
fn a_rate_that_the_kernel_found_later_is_no_cause() {
    let mut facts = samples::hpet();
    facts.clocksource.available = vec!["tsc".to_owned(), "hpet".to_owned()];
    facts.log = Some(samples::log(&[
        "tsc: Fast TSC calibration failed",
        "tsc: Detected 2496.000 MHz processor",
    ]));
    let report = report(facts);
    let because = &finding(&report, "counter-unused").because;
    assert!(because[0].says.contains("could use tsc"), "{because:?}");
    assert!(!because.iter().any(|why| why.says.contains("calibrate")), "{because:?}");
}

#[test]
fn advice_is_judged_by_what_the_host_would_have_afterwards() {
    let has = |facts: Facts, id: &str| report(facts).remedies.iter().any(|remedy| remedy.id == id);
    // Without the parameter, this kernel would use another clocksource that is not the counter either.
    let mut facts = samples::hpet();
    facts.kernel.parameters = Some(vec!["clocksource=hpet".to_owned()]);
    facts.clocksource.available = vec!["hpet".to_owned(), "acpi_pm".to_owned()];
    assert!(!has(facts.clone(), "command-line"));
    facts.clocksource.available.push("tsc".to_owned());
    facts.machine.hypervisor = Some("QEMU (TCG)".to_owned());
    assert!(has(facts.clone(), "command-line") && !has(facts, "hypervisor"));
    // A kernel newer than 5.16 gets no advice to upgrade to 5.16.
    let mut facts = samples::hpet();
    facts.log = Some(samples::log(&["tsc: Marking TSC unstable due to clocksource watchdog"]));
    facts.kernel.release = "6.1.0-28-amd64".to_owned();
    assert!(!has(facts.clone(), "newer-kernel"));
    facts.kernel.release = "5.10.0-33-amd64".to_owned();
    assert!(has(facts, "newer-kernel"));
}

#[test]
fn a_chosen_clocksource_is_the_last_cause_if_the_kernel_rejects_the_tsc() {
    let mut facts = samples::hpet();
    facts.kernel.parameters = Some(vec!["clocksource=hpet".to_owned()]);
    facts.log = Some(samples::log(&["tsc: Marking TSC unstable due to TSCs unsynchronized"]));
    let first = |facts: Facts| finding(&report(facts), "counter-unused").because[0].says.clone();
    assert!(first(facts.clone()).contains("its several TSCs agree"));
    facts.clocksource.available.push("tsc".to_owned());
    assert!(first(facts).contains("command line"));
}

#[test]
fn of_two_causes_the_one_that_can_be_removed_is_first() {
    let mut facts = samples::without_vdso_by_command_line();
    facts.clocksource.current = Some("hpet".to_owned());
    facts.kernel.parameters = Some(vec!["vdso=0".to_owned(), "clocksource=hpet".to_owned()]);
    let report = report(facts);
    let causes = &finding(&report, "no-vdso").because;
    assert!(causes[0].says.contains("started without one"), "{causes:?}");
    assert!(causes[1].says.contains("a vDSO alone would not help"), "{causes:?}");
    assert!(
        causes[2].says.contains("chosen on the kernel's command line"),
        "{causes:?}"
    );
    // Without the first parameter alone, clocks stay slow.
    let removed = report.remedies.iter().filter(|remedy| remedy.id == "command-line");
    let removed: Vec<_> = removed.map(|remedy| remedy.does.split('`').nth(1)).collect();
    assert_eq!(removed, [Some("vdso=0"), Some("clocksource=hpet")]);
}

/// Regression test: a guest whose kernel had corrected its rate by 1,066 ppm was called wrong, by its bogomips. A kernel that
/// counts ticks has no rate to compare with.
#[test]
fn a_rate_that_the_kernel_corrected_is_no_fault() {
    let early = |facts: &mut Facts| {
        let measured = facts.counter.measured.as_ref().unwrap().hz;
        facts.counter.stated = vec![Stated {
            by: StatedBy::KernelEarly,
            ..samples::stated(measured / 1.001_066)
        }];
    };
    let mut facts = samples::healthy();
    early(&mut facts);
    assert_eq!(ids(&report(facts)), [""; 0]);
    let mut facts = samples::hpet();
    facts.clocksource.current = Some("jiffies".to_owned());
    facts.counter.stated = vec![samples::stated(1e9)];
    assert!(!ids(&report(facts)).contains(&"rate-mismatch"));
}
