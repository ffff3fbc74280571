//! Each process that cannot be attached is refused for its own reason, with its own exit status, and is left untouched.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::{Memory, attach, detach, hazard, sleeper};
use crate::common::{
    Outcome, Pid, Running, fastpath, finish, helper_program, needs_root, program_32, skip, start, tool, unprivileged,
    wait_until,
};

#[track_caller]
fn is_refused(outcome: Outcome, code: i32, reason: &str) {
    let outcome = outcome.expect_code(code);
    assert!(outcome.err.contains(reason), "{outcome:#?}");
    assert!(
        outcome.err.lines().count() == 1 && outcome.out.is_empty(),
        "{outcome:#?}"
    );
}

/// Expects that attach and detach refuse the process, and leave it unchanged.
#[track_caller]
fn is_refused_and_untouched(pid: Pid, code: i32, reason: &str) {
    let before = Memory::open(pid);
    is_refused(attach(pid), code, reason);
    assert_eq!(Memory::open(pid), before);
    assert!(pid.exists());
}

#[test]
fn a_number_that_no_process_has() {
    is_refused(attach(Pid(4_194_303)), 3, "no such process");
    is_refused(detach(Pid(4_194_303)), 3, "no such process");
}

#[test]
fn a_thread_that_is_not_a_process() {
    let running = needed!(hazard("many-threads", &["10"], "ready"));
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.pid().0)).expect("its threads");
    let tid = threads
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|tid| *tid != running.pid().0)
        .expect("a thread");
    let reason = format!("thread of process {}", running.pid().0);
    is_refused(attach(Pid(tid)), 3, &reason);
}

#[test]
fn a_kernel_thread() {
    // kthreadd, where this is not a container.
    if Pid(2).read("cmdline").is_empty() && Pid(2).read("comm").contains("kthreadd") {
        is_refused(attach(Pid(2)), 4, "a kernel thread");
        is_refused(detach(Pid(2)), 4, "a kernel thread");
    } else {
        skip("no kernel thread is visible here");
    }
}

#[test]
fn a_zombie() {
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().expect("true");
    let pid = Pid(child.id() as i32);
    wait_until("its end", || pid.state() == 'Z');
    is_refused(attach(pid), 5, "zombie");
    is_refused(detach(pid), 5, "zombie");
    child.wait().expect("its end");
}

#[test]
fn a_process_that_is_traced() {
    let strace = needed!(tool("strace"));
    let running = sleeper();
    let mut tracer = Command::new(strace);
    tracer.args(["-o", "/dev/null", "-p", &running.pid().0.to_string()]);
    let tracer = start(tracer);
    wait_until("a tracer", || running.pid().status("TracerPid") != "0");
    is_refused_and_untouched(running.pid(), 6, &format!("{} (strace)", tracer.pid().0));
    is_refused(detach(running.pid()), 6, "strace");
}

#[test]
fn a_process_of_another_user() {
    let ((), setpriv) = needed!(needs_root(), tool("setpriv"));
    let running = sleeper();
    let before = Memory::open(running.pid());
    for verb in ["attach", "detach"] {
        let mut command = Command::new(setpriv);
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args([env!("CARGO_BIN_EXE_fastpath"), verb, &running.pid().0.to_string()]);
        is_refused(finish(command), 7, "belongs to user 0");
    }
    assert_eq!(Memory::open(running.pid()), before);
}

#[test]
fn a_process_that_is_attached() {
    let running = sleeper();
    attach(running.pid()).expect_success();
    is_refused_and_untouched(running.pid(), 8, "on the fast path already");
    detach(running.pid()).expect_success();
    is_refused(detach(running.pid()), 15, "not attached");
}

#[test]
fn a_process_that_run_started() {
    let run = |options: &[&str]| {
        let running = start(fastpath(
            &[&["run"], options, &["--clocks", "all", "--", "sleep", "1000"]].concat(),
        ));
        wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
        running
    };
    let with_vdso = run(&[]);
    is_refused_and_untouched(with_vdso.pid(), 8, "on the fast path already");
    let without_vdso = run(&["--without-vdso"]);
    is_refused_and_untouched(without_vdso.pid(), 8, "start it again");
    is_refused(detach(without_vdso.pid()), 8, "fastpath run");
}

#[test]
fn a_32_bit_process() {
    let path = needed!(program_32("clock-i386-glibc-static"));
    let mut command = Command::new(path);
    command.args(["2000000000", "MONOTONIC"]);
    let running = start(command);
    wait_until("its loop", || running.pid().cpu_time().as_millis() > 30);
    is_refused_and_untouched(running.pid(), 9, "64-bit");
}

#[test]
fn a_process_without_a_vdso() {
    let path = needed!(helper_program("unmap-vdso", "cc", &[]));
    let running = start(Command::new(path));
    wait_until("its vDSO's end", || running.out_so_far().contains("gone"));
    let maps = running.pid().read("maps");
    is_refused(attach(running.pid()), 10, "no vDSO");
    assert_eq!(running.pid().read("maps"), maps);
}

