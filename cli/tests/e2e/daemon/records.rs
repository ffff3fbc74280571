//! Each change of a process, and each refusal, is on record: in the journal, a datagram socket in a mount namespace here,
//! with every field as it was done.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use super::policy::rule;
use super::{Place, page_of, pidfd};
use crate::common::{Pid, Running, finish, install, needs_root, start, tool, wait_until};
use fastpath_protocol::Client;

type Fields = BTreeMap<String, String>;

/// A journal, and a daemon's place.
struct Host {
    place: Place,
    journal: UnixDatagram,
    seen: RefCell<Vec<Fields>>,
}

impl Host {
    fn new() -> Host {
        let place = Place::among_others();
        let path = place.0.path().join("journal");
        std::fs::create_dir(&path).expect("a directory");
        let journal = UnixDatagram::bind(path.join("socket")).expect("a socket");
        journal.set_nonblocking(true).expect("non-blocking");
        Host {
            place,
            journal,
            seen: RefCell::default(),
        }
    }

    /// Returns a command in a mount namespace with this journal.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("unshare");
        let mounts = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";
        inside.args(["-m", "sh", "-c", mounts]);
        inside.arg(self.place.0.path().join("journal"));
        inside.arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        inside.envs(set);
        inside
    }

    fn fastpath(&self, arguments: &[&str]) -> Command {
        self.inside(&self.place.fastpath(arguments))
    }

    #[track_caller]
    fn daemon(&self, policy: &str) -> Running {
        let file = self.place.0.path().join("policy.toml");
        std::fs::write(&file, policy).expect("write");
        let command = self.place.command(&["--policy", file.to_str().expect("UTF-8")]);
        let daemon = start(self.inside(&command));
        wait_until("fastpathd", || Client::connect_to(&self.place.socket()).is_ok());
        daemon
    }

    /// Waits for a record of this process.
    #[track_caller]
    fn record(&self, pid: Pid, what: &str, request: &str) -> Fields {
        let mut found = None;
        wait_until(&format!("the record `{what}` of {request}"), || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length) = self.journal.recv(&mut bytes) {
                self.seen.borrow_mut().push(parse(&bytes[..length]));
            }
            let wanted = [
                ("FASTPATH_PID", &*pid.0.to_string()),
                ("FASTPATH_WHAT", what),
                ("FASTPATH_REQUEST", request),
            ];
            let is_wanted = |fields: &&Fields| {
                wanted
                    .iter()
                    .all(|(name, value)| fields.get(*name).is_some_and(|is| is == value))
            };
            found = self.seen.borrow().iter().find(is_wanted).cloned();
            found.is_some()
        });
        found.expect("just found")
    }
}

/// Parses an entry of the journal's own protocol.
fn parse(mut entry: &[u8]) -> Fields {
    let mut fields = Fields::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let name = String::from_utf8(entry[..end].to_vec()).expect("a name");
        let (size, rest) = entry[end + 1..].split_first_chunk::<8>().expect("a size");
        let (value, rest) = rest.split_at(u64::from_le_bytes(*size) as usize);
        fields.insert(name, String::from_utf8(value.to_vec()).expect("a value"));
        entry = rest.strip_prefix(b"\n").expect("an end");
    }
    assert!(entry.is_empty(), "{entry:?}");
    fields
}

