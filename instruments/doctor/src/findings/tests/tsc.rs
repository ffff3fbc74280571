//! Verdicts on hosts whose counter is the TSC.

use super::*;
use crate::proof::Proof;

#[test]
fn a_host_on_hpet_is_slow_because_the_watchdog_said_so() {
    let report = report(samples::hpet());
    assert_eq!((report.verdict, ids(&report)), (Verdict::Slow, vec!["counter-unused"]));
    let found = finding(&report, "counter-unused");
    assert!(
        found.says.contains("hpet") && found.says.contains("1100 ns"),
        "{found:?}"
    );
    assert!(
        found.because.iter().any(|why| why.says.contains("false alarm")),
        "{found:?}"
    );
    let proofs: Vec<&Proof> = found.because.iter().filter_map(|why| why.proof.as_ref()).collect();
    assert!(proofs[0].shows.contains("as unstable"), "{proofs:?}");
}

#[test]
fn a_true_fault_of_the_counter_is_not_called_a_false_alarm() {
    let because = |facts: Facts| {
        let report = report(facts);
        let causes = &finding(&report, "counter-unused").because;
        causes.iter().map(|why| why.says.clone()).collect::<Vec<_>>()
    };
    // Linux 7.2.
    for (line, meaning) in [
        (
            "clocksource: Marking clocksource tsc unstable due to inter CPU skew",
            "their TSCs differ",
        ),
        (
            "clocksource: Marking clocksource tsc unstable due to frequency skew",
            "different rates",
        ),
    ] {
        let mut facts = samples::hpet();
        facts.log = Some(samples::log(&[
            line,
            "tsc: Marking TSC unstable due to clocksource watchdog",
            "TSC found unstable after boot, most likely due to broken BIOS. Use 'tsc=unstable'.",
        ]));
        let causes = because(facts);
        assert!(causes[0].contains(meaning), "{causes:?}");
        let is_wrong = |says: &String| says.contains("false alarm") || says.contains("firmware has changed");
        assert!(!causes.iter().any(is_wrong), "{causes:?}");
    }
    // An older kernel, on a machine whose counters doctor itself has found to differ.
    let mut facts = samples::hpet();
    facts.counter.evidence.warp = Some(samples::warped());
    let causes = because(facts);
    assert!(!causes.iter().any(|says| says.contains("false alarm")), "{causes:?}");
}

#[test]
fn a_guest_that_has_an_invariant_counter_is_not_to_be_given_one() {
    let mut facts = samples::hpet();
    facts.machine.hypervisor = Some("QEMU/KVM".to_owned());
    let is_advised = |facts: Facts| report(facts).remedies.iter().any(|remedy| remedy.id == "hypervisor");
    assert!(!is_advised(facts.clone()));
    assert!(is_advised(samples::without_promise(facts)));
}

#[test]
fn fastpath_cannot_follow_timer_ticks_and_the_parameter_for_them_is_removed() {
    let mut facts = samples::without_promise(samples::hpet());
    facts.clocksource.current = Some("jiffies".to_owned());
    facts.kernel.parameters = Some(vec!["clocksource=jiffies".to_owned()]);
    for trust in [Trust::Invariant, Trust::AllowNonInvariant] {
        assert_eq!(facts.verdict(trust), Err(Distrust::CoarseClock));
    }
    let mut without_acpi = facts.clone();
    without_acpi.kernel.parameters = Some(vec!["acpi=off".to_owned()]);
    without_acpi.log = Some(samples::log(&[
        "tsc: Unable to calibrate against PIT",
        "tsc: No reference (HPET/PMTIMER) available",
        "tsc: Marking TSC unstable due to could not calculate TSC khz",
    ]));
    let without_acpi = report(without_acpi);
    assert!(
        without_acpi.remedies[0].does.contains("remove `acpi=off`"),
        "{:?}",
        without_acpi.remedies
    );
    let cause = &finding(&without_acpi, "counter-unused").because[0];
    assert!(cause.says.contains("`acpi=off` hides"), "{cause:?}");
    let report = report(facts);
    assert_eq!(report.remedies[0].id, "command-line", "{:?}", report.remedies);
    assert!(!report.remedies.iter().any(|remedy| remedy.does.contains("fastpath ")));
    let causes = &finding(&report, "counter-unused").because;
    assert!(
        causes[0].says.contains("chosen on the kernel's command line"),
        "{causes:?}"
    );
    assert!(
        causes.iter().any(|why| why.says.contains("cannot follow")),
        "{causes:?}"
    );
    let would_accept = |line: &super::super::super::Line| line.shows.contains("would accept");
    assert!(!report.evidence.iter().any(would_accept), "{:?}", report.evidence);
}

