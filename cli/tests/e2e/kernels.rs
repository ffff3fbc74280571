//! Kernels that run as programs of another one: User Mode Linux, where everything is served, and gVisor, where nothing
//! needs to be and nothing breaks.

use std::process::Command;

#[cfg(target_arch = "x86_64")]
use crate::common::helper_program;
use crate::common::{Outcome, finish, needs_root, program, skip, tool};

const FASTPATH: &str = env!("CARGO_BIN_EXE_fastpath");
#[cfg(target_arch = "x86_64")]
const FASTPATHD: &str = env!("CARGO_BIN_EXE_fastpathd");

#[cfg(target_arch = "x86_64")]
fn repository() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the lines `NAME: ...` of a script's output, by the names of its steps.
#[track_caller]
fn step<'o>(outcome: &'o Outcome, name: &str) -> Vec<&'o str> {
    let prefix = format!("{name}: ");
    let lines: Vec<&str> = outcome
        .out
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect();
    assert!(!lines.is_empty(), "no step {name}: {outcome:#?}");
    lines
}

/// Runs a shell's script on User Mode Linux. Its first arguments are `fastpath` and `fastpathd`.
#[cfg(target_arch = "x86_64")]
fn on_user_mode_linux(script: &str, arguments: &[&str]) -> Option<Outcome> {
    tool("linux.uml")?;
    let mut command = Command::new(repository().join("lab/uml"));
    command
        .current_dir(repository())
        .args(["--timeout", "300", "--", "sh", "-c", script, FASTPATH, FASTPATHD])
        .args(arguments);
    let outcome = finish(command);
    // Exit status of lab/uml if the machine did not come up.
    if outcome.status.code() == Some(125) {
        skip(outcome.err.trim());
        return None;
    }
    Some(outcome)
}

/// Regression test: PTRACE_GET_SYSCALL_INFO, /proc/PID/syscall, room above the vDSO, and unused bytes behind its code
/// are missing there.
#[cfg(target_arch = "x86_64")]
#[test]
fn programs_are_served_on_user_mode_linux_from_their_start_and_while_they_run() {
    const SCRIPT: &str = r#"
say() { name=$1; shift; "$@" 2>&1 | sed "s/^/$name: /"; }
gate='guard --max-ns 1000000'
say bare $0 $gate
# A program that starts or reads while the publisher gets no CPU has the kernel's path.
served() {
	tries=0
	until say "$@" >/tmp/served && grep -q "by fastpath" /tmp/served || [ $tries = 10 ]; do
		tries=$((tries + 1))
	done
	cat /tmp/served
}
served run $0 run --require -- $0 $gate
served trusting $0 run --require --trust-counter -- $0 $gate
served child $0 run --require -- sh -c "sh -c '$0 $gate; :'; :"
fastpathd=$1 moved=$2 witness=$3
shift 3
[ -z "$witness" ] || say check "$witness" check
[ -z "$moved" ] || say moved $0 run --require --clocks all -- "$moved" moved
for each; do
	$0 run --require --clocks all -- "$each" 1000 MONOTONIC >/dev/null 2>&1
	echo "program: $each $?"
done
sleep 3 &
say attach $0 attach $!
say status $0 status
wait $!
echo "sleep: $?"
sleep 100 &
$0 attach $!
say detach $0 detach $!
kill $!
wait $!
echo "killed: $?"
mkdir -p /run/fastpath
$fastpathd &
daemon=$!
while [ ! -S /run/fastpath/fastpathd.sock ]; do sleep 0.1; done
$0 run --require -- sleep 100 &
while ! $0 status | grep -q sleep; do sleep 0.1; done
say daemon $0 status
echo "is: $daemon"
"#;
    let names = [
        "clock-glibc",
        "clock-glibc-static",
        "clock-musl",
        "clock-musl-static",
        "clock-go",
        "clock-rust-static",
    ];
    let programs: Vec<String> = names.into_iter().filter_map(program).collect();
    let moved = helper_program("moved-vdso", "cc", &["-static"]);
    let witness = program("clock-witness");
    let mut arguments = [&moved, &witness]
        .map(|program| program.as_deref().unwrap_or_default())
        .to_vec();
    arguments.extend(programs.iter().map(String::as_str));
    let outcome = needed!(on_user_mode_linux(SCRIPT, &arguments));
    let has = |name: &str, words: &str| {
        let lines = step(&outcome, name).join("\n");
        assert!(lines.contains(words), "{name} does not say {words}: {outcome:#?}");
    };
    has("bare", "goes by system call");
    for served in ["run", "trusting", "child"] {
        has(served, "ok:");
        has(served, "by fastpath");
    }
    if moved.is_some() {
        has("moved", "right");
    }
    if witness.is_some() {
        has("check", "path 1, slow 1, clocksource, timer");
    }
    for each in programs {
        has("program", &format!("{each} 0"));
    }
    // A sleep that was interrupted to attach goes on for what is left of it.
    has("sleep", "0");
    has("status", "sleep");
    has("killed", "143");
    has("daemon", step(&outcome, "is")[0]);
}

