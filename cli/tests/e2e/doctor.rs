//! The verdicts and exit statuses of `doctor`, for hosts and processes.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::common::{
    Outcome, Pid, Running, fastpath, finish, has_seccomp_filter, helper_program, install, needs_root, program, served,
    skip, start, tool, unprivileged, wait_until,
};

const HEALTHY: i32 = 0;
const SLOW: i32 = 1;
const NO_SUCH_PROCESS: i32 = 3;
const NO_INPUT: i32 = 66;
const UNKNOWN: i32 = 69;

/// More reads than any program makes while it is examined.
const ENDLESS: &str = "2000000000";

fn doctor(arguments: &[&str]) -> Command {
    fastpath(&[&["doctor"], arguments].concat())
}

#[track_caller]
fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.out).unwrap_or_else(|e| panic!("{e}: {outcome:#?}"))
}

fn ids(report: &Value, list: &str) -> Vec<String> {
    let all = report[list].as_array().expect("a list").iter();
    all.map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

/// The exit status for this host: on a machine whose clocks are slow it is 1.
fn status_of_this_host() -> i32 {
    let probe = finish(fastpath(&["probe", "--json"])).expect_success();
    let probe = json(&probe);
    let reports = ["clocks", "functions"].map(|list| probe[list].as_array().expect("a list").clone());
    let verdicts = reports.iter().flatten().map(|report| report["verdict"].clone());
    if verdicts.into_iter().any(|verdict| verdict == "slow") {
        SLOW
    } else {
        HEALTHY
    }
}

#[test]
fn doctors_verdict_on_a_host_agrees_with_probe() {
    let short = finish(doctor(&[])).expect_code(status_of_this_host());
    assert!(short.out.lines().count() <= 24, "more than a screen: {}", short.out);
    assert!(short.out.contains("doctor --verbose"), "{short:#?}");
    let outcome = finish(doctor(&["--verbose"])).expect_code(status_of_this_host());
    assert_eq!(outcome.err, "");
    for words in [
        "Evidence",
        "REALTIME",
        "clocksource",
        "one rate",
        "CPUs agree",
        "seccomp",
        "system call",
    ] {
        assert!(outcome.out.contains(words), "{words}: {outcome:#?}");
    }
    assert!(!outcome.out.contains('\x1b'), "colours in a file: {outcome:#?}");
}

#[test]
fn json_is_one_line_with_the_content_of_the_text() {
    // Both are of one examination: another one may find something else on a busy host.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("host.json");
    let name = file.to_str().expect("a path");
    finish(doctor(&["--evidence", name])).expect_code(status_of_this_host());
    let outcome = finish(doctor(&["--json", "--replay", name])).expect_code(status_of_this_host());
    assert_eq!(outcome.out.lines().count(), 1);
    let report = json(&outcome);
    assert_eq!(report["schema"], 1);
    let verdict = report["verdict"].as_str().expect("a verdict");
    assert!(report["elapsed_ms"].is_u64(), "{}", report["elapsed_ms"]);
    for clock in report["facts"]["clocks"].as_array().expect("clocks") {
        assert!(clock["path"].is_string() && clock["id"].is_u64(), "{clock}");
    }
    let text = finish(doctor(&["-v", "--replay", name])).out;
    assert!(text.starts_with(verdict), "{verdict}: {text}");
    for line in report["evidence"].as_array().expect("evidence") {
        let what = line["what"].as_str().expect("what");
        assert!(text.contains(what), "{what}: {text}");
    }
    for list in ["findings", "remedies", "unseen"] {
        for one in report[list].as_array().expect("a list") {
            let said = ["says", "does", "what"]
                .iter()
                .find_map(|key| one[key].as_str())
                .expect("words");
            let first: Vec<&str> = said.split_whitespace().take(2).collect();
            assert!(text.contains(&first.join(" ")), "{said}: {text}");
        }
    }
}

#[test]
fn evidence_has_no_names_and_is_judged_elsewhere_as_it_was_here() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("host.json");
    let name = file.to_str().expect("a path");
    let said = finish(doctor(&["--evidence", name])).expect_code(status_of_this_host());
    let again = finish(doctor(&["--replay", name])).expect_code(status_of_this_host());
    assert_eq!(again.out, said.out);
    let written = std::fs::read_to_string(&file).expect("the evidence");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    // A name of a few letters can be part of any word.
    for private in [
        host.trim(),
        env!("CARGO_BIN_EXE_fastpath"),
        "/lib/",
        "\"name\":\"fastpath\"",
    ] {
        assert!(private.len() < 6 || !written.contains(private), "{private}: {written}");
    }
    let report: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!(
        (&report["command"], &report["facts"]["here"]["pid"]),
        (&"doctor".into(), &0.into())
    );
    let printed = finish(doctor(&["--evidence", "-"])).expect_code(status_of_this_host());
    assert_eq!(json(&printed)["verdict"], report["verdict"]);
}

