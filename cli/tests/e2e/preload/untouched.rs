//! The library does nothing without a daemon, with privileges, if fastpath is there already, and where it is not
//! permitted.

use std::process::Command;

use super::{SERVED, Server, inherited, library, permit, preloaded, preloaded_at, reason, reason_in, verbose};
use crate::common::{
    finish, has_seccomp_filter, helper_program, install, needs_root, program, skip, tool, unprivileged,
};

const PAGES: &str = "grep -c memfd:fastpath-page /proc/self/maps; true";

#[test]
fn without_a_daemon_a_program_is_unchanged() {
    let state = needed!(program("state"));
    let bare = finish(Command::new(&state)).expect_success();
    let silent = finish(preloaded_at("/nowhere/socket".as_ref(), &[&state])).expect_success();
    assert_eq!((inherited(&bare), ""), (inherited(&silent), silent.err.as_str()));
    let mut asked = preloaded_at("/nowhere/socket".as_ref(), &["true"]);
    asked.env("FASTPATH_PRELOAD_VERBOSE", "1");
    assert_eq!(reason(asked), "no daemon has its socket here (errno 2)");
}

#[test]
fn it_exports_two_functions_and_needs_no_library() {
    let read = |what| {
        let mut readelf = Command::new("readelf");
        readelf.args(["-W", what, library()]);
        finish(readelf).expect_success().out
    };
    let defined = |line: &str| (line.contains(" GLOBAL ") || line.contains(" WEAK ")) && !line.contains(" UND ");
    let symbols = read("--dyn-syms");
    let names = symbols
        .lines()
        .filter(|line| defined(line))
        .filter_map(|line| line.split_whitespace().last());
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert!(
        symbols.contains(" UND ") && names.into_iter().eq(["setns", "unshare"]),
        "{symbols}"
    );
    let dynamic = read("-d");
    assert!(!dynamic.contains("NEEDED") && !dynamic.contains("TEXTREL"), "{dynamic}");
}

#[test]
fn a_process_that_is_redirected_already_is_left_alone() {
    let server = Server::start();
    // The library twice: two files of the same contents.
    let copy = tempfile::NamedTempFile::new().expect("a file");
    std::fs::copy(library(), copy.path()).expect("copy");
    let mut twice = verbose(&server, &["sh", "-c", PAGES]);
    twice.env("LD_PRELOAD", format!("{} {}", library(), copy.path().display()));
    let outcome = finish(twice).expect_success();
    assert!(outcome.out.lines().all(|pages| pages == "1"), "{outcome:#?}");
    let of = |what: &str| outcome.err.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (of(": served"), of("on fastpath's vDSO already")),
        (2, 2),
        "{outcome:#?}"
    );
}

#[test]
fn a_program_of_run_is_left_alone() {
    let server = Server::start();
    let fastpath = env!("CARGO_BIN_EXE_fastpath");
    let mut run = Command::new(fastpath);
    run.args(["run", "--clocks", "all", "--require", "--", "env"])
        .arg(format!("LD_PRELOAD={}", library()))
        .arg(format!("FASTPATH_SOCKET={}", server.socket().display()))
        .args(["FASTPATH_PRELOAD_VERBOSE=1", "sh", "-c", PAGES]);
    let outcome = finish(run).expect_success();
    assert_eq!((outcome.out.as_str(), server.requests()), ("1\n", 0), "{outcome:#?}");
    assert!(outcome.err.contains("on fastpath's vDSO already"), "{outcome:#?}");
}

#[test]
fn setuid_programs_are_left_alone() {
    let ((), _, setuid) = needed!(needs_root(), tool("setpriv"), program("setuid"));
    let directory = tempfile::tempdir().expect("a directory");
    permit(directory.path(), 0o755);
    let place = |name: &str, from: &str, mode| install(from, directory.path().join(name), mode);
    let setuid = place("setuid", &setuid, 0o4755);
    // In such a program the loader loads it only if it is setuid itself, and in a system directory: here it never does.
    let library = place("libfastpath-preload.so", library(), 0o4755);
    let server = Server::start();
    permit(server.socket().parent().expect("a directory"), 0o755);
    let as_nobody = |command: &[&str]| {
        let mut run = unprivileged();
        run.arg("env")
            .arg(format!("LD_PRELOAD={library}"))
            .arg(format!("FASTPATH_SOCKET={}", server.socket().display()))
            .args(["FASTPATH_PRELOAD_CLOCKS=all", "FASTPATH_PRELOAD_VERBOSE=1"])
            .args(command);
        finish(run).expect_success()
    };
    // Another user is served, ...
    assert_eq!(as_nobody(&["true"]).err, SERVED);
    // ... and a program that becomes root is not.
    let outcome = as_nobody(&[&setuid]);
    if !outcome.out.contains("euid 0 secure 1") {
        return skip("setuid has no effect in the temporary directory");
    }
    assert!(!outcome.err.contains("libfastpath-preload: served"), "{outcome:#?}");
    assert_eq!(server.requests(), 1);
}

#[test]
fn static_programs_never_load_it() {
    for name in ["clock-glibc-static", "clock-musl-static"] {
        let Some(clock) = program(name) else { continue };
        let server = Server::start();
        let outcome = finish(verbose(&server, &[&clock, "100"])).expect_success();
        assert_eq!((outcome.err.as_str(), server.requests()), ("", 0));
    }
}

