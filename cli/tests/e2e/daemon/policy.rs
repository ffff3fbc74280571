//! The policy file: the processes that are attached when they appear, and those that never get a page.

use std::path::PathBuf;
use std::process::Command;

use fastpath_protocol::Client;

use super::Place;
use super::{page_of, pidfd};
use crate::common::{Running, finish, install, needs_root, start, wait_until};
use crate::common::{fastpath, helper_program, program, tool, torture};

/// Starts a daemon with this policy.
#[track_caller]
pub fn daemon(place: &Place, policy: &str) -> (Running, PathBuf) {
    let file = place.0.path().join("policy.toml");
    std::fs::write(&file, policy).expect("write");
    let daemon = start(place.command(&["--policy", file.to_str().expect("UTF-8")]));
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    (daemon, file)
}

pub fn rule(executable: &str, action: &str) -> String {
    format!("[[rule]]\nexecutable = \"{executable}\"\naction = \"{action}\"\nclocks = \"all\"\n")
}

#[test]
fn a_rule_attaches_processes_that_appear_and_those_that_are_there() {
    let (mut torture, ()) = needed!(torture::endless("2"), needs_root());
    let place = Place::among_others();
    // Under its own name: other tests run the same program at the same time.
    torture[0] = install(&torture[0], place.0.path().join("tortured"), 0o755);
    let path = &torture[0];
    let (daemon, file) = daemon(&place, &rule(path, "attach"));
    let running = torture::start_endless(&torture);
    wait_until("it to be attached", || {
        let page = page_of(running.pid());
        page.is_some() && place.status().pages.iter().any(|one| Some(one.inode) == page)
    });
    std::fs::write(&file, rule(path, "never")).expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the policy", || place.status().notices.is_none());
    // What is attached stays so, and `status` says how to change that.
    let mut status = fastpath(&["status"]);
    status.env("FASTPATH_SOCKET", place.socket());
    let shown = finish(status).expect_success().out;
    let advice = format!("`fastpath detach {}`", running.pid().0);
    assert!(shown.contains(&advice), "{advice}: {shown}");
    torture::end(running);

    let running = torture::start_endless(&torture);
    wait_until("the loop", || running.pid().cpu_time().as_millis() > 300);
    assert_eq!(page_of(running.pid()), None);
    std::fs::write(&file, rule(path, "attach")).expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("it to be attached", || page_of(running.pid()).is_some());
    torture::end(running);
}

#[test]
fn a_process_that_a_rule_forbids_gets_no_page_and_the_refusal_names_the_file() {
    needed!(needs_root());
    let place = Place::among_others();
    let own = std::env::current_exe().expect("this test's path");
    let (_daemon, file) = daemon(&place, &rule(own.to_str().expect("UTF-8"), "never"));
    let client = Client::connect_to(&place.socket()).expect("a daemon");
    let prepare = fastpath_protocol::Request::new(fastpath_protocol::Operation::Prepare);
    let refusals = [
        client.prepare(&prepare).expect_err("a refusal"),
        client
            .page(fastpath_page::ClockSet::ALL, None, None)
            .expect_err("a refusal"),
    ];
    for refused in refusals.map(|refusal| refusal.to_string()) {
        assert!(
            refused.contains(file.to_str().expect("UTF-8")) && refused.contains("never"),
            "{refused}"
        );
    }
}

#[test]
fn a_process_that_cannot_be_attached_for_a_moment_is_attached_later() {
    needed!(needs_root());
    let place = Place::among_others();
    let late = install("/usr/bin/sleep", place.0.path().join("late"), 0o755);
    let (_daemon, _) = daemon(&place, &rule(&late, "attach"));
    let fifo = place.0.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "read line <\"$0\"; exec \"$1\" 1000"])
        .arg(&fifo)
        .arg(&late);
    let running = start(shell);
    let pid = running.pid();
    // The kernel detaches it when this thread ends.
    let tracer = std::thread::spawn(move || {
        let options = nix::sys::ptrace::Options::empty();
        nix::sys::ptrace::seize(nix::unistd::Pid::from_raw(pid.0), options).expect("seize");
        std::fs::write(&fifo, "go\n").expect("write");
        std::thread::sleep(std::time::Duration::from_millis(700));
        assert_eq!(page_of(pid), None);
    });
    tracer.join().expect("the tracer");
    wait_until("it to be attached", || page_of(pid).is_some());
}

