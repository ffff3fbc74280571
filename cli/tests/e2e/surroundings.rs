//! A program's surroundings are the same as if the shell had started it: `state` prints what it inherits.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::command::{MARK, start_in_group};
use crate::common::terminal::give_terminal;
use crate::common::{
    SERVED, fastpath, finish, has_seccomp_filter, helper_program, program, program_32, served, served_without_vdso,
    skip, tool,
};

const OPTIONS: [&[&str]; 4] = [
    SERVED,
    &["run", "--clocks", "all", "--require", "--"],
    &["run", "--without-vdso", "--"],
    &["run", "--"],
];

/// Compares two starts by this process, in the surroundings that `arrange` makes.
fn same_under_run(arrange: impl Fn(&mut Command)) {
    // For both kinds of programs that this kernel starts.
    let states = [
        program("state"),
        program_32("state-i386-glibc"),
        program_32("state-i386-musl-static"),
    ];
    for state in states.into_iter().flatten() {
        same_under_run_of(&state, &arrange);
    }
}

fn same_under_run_of(state: &str, arrange: &impl Fn(&mut Command)) {
    let print = |mut command: Command| {
        command.env(MARK, "surroundings");
        // A pre_exec function makes the standard library fork: its posix_spawn ignores glibc's internal signals in the
        // child.
        before_exec(&mut command, || true);
        arrange(&mut command);
        let outcome = start_in_group(command).finish().expect_success();
        assert!(
            outcome.out.starts_with("pid ") && outcome.out.lines().count() > 50,
            "{outcome:#?}"
        );
        comparable(&outcome.out)
    };
    let bare = print(Command::new(state));
    for options in OPTIONS {
        let mut command = fastpath(options);
        command.arg(state);
        assert_same(&bare, &print(command), options);
    }
}

