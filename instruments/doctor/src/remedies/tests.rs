//! The remedies of hosts with faults.

use super::super::DoctorReport;
use super::super::samples;
use super::*;
use std::borrow::Cow;

fn ids(facts: Facts) -> Vec<Cow<'static, str>> {
    let remedies = DoctorReport::from_facts(facts, Vec::new()).remedies.into_iter();
    remedies.map(|remedy| remedy.id).collect()
}

#[test]
fn a_healthy_host_is_given_no_advice() {
    assert_eq!(ids(samples::healthy()), [""; 0]);
}

#[test]
fn what_was_asked_for_on_the_command_line_is_taken_off_it() {
    assert_eq!(ids(samples::without_vdso_by_command_line()), ["run", "command-line"]);
}

#[test]
fn a_program_that_never_asks_for_a_vdso_is_not_sent_to_run() {
    assert_eq!(ids(samples::bypassing_process()), ["rebuild"]);
}

#[cfg(target_arch = "x86_64")]
mod of_tsc {
    use super::super::super::facts::Process;
    use super::*;

    #[test]
    fn every_remedy_has_its_cost_and_the_dangerous_one_its_danger() {
        let mut facts = samples::hpet();
        facts.kernel.release = "5.10.0".to_owned();
        let report = DoctorReport::from_facts(facts, Vec::new());
        let ids: Vec<_> = report.remedies.iter().map(|remedy| &*remedy.id).collect();
        assert_eq!(ids, ["run", "attach", "trust-tsc", "newer-kernel"]);
        assert!(report.remedies.iter().all(|remedy| !remedy.cost.is_empty()));
        assert!(report.remedies[2].cost.contains("DANGER"));
    }

    #[test]
    fn what_is_to_be_typed_stands_between_backquotes() {
        let hosts = [
            samples::hpet(),
            samples::without_promise(samples::hpet()),
            samples::xen(),
        ];
        let mut typed = 0;
        for remedy in hosts
            .into_iter()
            .flat_map(|facts| DoctorReport::from_facts(facts, Vec::new()).remedies)
        {
            let words: String = remedy.does.split('`').step_by(2).collect();
            for command in ["fastpath", "sudo", "echo", " -", "tsc=", "_mode"] {
                assert!(!words.contains(command), "{remedy:?}");
            }
            typed += remedy.does.matches('`').count() / 2;
        }
        assert!(typed >= 6, "{typed}");
    }

    #[test]
    fn counters_that_differ_by_constants_are_served_by_their_offsets() {
        let has = |ids: &[Cow<'static, str>], id: &str| ids.iter().any(|other| other == id);
        let mut facts = samples::hpet();
        let warped = samples::warped();
        facts.counter.evidence.warp = Some(warped.clone());
        let features = facts.counter.evidence.features.as_mut().unwrap();
        (features.rdtscp, features.virtual_cpu) = (true, false);
        let constant = DoctorReport::from_facts(facts.clone(), Vec::new()).remedies;
        assert!(
            constant[0].id == "run" && constant[0].cost.contains("counters differ"),
            "{constant:?}"
        );
        assert!(!has(&ids(facts.clone()), "trust-tsc"), "{constant:?}");
        let mut guest = facts.clone();
        guest.counter.evidence.features.as_mut().unwrap().virtual_cpu = true;
        let guest = ids(guest);
        assert!(has(&guest, "run-trusting") && !has(&guest, "run"), "{guest:?}");
        // The same two CPUs, further apart a moment later.
        let mut later = warped.pairs[0];
        (later.least_cycles, later.most_cycles) = (later.least_cycles - 9_000, later.most_cycles - 9_000);
        facts.counter.evidence.warp.as_mut().unwrap().pairs.push(later);
        let drifting = ids(facts);
        assert!(
            !has(&drifting, "run-trusting") && !has(&drifting, "run"),
            "{drifting:?}"
        );
    }

    #[test]
    fn a_counter_that_lacks_only_the_cpus_promise_can_be_allowed() {
        let facts = samples::without_promise(samples::hpet());
        let mut not_compared = facts.clone();
        not_compared.counter.evidence.warp.as_mut().unwrap().pairs.clear();
        assert!(!ids(not_compared).contains(&"run-trusting".into()));
        let remedies = DoctorReport::from_facts(facts, Vec::new()).remedies;
        assert_eq!(remedies[0].id, "run-trusting");
        assert!(remedies[0].cost.contains("wrong time"), "{remedies:?}");
    }

    #[test]
    fn a_clocksource_that_the_kernel_lists_can_be_chosen_at_once() {
        let ids = ids(samples::xen());
        assert_eq!(ids, ["run", "attach", "choose-clocksource", "hypervisor"]);
    }

    #[test]
    fn a_process_that_runs_is_attached_if_it_can_be() {
        let of_process = |facts: Facts, process: Process| {
            let process = Some(Process { pid: 7, ..process });
            ids(Facts { process, ..facts })
        };
        let plain = Process {
            vdso: Some(VdsoKind::Kernel),
            isa: Some("x86_64".to_owned()),
            ..Process::default()
        };
        assert_eq!(of_process(samples::hpet(), plain.clone())[..2], ["attach", "run"]);
        let allowed = of_process(samples::without_promise(samples::hpet()), plain.clone());
        assert_eq!(allowed[..2], ["attach", "run-trusting"]);
        let changes: [fn(&mut Process); 3] = [
            |process| process.vdso = Some(VdsoKind::None),
            |process| process.isa = Some("i386".to_owned()),
            |process| process.tracer_pid = Some(9),
        ];
        for change in changes {
            let mut other = plain.clone();
            change(&mut other);
            assert!(!of_process(samples::hpet(), other).contains(&"attach".into()));
        }
    }
}