#[test]
fn root_has_a_tree_attached_unless_a_rule_forbids_it() {
    let (mut torture, ()) = needed!(torture::endless("2"), needs_root());
    let place = Place::among_others();
    torture[0] = install(&torture[0], place.0.path().join("forbidden"), 0o755);
    let (daemon, _) = daemon(&place, &rule(&torture[0], "never"));
    let client = || Client::connect_to(&place.socket()).expect("a daemon");
    let forbidden = torture::start_endless(&torture);
    wait_until("the loop", || forbidden.pid().cpu_time().as_millis() > 100);
    let refused = client().attach(
        std::os::fd::AsFd::as_fd(&pidfd(forbidden.pid())),
        fastpath_page::ClockSet::ALL,
    );
    let refused = refused.expect_err("a refusal").to_string();
    assert!(refused.contains("says never"), "{refused}");
    assert_eq!(page_of(forbidden.pid()), None);
    torture::end(forbidden);

    let fifo = place.0.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line <\"$0\"; exec sleep 1000"]).arg(&fifo);
    let shell = start(shell);
    wait_until("the shell", || shell.pid().read("comm").trim() == "sh");
    let attached = client().attach(
        std::os::fd::AsFd::as_fd(&pidfd(shell.pid())),
        fastpath_page::ClockSet::ALL,
    );
    attached.expect("an answer");
    // It has a page a little earlier than the functions that read it, and make execve.
    wait_until("the shell to be attached", || {
        daemon.err_so_far().contains("attached process")
    });
    // Where there is no journal, the record is a line of JSON: the client asked for it, not a rule.
    let log = daemon.err_so_far();
    let line = log.lines().find(|line| line.contains("attached process"));
    let record: serde_json::Value = serde_json::from_str(line.expect("a line")).expect("JSON");
    assert_eq!((&record["what"], &record["result"]), (&"attach".into(), &"done".into()));
    assert_eq!(
        (&record["pid"], &record["by_pid"]),
        (&shell.pid().0.into(), &std::process::id().into())
    );
    assert!(record["rule"].is_null(), "{record}");
    std::fs::write(&fifo, "go\n").expect("write");
    wait_until("the program that it executes", || {
        shell.pid().read("comm").trim() == "sleep" && page_of(shell.pid()).is_some()
    });
}