#[test]
fn a_parameter_against_the_tsc_is_removed_if_the_kernel_would_then_use_it() {
    const DEBIAN_12: &str = "6.1.0-56-cloud-amd64";
    const NEWEST: &str = "7.2.13+deb14-cloud-amd64";
    let remedies = |parameter: &str, vendor: &str, cpus: usize, packages: usize, release: &str| {
        let mut facts = samples::without_promise(samples::hpet());
        facts.kernel.parameters = Some(vec![parameter.to_owned()]);
        facts.kernel.release = release.to_owned();
        facts.machine.vendor = Some(vendor.to_owned());
        (facts.machine.cpus, facts.machine.packages) = (cpus, packages);
        facts.counter.flags_missing = vec!["constant_tsc".into(), "nonstop_tsc".into()];
        facts.machine.hypervisor = Some("QEMU (TCG)".to_owned());
        let remedies = report(facts).remedies;
        remedies
            .into_iter()
            .map(|remedy| remedy.id.into_owned())
            .collect::<Vec<_>>()
    };
    let has = |remedies: &[String], id: &str| remedies.iter().any(|other| other == id);
    for parameter in ["notsc", "tsc=unstable"] {
        for (vendor, cpus, packages, release) in [
            ("AuthenticAMD", 1, 1, DEBIAN_12),
            ("AuthenticAMD", 2, 1, NEWEST),
            ("GenuineIntel", 2, 2, DEBIAN_12),
        ] {
            let found = remedies(parameter, vendor, cpus, packages, release);
            assert!(has(&found, "command-line") && !has(&found, "hypervisor"), "{found:?}");
        }
        for (packages, release) in [(1, DEBIAN_12), (2, NEWEST)] {
            let found = remedies(parameter, "AuthenticAMD", 2, packages, release);
            assert!(!has(&found, "command-line") && has(&found, "hypervisor"), "{found:?}");
        }
    }
}

#[test]
fn counters_that_some_kernels_can_write_are_written_unless_that_was_tried() {
    let sick = || {
        let mut facts = samples::hpet();
        facts.counter.evidence.warp = Some(samples::warped());
        facts.log = Some(samples::log(&[
            "tsc: Marking TSC unstable due to check_tsc_sync_source failed",
        ]));
        facts
    };
    let is_advised = |facts: Facts| {
        let remedies = report(facts).remedies;
        remedies.iter().any(|remedy| remedy.does.contains("`tsc=directsync`"))
    };
    assert!(is_advised(sick()));
    // Not even where doctor could not compare the CPUs that the kernel found to differ.
    let mut not_compared = sick();
    not_compared.counter.evidence.warp = None;
    let remedies = report(not_compared).remedies;
    assert!(!remedies.iter().any(|remedy| remedy.id == "trust-tsc"), "{remedies:?}");
    let mut tried = sick();
    tried.kernel.parameters = Some(vec!["tsc=directsync".to_owned()]);
    assert!(!is_advised(tried.clone()));
    let report = report(tried);
    let causes = &finding(&report, "counter-unused").because;
    assert!(
        causes
            .iter()
            .any(|why| why.says.contains("does not know the parameter")),
        "{causes:?}"
    );
    // Linux writes IA32_TSC_ADJUST by itself, and a guest's TSC is the hypervisor's.
    let mut adjustable = sick();
    adjustable.counter.flags.as_mut().unwrap().push("tsc_adjust".to_owned());
    assert!(!is_advised(adjustable));
    let mut guest = sick();
    guest.machine.hypervisor = Some("KVM".to_owned());
    assert!(!is_advised(guest));
}