/// Runs a shell's script in gVisor. Its first argument is `fastpath`.
fn in_gvisor(script: &str, arguments: &[&str]) -> Option<Outcome> {
    needs_root()?;
    let runsc = |words: &[&str]| {
        let mut command = Command::new("runsc");
        // ptrace is the platform that needs neither KVM nor a new kernel.
        command
            .args(["--platform=ptrace", "--network=none", "--ignore-cgroups", "do"])
            .args(words);
        command
    };
    tool("runsc")?;
    let first = finish(runsc(&["true"]));
    if !first.status.success() {
        skip(format_args!(
            "runsc does not run here: {}",
            first.err.lines().last().unwrap_or_default()
        ));
        return None;
    }
    Some(finish(runsc(
        &[&["sh", "-c", script, FASTPATH][..], arguments].concat(),
    )))
}

#[test]
fn gvisors_fast_vdso_is_left_alone_and_refusals_are_clear() {
    const SCRIPT: &str = r#"
exec 2>&1
# What gVisor shows of the CPU may not guarantee the counter, which would be the first reason.
all="--clocks all --trust-counter"
say() { name=$1; shift; timeout 60 "$@" 2>&1 | sed "s/^/$name: /"; }
code() { name=$1; shift; timeout 60 "$@" >/dev/null; echo "$name-code: $?"; }
# Its vDSO makes system calls until it has calibrated the counter.
tries=0
until timeout 60 $0 guard >/dev/null || [ $((tries += 1)) -gt 30 ]; do sleep 1; done
say guard $0 guard
say doctor $0 doctor --verbose
say run $0 run --verbose -- echo untouched
code run $0 run -- true
say forced $0 run $all -- echo untouched
code forced $0 run $all -- true
say required $0 run $all --require -- echo started
code required $0 run $all --require -- true
sleep 100 &
say attach $0 attach $all $!
code attach $0 attach $all $!
say detach $0 detach $!
kill $!
wait $!
echo "killed: $?"
say status $0 status
say trace $0 trace -- "$1" 10 MONOTONIC
say check "$2" check
"#;
    let (clock, witness) = needed!(program("clock-glibc"), program("clock-witness"));
    let outcome = needed!(in_gvisor(SCRIPT, &[&clock, &witness]));
    let has = |name: &str, words: &str| {
        let lines = step(&outcome, name).join("\n");
        assert!(lines.contains(words), "{name} does not say {words}: {outcome:#?}");
    };
    if step(&outcome, "guard").iter().any(|line| line.starts_with("broken")) {
        return skip("gVisor got no counter that it trusts");
    }
    has("guard", "ok:");
    has("doctor", "gVisor");
    has("run", "nothing needs fixing");
    has("run", "untouched");
    has("run-code", "0");
    has("forced", "this kernel has no openat2");
    has("forced", "untouched");
    has("forced-code", "0");
    has("required", "not started");
    has("required-code", "125");
    assert!(!outcome.out.contains("required: started"), "{outcome:#?}");
    has("attach", "does not show vDSOs");
    has("detach", "not attached");
    has("killed", "143");
    has("status", "no process is on fastpath here");
    has("trace", "counted by ptrace");
    has("check", "path 2, slow 0, fast, ");
}