/// Fails unless the record has these fields, those of the process, and no others but sizes and times.
#[track_caller]
fn expect(record: &Fields, process: Pid, program: &Path, wanted: &[(&str, &str)]) {
    let cgroup = process.read("cgroup");
    let path = cgroup.lines().find_map(|line| {
        line.strip_prefix("0::")
            .or(line.split_once(":name=systemd:").map(|(_, path)| path))
    });
    let start_time = process
        .read("stat")
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .nth(19)
        .expect("a time")
        .to_owned();
    let own = [
        ("PID", process.0.to_string()),
        ("START_TIME", start_time),
        ("EXECUTABLE", program.display().to_string()),
        (
            "EXECUTABLE_INODE",
            program.metadata().expect("a file").ino().to_string(),
        ),
        ("UID", "0".to_owned()),
        ("CGROUP", path.unwrap_or_default().to_owned()),
        ("SCHEMA", "1".to_owned()),
        ("BY_UID", "0".to_owned()),
    ];
    let mut left = record.clone();
    let wanted = wanted.iter().map(|(name, value)| (*name, (*value).to_owned()));
    for (name, value) in own.into_iter().chain(wanted) {
        if name == "CGROUP" && value.is_empty() {
            continue;
        }
        assert_eq!(
            left.remove(&format!("FASTPATH_{name}")),
            Some(value),
            "{name}: {record:#?}"
        );
    }
    let mut remove = |name: &str| left.remove(name).unwrap_or_else(|| panic!("{name}: {record:#?}"));
    let message = remove("MESSAGE");
    assert!(
        message.contains(&process.0.to_string()) && message.contains(program.to_str().expect("UTF-8")),
        "{message}"
    );
    assert_eq!(remove("MESSAGE_ID").len(), 32);
    assert_eq!(remove("SYSLOG_FACILITY"), "3");
    assert!(["5", "6"].contains(&&*remove("PRIORITY")) && remove("SYSLOG_IDENTIFIER").starts_with("fastpath"));
    let ms: u128 = remove("FASTPATH_TIME_UNIX_MS").parse().expect("a time");
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    assert!(now.abs_diff(ms) < 120_000, "{ms}");
    let is_change = record["FASTPATH_RESULT"] == "done" && record["FASTPATH_REQUEST"] != "grant";
    if is_change {
        let sites: usize = remove("FASTPATH_SITES").parse().expect("a number");
        let us: u64 = remove("FASTPATH_STOPPED_US").parse().expect("a time");
        assert!(sites > 0 && us > 0 && us < 60_000_000, "{record:#?}");
    }
    left.remove("FASTPATH_BY_PID");
    assert!(left.is_empty(), "{left:#?}");
}

/// A copy of `sleep` that runs, by its own name.
fn sleeper(host: &Host, name: &str) -> (Running, std::path::PathBuf) {
    let program = host.place.0.path().join(name);
    install("/usr/bin/sleep", &program, 0o755);
    let mut command = Command::new(&program);
    command.arg("1000");
    let running = start(command);
    wait_until("the program", || running.pid().read("comm").trim() == name);
    (running, program)
}

#[test]
fn what_commands_do_to_a_process_is_on_record_with_every_field_and_the_terminal_stays_silent() {
    needed!(needs_root(), tool("unshare"));
    let host = Host::new();
    let (running, program) = sleeper(&host, "recorded");
    let pid = running.pid();
    let number = pid.0.to_string();
    let command = |arguments: &[&str]| finish(host.fastpath(&[arguments, &[&number]].concat()));
    command(&["attach", "-q", "--clocks", "all"])
        .expect_success()
        .expect_output("");
    let record = host.record(pid, "attach", "attach");
    expect(
        &record,
        pid,
        &program,
        &[("WHAT", "attach"), ("REQUEST", "attach"), ("RESULT", "done")],
    );
    assert_ne!(record["FASTPATH_BY_PID"], number);
    command(&["attach", "-q", "--clocks", "all"]).expect_code(8);
    let refused = [
        ("WHAT", "refuse"),
        ("REQUEST", "attach"),
        ("RESULT", "attached-already"),
    ];
    expect(&host.record(pid, "refuse", "attach"), pid, &program, &refused);
    command(&["detach", "-q"]).expect_success().expect_output("");
    let done = [("WHAT", "detach"), ("REQUEST", "detach"), ("RESULT", "done")];
    let detached = host.record(pid, "detach", "detach");
    expect(&detached, pid, &program, &done);
    assert_eq!(detached["FASTPATH_SITES"], record["FASTPATH_SITES"]);
    command(&["detach", "-q"]).expect_code(15);
    let refused = [("WHAT", "refuse"), ("REQUEST", "detach"), ("RESULT", "not-attached")];
    expect(&host.record(pid, "refuse", "detach"), pid, &program, &refused);
}