#[test]
fn a_file_that_is_no_evidence_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("host.json");
    let name = file.to_str().expect("a path");
    for (text, words) in [
        ("{", "not JSON"),
        ("{\"schema\": 2, \"facts\": {}}", "schema 2"),
        ("{\"schema\": 1, \"hosts\": []}", "doctor --evidence"),
        (
            "{\"facts\": {\"kernel\": {\"machine\": \"\\u001b[31mvax\"}}}",
            "another kind of machine (\\u{1b}[31mvax)",
        ),
    ] {
        std::fs::write(&file, text).expect("a file");
        let outcome = finish(doctor(&["--replay", name])).expect_code(NO_INPUT);
        assert!(
            outcome.err.contains(words) && outcome.err.contains(name),
            "{outcome:#?}"
        );
    }
    std::fs::remove_file(&file).expect("remove");
    let outcome = finish(doctor(&["--replay", name])).expect_code(NO_INPUT);
    assert!(outcome.err.contains("No such file"), "{outcome:#?}");
}

#[test]
fn without_a_vdso_the_verdict_is_slow_with_remedies_and_their_costs() {
    let under = |arguments: &[&str]| {
        let doctor = [
            &["run", "--without-vdso", "--", env!("CARGO_BIN_EXE_fastpath"), "doctor"],
            arguments,
        ]
        .concat();
        finish(fastpath(&doctor)).expect_code(SLOW)
    };
    let text = under(&["--verbose"]);
    assert!(text.out.starts_with("slow: "), "{text:#?}");
    for words in [
        "What to do",
        "fastpath run -- PROGRAM",
        "Cost: ",
        "because",
        "by system call",
    ] {
        assert!(text.out.contains(words), "{words}: {text:#?}");
    }
    let report = json(&under(&["--json"]));
    assert_eq!(ids(&report, "findings")[0], "no-vdso", "{report:#}");
    assert_eq!(ids(&report, "remedies")[0], "run", "{report:#}");
    assert_eq!(report["facts"]["here"]["vdso"], "none");
}

#[test]
fn under_fastpath_the_clocks_are_fast_again() {
    // If the publisher gets no CPU for longer than an anchor lasts, the kernel answers.
    wait_until("clocks that are fast again", || {
        let outcome = finish(served(&[env!("CARGO_BIN_EXE_fastpath"), "doctor", "--json"]));
        let report = json(&outcome);
        assert_eq!(report["facts"]["here"]["vdso"], "fastpath", "{report:#}");
        let clocks = report["facts"]["clocks"].as_array().expect("clocks");
        let are_fast = ["REALTIME", "MONOTONIC", "BOOTTIME"].iter().all(|name| {
            let clock = clocks.iter().find(|clock| clock["clock"] == *name).expect(name);
            clock["path"] == "fastpath" && clock["verdict"] == "fast"
        });
        are_fast && !ids(&report, "remedies").contains(&"run".to_owned())
    });
}

/// A test program in its endless loop, once it runs as `name`. Returns `None` if it cannot be built here.
fn running(path: &str, name: &str, command: Command) -> Running {
    let running = start(command);
    wait_until(&format!("{name} runs from {path}"), || {
        running.pid().program().starts_with(name)
    });
    // A dynamic program maps its libraries after that, and a runtime needs more time.
    wait_until("it to work", || running.pid().cpu_time() > Duration::from_millis(200));
    running
}

