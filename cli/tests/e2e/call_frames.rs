//! Unwinders find the callers of reads of clocks: profilers, exceptions and cancellation depend on it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fastpath_image::own_vdso;

use crate::attach::{attach, detach, hazard_of};
use crate::common::{Pid, Running, finish, go_program, helper_program, program, served, skip, start, tool, wait_until};
use crate::helper_loss::ANCHOR_IS_OLD;

pub const FLAGS: &[&str] = &["-fexceptions", "-fnon-call-exceptions"];

/// Returns whether most reads went to the end in code that has call frames, and most threads ran their
/// cleanups. A read for which the page has no answer at that moment does not, and on a busy machine there may be many.
pub fn have_call_frames(out: &str) -> bool {
    let mut whole = BTreeMap::new();
    let mut are_cancelled = true;
    for line in out.lines() {
        let words: Vec<&str> = line.split([' ', ':', ',']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [clock, reads, "whole", "reads", lost, "of", _, "lost"] => {
                assert_eq!(lost, "0", "{out}");
                whole.insert(clock.to_owned(), reads.parse::<u32>().expect("a number"));
            }
            [_, run, "of", count, "cleanups"] => {
                let number = |word: &str| word.parse::<u32>().expect("a number");
                are_cancelled &= number(run) * 10 >= number(count) * 6;
            }
            _ => {}
        }
    }
    assert_eq!(whole.len(), 8, "{out}");
    are_cancelled && whole.values().all(|reads| *reads > 50)
}

#[test]
fn callers_of_reads_are_found_from_each_instruction_under_run() {
    let program = needed!(helper_program("call-frames", "cc", FLAGS));
    wait_until("reads with call frames", || {
        have_call_frames(&finish(served(&[&program])).expect_success().out)
    });
}

#[test]
fn callers_of_reads_are_found_from_each_instruction_after_attach() {
    wait_until("reads with call frames", || {
        let Some(running) = hazard_of(helper_program("call-frames", "cc", FLAGS), &["waits"], "ready") else {
            return true;
        };
        let pid = running.pid();
        attach(pid).expect_success();
        pid.signal(libc::SIGUSR1);
        have_call_frames(&running.finish().expect_success().out)
    });
}

/// Without a publisher, every read asks the kernel, by the image's slow path.
#[test]
fn callers_are_found_while_the_kernel_is_asked() {
    for linked in [&[][..], &["-static"]] {
        let program = needed!(helper_program("call-frames", "cc", &[FLAGS, linked].concat()));
        let running = start(served(&[&program, "waits"]));
        wait_until("its word", || running.out_so_far().contains("ready"));
        Pid::helper(running.mark()).signal(libc::SIGKILL);
        std::thread::sleep(ANCHOR_IS_OLD);
        running.pid().signal(libc::SIGUSR1);
        assert!(have_call_frames(&running.finish().expect_success().out), "{linked:?}");
    }
}

#[test]
fn callers_are_found_after_detach() {
    let running = needed!(hazard_of(
        helper_program("call-frames", "cc", FLAGS),
        &["waits"],
        "ready"
    ));
    let pid = running.pid();
    attach(pid).expect_success();
    detach(pid).expect_success();
    pid.signal(libc::SIGUSR1);
    assert!(have_call_frames(&running.finish().expect_success().out));
}

#[test]
fn exceptions_that_a_signal_handler_throws_from_reads_are_caught() {
    let program = needed!(helper_program(
        "throwing-handler",
        "clang++",
        &["-fnon-call-exceptions"]
    ));
    assert_eq!(finish(served(&[&program])).expect_success().out, "200 of 200 caught\n");
}

/// Returns the addresses of the mappings in a text like /proc/PID/maps that `is_wanted` selects by their lines.
fn mappings(maps: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
    let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let mapping = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(address(start)..address(end))
    };
    maps.lines()
        .filter(|line| is_wanted(line))
        .filter_map(mapping)
        .collect()
}

fn are_in(mappings: &[Range<u64>], address: u64) -> bool {
    mappings.iter().any(|mapping| mapping.contains(&address))
}

