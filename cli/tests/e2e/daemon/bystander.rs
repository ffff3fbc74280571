//! A user without any part in an attack: all its requests are answered, and its clock is never wrong.
//!
//! With FASTPATH_MEASURE_BYSTANDER (`make hostile`) the time of the answers is measured too: that needs a machine
//! without other work.

use std::fmt::Display;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use fastpath_protocol::Client;

use super::Place;
use super::attacks::{Traps, client, client_with_users, fuse_trap, trap, wait_until_says, wanted};
use super::policy::rule;
use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{NOBODY, Running, SERVED, helper_program, install, skip, start, torture, wait_until};

/// The bystander's user.
const BYSTANDER: u32 = 23456;
/// Longest time of an answer, at the 99th percentile, on a quiet machine.
const PROMISED: Duration = Duration::from_millis(100);
/// Shortest time for which an attack is watched.
const WATCHED: Duration = Duration::from_millis(600);
/// Memory that the daemon takes at most, whatever it is sent.
const MOST_KIB: u64 = 64 << 10;
/// Number of answers that make a percentile.
const ENOUGH: usize = 50;
/// Number of times that answers must be late under an attack before the attack is blamed. Other work on the machine may
/// delay them, too.
const BLAMED: u32 = 3;
/// Number of times that an attack is watched if answers seem late.
const TRIES: u32 = 5;
/// CPUs that must be idle, without an attack, for the machine to be quiet.
const SPARE: f64 = 0.5;

/// Requests its status and a page, again and again, and prints how long each took and which error was returned. An
/// answer takes milliseconds, and the obstructions last 45 s and longer.
const ASKS: &str = r#"
while True:
    for operation in STATUS, PAGE:
        begun, fds = time.monotonic(), []
        try:
            s = connect()
            send(s, operation)
            error, _, fds = receive(s)
        except (OSError, struct.error) as failure:
            error = type(failure).__name__
        say(operation, int((time.monotonic() - begun) * 1e6), error)
        for fd in fds:
            os.close(fd)
        s.close()
    time.sleep(0.015)
"#;

/// The bystander: a program that sends requests to the daemon, and one that reads the clock under `fastpath run`.
struct Bystander {
    asks: Running,
    reads: Running,
}

/// The observations of a bystander.
struct Seen {
    answers: usize,
    /// Errors and broken connections.
    failures: Vec<String>,
    median: Duration,
    /// The 99th percentile; a failed request counts as infinite.
    p99: Duration,
    /// CPUs that were idle meanwhile.
    spare: f64,
}

impl Bystander {
    /// Returns `None`, and skips the test, if the programs cannot be built here.
    fn start(place: &Place) -> Option<Bystander> {
        let mut torture = torture::endless("1")?;
        let copy = |from: &str, name: &str| install(from, place.0.path().join(name), 0o755);
        let fastpath = copy(env!("CARGO_BIN_EXE_fastpath"), "fastpath");
        torture[0] = copy(&torture[0], "torture");
        let mut run = Command::new(fastpath);
        run.args(SERVED).args(&torture).env("FASTPATH_SOCKET", place.socket());
        run.uid(BYSTANDER).gid(BYSTANDER);
        let reads = start(run);
        super::wait_until_served(&reads);
        let asks = client(place, BYSTANDER, ASKS);
        wait_until("the first answer", || asks.out_so_far().lines().count() > 1);
        Some(Bystander { asks, reads })
    }

    /// Observes for a while.
    fn look(&self) -> Seen {
        let lines = || -> Vec<String> { self.asks.out_so_far().lines().map(str::to_owned).collect() };
        let (before, begun, idle) = (lines().len(), Instant::now(), idle());
        std::thread::sleep(WATCHED);
        holds_within(TIMEOUT, || lines().len() >= before + ENOUGH);
        let spare = self::idle().saturating_sub(idle).as_secs_f64() / begun.elapsed().as_secs_f64();
        Seen::from_lines(&lines()[before..], spare)
    }