/// It executes the forbidden program at each moment of an attach: by a rule for the program before it, or by root.
#[test]
fn a_forbidden_program_that_is_executed_during_an_attach_gets_no_page() {
    needed!(needs_root());
    let place = Place::among_others();
    let copy = |name: &str, of: &str| install(of, place.0.path().join(name), 0o755);
    let [attached, other] = ["attached", "other"].map(|name| copy(name, "/bin/sh"));
    let forbidden = copy("forbidden", "/usr/bin/sleep");
    let (_daemon, _) = daemon(&place, &(rule(&forbidden, "never") + &rule(&attached, "attach")));
    let mut all = Vec::new();
    for shell in [&attached, &other] {
        for ms in 0..40 {
            let fifo = place.0.path().join(format!("{}", all.len()));
            nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
            let mut command = Command::new(shell);
            command
                .args(["-c", "read line <\"$0\"; exec \"$1\" 1000"])
                .arg(&fifo)
                .arg(&forbidden);
            let running = start(command);
            let pid = running.pid().0.to_string();
            let by_root = (*shell == other).then(|| start(place.fastpath(&["attach", "-q", "--clocks", "all", &pid])));
            std::thread::sleep(std::time::Duration::from_millis(ms));
            std::fs::write(&fifo, "go\n").expect("write");
            by_root.map(Running::finish);
            all.push(running);
        }
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    let served = all.iter().filter(|one| {
        wait_until("the program", || one.pid().read("comm").trim() == "forbidden");
        page_of(one.pid()).is_some()
    });
    assert_eq!(served.count(), 0);
}

#[test]
fn run_starts_a_program_that_a_rule_forbids_untouched_and_says_why() {
    needed!(needs_root());
    let place = Place::among_others();
    let forbidden = install("/usr/bin/cat", place.0.path().join("forbidden"), 0o755);
    let (_daemon, file) = daemon(&place, &rule(&forbidden, "never"));
    let maps = |command: &[&str]| {
        let options = ["run", "--without-vdso", "--clocks", "all"];
        finish(place.fastpath(&[&options[..], &["--"], command].concat())).expect_success()
    };
    wait_until("another program to be served", || {
        maps(&["cat", "/proc/self/maps"]).out.contains("fastpath-page")
    });
    let by_a_shell = format!("{forbidden} /proc/self/maps; :");
    for command in [&[&*forbidden, "/proc/self/maps"][..], &["sh", "-c", &by_a_shell]] {
        let outcome = maps(command);
        assert!(!outcome.out.contains("fastpath-page"), "{outcome:#?}");
    }
    let said = maps(&[&forbidden, "/proc/self/maps"]).err;
    let why = format!("{} says never", file.display());
    assert!(said.contains(&why) && said.contains("untouched"), "{said}");
    let required = [
        "run",
        "--require",
        "--without-vdso",
        "--clocks",
        "all",
        "--",
        &forbidden,
    ];
    let required = finish(place.fastpath(&required));
    assert!(required.err.contains(&why) && required.out.is_empty(), "{required:#?}");
}

#[test]
fn a_daemon_under_a_filter_says_which_processes_it_cannot_attach_and_why() {
    let ((), filter) = needed!(needs_root(), helper_program("filter", "cc", &[]));
    let place = Place::among_others();
    // A call that no program here makes: only the filter's presence matters.
    let filtered = |command: &Command| {
        let mut under = Command::new(&filter);
        under.args(["kill", &libc::SYS_vmsplice.to_string()]);
        under.arg(command.get_program()).args(command.get_args());
        under
    };
    let program = install("/usr/bin/sleep", place.0.path().join("confined"), 0o755);
    let mut sleep = Command::new(&program);
    sleep.arg("1000");
    let running = start(filtered(&sleep));
    wait_until("the program", || running.pid().read("comm").trim() == "confined");
    let file = place.0.path().join("policy.toml");
    std::fs::write(&file, rule(&program, "attach")).expect("write");
    let policy = ["--policy", file.to_str().expect("UTF-8")];
    let daemon = start(filtered(&place.command(&policy)));
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    let why = "fastpath has a seccomp filter itself";
    let named = format!("{} {program}", running.pid().0);
    for option in ["--dry-run", "--check-policy"] {
        let shown = finish(place.command(&[&policy[..], &[option]].concat())).expect_success();
        let lines = ["not: it has a seccomp filter", why, &named];
        assert!(lines.iter().all(|part| shown.out.contains(part)), "{shown:#?}");
    }
    wait_until("the log to say so", || daemon.err_so_far().contains(why));
    assert!(
        !daemon.err_so_far().contains("CAP_SYS_ADMIN"),
        "{}",
        daemon.err_so_far()
    );
    drop(daemon);
    // Without a filter, the daemon attaches it.
    let daemon = start(place.command(&policy));
    wait_until("it to be attached", || page_of(running.pid()).is_some());
    let dry = finish(place.command(&[&policy[..], &["--dry-run"]].concat())).expect_success();
    assert!(dry.out.contains(&named) && !dry.out.contains("not: "), "{dry:#?}");
    drop(daemon);
}

#[test]
fn a_missing_policy_is_an_error_and_a_valid_one_shows_its_effect() {
    let place = Place::new();
    let missing = place.0.path().join("missing.toml");
    let missing = missing.to_str().expect("UTF-8");
    for (options, status) in [(&["--check-policy"][..], 1), (&["--dry-run"], 1), (&[], 4)] {
        let refused = finish(place.command(&[options, &["--policy", missing]].concat())).expect_code(status);
        assert!(refused.err.contains(missing), "{refused:#?}");
    }
    let file = place.0.path().join("policy.toml");
    let path = file.to_str().expect("UTF-8");
    std::fs::write(&file, "[[rule]]\naction = \"attach\"\n").expect("write");
    let refused = finish(place.command(&["--check-policy", "--policy", path])).expect_code(1);
    assert!(refused.err.contains("line 1, column 1"), "{refused:#?}");

    let own = std::env::current_exe().expect("this test's path");
    std::fs::write(&file, rule(own.to_str().expect("UTF-8"), "attach")).expect("write");
    let pid = std::process::id().to_string();
    let check = finish(place.command(&["--check-policy", "--policy", path])).expect_success();
    assert!(
        check.out.starts_with("rule 1: attach, ") && check.out.contains(&pid),
        "{check:#?}"
    );
    let dry = finish(place.command(&["--dry-run", "--policy", path])).expect_success();
    assert!(dry.out.contains(&pid) && dry.out.contains("(rule 1)"), "{dry:#?}");
}

#[test]
fn a_mistake_in_a_policy_is_located_and_the_old_policy_stays() {
    let place = Place::among_others();
    let (daemon, file) = daemon(&place, &rule("/nonexistent/a", "never"));
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the policy to be read again", || {
        daemon.err_so_far().contains("the policy has 1 rule now")
    });
    std::fs::write(&file, "[[rule]]\nexecutable = \"/x\"\naction = \"atach\"\n").expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the mistake to be reported", || place.status().policy_error.is_some());
    let status = place.status();
    let why = status.policy_error.expect("an error");
    assert!(why.contains("line 3, column 10") && why.contains("atach"), "{why}");
    assert_eq!(status.rules, 1);
    let check = finish(place.command(&["--check-policy", "--policy", file.to_str().expect("UTF-8")])).expect_code(1);
    assert!(check.err.contains("line 3, column 10"), "{check:#?}");
    std::fs::write(&file, "").expect("write");
    finish(place.command(&["--check-policy", "--policy", file.to_str().expect("UTF-8")])).expect_success();
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the mistake to be gone", || place.status().policy_error.is_none());
    assert_eq!(place.status().rules, 0);
}