/// Asserts that the stacks of a profile that begin in the code for reads have a caller in the program, and returns whether they
/// are many. Stacks with code of no object are left out: no unwinder knows it.
fn have_callers(mut stacks: Vec<Vec<u64>>, maps: &str, program: &str) -> bool {
    let own = own_vdso().expect("a vDSO").expect("a vDSO").vdso;
    let function = own.exports().iter().find(|export| export.name == "__vdso_gettimeofday");
    let body = function.map_or(0..0, |function| function.offset..function.offset + function.size);
    let vdso = &mappings(maps, |line| line.contains("[vdso]"))[0];
    let body = vdso.start + body.start..vdso.start + body.end;
    let region = mappings(maps, |line| line.contains("fastpath-region"));
    let own = mappings(maps, |line| line.contains(program));
    assert!(!region.is_empty(), "{maps}");
    stacks.retain(|stack| body.contains(&stack[0]) && !stack.iter().any(|at| are_in(&region, *at)));
    for stack in &stacks {
        assert!(stack.iter().any(|at| are_in(&own, *at)), "{stack:x?}\n{maps}");
    }
    stacks.len() >= 10
}

/// By Debian's libunwind, in the process.
#[test]
fn gperftools_finds_the_callers_of_reads() {
    const PROFILER: &str = "/usr/lib/x86_64-linux-gnu/libprofiler.so";
    let clock = needed!(program("clock-glibc"));
    if !Path::new(PROFILER).exists() {
        return skip(format_args!("no {PROFILER} on this machine"));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let profile = directory.path().join("profile");
    let variables = [
        format!("CPUPROFILE={}", profile.display()),
        "CPUPROFILE_FREQUENCY=1000".into(),
        format!("LD_PRELOAD={PROFILER}"),
    ];
    let words = |reads| -> Vec<&str> {
        let variables = variables.iter().map(String::as_str);
        ["env"]
            .into_iter()
            .chain(variables)
            .chain([&*clock, reads, "MONOTONIC"])
            .collect()
    };
    let is_run = || drop(finish(served(&words("20000000"))).expect_success());
    let is_attached = || {
        let mut command = Command::new("env");
        command.args(&words("200000000")[1..]);
        let running = start(command);
        wait_until("the program", || running.pid().program() == "clock-glibc");
        attach(running.pid()).expect_success();
        running.finish().expect_success();
    };
    let ways: [&dyn Fn(); 2] = [&is_run, &is_attached];
    let has_callers = |way: &dyn Fn()| {
        way();
        let profile = std::fs::read(&profile).expect("the profile");
        let (words, _) = profile.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        // Five words of a header; then for each stack, how often it was seen, its depth, and its addresses. The last one
        // was seen never, and the text of /proc/self/maps follows it.
        let mut stacks: Vec<Vec<u64>> = Vec::new();
        let mut size = 5;
        words.by_ref().take(5).for_each(drop);
        loop {
            let (count, depth) = (words.next().expect("a count"), words.next().expect("a depth"));
            let stack: Vec<u64> = words.by_ref().take(depth as usize).collect();
            size += 2 + stack.len();
            if count == 0 {
                break;
            }
            stacks.push(stack);
        }
        have_callers(stacks, &String::from_utf8_lossy(&profile[8 * size..]), "clock-glibc")
    };
    for way in ways {
        wait_until("samples of reads", || has_callers(way));
    }
}

/// Starts a program that is served from its start, or is attached.
fn start_reader(reader: &str, is_attached: bool) -> Running {
    let running = start(if is_attached {
        Command::new(reader)
    } else {
        served(&[reader])
    });
    let pid = running.pid();
    wait_until("the program", || reader.ends_with(&pid.program()));
    if is_attached {
        attach(pid).expect_success();
    }
    running
}

/// By backtrace() in a handler of a timer's signals, which is how stall detectors work.
#[test]
fn a_stall_detector_finds_the_callers_of_reads() {
    let detector = needed!(helper_program("stall-detector", "cc", &[]));
    for is_attached in [false, true] {
        wait_until("signals in reads", || {
            let running = start_reader(&detector, is_attached);
            let begun = running.pid().cpu_time();
            wait_until("reads", || {
                running.pid().cpu_time() > begun + Duration::from_millis(300)
            });
            running.pid().signal(libc::SIGUSR1);
            let out = running.finish().expect_success().out;
            // A line of maps has words that are no numbers.
            let number = |word: &str| u64::from_str_radix(word, 16).ok();
            let stacks = out
                .lines()
                .map_while(|line| line.split_whitespace().map(number).collect());
            have_callers(stacks.collect(), &out, "stall-detector")
        });
    }
}

/// By frame pointers, in the kernel; and by call frames, from outside: perf takes those of the vDSO of its own process, so
/// it is served itself, and keeps that vDSO apart from others of this build ID.
#[test]
fn perf_names_the_vdso_for_reads_and_finds_their_callers() {
    let perf = needed!(tool("perf"));
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (cache, data) = (path("cache"), path("data"));
    let record = ["record", "-e", "cpu-clock", "-F", "1000", "-o", &data];
    let mut trial = Command::new(perf);
    trial.args(record).arg("true");
    let trial = finish(trial);
    if !trial.status.success() {
        return skip(format_args!("perf cannot record here: {}", trial.err));
    }
    for (mode, flags) in [("fp", &["-fno-omit-frame-pointer"][..]), ("dwarf", &[])] {
        let reader = needed!(helper_program("reads-of-clocks", "cc", flags));
        for is_attached in [false, true] {
            let running = start_reader(&reader, is_attached);
            let pid = running.pid().0.to_string();
            wait_until("samples of reads", || {
                let perf = [perf, "--buildid-dir", &cache];
                let words = ["--call-graph", mode, "-p", &pid, "sleep", "0.3"];
                finish(served(&[&perf[..], &record, &words].concat())).expect_success();
                let mut script = Command::new(perf[0]);
                script
                    .args(&perf[1..])
                    .args(["script", "--no-inline", "-F", "ip,sym,dso", "-i", &data]);
                let out = finish(script).expect_success().out;
                let is_read = |stack: &&str| {
                    let first = stack.lines().next().unwrap_or_default();
                    first.contains("__vdso_gettimeofday") && !stack.contains("fastpath-region")
                };
                let stacks: Vec<&str> = out.split("\n\n").map(str::trim_start).filter(is_read).collect();
                for stack in &stacks {
                    assert!(stack.contains(" main "), "{mode}: {stack}");
                }
                stacks.len() >= 10
            });
        }
    }
}

/// By Go's runtime, which knows from where it went to the vDSO.
#[test]
fn gos_profiler_finds_the_callers_of_reads() {
    let go = needed!(tool("go"));
    let program = go_program(go, "profiled");
    let directory = tempfile::tempdir().expect("a directory");
    let profile = directory.path().join("profile").display().to_string();
    // Go builds this tool when a user runs it for the first time, which takes a minute on a busy machine.
    let _ = Command::new(go).args(["tool", "-n", "pprof"]).output();
    // It does not find those of the reads that the kernel answers, while the publisher gets no CPU.
    wait_until("the callers of nearly all reads", || {
        finish(served(&[&program, &profile])).expect_success();
        let mut pprof = Command::new(go);
        pprof.args(["tool", "pprof", "-top", "-cum", &profile]);
        let out = finish(pprof).expect_success().out;
        let line = out.lines().find(|line| line.ends_with("main.readClocks"));
        let share = line.and_then(|line| line.split_whitespace().nth(4)?.strip_suffix('%')?.parse::<f64>().ok());
        share.is_some_and(|percent| percent > 90.0)
    });
}

/// By elfutils, from outside.
#[test]
fn eu_stack_finds_the_callers_of_reads_in_a_process_and_in_its_core() {
    let (eu_stack, gcore, clock) = needed!(tool("eu-stack"), tool("gcore"), program("clock-glibc"));
    let running = start(served(&[&clock, "2000000000", "MONOTONIC"]));
    let pid = running.pid();
    wait_until("the program", || pid.program() == "clock-glibc" && pid.is_served());
    let region = mappings(&pid.read("maps"), |line| line.contains("fastpath-region"));
    // Whether the stack is one of a read, whose code is in the place of gettimeofday; one with code of no object does not count.
    let is_read = |command: &mut Command| {
        let out = command.output().expect("eu-stack").stdout;
        let out = String::from_utf8_lossy(&out);
        let frames = out.lines().filter(|line| line.starts_with('#'));
        let address = |line: &str| u64::from_str_radix(line.split("0x").nth(1)?.split(' ').next()?, 16).ok();
        let addresses: Vec<u64> = frames.filter_map(address).collect();
        let is_read = out
            .lines()
            .any(|line| line.starts_with("#0") && line.contains("__vdso_gettimeofday"))
            && !addresses.iter().any(|at| are_in(&region, *at));
        assert!(!is_read || out.contains(" main"), "{out}");
        is_read
    };
    for _ in 0..10 {
        wait_until("a stack of a read", || {
            is_read(Command::new(eu_stack).args(["-p", &pid.0.to_string()]))
        });
    }
    let directory = tempfile::tempdir().expect("a directory");
    let core = directory.path().join("core");
    wait_until("a core of a read", || {
        let mut dump = Command::new(gcore);
        dump.arg("-o").arg(&core).arg(pid.0.to_string());
        finish(dump).expect_success();
        let core = format!("{}.{}", core.display(), pid.0);
        is_read(Command::new(eu_stack).args(["--core", &core, "--executable", &clock]))
    });
}