    /// Fails the test if a request is not answered during an attack.
    #[track_caller]
    fn is_answered(&self, name: &str) {
        let seen = self.look();
        println!("{name:40} {seen}");
        assert!(seen.answers >= ENOUGH && seen.failures.is_empty(), "{name}: {seen}");
    }

    /// Fails the test if answers take longer than promised during an attack, and not without it.
    #[track_caller]
    fn is_answered_in_time(&self, name: &str, attackers: &[Running]) {
        let (mut quiet, mut blamed) = (None, 0);
        for _ in 0..TRIES {
            let seen = self.look();
            println!("{name:40} {seen}");
            let without = quiet.as_ref().map_or(Duration::ZERO, |quiet: &Seen| quiet.p99);
            if seen.p99 <= PROMISED.max(without.saturating_mul(3)) {
                return;
            }
            attackers.iter().for_each(|one| one.pid().signal_group(libc::SIGSTOP));
            let now = self.look();
            println!("{:40} {now}", "  without it");
            blamed += u32::from(now.spare >= SPARE);
            assert!(blamed < BLAMED, "{name}: {seen}; without it {now}");
            quiet = Some(now);
            attackers.iter().for_each(|one| one.pid().signal_group(libc::SIGCONT));
        }
        skip(format_args!(
            "the machine is too busy to measure the effect of this attack: {name}"
        ));
    }

    /// Ends it, and checks that every reading of its clock was right.
    fn end(self) {
        drop(self.asks);
        torture::end(self.reads);
    }
}

impl Seen {
    fn from_lines(lines: &[String], spare: f64) -> Seen {
        let (mut took, mut failures) = (Vec::new(), Vec::new());
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be incomplete.
            let [_, us, error] = words[..] else { continue };
            let Ok(us) = us.parse() else { continue };
            took.push(if error == "0" {
                Duration::from_micros(us)
            } else {
                Duration::MAX
            });
            failures.extend((error != "0").then(|| line.clone()));
        }
        took.sort_unstable();
        let percentile = |percent: usize| {
            let at = (took.len() * percent).div_ceil(100).saturating_sub(1);
            took.get(at).copied().unwrap_or(Duration::MAX)
        };
        Seen {
            answers: took.len(),
            median: percentile(50),
            p99: percentile(99),
            failures,
            spare,
        }
    }
}

impl Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |duration: &Duration| match *duration {
            Duration::MAX => "for ever".to_owned(),
            it => format!("{:.1} ms", it.as_secs_f64() * 1e3),
        };
        let Seen {
            answers,
            failures,
            spare,
            ..
        } = self;
        let (median, p99) = (ms(&self.median), ms(&self.p99));
        write!(f, "{answers} answers, median {median}, p99 {p99}, {spare:.1} CPUs idle")?;
        match failures.last() {
            Some(last) => write!(f, ", {} failed, such as {last:?}", failures.len()),
            None => Ok(()),
        }
    }
}

/// Time for which all CPUs together have been idle (proc_stat(5)).
fn idle() -> Duration {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks: Option<u64> = stat.split_whitespace().nth(4).and_then(|ticks| ticks.parse().ok());
    // SAFETY: sysconf takes an integer.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Duration::from_millis(ticks.expect("idle ticks") * 1000 / hertz)
}

/// Returns whether the time of answers is measured (`make hostile`).
fn is_measured() -> bool {
    std::env::var_os("FASTPATH_MEASURE_BYSTANDER").is_some()
}