/// Returns doctor's report on a running program.
fn of_program(name: &str, runs: &str) -> Option<Value> {
    let path = program(name)?;
    let mut command = Command::new(&path);
    command.args([ENDLESS, "MONOTONIC"]);
    let running = running(&path, runs, command);
    let outcome = finish(doctor(&["--json", &running.pid().0.to_string()])).expect_code(status_of_this_host());
    let report = json(&outcome);
    let process = report["facts"]["process"].clone();
    assert_eq!(process["pid"], running.pid().0, "{process:#}");
    assert_eq!(process["word_bits"], 64, "{process:#}");
    assert_eq!(process["vdso"], "kernel", "{process:#}");
    Some(process)
}

#[test]
fn a_dynamic_program_is_known_by_its_libc() {
    let process = needed!(of_program("clock-glibc", "clock-glibc"));
    assert_eq!(
        (&process["is_static"], &process["libc"]["name"]),
        (&false.into(), &"glibc".into())
    );
    assert!(
        process["libc"]["version"]
            .as_str()
            .is_some_and(|version| version.starts_with("2.")),
        "{process:#}"
    );
    let process = needed!(of_program("clock-musl", "clock-musl"));
    assert_eq!(process["libc"]["name"], "musl", "{process:#}");
    assert!(
        process["libc"]["version"]
            .as_str()
            .is_some_and(|version| version.starts_with("1.")),
        "{process:#}"
    );
}

#[test]
fn a_static_program_that_looks_for_its_vdso_is_recognized() {
    for name in ["clock-glibc-static", "clock-musl-static"] {
        let process = needed!(of_program(name, name));
        assert_eq!(
            (&process["is_static"], &process["asks_for_vdso"]),
            (&true.into(), &true.into()),
            "{process:#}"
        );
    }
}

#[test]
fn a_static_program_that_never_looks_for_a_vdso_is_slow_and_run_would_not_help() {
    let waits = needed!(helper_program(
        "without-vdso",
        "cc",
        &["-static", "-nostdlib", "-ffreestanding"]
    ));
    let running = start(Command::new(&waits));
    wait_until("it runs", || running.pid().program().starts_with("without-vdso"));
    let outcome = finish(doctor(&["--json", &running.pid().0.to_string()])).expect_code(SLOW);
    let report = json(&outcome);
    assert_eq!(ids(&report, "findings")[0], "process-bypasses-vdso", "{report:#}");
    assert!(!ids(&report, "remedies").contains(&"run".to_owned()), "{report:#}");
}

#[test]
fn a_dynamic_program_with_system_calls_of_its_own_is_slow() {
    let path = needed!(helper_program("own-calls", "cc", &["-O1"]));
    let running = start(Command::new(&path));
    wait_until("it runs", || running.pid().program().starts_with("own-calls"));
    let outcome = finish(doctor(&["--json", &running.pid().0.to_string()])).expect_code(SLOW);
    let report = json(&outcome);
    assert_eq!(ids(&report, "findings")[0], "process-makes-own-calls", "{report:#}");
    assert!(ids(&report, "remedies").contains(&"call-libc".to_owned()), "{report:#}");
    let own = report["facts"]["process"]["own_calls"].as_array().expect("a list");
    assert_eq!(own.len(), 1, "{own:#?}");
    assert_eq!(own[0]["calls"], serde_json::json!(["clock_gettime"]), "{own:#?}");
    assert_eq!(
        (&own[0]["is_program"], &own[0]["places"]),
        (&true.into(), &1.into()),
        "{own:#?}"
    );
}

#[test]
fn a_program_replaced_since_its_start_is_judged_by_the_running_code() {
    let path = needed!(helper_program("own-calls", "cc", &["-O1"]));
    let directory = tempfile::tempdir().expect("a directory");
    let copy = directory.path().join("replaced");
    std::fs::copy(&path, &copy).expect("copy");
    let running = start(Command::new(&copy));
    wait_until("it runs", || running.pid().program().starts_with("replaced"));
    std::fs::remove_file(&copy).expect("remove");
    // No process waits for the other end of it.
    let fifo = Command::new("mkfifo").arg(&copy).status().expect("mkfifo");
    assert!(fifo.success());
    let outcome = finish(doctor(&["--json", &running.pid().0.to_string()])).expect_code(SLOW);
    assert_eq!(
        ids(&json(&outcome), "findings")[0],
        "process-makes-own-calls",
        "{outcome:#?}"
    );
}

#[test]
fn a_go_program_is_known_by_its_version() {
    let process = needed!(of_program("clock-go", "clock-go"));
    assert!(
        process["go"]
            .as_str()
            .is_some_and(|version| version.starts_with("go1.")),
        "{process:#}"
    );
}