#[test]
fn a_process_that_may_not_read_the_counter() {
    let running = needed!(hazard("counter-forbidden", &["wait"], "waiting"));
    is_refused_and_untouched(running.pid(), 13, "PR_SET_TSC");
}

#[test]
fn a_process_under_a_filter_is_attached_by_root_and_left_alone_by_others() {
    let ((), setpriv, filter) = needed!(needs_root(), tool("setpriv"), helper_program("filter", "cc", &[]));
    // The filter kills for socketpair.
    let number = libc::SYS_socketpair.to_string();
    let mut command = unprivileged();
    command.args([&filter, "kill", &number, "sleep", "1000"]);
    let running = start(command);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    let before = Memory::open(running.pid());
    let mut other = Command::new(setpriv);
    other
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([
            env!("CARGO_BIN_EXE_fastpath"),
            "attach",
            "--clocks",
            "all",
            &running.pid().0.to_string(),
        ]);
    is_refused(finish(other), 11, "seccomp");
    assert_eq!(Memory::open(running.pid()), before);

    attach(running.pid()).expect_success();
    assert!(running.pid().is_served());
    assert_eq!(running.pid().status("Seccomp"), "2");
    detach(running.pid()).expect_success();
    assert_eq!(Memory::open(running.pid()), before);
}