#[test]
fn a_program_that_run_starts_and_the_programs_of_its_tree_are_on_record() {
    needed!(needs_root(), tool("unshare"));
    let host = Host::new();
    let shell = host.place.0.path().join("recorded-sh");
    install("/bin/sh", &shell, 0o755);
    let may_end = host.place.0.path().join("may-end");
    let script = "for i in 1 2 3 4; do /bin/true; done; until test -e \"$0\"; do /bin/sleep 0.05; done; /bin/true; /bin/true; exit 0";
    let mut command = host.fastpath(&["run", "--without-vdso", "--clocks", "all", "--require", "--"]);
    command.arg(&shell).args(["-c", script]).arg(&may_end);
    let running = start(command);
    let pid = running.pid();
    let record = host.record(pid, "run", "run");
    let by = pid.0.to_string();
    let done = [("WHAT", "run"), ("REQUEST", "run"), ("RESULT", "done"), ("BY_PID", &by)];
    expect(&record, pid, &shell, &done);
    let granted = host.record(pid, "grant", "grant");
    let programs = granted["FASTPATH_PROGRAMS"].clone();
    let done = [
        ("WHAT", "grant"),
        ("REQUEST", "grant"),
        ("RESULT", "done"),
        ("PROGRAMS", &programs),
    ];
    expect(&granted, pid, &shell, &done);
    let programs: u64 = programs.parse().expect("a number");
    std::fs::write(&may_end, "").expect("a file");
    running.finish().expect_success();
    // The rest is recorded at the end of the tree.
    let in_all = || {
        host.record(pid, "run", "run");
        let seen = host.seen.borrow();
        let of_tree = seen.iter().filter(|fields| fields.get("FASTPATH_PID") == Some(&by));
        of_tree
            .filter_map(|fields| fields.get("FASTPATH_PROGRAMS")?.parse::<u64>().ok())
            .sum::<u64>()
    };
    wait_until("the record of all programs", || in_all() >= programs + 2);
}

#[test]
fn what_a_daemon_grants_attaches_and_refuses_is_on_record_and_counted() {
    needed!(needs_root(), tool("unshare"));
    let host = Host::new();
    let [by_rule, never, granted] = ["by-a-rule", "never", "granted"].map(|name| sleeper(&host, name));
    let rules =
        [(&never.1, "never"), (&by_rule.1, "attach")].map(|(path, action)| rule(path.to_str().expect("UTF-8"), action));
    let daemon = host.daemon(&rules.concat());
    let by = daemon.pid().0.to_string();
    let pid = by_rule.0.pid();
    let record = host.record(pid, "attach", "attach");
    let done = [
        ("WHAT", "attach"),
        ("REQUEST", "attach"),
        ("RESULT", "done"),
        ("RULE", "2"),
        ("BY_PID", &by),
    ];
    expect(&record, pid, &by_rule.1, &done);
    let attach = |pid: Pid| finish(host.fastpath(&["attach", "-q", "--clocks", "all", &pid.0.to_string()]));
    let pid = never.0.pid();
    attach(pid).expect_code(18);
    assert_eq!(page_of(pid), None);
    // The command knows the policy, and a client that asks nevertheless is refused.
    let refused = [("WHAT", "refuse"), ("REQUEST", "attach"), ("RESULT", "forbidden")];
    expect(&host.record(pid, "refuse", "attach"), pid, &never.1, &refused);
    let client = || Client::connect_to(&host.place.socket()).expect("a daemon");
    let all = fastpath_page::ClockSet::ALL;
    let asked = client().page(all, Some(std::os::fd::AsFd::as_fd(&pidfd(pid))), None);
    asked.expect_err("a refusal");
    let own = std::process::id().to_string();
    let refused = [
        ("WHAT", "refuse"),
        ("REQUEST", "grant"),
        ("RESULT", "forbidden"),
        ("BY_PID", &own),
    ];
    expect(&host.record(pid, "refuse", "grant"), pid, &never.1, &refused);
    let pid = granted.0.pid();
    attach(pid).expect_success();
    let done = [("WHAT", "grant"), ("REQUEST", "grant"), ("RESULT", "done")];
    expect(&host.record(pid, "grant", "grant"), pid, &granted.1, &done);
    let metric = |labels: &str| format!("fastpath_interventions_total{{{labels}}} 1\n");
    let text = || {
        let file = host.place.0.path().join("metrics");
        finish(
            host.place
                .fastpath(&["export", "--textfile", file.to_str().expect("UTF-8")]),
        )
        .expect_success();
        std::fs::read_to_string(file).expect("metrics")
    };
    wait_until("the counts", || {
        let text = text();
        let lines = [
            "what=\"attach\",result=\"done\"",
            "what=\"grant\",result=\"done\"",
            "what=\"refuse\",result=\"forbidden\"",
        ];
        lines.iter().all(|labels| text.contains(&metric(labels)))
    });
}

