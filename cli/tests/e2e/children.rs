//! Every program that a served program starts, in any way, is served too.

use std::path::Path;
use std::process::Command;

use crate::common::clock_calls::fewest_clock_calls;
use crate::common::{
    Pid, comes_to, fastpath, finish, go_program, helper_program, install_script, program, served, start, tool,
    wait_until,
};

/// A program that prints how many pages of fastpath it maps, and fails if there is none.
const LEAF: [&str; 4] = ["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"];
const LEAF_IN_SHELL: &str = "grep -c memfd:fastpath-page /proc/self/maps";

/// Runs a command that starts the leaf `times` times.
#[track_caller]
fn serves_leaves(times: usize, command: &[&str]) {
    comes_to(|| served(command), 0, &vec!["1"; times].join("\n"));
}

fn with_leaf<'a>(parent: &[&'a str]) -> Vec<&'a str> {
    [parent, &LEAF].concat()
}

#[test]
fn every_kind_of_child_reads_a_clock_that_never_goes_back() {
    let children = needed!(program("children"));
    let outcome = finish(served(&[&children, "200000"])).expect_success();
    assert!(outcome.out.lines().count() >= 9, "{outcome:#?}");
    assert!(outcome.out.lines().all(|line| line.ends_with(" ok")), "{outcome:#?}");
}

#[test]
fn the_leaf_fails_without_fastpath() {
    let mut leaf = Command::new(LEAF[0]);
    leaf.args(&LEAF[1..]);
    assert_eq!(finish(leaf).expect_code(1).out, "0\n");
    serves_leaves(1, &LEAF);
}

#[test]
fn children_of_a_shell_are_served() {
    serves_leaves(1, &["sh", "-c", LEAF_IN_SHELL]);
    serves_leaves(2, &["sh", "-c", &format!("{LEAF_IN_SHELL}; ({LEAF_IN_SHELL})")]);
    serves_leaves(1, &["sh", "-c", &format!("{LEAF_IN_SHELL} | cat")]);
    serves_leaves(1, &["sh", "-c", &format!("{LEAF_IN_SHELL} & wait")]);
    serves_leaves(1, &["sh", "-c", &format!("echo $({LEAF_IN_SHELL})")]);
    serves_leaves(
        1,
        &["env", "-i", "/bin/sh", "-c", &format!("exec env -i {LEAF_IN_SHELL}")],
    );
    if tool("bash").is_some() {
        serves_leaves(
            3,
            &[
                "bash",
                "-c",
                &format!("{LEAF_IN_SHELL}; {LEAF_IN_SHELL}; exec {LEAF_IN_SHELL}"),
            ],
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn children_of_a_program_that_the_dynamic_linker_was_executed_for_are_served() {
    const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
    let twice = format!("{LEAF_IN_SHELL}; {LEAF_IN_SHELL}");
    serves_leaves(2, &[LINKER, "/bin/sh", "-c", &twice]);
    serves_leaves(2, &["env", LINKER, "--argv0", "shell", "/bin/sh", "-c", &twice]);
    comes_to(|| served(&[LINKER, "--verify", "/bin/sh"]), 0, "");
}

/// With another encoding of its first instruction.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_dynamic_linker_whose_start_is_unknown_is_reported_and_refused_with_require() {
    let mut linker = std::fs::read("/lib64/ld-linux-x86-64.so.2").expect("glibc's");
    let entry = u64::from_le_bytes(linker[24..32].try_into().unwrap()) as usize;
    assert_eq!(linker[entry..entry + 3], [0x48, 0x89, 0xe7]);
    linker[entry..entry + 3].copy_from_slice(&[0x48, 0x8b, 0xfc]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("linker");
    install_script(&linker, &path);
    let path = path.to_str().unwrap();
    let outcome = finish(fastpath(&[
        "run",
        "--clocks",
        "all",
        "--require",
        "--",
        path,
        "/bin/true",
    ]));
    let said = outcome.expect_code(125).err;
    assert!(said.contains("it is a dynamic linker"), "{said}");
    let outcome = finish(fastpath(&["run", "--clocks", "all", "--", path, "/bin/true"])).expect_success();
    assert!(outcome.err.contains("will not be served"), "{outcome:#?}");
    let script = "\"$0\" /bin/true; echo done; exec sleep 1000";
    let running = start(fastpath(&["run", "--clocks", "all", "--", "sh", "-c", script, path]));
    let counted = format!("in the tree of {} were not served: 1 refused", running.pid().0);
    wait_until("its count", || {
        let status = finish(fastpath(&["status"])).out.replace('\n', " ");
        running.out_so_far().contains("done") && status.contains(&counted)
    });
}

#[test]
fn a_program_that_is_executed_before_the_first_anchor_is_served() {
    // Without --require, nothing waits for the anchor. A hook does not wait forever for a busy attendant.
    let first = ["run", "--clocks", "all", "--", "sh", "-c", "exec env -i \"$0\" \"$@\""];
    let is_served = |_: &i32| finish(fastpath(&[&first[..], &LEAF].concat())).out == "1\n";
    let served = (0..10).filter(is_served).count();
    assert!(served >= 5, "{served} of 10");
}

#[test]
fn a_program_that_blocks_the_injections_signals_finds_none_pending() {
    let python = needed!(tool("python3"));
    const BLOCK: &str = "import os, signal as s, sys
s.pthread_sigmask(s.SIG_BLOCK, eval(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])";
    const LOOK: &str =
        "import signal as s; print(s.sigpending(), 'memfd:fastpath-page' in open('/proc/self/maps').read())";
    for blocked in [
        "set()",
        "{s.SIGURG}",
        "{s.SIGURG, s.SIGWINCH}",
        "{s.SIGURG, s.SIGWINCH, s.SIGCHLD}",
    ] {
        let blocking = || {
            let mut command = Command::new(python);
            command.args(["-c", BLOCK, blocked, env!("CARGO_BIN_EXE_fastpath")]);
            command.args(["run", "--clocks", "all", "--require", "--", "sh", "-c"]);
            command.args(["\"$@\"; \"$@\"", "sh", python, "-c", LOOK]);
            command
        };
        comes_to(blocking, 0, "set() True\nset() True");
    }
}

/// What an exec costs is, for the most part, the system calls of the helper. Those are counted that depend on the work alone. It
/// makes none where a search of PATH finds no program.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_exec_takes_the_helper_a_limited_number_of_system_calls() {
    const LOOPS: usize = 25;
    const EXECS: usize = 2 * LOOPS;
    const MOST_EACH: usize = 105;
    needed!(tool("strace"));
    let folder = tempfile::tempdir().expect("a directory");
    let (start_at, counts) = (folder.path().join("start"), folder.path().join("counts"));
    let nowhere = "/nowhere:".repeat(20);
    let script = format!(
        "mkfifo \"$0\"; read line <\"$0\"; export PATH={nowhere}$PATH
        i=0; while [ $i -lt {LOOPS} ]; do /usr/bin/env true; i=$((i+1)); done"
    );
    let running = start(served(&["sh", "-c", &script, &start_at.to_string_lossy()]));
    wait_until("the FIFO", || start_at.exists());
    let helper = Pid::helper(running.mark());
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-c",
        "-e",
        "trace=pread64,pwrite64,process_vm_readv,ptrace,wait4,openat,openat2,read,close,statx,readlink,getxattr,memfd_create,\
         ftruncate,pidfd_open,pidfd_getfd,sendmsg",
    ]);
    strace.args(["-p", &helper.0.to_string(), "-o"]).arg(&counts);
    let strace = start(strace);
    wait_until("strace", || helper.status("TracerPid") != "0");
    std::fs::write(&start_at, "start\n").expect("its reader");
    running.finish();
    strace.finish();
    let counts = std::fs::read_to_string(&counts).expect("the counts");
    let total = counts.lines().last().and_then(|line| line.split_whitespace().nth(3));
    let total: usize = total.and_then(|total| total.parse().ok()).expect("the total");
    assert!((50 * EXECS..=MOST_EACH * EXECS).contains(&total), "{counts}");
}

