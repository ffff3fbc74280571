//! Served programs read correct clocks fast, and are otherwise unchanged.

use std::process::Command;
use std::time::Duration;

use super::{SERVED, Server, inherited, preloaded, verbose};
use crate::common::clock_calls::{clock_calls, fewest_clock_calls};
use crate::common::{finish, program, start, tool, torture, wait_until};

/// More reads than any program makes while it is watched.
const ENDLESS: &str = "2000000000";

fn reads_clocks_by_the_page(name: &str) {
    let path = needed!(program(name));
    let server = Server::start();
    let running = start(preloaded(&server, &[&path, ENDLESS, "MONOTONIC"]));
    let begun = Duration::from_millis(300);
    wait_until("a loop of reads", || running.pid().cpu_time() > begun);
    assert!(running.pid().is_served(), "{}", running.pid().describe());
    if let Some(calls) = fewest_clock_calls(running.pid()) {
        assert_eq!(calls, 0, "system calls of {name}");
    }
}

#[test]
fn a_program_on_glibc_reads_clocks_without_system_calls() {
    reads_clocks_by_the_page("clock-glibc");
}

#[test]
fn a_program_on_musl_reads_clocks_without_system_calls() {
    reads_clocks_by_the_page("clock-musl");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn callers_of_reads_are_found_from_each_instruction() {
    use crate::call_frames::{FLAGS, have_call_frames};
    let program = needed!(crate::common::helper_program("call-frames", "cc", FLAGS));
    let server = Server::start();
    wait_until("reads with call frames", || {
        have_call_frames(&finish(preloaded(&server, &[&program])).expect_success().out)
    });
}

#[test]
fn clocks_are_right_where_a_program_moved_its_vdso() {
    let program = needed!(crate::common::helper_program("moved-vdso", "cc", &[]));
    let server = Server::start();
    for mode in ["moved", "restored"] {
        let outcome = finish(verbose(&server, &[&program, mode])).expect_success();
        assert!(
            outcome.err.contains(SERVED) && outcome.out == "right\n",
            "{mode}: {outcome:#?}"
        );
    }
}

/// If the page does not answer, the program uses the kernel's own code, which was copied behind the image.
#[test]
fn a_program_whose_page_has_no_publisher_reads_by_the_kernel() {
    let (torture, clock) = needed!(torture::endless("2"), program("clock-glibc"));
    let server = Server::start();
    let orphan = start(preloaded(&server, &torture));
    wait_until("its start", || orphan.pid().is_served());
    drop(server);
    torture::go_on(&orphan);
    torture::end(orphan);
    // By the kernel's vDSO, and not by its system calls.
    let server = Server::start();
    let orphan = start(preloaded(&server, &[&clock, ENDLESS, "MONOTONIC"]));
    wait_until("its start", || orphan.pid().is_served());
    drop(server);
    if super::kernel_is_fast() {
        let calls = clock_calls(orphan.pid()).unwrap_or(0);
        assert_eq!(calls, 0, "the kernel's functions are no longer reached");
    }
}

#[test]
fn a_programs_surroundings_are_the_same_as_without_the_library() {
    let state = needed!(program("state"));
    let server = Server::start();
    let bare = finish(Command::new(&state)).expect_success();
    let served = finish(verbose(&server, &[&state])).expect_success();
    assert_eq!(served.err, SERVED);
    assert_eq!(inherited(&bare), inherited(&served));
}

#[test]
fn the_kernels_vdso_stays_one_mapping_that_cannot_be_written() {
    let server = Server::start();
    let outcome = finish(verbose(&server, &["cat", "/proc/self/maps"])).expect_success();
    assert_eq!(outcome.err, SERVED);
    let vdso: Vec<_> = outcome.out.lines().filter(|line| line.ends_with("[vdso]")).collect();
    assert!(vdso.len() == 1 && vdso[0].contains(" r-xp "), "{}", outcome.out);
    let of = |what: &str| outcome.out.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (
            of("/memfd:fastpath-page"),
            of("/memfd:fastpath-mailbox"),
            of("/memfd:fastpath-region")
        ),
        (1, 1, 2),
        "{}",
        outcome.out
    );
    assert_eq!((of(" rwx"), of(" rw-s")), (0, 1), "{}", outcome.out);
    let page = outcome.out.lines().find(|line| line.contains("/memfd:fastpath-page"));
    assert!(page.is_some_and(|line| line.contains(" r--s ")), "{}", outcome.out);
}

#[test]
fn descendants_are_served_too() {
    let server = Server::start();
    let count = "grep -c memfd:fastpath-page /proc/self/maps";
    let script = format!("{count}; sh -c 'env {count}'; ( {count} ) | cat; exec {count}");
    let outcome = finish(preloaded(&server, &["sh", "-c", &script]));
    outcome.expect_success().expect_output("1\n1\n1\n1");
}

#[test]
fn a_forked_process_continues_to_read_correct_clocks() {
    let children = needed!(program("children"));
    let server = Server::start();
    let outcome = finish(preloaded(&server, &[&children, "20000"])).expect_success();
    assert!(outcome.out.contains("fork ok"), "{outcome:#?}");
}