#[test]
fn a_policy_that_requires_a_record_lets_nothing_be_changed_without_a_journal() {
    needed!(needs_root(), tool("unshare"));
    let host = Host::new();
    let (running, program) = sleeper(&host, "unrecorded");
    let pid = running.pid();
    let number = pid.0.to_string();
    let policy = format!("require_record = true\n{}", rule("/nonexistent/a", "attach"));
    let daemon = host.daemon(&policy);
    let command = |arguments: &[&str]| finish(host.fastpath(arguments));
    let attach = ["attach", "-q", "--clocks", "all", &number];
    // With a journal, as always.
    command(&attach).expect_success();
    host.record(pid, "attach", "attach");
    command(&["detach", "-q", &number]).expect_success();
    command(&attach).expect_success();
    let socket = host.place.0.path().join("journal/socket");
    std::fs::rename(&socket, socket.with_extension("away")).expect("rename");
    let why = "no process is changed without a record (require_record), and /run/systemd/journal/socket: No such file";
    let refused = command(&["detach", "-q", &number]).expect_code(18);
    assert!(refused.err.contains(why), "{refused:#?}");
    assert!(page_of(pid).is_some());
    let (other, _) = sleeper(&host, "other");
    let number = other.pid().0.to_string();
    let refused = command(&["attach", "-q", "--clocks", "all", &number]).expect_code(18);
    assert!(refused.err.contains(why), "{refused:#?}");
    assert_eq!(page_of(other.pid()), None);
    let run = [
        "run",
        "--without-vdso",
        "--clocks",
        "all",
        "--",
        "cat",
        "/proc/self/maps",
    ];
    let untouched = command(&run).expect_success();
    assert!(
        untouched.err.contains(why) && !untouched.out.contains("fastpath-page"),
        "{untouched:#?}"
    );
    // A rule attaches nothing either, and the log says why.
    let file = host.place.0.path().join("policy.toml");
    std::fs::write(
        &file,
        format!(
            "require_record = true\n{}",
            rule(program.with_file_name("other").to_str().expect("UTF-8"), "attach")
        ),
    )
    .expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the log to say so", || {
        let log = daemon.err_so_far();
        log.lines()
            .any(|line| line.contains(&number) && line.contains(why) && line.contains("\"rule\":1"))
    });
    assert_eq!(page_of(other.pid()), None);
    let dry = host
        .place
        .command(&["--dry-run", "--policy", file.to_str().expect("UTF-8")]);
    let dry = finish(host.inside(&dry)).expect_success();
    assert!(dry.out.contains(&format!("not: {why}")), "{dry:#?}");
    std::fs::rename(socket.with_extension("away"), &socket).expect("rename");
    command(&["attach", "-q", "--clocks", "all", &number]).expect_success();
}