/// The kernel reports execs in the first PID namespace only, and returns no error in another one.
#[test]
fn a_daemon_in_its_own_pid_namespace_searches_for_processes_itself() {
    let ((), _, torture) = needed!(needs_root(), tool("unshare"), program("torture"));
    let place = Place::among_others();
    let copied = place.0.path().join("tortured");
    install(&torture, &copied, 0o755);
    let file = place.0.path().join("policy.toml");
    std::fs::write(&file, rule(copied.to_str().expect("UTF-8"), "attach")).expect("write");
    let mut command = Command::new("unshare");
    let script = "\"$0\" \"$@\" & until test -e \"$GO\"; do sleep 0.05; done; \"$TORTURED\" -s 60 -t 1 & wait";
    command
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_fastpathd"))
        .args(["--clocks", "all", "--socket"])
        .arg(place.socket())
        .arg("--policy")
        .arg(&file)
        .env("TORTURED", &copied)
        .env("GO", place.0.path().join("go"));
    let _container = start(command);
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    wait_until("the first look", || {
        place.status().notices.as_deref() == Some("polling")
    });
    std::fs::write(place.0.path().join("go"), "").expect("a file");
    wait_until("it to be attached", || {
        place.status().pages.iter().any(|page| page.rule == Some(1))
    });
}