/// Compares a program's output and exit status with the library and without.
#[test]
fn programs_of_all_kinds_print_the_same_as_without_the_library() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("hello.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 7; }\n",
    )
    .expect("write");
    let java = program("clock-java").map(|path| path.replace("/clock-java", ""));
    let compile = format!(
        "cd {} && gcc -O1 -o hello hello.c && ./hello",
        directory.path().display()
    );
    let commit = format!(
        "cd {} && git init -q . && git add hello.c && \
         GIT_COMMITTER_DATE=@1 git -c user.name=n -c user.email=e commit -qm m --date=@1 && git log --format=%H%n%cd",
        directory.path().display()
    );
    let java_home = java.unwrap_or_default();
    let commands: [&[&str]; 9] = [
        &[
            "dash",
            "-c",
            "for i in 1 2 3; do echo $i; done | sort -r; kill -TERM $$",
        ],
        &[
            "bash",
            "-c",
            "trap 'echo int' INT; kill -INT $$; time -p true; echo ${BASH_VERSION%%.*}; exit 3",
        ],
        &[
            "python3",
            "-c",
            "import time, threading; print(time.time() > 0); exit(5)",
        ],
        &[
            "perl",
            "-e",
            "use Time::HiRes; print Time::HiRes::time() > 0, qq(\\n); die qq(so\\n)",
        ],
        &["bash", "-c", &compile],
        &["bash", "-c", &commit],
        &[
            "node",
            "-e",
            "setTimeout(() => { console.log(performance.now() > 0); process.exit(4) }, 20)",
        ],
        &[
            "java",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            &java_home,
            "Clock",
            "0",
        ],
        &["date", "-u", "-d", "@86400"],
    ];
    let server = Server::start();
    for command in commands {
        if tool(command[0]).is_none() {
            continue;
        }
        let run = |mut run: Command| {
            let _ = std::fs::remove_dir_all(directory.path().join(".git"));
            finish({
                run.env("TZ", "UTC").env("HOME", directory.path());
                run
            })
        };
        let mut bare = Command::new(command[0]);
        bare.args(&command[1..]);
        let (bare, before) = (run(bare), server.requests());
        let with = run(preloaded(&server, command));
        let same_messages = bare.err.lines().count() == with.err.lines().count();
        assert!(
            bare.status == with.status && bare.out == with.out && same_messages,
            "{command:?}: {bare:#?}\n{with:#?}"
        );
        assert!(server.requests() > before, "{command:?} sent no request");
    }
}

/// The test's page shows a time that no other source has.
#[test]
fn interpreters_and_virtual_machines_read_the_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let java = directory.path().join("Now.java");
    let class =
        "class Now { public static void main(String[] a) { System.out.println(System.nanoTime() / 1000000000); } }";
    std::fs::write(&java, class).expect("write");
    let kinds: [(&str, &[&str]); 4] = [
        ("python3", &["-c", "import time; print(int(time.monotonic()))"]),
        (
            "perl",
            &[
                "-e",
                "use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC); print int(clock_gettime(CLOCK_MONOTONIC))",
            ],
        ),
        ("node", &["-e", "console.log(process.hrtime()[0])"]),
        ("java", &[java.to_str().expect("UTF-8")]),
    ];
    // Behind the kernel's time by more than a run takes, and not below 0.
    let behind = kernels_seconds() / 2;
    let server = Server::behind_by(behind * 1_000_000_000);
    for (name, arguments) in kinds {
        let Some(name) = tool(name) else { continue };
        let before = kernels_seconds();
        let outcome = finish(preloaded(&server, &[&[name], arguments].concat())).expect_success();
        let read: i64 = outcome
            .out
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {outcome:#?}"));
        let range = before - behind..=kernels_seconds() - behind;
        assert!(range.contains(&read), "{name} reads {read}, not within {range:?}");
    }
}

/// Seconds of this process's CLOCK_MONOTONIC.
fn kernels_seconds() -> i64 {
    // SAFETY: stores into a timespec of this function's own.
    unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now);
        now.tv_sec
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_that_enters_a_time_namespace_sees_its_clocks() {
    use crate::attach::namespaces::{ENTERED, entering, setting, unsharing};
    let python = needed!(tool("python3"));
    let (_sleeper, setns) = needed!(setting());
    let server = Server::start();
    for how in [&unsharing("libc.unshare(0x80)"), &setns] {
        let outcome = finish(verbose(&server, &[python, "-I", "-c", &entering(how), "/"])).expect_success();
        // Python may be a script that starts others first.
        assert!(outcome.err.ends_with(SERVED), "{outcome:#?}");
        assert_eq!(outcome.out.trim_end(), ENTERED);
    }
    let fails = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.setns(-1, 0), os.strerror(ctypes.get_errno()))";
    let outcome = finish(preloaded(&server, &[python, "-I", "-c", fails])).expect_success();
    outcome.expect_output("-1 Bad file descriptor");
}