/// Attacks of one user that last until they are killed. Each prints "begun".
const LASTING: [(&str, &str); 10] = [
    (
        "garbage",
        r#"
say("begun")
while True:
    try:
        s = connect()
        for _ in range(20):
            s.send(random.randbytes(random.choice([0, 1, 8, 63, 64, 65, 4000])) or b"x")
    except OSError:
        pass
"#,
    ),
    (
        "requests that are cut off, and descriptors that none asked for",
        r#"
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
say("begun")
while True:
    try:
        s = connect()
        s.send(packet_of(PAGE)[:random.randrange(1, 64)])
        send(s, PAGE, files)
    except OSError:
        pass
"#,
    ),
    (
        // The fields that are checked first are well-formed; the others are random.
        "odd requests",
        r#"
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)] + [os.pidfd_open(os.getpid())]
say("begun")
while True:
    try:
        s = connect()
        for _ in range(20):
            word = lambda: random.choice([0, 1, 2, 3, 0xffffffff, random.getrandbits(32)])
            place = lambda: random.choice([0, 4096, 0x7ffff7fc1000, 2**56 - 4096, 2**64 - 4096, random.getrandbits(64)])
            odd = packet_of(random.randrange(6), random.randrange(5), random.choice([62, word()]), word(), word(), place(), place())
            send_packet(s, odd, random.sample(files, random.randrange(4)))
            receive(s)
    except (OSError, struct.error):
        pass
"#,
    ),
    (
        "connections as fast as they come",
        r#"
say("begun")
os.fork()
while True:
    try:
        connect().close()
    except OSError:
        pass
"#,
    ),
    (
        "packets with too many descriptors",
        r#"
null = os.open("/dev/null", os.O_RDONLY)
say("begun")
while True:
    try:
        s = connect()
        for count in 4, 5, 60, 253:
            send(s, PAGE, [null] * count, WITH_PROCESS)
        receive(s)
    except (OSError, struct.error):
        pass
"#,
    ),
    (
        "mailboxes with leases on them",
        r#"
memory = leased()
say("begun")
while True:
    try:
        s = connect()
        for _ in range(100):
            send(s, PAGE, [memory], WITH_MAILBOX)
            error = receive(s)[0]
            assert error in (1, 7), error
    except (OSError, struct.error):
        pass
"#,
    ),
    (
        "an inotify instance as a pidfd",
        r#"
libc = ctypes.CDLL(None)
fd, watches = libc.inotify_init1(0), 0
for directory, _, files in os.walk("/usr"):
    for file in files:
        watches += libc.inotify_add_watch(fd, os.path.join(directory, file).encode(), 0x400) > 0  # IN_DELETE_SELF
    if watches > 10_000:
        break
say("begun")
while True:
    try:
        s = connect()
        send(s, PAGE, [fd], WITH_PROCESS)
        receive(s)
    except (OSError, struct.error):
        pass
"#,
    ),
    (
        "answers that are not read",
        r#"
kept = []
say("begun")
while True:
    try:
        while len(kept) < 60:
            kept.append(connect())
            kept[-1].setblocking(False)
    except OSError:
        pass
    for s in list(kept):
        try:
            for _ in range(10):
                send(s, STATUS)
        except BlockingIOError:
            pass
        except OSError:
            kept.remove(s)
"#,
    ),
    (
        "as many pages as there are",
        r#"
many_descriptors()
kept = []
say("begun")
while True:
    try:
        s = connect()
        while True:
            send(s, PREPARE)
            kept.append(receive(s)[2])
    except (OSError, struct.error):
        pass
"#,
    ),
    (
        "sockets that linger",
        r#"
import threading
listener, kept = listening(), []
say("begun")
while True:
    try:
        s = connect()
        for _ in range(2):
            lingers = lingering(listener, kept)
            send(s, PAGE, [lingers.fileno()], WITH_PROCESS)
            # This client waits if the daemon was faster.
            threading.Thread(target=os.close, args=[lingers.detach()], daemon=True).start()
    except (OSError, struct.error):
        time.sleep(0.01)
"#,
    ),
];

/// Subordinate users, each with as many connections as a user may have.
const USERS: &str = r#"
many_descriptors()
enter_user_namespace()
kept = []
while True:
    for user in range(1, 100):
        os.setresuid(user, user, 0)
        for _ in range(50):
            try:
                s = connect()
                send(s, PAGE)
                s.setblocking(False)
                kept.append(s)
            except OSError:
                pass
        os.setresuid(0, 0, 0)
    say("begun")
    kept = kept[-10000:]
"#;

/// A place with a daemon that is attacked.
struct Field {
    place: Place,
    traps: Traps,
    daemon: Running,
    policy: PathBuf,
}