#[test]
fn a_jvm_is_known_by_its_version() {
    let process = needed!(of_program("clock-java", "java"));
    assert!(
        process["java"].as_str().is_some_and(|version| version.contains('.')),
        "{process:#}"
    );
}

/// Skips a test of a process whose clock reads doctor could not sample, for its reason.
fn skip_without_samples(report: &Value) {
    let mut unseen = report["unseen"].as_array().into_iter().flatten();
    let samples = unseen.find(|source| source["source"] == "perf_event_open");
    let why = samples.and_then(|samples| samples["why"].as_str());
    skip(format_args!(
        "doctor has no samples: {}",
        why.unwrap_or("without a reason")
    ));
}

#[test]
fn a_process_that_reads_clocks_all_the_time_has_a_share_and_a_caller() {
    let path = needed!(program("clock-glibc"));
    let mut command = Command::new(&path);
    command.args([ENDLESS, "MONOTONIC"]);
    let running = running(&path, "clock-glibc", command);
    let pid = running.pid().0.to_string();
    let report = json(&finish(doctor(&["--json", &pid])).expect_code(status_of_this_host()));
    let reads = &report["facts"]["process"]["reads"];
    if reads.is_null() {
        return skip_without_samples(&report);
    }
    let figure = |name: &str| reads[name].as_f64().expect("a number");
    // The loop does little else. Time in libc's function and in the loop is not in the vDSO's.
    let share = figure("reads_ns") / figure("cpu_ns");
    assert!((0.2..=1.0).contains(&share), "{reads:#}");
    assert!(figure("samples") > 20.0, "{reads:#}");
    let caller = &reads["callers"][0];
    assert!(
        caller["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("/clock-glibc")),
        "{reads:#}"
    );
    assert!(ids(&report, "findings").iter().any(|id| id == "process-reads"));
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let idle = start(sleep);
    let report = json(&finish(doctor(&["--json", &idle.pid().0.to_string()])));
    assert_eq!(report["facts"]["process"]["reads"]["reads_ns"], 0, "{report:#}");
}

#[test]
fn a_process_is_shown_with_the_counter_reads_that_it_executes() {
    let path = needed!(helper_program("own-counter", "cc", &[]));
    let running = start(Command::new(&path));
    wait_until("samples are at its read", || {
        let report = json(&finish(doctor(&["--json", &running.pid().0.to_string()])));
        let process = &report["facts"]["process"];
        if process["reads"].is_null() {
            skip_without_samples(&report);
            return true;
        }
        let file = &process["counter_reads"][0];
        // Before its exec, the process is a copy of this test.
        if !file["file"].as_str().is_some_and(|file| file.contains("own-counter")) {
            return false;
        }
        assert_eq!((&file["places"], &file["clocks"]), (&2.into(), &1.into()), "{file:#}");
        let executed = file["executed"].as_array().expect("a list");
        let (at, all) = (
            &executed.first().map(|read| &read["samples"]),
            &process["reads"]["samples"],
        );
        let is_most = at.and_then(Value::as_u64) > all.as_u64().map(|all| all / 4);
        if !is_most {
            return false;
        }
        assert!(executed.len() == 1 && executed[0]["is_scaled"] == true, "{file:#}");
        assert!(ids(&report, "findings").iter().any(|id| id == "process-reads-counter"));
        true
    });
}

/// Waits until the program's own function is found as the caller of its reads: samples from before its first read, or
/// from a read in code without call frames before the publisher has begun, have no caller.
#[track_caller]
fn has_as_caller(running: &Running, is_own: impl Fn(&str) -> bool) {
    wait_until("its caller is found", || {
        let report = json(&finish(doctor(&["--json", &running.pid().0.to_string()])));
        let reads = &report["facts"]["process"]["reads"];
        if reads.is_null() {
            skip_without_samples(&report);
            return true;
        }
        reads["callers"][0]["function"].as_str().is_some_and(&is_own)
    });
}

#[test]
fn the_caller_of_a_clock_read_is_the_programs_own_function_in_go() {
    let path = needed!(program("clock-go"));
    let command = [path.as_str(), ENDLESS, "MONOTONIC"];
    let mut plain = Command::new(&path);
    plain.args(&command[1..]);
    let is_of_main = |name: &str| name.starts_with("main.");
    has_as_caller(&start(plain), is_of_main);
    has_as_caller(&start(served(&command)), is_of_main);
}

#[test]
fn the_caller_of_a_clock_read_is_the_programs_own_function() {
    // musl has no call frame information in a static program.
    let compilers = match cfg!(target_arch = "x86_64") {
        true => &["cc", "cc -static", "musl-gcc -static"][..],
        false => &["cc", "cc -static"],
    };
    for compiler in compilers {
        let words: Vec<&str> = compiler.split(' ').collect();
        let path = needed!(helper_program("reads-in-w", words[0], &words[1..]));
        has_as_caller(&start(Command::new(&path)), |name| name == "w");
        has_as_caller(&start(served(&[&path])), |name| name == "w");
    }
}

/// Waits until doctor's samples name both functions of the program, each with the clocks that it reads.
#[track_caller]
fn has_a_clock_for_each_caller(running: &Running) {
    let clocks_of = |reads: &Value, function: &str| {
        let callers = reads["callers"].as_array().expect("callers");
        let caller = callers.iter().find(|caller| caller["function"] == function);
        let clocks = caller.and_then(|caller| caller["clocks"].as_array()).cloned();
        let names = clocks
            .unwrap_or_default()
            .into_iter()
            .map(|clock| clock["clock"].clone());
        names
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    wait_until("each caller has its clocks", || {
        let report = json(&finish(doctor(&["--json", &running.pid().0.to_string()])));
        let reads = &report["facts"]["process"]["reads"];
        if reads.is_null() {
            skip_without_samples(&report);
            return true;
        }
        let [m, r] = ["m", "r"].map(|function| clocks_of(reads, function));
        let allowed = |clocks: &BTreeSet<String>, of: &[&str]| clocks.iter().all(|clock| of.contains(&clock.as_str()));
        assert!(allowed(&m, &["MONOTONIC"]), "{reads:#}");
        assert!(allowed(&r, &["REALTIME", "REALTIME_COARSE"]), "{reads:#}");
        (m.len(), r.len()) == (1, 2)
    });
    // A line may end anywhere between two words.
    let text = finish(doctor(&[&running.pid().0.to_string()])).out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let has_clocks = words.contains(": MONOTONIC, about ") && words.contains("REALTIME, about ");
    assert!(
        has_clocks || !words.contains("% of its CPU time in clock reads"),
        "{text}"
    );
}

#[test]
fn each_caller_of_clock_reads_has_the_clocks_that_it_reads() {
    let path = needed!(helper_program("reads-of-clocks", "cc", &[]));
    has_a_clock_for_each_caller(&start(Command::new(&path)));
    has_a_clock_for_each_caller(&start(served(&[&path])));
}

#[test]
fn a_program_that_fastpath_serves_is_healthy_and_its_page_fresh() {
    let path = needed!(program("clock-glibc"));
    let running = running(&path, "clock-glibc", served(&[&path, ENDLESS, "MONOTONIC"]));
    let fresh = || {
        let outcome = finish(doctor(&["--json", &running.pid().0.to_string()]));
        let report = json(&outcome);
        // If the helper cannot run for longer than an anchor lasts, the page is not fresh, and doctor reports that.
        let serves = report["facts"]["process"]["page"]["serves"]
            .as_array()
            .is_some_and(|serves| !serves.is_empty());
        assert_eq!(report["facts"]["process"]["vdso"], "fastpath", "{report:#}");
        assert!(!serves || outcome.status.code() == Some(HEALTHY), "{report:#}");
        serves
    };
    wait_until("a fresh page is seen", fresh);
    let text = finish(doctor(&["--verbose", &running.pid().0.to_string()])).out;
    assert!(text.contains("fastpath's"), "{text}");
}

#[test]
fn doctor_estimates_the_gain_of_a_program_without_a_vdso() {
    // Unmapped, as by a sandbox, and not only hidden.
    let unmap = needed!(helper_program("unmap-vdso", "cc", &[]));
    let running = start(Command::new(&unmap));
    wait_until("its vDSO is gone", || running.out_so_far().contains("gone"));
    let outcome = finish(doctor(&["--json", &running.pid().0.to_string()])).expect_code(SLOW);
    let report = json(&outcome);
    assert_eq!(report["facts"]["process"]["vdso"], "none", "{report:#}");
    let gain = &report["gains"][0];
    assert!(
        gain["now_ns"].as_f64() > gain["under_fastpath_ns"].as_f64(),
        "{report:#}"
    );
}

#[test]
fn a_missing_process_is_exit_status_3() {
    let outcome = finish(doctor(&["4194304"])).expect_code(NO_SUCH_PROCESS);
    assert_eq!(
        (outcome.out.as_str(), outcome.err.as_str()),
        ("", "fastpath: there is no process 4194304\n")
    );
    for nonsense in ["0", "-1", "99999999999"] {
        finish(doctor(&[nonsense])).expect_code(2);
    }
    finish(doctor(&["no-such-program"])).expect_code(NO_SUCH_PROCESS);
}

fn as_nobody(command: &[&str]) -> Option<Command> {
    let (Some(()), Some(_)) = (needs_root(), tool("setpriv")) else {
        return None;
    };
    let mut run = unprivileged();
    run.args(command);
    Some(run)
}

/// Installs fastpath where other users may execute it.
fn in_the_open() -> (tempfile::TempDir, String) {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let path = install(env!("CARGO_BIN_EXE_fastpath"), directory.path().join("fastpath"), 0o755);
    (directory, path)
}

#[test]
fn a_user_without_privileges_gets_the_verdict_and_what_was_hidden() {
    let (_place, fastpath) = in_the_open();
    let command = needed!(as_nobody(&[&fastpath, "doctor"]));
    let outcome = finish(command).expect_code(status_of_this_host());
    let restricted = std::fs::read_to_string("/proc/sys/kernel/dmesg_restrict").is_ok_and(|text| text.trim() == "1");
    if restricted {
        assert!(
            outcome.out.contains("Could not be seen") && outcome.out.contains("kernel's log"),
            "{outcome:#?}"
        );
        assert!(outcome.out.contains("To see it:"), "{outcome:#?}");
    }
}

#[test]
fn the_verdict_on_another_users_process_is_unknown_with_the_reason() {
    let (_place, fastpath) = in_the_open();
    let command = needed!(as_nobody(&[&fastpath, "doctor", "1"]));
    let outcome = finish(command).expect_code(UNKNOWN);
    assert!(outcome.out.starts_with("unknown: "), "{outcome:#?}");
    for words in ["/proc/1/maps", "Permission denied", "as root"] {
        assert!(outcome.out.contains(words), "{words}: {outcome:#?}");
    }
}

#[test]
fn root_is_not_advised_to_run_doctor_as_root() {
    needed!(needs_root(), tool("setpriv"));
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_fastpath")]);
    command.args(["doctor", "1"]);
    let outcome = finish(command).expect_code(UNKNOWN);
    let words = outcome.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("give root CAP_SYS_PTRACE"), "{outcome:#?}");
    assert!(!words.contains("as root"), "{outcome:#?}");
}

#[test]
fn a_process_hidden_by_hidepid_is_not_reported_as_missing() {
    let (_place, fastpath) = in_the_open();
    let script = format!(
        "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups \
         --inh-caps=-all {fastpath} doctor 1"
    );
    needed!(needs_root(), tool("unshare"), tool("setpriv"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let outcome = finish(command).expect_code(UNKNOWN);
    assert!(outcome.err.contains("hidepid"), "{outcome:#?}");
}

#[test]
fn a_container_without_sys_and_proc_is_judged_by_measurements() {
    needed!(needs_root(), tool("unshare"));
    let mut command = Command::new("unshare");
    let script = format!(
        "umount -l /sys; umount -l /proc; exec {} doctor",
        env!("CARGO_BIN_EXE_fastpath")
    );
    command.args(["--mount", "sh", "-c", &script]);
    let outcome = finish(command);
    assert!(
        outcome
            .status
            .code()
            .is_some_and(|code| [HEALTHY, SLOW, UNKNOWN].contains(&code)),
        "{outcome:#?}"
    );
    for words in ["Could not be seen", "/proc is not mounted here", "/sys"] {
        assert!(outcome.out.contains(words), "{words}: {outcome:#?}");
    }
}

#[test]
fn a_time_namespace_is_seen_with_its_offsets() {
    needed!(needs_root(), tool("unshare"));
    let mut command = Command::new("unshare");
    let doctor = [env!("CARGO_BIN_EXE_fastpath"), "doctor", "--json"];
    command.args([
        "--fork",
        "--pid",
        "--mount",
        "--mount-proc",
        "--time",
        "--boottime",
        "86400",
    ]);
    command.args(doctor);
    let report = json(&finish(command));
    assert!(
        ids(&report, "findings").contains(&"time-namespace".to_owned()),
        "{report:#}"
    );
    assert_eq!(
        report["facts"]["here"]["time_namespace"]["offsets"][0]["sec"], 86400,
        "{report:#}"
    );
}

#[test]
fn a_seccomp_filter_hides_only_the_facts_that_need_the_forbidden_calls() {
    if has_seccomp_filter() {
        return skip("there is a seccomp filter already, as containers have");
    }
    let filter = needed!(helper_program("filter", "cc", &[]));
    let answer = |action: &str, number: libc::c_long| {
        let mut command = Command::new(&filter);
        command.args([
            action,
            &number.to_string(),
            env!("CARGO_BIN_EXE_fastpath"),
            "doctor",
            "--json",
        ]);
        finish(command)
    };
    let forbid = |number| answer("forbid", number);
    // glibc's adjtimex(3) makes either call.
    for number in [libc::SYS_adjtimex, libc::SYS_clock_adjtime] {
        for action in ["forbid", "kill"] {
            assert_ne!(json(&answer(action, number))["verdict"], "unknown");
        }
    }
    // A call that doctor does not need.
    let report = json(&forbid(9999));
    assert_eq!(report["facts"]["here"]["seccomp_filters"], 1, "{report:#}");
    assert_ne!(report["verdict"], "unknown", "{report:#}");
    // No filter can be added: the paths are unknown, the costs are known.
    for number in [libc::SYS_prctl, libc::SYS_seccomp] {
        let report = json(&forbid(number));
        assert_eq!(report["facts"]["clocks"][1]["path"], "unknown", "{report:#}");
        assert!(report["facts"]["clocks"][1]["ns"].is_f64(), "{report:#}");
    }
    // No threads: the CPUs are not compared, and doctor reports that. glibc before 2.34 makes them by clone, which fork
    // is too.
    let report = json(&forbid(libc::SYS_clone3));
    let warp = &report["facts"]["counter"]["evidence"]["warp"];
    let length = |list: &str| warp[list].as_array().expect("a list").len();
    let cpus = length("cpus");
    assert_eq!(length("pairs") + length("missed"), cpus * (cpus - 1) / 2, "{report:#}");
    assert!(
        warp["missed"]
            .as_array()
            .is_some_and(|missed| missed.iter().all(|pair| pair["why"].is_string())),
        "{report:#}"
    );
    // No child: nothing can be determined, and doctor reports that.
    let outcome = forbid(libc::SYS_clone);
    let report = json(&outcome);
    if report["facts"]["clocks"][1]["path"] == "unknown" {
        assert_eq!(
            (outcome.status.code(), &report["verdict"]),
            (Some(UNKNOWN), &"unknown".into()),
            "{report:#}"
        );
    }
}

#[test]
fn a_closed_output_is_an_error_and_not_a_verdict() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" >&-", "sh", env!("CARGO_BIN_EXE_fastpath"), "doctor"]);
    let outcome = finish(command).expect_code(74);
    assert!(outcome.err.contains("standard output is closed"), "{outcome:#?}");
    if std::path::Path::new("/dev/full").exists() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "exec \"$@\" >/dev/full",
            "sh",
            env!("CARGO_BIN_EXE_fastpath"),
            "doctor",
            "--json",
        ]);
        finish(command).expect_code(74);
    }
}

#[test]
fn a_kernel_thread_and_a_zombie_are_refused() {
    const KTHREADD: Pid = Pid(2);
    if KTHREADD.status("Name") == "kthreadd" {
        let outcome = finish(doctor(&["2"])).expect_code(UNKNOWN);
        assert!(outcome.out.contains("is a kernel thread"), "{outcome:#?}");
    }
    let mut child = Command::new("true").spawn().expect("true");
    let pid = Pid(child.id() as i32);
    wait_until("it has ended", || pid.state() == 'Z');
    let outcome = finish(doctor(&[&pid.0.to_string()])).expect_code(UNKNOWN);
    assert!(outcome.out.contains("has ended"), "{outcome:#?}");
    child.wait().expect("wait");
}