/// Returns the lines of `state` except the PID, the names of temporary files without a name, and the file positions of
/// standard error and output: fastpath's messages move the first, and the number of digits of a PID the second.
fn comparable(state: &str) -> String {
    let lines = state.lines().filter(|line| !line.starts_with("pid ")).map(|line| {
        let line = if line.starts_with("fd 1 ") || line.starts_with("fd 2 ") {
            line.split(" position ").next().unwrap_or_default()
        } else {
            line
        };
        let words = line
            .split(' ')
            .map(|word| if word.contains("/#") { "(temporary)" } else { word });
        words.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_same(bare: &str, run: &str, options: &[&str]) {
    let only_in = |a: &str, b: &str| {
        let lines = a.lines().filter(|line| !b.lines().any(|other| other == *line));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (gone, new) = (only_in(bare, run), only_in(run, bare));
    assert!(
        gone.is_empty() && new.is_empty(),
        "{options:?}: instead of {gone:#?} {new:#?}"
    );
    assert_eq!(bare, run, "{options:?}");
}

/// Runs `what` between fork and exec.
fn before_exec(command: &mut Command, what: impl Fn() -> bool + Send + Sync + 'static) {
    // SAFETY: callers make system calls only.
    unsafe {
        command.pre_exec(move || what().then_some(()).ok_or_else(std::io::Error::last_os_error));
    }
}

fn set_disposition(signal: i32, disposition: libc::sighandler_t) -> bool {
    // SAFETY: SIG_IGN and SIG_DFL are not functions of this process.
    unsafe { libc::signal(signal, disposition) != libc::SIG_ERR }
}

fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> bool {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: a valid rlimit.
    unsafe { libc::setrlimit(resource, &limit) == 0 }
}

#[test]
fn a_programs_surroundings_are_the_same_as_without_fastpath() {
    same_under_run(|_| ());
}

#[test]
fn a_program_keeps_the_pid_that_the_shell_saw() {
    for options in OPTIONS {
        let mut shell = Command::new("sh");
        let script = r#"echo $$; exec "$@""#;
        shell
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_fastpath")])
            .args(options);
        shell.args(["sh", "-c", "echo $$; echo $PPID"]);
        let outcome = finish(shell).expect_success();
        let ids: Vec<_> = outcome.out.lines().collect();
        assert_eq!(ids[0], ids[1]);
        assert_eq!(ids[2], std::process::id().to_string());
    }
}

#[test]
fn ignored_signals_stay_ignored_and_no_others_become_so() {
    let all = (1..=31).filter(|s| ![libc::SIGKILL, libc::SIGSTOP].contains(s));
    for signals in [vec![libc::SIGCHLD], all.collect()] {
        same_under_run(move |command| {
            let signals = signals.clone();
            before_exec(command, move || {
                signals.iter().all(|s| set_disposition(*s, libc::SIG_IGN))
            });
        });
    }
}

#[test]
fn blocked_signals_stay_blocked_and_a_pending_one_pending() {
    same_under_run(|command| {
        before_exec(command, || {
            // SAFETY: a set of this function's own; all signals are blocked.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigfillset(&mut set);
                libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) == 0
                    && libc::kill(libc::getpid(), libc::SIGUSR1) == 0
            }
        });
    });
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    // `state` prints to one of them. Another process can list the descriptors of a shell without them.
    let directory = tempfile::tempdir().expect("a directory");
    let list = directory.path().join("descriptors");
    for closed in [vec![0], vec![1], vec![2], vec![1, 2], vec![0, 1, 2]] {
        let descriptors = |mut command: Command| {
            let closed = closed.clone();
            let script = r#"ls /proc/$$/fd >"$0"; exit 7"#;
            command.args(["sh", "-c", script, list.to_str().expect("UTF-8")]);
            before_exec(&mut command, move || {
                // SAFETY: closes a descriptor that was meant for the program.
                closed.iter().all(|fd| unsafe { libc::close(*fd) } == 0)
            });
            finish(command).expect_code(7);
            std::fs::read_to_string(&list).expect("the list")
        };
        let bare = descriptors(Command::new("env"));
        for options in OPTIONS {
            assert_eq!(
                descriptors(fastpath(options)),
                bare,
                "{options:?} with {closed:?} closed"
            );
        }
    }
}

#[test]
fn the_controlling_terminal_and_its_foreground_group_stay() {
    let terminals = std::sync::Mutex::new(Vec::new());
    let state = needed!(program("state"));
    // Two terminals have two numbers, so the comparison leaves these out; the rest must agree.
    let print = |mut command: Command| {
        command.env(MARK, "surroundings");
        let terminal = give_terminal(&mut command);
        terminals.lock().expect("lock").push(terminal);
        let outcome = start_in_group(command).finish().expect_success();
        assert!(
            outcome.out.contains("\nsid self\n") && outcome.out.contains("\ntpgid self\n"),
            "{outcome:#?}"
        );
        let own = |line: &&str| !["tty ", "fd 0 "].iter().any(|name| line.starts_with(name));
        comparable(&outcome.out)
            .lines()
            .filter(own)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let bare = print(Command::new(&state));
    for options in OPTIONS {
        let mut command = fastpath(options);
        command.arg(&state);
        assert_same(&bare, &print(command), options);
    }
}

#[test]
fn whatever_else_a_starter_sets_stays() {
    if has_seccomp_filter() {
        return skip("a seccomp filter, as containers have, may forbid what a starter sets (personality)");
    }
    same_under_run(|command| {
        command.current_dir("/proc/self/../tty").process_group(0);
        command.env_clear().env(MARK, "surroundings");
        before_exec(command, || {
            // SAFETY: system calls that take integers; descriptors of the new process only. The kernel's struct sigaction
            // (handler, flags, restorer, mask) holds no function.
            let done = unsafe {
                libc::umask(0o027);
                // As after glibc's posix_spawn; its sigaction refuses these two signals.
                let ignore = [libc::SIG_IGN, 0, 0, 0];
                let ignores = |signal: i32| libc::syscall(libc::SYS_rt_sigaction, signal, &ignore, 0, 8) == 0;
                [32, 33].into_iter().all(ignores)
                    && [3, 100, 255, 1000].into_iter().all(|fd| libc::dup2(0, fd) == fd)
                    && libc::setpriority(libc::PRIO_PROCESS, 0, 3) == 0
                    && libc::prctl(libc::PR_SET_TIMERSLACK, 12345, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0) == 0
                    && libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) >= 0
            };
            done && set_limit(libc::RLIMIT_CORE, 0)
                && set_limit(libc::RLIMIT_NOFILE, 64)
                && set_limit(libc::RLIMIT_STACK, 1 << 20)
                && set_limit(libc::RLIMIT_FSIZE, 1 << 30)
        });
    });
}

#[test]
fn a_subreaper_gets_no_child_that_its_waits_can_see() {
    let script = "import os, ctypes, time\n\
        assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n\
        os.execvp(FASTPATH, [FASTPATH] + OPTIONS + ['python3', '-c', PROGRAM])\n";
    let program = "import os, sys, time\n\
        assert os.fork() or os._exit(5)\n\
        pid, status = os.wait()\n\
        assert os.waitstatus_to_exitcode(status) == 5\n\
        try:\n    print(os.waitpid(-1, os.WNOHANG | 0x40000000))\nexcept ChildProcessError:\n    print('no child')\n";
    let python = needed!(tool("python3"));
    for options in OPTIONS {
        let mut command = Command::new(python);
        let script = script
            .replace("FASTPATH,", &format!("{:?},", env!("CARGO_BIN_EXE_fastpath")))
            .replace("[FASTPATH]", &format!("[{:?}]", env!("CARGO_BIN_EXE_fastpath")))
            .replace("OPTIONS", &format!("{options:?}"))
            .replace("PROGRAM", &format!("{program:?}"));
        command.args(["-c", &script]);
        assert_eq!(finish(command).expect_success().out, "no child\n", "{options:?}");
    }
}

#[test]
fn a_program_starts_without_children() {
    for options in OPTIONS {
        let mut command = fastpath(options);
        command.args(["sh", "-c", "cat /proc/$$/task/$$/children; wait; echo done"]);
        let out = finish(command).expect_success().out;
        // The list contains `cat` itself at most.
        assert!(
            out.split_whitespace().count() <= 2 && out.ends_with("done\n"),
            "{options:?}: {out}"
        );
    }
}

#[test]
fn arguments_of_any_bytes_and_any_number_arrive() {
    let many: Vec<_> = (0..20_000).map(|i| format!("argument {i} \u{fc}\n")).collect();
    let mut command = served(&["sh", "-c", "printf '%s|' \"$@\" | cksum", "sh"]);
    command.args(&many).arg("").arg("--").arg("--clocks");
    let mut bare = Command::new("sh");
    bare.args(["-c", "printf '%s|' \"$@\" | cksum", "sh"])
        .args(&many)
        .args(["", "--", "--clocks"]);
    assert_eq!(finish(command).expect_success().out, finish(bare).expect_success().out);
}

#[test]
fn a_program_that_unmaps_what_it_takes_for_the_vdso_goes_on() {
    let program = needed!(helper_program("unmap-image", "cc", &[]));
    for rescue in [&[][..], &["--rescue"]] {
        let options = [&["run", "--without-vdso", "--clocks", "all", "--require"], rescue].concat();
        finish(fastpath(&[&options[..], &["--", &program]].concat()))
            .expect_success()
            .expect_output("executed");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_whose_code_fills_its_pages_is_served_where_there_is_no_vdso() {
    let program = needed!(helper_program("full-page", "cc", &["-static", "-nostdlib"]));
    finish(served_without_vdso(&[&program]))
        .expect_success()
        .expect_output("");
}

#[test]
fn time_fails_for_a_bad_pointer_as_where_there_is_no_vdso() {
    let program = needed!(helper_program("bad-pointer", "cc", &[]));
    finish(served_without_vdso(&[&program])).expect_success();
}