#[test]
fn attach_waits_for_a_process_in_a_vfork_and_then_leaves_it_alone() {
    let path = needed!(helper_program("vfork", "cc", &[]));
    let mut child = Command::new(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("vfork");
    let mut word = [0; 6];
    child
        .stdout
        .as_mut()
        .expect("a pipe")
        .read_exact(&mut word)
        .expect("its word");
    let pid = Pid(child.id() as i32);
    let (_, before) = super::vdso(pid);
    let outcome = attach(pid);
    assert_eq!(super::vdso(pid).1, before);
    // The child of the vfork ends when its input does.
    drop(child.stdin.take());
    is_refused(outcome, 14, "");
    let status = child.wait().expect("its end");
    assert!(status.success(), "{status}");
}

#[test]
fn either_of_two_processes_that_share_memory_or_file_descriptors_however_they_were_made() {
    // On a host with thousands, a process is compared with its relatives only.
    if Pid::all().len() > 900 {
        skip("there are more than 900 processes here");
        return;
    }
    let made: [&[&str]; 3] = [&[], &["far", "sibling"], &["far", "orphan"]];
    let made_by_root: [&[&str]; 2] = [&["user"], &["far", "sibling", "pid"]];
    let made_by_root = needs_root().map_or(&[][..], |()| &made_by_root);
    // Each is refused after two seconds.
    std::thread::scope(|scope| {
        for ways in made.iter().chain(made_by_root) {
            scope.spawn(|| share_and_are_refused(ways, "memory"));
            scope.spawn(|| share_and_are_refused(&[*ways, &["files"]].concat(), "file descriptors"));
        }
    });
}

fn share_and_are_refused(ways: &[&str], what: &str) {
    let first = needed!(hazard("sharers", ways, "\n"));
    let second = Pid(first.out_so_far().trim().parse().expect("a number"));
    for (one, other) in [(first.pid(), second), (second, first.pid())] {
        let reason = format!("shares its {what} with process {}", other.0);
        is_refused_and_untouched(one, 14, &reason);
    }
    // One of them alone can be attached.
    second.signal(libc::SIGKILL);
    wait_until("its end", || !second.exists());
    attach(first.pid()).expect_success();
}

#[test]
fn a_process_that_begins_to_share_its_memory_while_it_is_attached() {
    // In some tries, its threads are stopped before one makes the other process.
    let is_refused = (0..10).any(|_| {
        let Some(running) = hazard("sharers", &["attach"], "ready") else {
            return true;
        };
        let before = Memory::open(running.pid()).vdso;
        let outcome = attach(running.pid());
        if outcome.status.success() {
            return false;
        }
        let outcome = outcome.expect_code(14);
        assert!(outcome.err.contains("shares its memory with process"), "{outcome:#?}");
        assert_eq!(Memory::open(running.pid()).vdso, before);
        assert!(!running.pid().is_served(), "{}", running.pid().read("maps"));
        true
    });
    assert!(is_refused, "attached in all tries");
}

#[test]
fn a_process_that_has_begun_to_share_its_memory_stays_attached() {
    let running = needed!(hazard("sharers", &["later"], "ready"));
    attach(running.pid()).expect_success();
    running.pid().signal(libc::SIGUSR1);
    let other = || running.out_so_far().lines().nth(1)?.parse().ok().map(Pid);
    wait_until("another process", || other().is_some());
    let other = other().expect("a number");
    let reason = format!("shares its memory with process {}", other.0);
    is_refused(detach(running.pid()), 14, &reason);
    assert!(running.pid().is_served());
    other.signal(libc::SIGKILL);
    wait_until("its end", || !other.exists());
    detach(running.pid()).expect_success();
    assert!(!running.pid().is_served());
}

#[test]
fn an_attach_lists_all_processes_once_at_most_and_compares_each_once() {
    let strace = needed!(tool("strace"));
    let all: Vec<Running> = (0..300).map(|_| sleeper()).collect();
    let output = tempfile::NamedTempFile::new().expect("a file");
    let mut traced = Command::new(strace);
    traced.args(["-f", "-e", "trace=kcmp,openat", "-o"]).arg(output.path());
    traced
        .arg(env!("CARGO_BIN_EXE_fastpath"))
        .args(["attach", "--clocks", "all"]);
    traced.arg(all[0].pid().0.to_string());
    let traced = start(traced);
    wait_until("it to be attached", || traced.err_so_far().contains("attached"));
    // strace waits for the helper, too.
    drop(all);
    traced.finish().expect_success();
    let calls = std::fs::read_to_string(output.path()).expect("its calls");
    let compared: Vec<&str> = calls
        .lines()
        .filter_map(|line| line.split_once("kcmp("))
        .map(|(_, call)| call)
        .collect();
    let different: HashSet<&str> = compared.iter().copied().collect();
    let new = compared.len() - different.len();
    assert!(
        compared.len() > 2 && new < 50,
        "{} comparisons, {new} of them again",
        compared.len()
    );
    assert!(calls.matches("\"/proc\", ").count() <= 1, "{calls}");
}

#[test]
fn a_process_that_dispatches_system_calls_sees_its_own_and_no_injected_one() {
    let running = needed!(hazard("dispatching", &[], "ready"));
    for _ in 0..50 {
        is_refused_and_untouched(running.pid(), 70, "PR_SET_SYSCALL_USER_DISPATCH");
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(running.pid().exists(), "{:#?}", running.finish());
    assert_eq!(running.out_so_far(), "ready\n");
}

#[test]
fn a_process_that_may_open_no_more_files_or_has_no_memory_left_to_map() {
    for (limit, reason) in [(libc::RLIMIT_NOFILE, "EMFILE"), (libc::RLIMIT_AS, "ENOMEM")] {
        let running = sleeper();
        let none = libc::rlimit {
            rlim_cur: 3,
            rlim_max: 3,
        };
        // SAFETY: prlimit reads one struct of this function's own.
        let set = unsafe { libc::prlimit(running.pid().0, limit, &none, std::ptr::null_mut()) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        is_refused_and_untouched(running.pid(), 70, reason);
    }
}

/// Returns a new control group and the files that freeze and thaw it, of cgroup v2 or v1.
fn freezer(running: &Running) -> Option<(std::path::PathBuf, [(&'static str, &'static str); 2])> {
    needs_root()?;
    let name = format!("fastpath-{}", running.pid().0);
    let newer = [("cgroup.freeze", "1"), ("cgroup.freeze", "0")];
    let older = [("freezer.state", "FROZEN"), ("freezer.state", "THAWED")];
    let places = [
        ("/sys/fs/cgroup", newer),
        ("/sys/fs/cgroup/unified", newer),
        ("/sys/fs/cgroup/freezer", older),
    ];
    let found = places.into_iter().find_map(|(root, words)| {
        let group = std::path::Path::new(root).join(&name);
        std::fs::create_dir(&group).ok()?;
        let pid = running.pid().0.to_string();
        if group.join(words[0].0).exists() && std::fs::write(group.join("cgroup.procs"), pid).is_ok() {
            return Some((group, words));
        }
        let _ = std::fs::remove_dir(&group);
        None
    });
    if found.is_none() {
        skip("no control group can be made here");
    }
    found
}

#[test]
fn a_process_that_is_frozen() {
    let running = sleeper();
    let (group, [freeze, thaw]) = needed!(freezer(&running));
    std::fs::write(group.join(freeze.0), freeze.1).expect("it freezes");
    let pid = running.pid();
    let state = freeze.0.replace("cgroup.freeze", "cgroup.events");
    wait_until("it to be frozen", || {
        let state = std::fs::read_to_string(group.join(&state)).unwrap_or_default();
        state.contains("frozen 1") || state.contains("FROZEN")
    });
    is_refused_and_untouched(pid, 14, "frozen");
    is_refused(detach(pid), 14, "frozen");
    std::fs::write(group.join(thaw.0), thaw.1).expect("it thaws");
    attach(pid).expect_success();
    detach(pid).expect_success();
    pid.signal(libc::SIGKILL);
    wait_until("its end", || !pid.exists());
    let _ = std::fs::remove_dir(&group);
}