impl Field {
    /// Returns `None`, and skips the test, if that is not possible.
    fn new() -> Option<Field> {
        wanted()?;
        let place = Place::among_others();
        let traps = Traps::install(&place)?;
        let policy = place.0.path().join("policy.toml");
        fs::write(&policy, "").expect("write");
        let plain = place.command(&["--policy", policy.to_str().expect("UTF-8")]);
        // With the niceness of its unit.
        let mut nice = Command::new("nice");
        nice.args(["-n", "-10"]).arg(plain.get_program()).args(plain.get_args());
        let daemon = start(nice);
        wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
        Some(Field {
            place,
            traps,
            daemon,
            policy,
        })
    }

    /// Makes the daemon attach programs that run already.
    fn attach(&self, programs: &[&str]) {
        let rules: Vec<_> = programs.iter().map(|program| rule(program, "attach")).collect();
        fs::write(&self.policy, rules.concat()).expect("write");
        self.daemon.pid().signal(libc::SIGHUP);
    }

    /// Runs all attacks, one after the other. Each lasts while `meanwhile` runs, which gets its name and the attackers.
    fn attack_by_all_means(&self, meanwhile: impl Fn(&str, &[Running])) {
        let attacked = |name: &str, attackers: Vec<Running>| {
            meanwhile(name, &attackers);
            for attacker in attackers {
                assert!(attacker.pid().exists(), "{name}: {:#?}", attacker.finish());
            }
        };
        for (name, script) in LASTING {
            let attacker = client(&self.place, NOBODY, script);
            wait_until_says(&attacker, "begun");
            attacked(name, vec![attacker]);
        }
        // It takes both CPUs, and would tell nothing beside other tests.
        if is_measured()
            && let Some(connects) = helper_program("connects", "cc", &[])
        {
            let mut command = Command::new(install(connects, self.place.0.path().join("connects"), 0o755));
            command.arg(self.place.socket()).uid(NOBODY).gid(NOBODY);
            let attacker = start(command);
            wait_until_says(&attacker, "begun");
            attacked("2,000 threads that wait in connect(2)", vec![attacker]);
        }
        if let Some(attacker) = client_with_users(&self.place, USERS) {
            wait_until_says(&attacker, "begun");
            // Each connection takes one descriptor, each page two.
            let descriptors = fs::read_dir(format!("/proc/{}/fd", self.daemon.pid().0)).expect("its descriptors");
            let descriptors = descriptors.count();
            assert!(descriptors < 64 + 2 * 1024 + 200, "{descriptors} descriptors are open");
            let status = self.place.status();
            let theirs = status.pages.iter().filter(|page| page.uid >= 100_000).count();
            assert!(theirs <= 1024, "{theirs} pages");
            attacked("subordinate users", vec![attacker]);
        }
        let Traps { python, fuse } = &self.traps;
        let of_fuse = [(); 2].map(|()| fuse_trap(fuse, NOBODY, "memfd:fastpath-region", None));
        if let [Some(one), Some(other)] = of_fuse {
            self.attach(&[fuse]);
            attacked("memory by FUSE that is attached", vec![one, other]);
        }
        if let Some(attacker) = trap(python, "fastpath-region") {
            self.attach(&[python]);
            attacked("memory by userfaultfd that is attached", vec![attacker]);
        }
    }
}

#[test]
fn a_bystander_is_answered_whatever_another_user_does() {
    let field = needed!(Field::new());
    let bystander = needed!(Bystander::start(&field.place));
    println!("{:40} {}", "before all", bystander.look());
    field.attack_by_all_means(|name, attackers| match is_measured() {
        true => bystander.is_answered_in_time(name, attackers),
        false => bystander.is_answered(name),
    });
    println!("{:40} {}", "after all", bystander.look());
    assert!(field.daemon.pid().exists());
    let peak = field.daemon.pid().status("VmHWM");
    let kib: Option<u64> = peak.trim_end_matches(" kB").parse().ok();
    assert!(kib < Some(MOST_KIB), "the daemon took {peak}");
    bystander.end();
}