/// A page of libc with a redirected call is a copy. glibc's functions of which few programs make use are in pages of their own.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_has_few_pages_of_libc_of_its_own_unless_it_may_call_all() {
    /// KiB of libc's code that a program has copies of, if it is served: it prints its mappings.
    fn copied(command: &[&str]) -> Option<u32> {
        let said = finish(served(&[&["sh", "-c", "\"$@\"; :", "sh"], command].concat())).out;
        let code = said
            .lines()
            .skip_while(|line| !(line.contains(" r-xp ") && line.ends_with("/libc.so.6")));
        let own = code.filter_map(|line| line.strip_prefix("Private_Dirty:")).next()?;
        let own = own.trim().strip_suffix(" kB").and_then(|own| own.parse().ok());
        own.filter(|_| said.contains("memfd:fastpath-page"))
    }
    let few = copied_by(|| copied(&["cat", "/proc/self/smaps"]));
    assert!((4..=16).contains(&few), "{few} KiB");
    let python = needed!(tool("python3"));
    let all = copied_by(|| copied(&[python, "-c", "print(open('/proc/self/smaps').read())"]));
    assert!((few + 4..=few + 12).contains(&all), "{all} KiB");
}

/// A program that starts while the publisher gets no CPU runs untouched.
#[cfg(target_arch = "x86_64")]
fn copied_by(count: impl Fn() -> Option<u32>) -> u32 {
    let mut found = None;
    wait_until("a program that is served", || {
        found = count();
        found.is_some()
    });
    found.expect("a number")
}

#[test]
fn every_shell_of_a_chain_of_ten_is_served() {
    let mut command = LEAF_IN_SHELL.to_owned();
    for _ in 0..10 {
        command = format!("sh -c '{}; :'", command.replace('\'', r"'\''"));
    }
    serves_leaves(1, &["sh", "-c", &command]);
}