/// Returns why a program is not served beside a library that does something first: constructors run from the last
/// library to the first.
fn reason_after(helper: &str) -> Option<String> {
    let first = helper_program(helper, "cc", &["-shared", "-fPIC"])?;
    let server = Server::start();
    let mut run = verbose(&server, &["true"]);
    run.env("LD_PRELOAD", format!("{} {first}", library()));
    let outcome = finish(run);
    if outcome.status.code() == Some(125) {
        skip(outcome.first_line());
        return None;
    }
    Some(reason_in(outcome))
}

#[test]
fn a_process_with_threads_is_left_alone() {
    if let Some(why) = reason_after("a-thread") {
        assert_eq!(why, "it has threads already");
    }
}

#[test]
fn a_sealed_vdso_is_left_alone() {
    if let Some(why) = reason_after("sealed-vdso") {
        assert_eq!(why, "the kernel's vDSO may not be changed here (errno 1)");
    }
}

/// `command`, started with the library by `by`, which runs without it.
fn by(server: &Server, by: &[&str], command: &[&str]) -> Command {
    let preload = format!("LD_PRELOAD={}", library());
    let mut run = verbose(server, &[by, &["env", &preload], command].concat());
    run.env_remove("LD_PRELOAD");
    run
}

#[test]
fn a_process_that_may_make_no_code_is_left_alone() {
    let deny = needed!(helper_program("no-new-code", "cc", &[]));
    let server = Server::start();
    let run = || by(&server, &[&deny], &["true"]);
    if finish(run()).status.code() == Some(125) {
        return skip("this kernel has no PR_SET_MDWE");
    }
    assert_eq!(reason(run()), "the kernel's vDSO may not be changed here (errno 13)");
}

#[test]
fn a_process_that_may_not_read_the_counter_is_left_alone() {
    // On musl: glibc's loader reads the counter itself, and the process dies with and without the library.
    let forbid = needed!(helper_program("counter-forbidden", "musl-gcc", &[]));
    let server = Server::start();
    let outcome = finish(verbose(&server, &[&forbid, "exec", &forbid])).expect_success();
    let why = "libfastpath-preload: not served: this process may not read the counter (PR_SET_TSC)\n";
    assert_eq!(
        (outcome.out.as_str(), outcome.err),
        ("alive\n", format!("{SERVED}{why}"))
    );
}

#[test]
fn a_process_without_a_vdso_is_left_alone_and_its_errno_too() {
    let errno = needed!(helper_program("first-errno", "cc", &[]));
    let server = Server::start();
    let without = [env!("CARGO_BIN_EXE_fastpath"), "run", "--without-vdso", "--"];
    let outcome = finish(by(&server, &without, &[&errno])).expect_success();
    let why = "libfastpath-preload: not served: the kernel gave this process no vDSO\n";
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("0\n", why));
}

#[test]
fn it_cannot_be_loaded_late() {
    if tool("python3").is_none() {
        return;
    }
    let server = Server::start();
    let script = "import ctypes, sys\ntry:\n    ctypes.CDLL(sys.argv[1])\nexcept OSError as e:\n    print(\"cannot be dlopen\" in str(e))";
    let mut run = verbose(&server, &["python3", "-c", script, library()]);
    run.env_remove("LD_PRELOAD");
    let outcome = finish(run).expect_success();
    assert_eq!((outcome.out.as_str(), server.requests()), ("True\n", 0), "{outcome:#?}");
}

#[test]
fn without_proc_it_does_nothing() {
    needed!(needs_root(), tool("unshare"));
    let server = Server::start();
    let hide = [
        "unshare",
        "-m",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ];
    let outcome = finish(by(&server, &hide, &["true"]));
    if !outcome.status.success() && outcome.err.contains("mount") {
        return skip("nothing can be mounted here");
    }
    let why = reason(by(&server, &hide, &["true"]));
    assert_eq!(why, "/proc/self/status cannot be read (errno 2)");
}

#[test]
fn descriptors_that_are_closed_stay_closed() {
    let state = needed!(program("state"));
    let server = Server::start();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let lists = |mut command: Command| {
        let _ = std::fs::write(file.path(), "");
        finish({
            command.env("FILE", file.path());
            command
        });
        let listed = std::fs::read_to_string(file.path()).expect("the program's output");
        assert!(listed.lines().count() > 50, "{listed}");
        let fds = listed.lines().filter(|line| line.starts_with("fd "));
        // Standard error, if it is open, is another file each time, without a name.
        fds.map(|line| line.split("/#").next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    for closed in ["<&- >\"$FILE\"", "<&- >\"$FILE\" 2>&-", "2>&- >\"$FILE\""] {
        let script = format!("exec \"$0\" {closed}");
        let mut bare = Command::new("sh");
        bare.args(["-c", &script, &state]);
        assert_eq!(lists(bare), lists(preloaded(&server, &["sh", "-c", &script, &state])));
    }
    // The shells and the programs that they executed; under a filter, each has made a trial before.
    assert_eq!(server.requests(), if has_seccomp_filter() { 12 } else { 6 });
}