#[test]
fn a_child_is_served_however_a_c_program_starts_it() {
    for (compiler, flags) in [
        ("cc", &[][..]),
        ("cc", &["-static"]),
        ("musl-gcc", &[]),
        ("musl-gcc", &["-static"]),
    ] {
        let Some(spawn) = helper_program("spawn", compiler, flags) else {
            continue;
        };
        for how in ["fork", "vfork", "posix_spawn", "thread", "failing"] {
            serves_leaves(1, &with_leaf(&[&spawn, how]));
        }
        serves_leaves(2, &with_leaf(&[&spawn, "twice"]));
        let grep = ["/usr/bin/grep", "/bin/grep"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        for how in ["fexecve", "execveat"] {
            serves_leaves(1, &[&[spawn.as_str(), how, grep.expect("grep")], &LEAF[1..]].concat());
        }
    }
}

#[test]
fn a_process_deep_in_a_tree_reads_clocks_without_system_calls() {
    let clock = needed!(program("clock-glibc"));
    let script = format!("sh -c '{clock} 2000000000 MONOTONIC; exit 1' | cat");
    let mut served_one = None;
    // A program that starts while the publisher gets no CPU runs untouched.
    wait_until("a clock that is served", || {
        let shell = start(served(&["sh", "-c", &script]));
        let mut found = None;
        wait_until("the clock's start", || {
            found = descendants(shell.pid())
                .into_iter()
                .find(|pid| pid.program() == "clock-glibc");
            found.is_some_and(|pid| pid.cpu_time().as_millis() > 100)
        });
        served_one = found.filter(|pid| pid.is_served()).map(|pid| (shell, pid));
        served_one.is_some()
    });
    let (_shell, pid) = served_one.expect("a process");
    let calls = needed!(fewest_clock_calls(pid));
    assert_eq!(calls, 0);
}

fn descendants(pid: Pid) -> Vec<Pid> {
    let children = pid.children();
    let below = children
        .iter()
        .flat_map(|child| descendants(*child))
        .collect::<Vec<_>>();
    [children, below].concat()
}

#[test]
fn scripts_and_what_they_start_are_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = |name: &str, text: &str| install_script(text, directory.path().join(name));
    let shell = script("shell", &format!("#!/bin/sh -e\n{LEAF_IN_SHELL}\n"));
    serves_leaves(1, &[&shell]);
    serves_leaves(1, &["sh", "-c", &shell]);
    let outer = script("outer", &format!("#!{shell}\n"));
    serves_leaves(1, &[&outer]);
    let by_env = script("by-env", &format!("#!/usr/bin/env sh\n{shell}\n{outer}\n"));
    serves_leaves(2, &[&by_env]);
    let bare = script("bare", &format!("{LEAF_IN_SHELL}\n"));
    serves_leaves(1, &["sh", "-c", &format!("{bare}; :")]);
    let relative = format!("cd {}; ./shell; PATH=.:$PATH; by-env", directory.path().display());
    serves_leaves(3, &["sh", "-c", &relative]);
}

#[test]
fn children_of_go_are_served() {
    let go = needed!(tool("go"));
    serves_leaves(2, &with_leaf(&[&go_program(go, "spawn")]));
}

#[test]
fn a_program_that_is_executed_by_a_path_through_proc_is_served() {
    let python = needed!(tool("python3"));
    const EXECUTE: &str = "import os, sys, tempfile
leaf = ['sh', '-c', 'grep -c memfd:fastpath-page /proc/self/maps; :']
again = ['python3', '-I', '-c', \"print(open('/proc/self/maps').read().count('memfd:fastpath-page'))\"]
shell = os.path.realpath('/bin/sh')
os.dup2(os.open(shell, os.O_RDONLY), 77)
os.chdir(os.path.dirname(shell))
links = [os.path.join(sys.argv[1], name) for name in 'ab']
os.symlink('/proc/self/fd/77', links[0])
os.symlink('/proc/thread-self/root' + shell, links[1])
own = f'/proc/{os.getpid()}/'
def execute(path, words):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.execv(path, words)
    os.waitpid(child, 0)
for path in ['/proc/self/fd/77', '/dev/fd/77', '/proc/self/cwd/' + os.path.basename(shell), '/proc/self/root' + shell,
             '/proc/self/../self/cwd/../' + os.path.basename(os.getcwd()) + '/sh', own + 'fd/77', own + 'root' + shell] + links:
    execute(path, leaf)
for path in ['/proc/self/exe', '/proc/thread-self/exe', own + 'exe', '/proc/self/task/../exe']:
    execute(path, again)";
    let served = || {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = served(&[python, "-I", "-c", EXECUTE]);
        command.arg(directory.path());
        let outcome = finish(command);
        (directory, outcome.expect_success().out)
    };
    // Programs that start while the publisher gets no CPU run untouched.
    wait_until("all of them are served", || served().1 == "1\n".repeat(13));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_descendant_begins_with_the_registers_that_the_kernel_leaves() {
    let first = needed!(helper_program("first-registers", "cc", &["-static", "-nostdlib"]));
    finish(Command::new(&first)).expect_success();
    finish(served(&["sh", "-c", "\"$0\" && \"$0\" && exec \"$0\"", &first])).expect_success();
}
