//! The record of each change of a process, and of each refusal: the same fields in the journal and as a line of JSON
//! (docs/records.md).

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fastpath_os::foreign::{self, Identity};
use fastpath_os::{Stat, is_printable, printable};
use fastpath_page::Reason;
use fastpath_protocol::status::Intervention;
use fastpath_protocol::{Code, RequestRefusal};
use fastpath_publish::News;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::ProcessFacts;

/// Socket of journald's own protocol (systemd.io, "Journal Native Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Socket of syslogd, or journald.
const DEV_LOG: &str = "/dev/log";
/// Names the kind of message for all records (sd_journal_print(3)).
const MESSAGE_ID: &str = "e20d6fd60f5241358d81e91b1f4b754e";
/// Facility LOG_DAEMON (sys/syslog.h).
const DAEMON: u32 = 3;
/// Version of the records. Adding a field does not change it.
const SCHEMA: u32 = 1;
/// The result of what was done as it was asked for.
pub const DONE: &str = "done";

/// What was done, or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A running process was put on the fast path.
    Attach,
    /// It was taken off.
    Detach,
    /// A program was started on the fast path.
    Run,
    /// A process got a page, or programs that a tree executed got their tree's.
    Grant,
    /// Nothing was changed: `result` says why.
    Refuse,
    /// A publisher left clocks to the kernel, or serves them again.
    Withdraw,
}

/// The process that a record is about, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Target {
    /// Its process id, where the record was made. Null: all processes of the daemon
    pub pid: Option<i32>,
    /// When it started, in clock ticks after boot (field 22 of /proc/PID/stat): with `pid`, it names the process
    pub start_time: Option<u64>,
    /// Path of its program, as it is called in its own mount namespace
    pub executable: Option<String>,
    /// Inode of that file
    pub executable_inode: Option<u64>,
    /// Its user; root if it has other privileges than its parent
    pub uid: Option<u32>,
    /// Its cgroup, as /proc/PID/cgroup shows it
    pub cgroup: Option<String>,
}

/// The process that asked for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Requester {
    /// User of the process that asked: the command, the client, or fastpathd for a rule
    pub by_uid: u32,
    /// Process id of it; 0: it is in a PID namespace that cannot be seen
    pub by_pid: i32,
}

/// The record of a change of a process, or of a refusal. In the journal, each field is FASTPATH_ and its name in
/// capitals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Record {
    /// The version of the record: adding a field does not change it
    pub schema: u32,
    /// When it was made, in milliseconds since 1970
    pub time_unix_ms: u64,
    /// What was done
    pub what: What,
    /// What was asked for: the same, if it was not refused
    pub request: What,
    /// `done`, or a stable word for the reason
    pub result: String,
    /// The same as a sentence
    pub message: String,
    #[serde(flatten)]
    pub target: Target,
    #[serde(flatten)]
    pub by: Requester,
    /// The rule of the policy, from 1, by which fastpathd did it
    pub rule: Option<usize>,
    /// Number of places in its code that were changed
    pub sites: Option<usize>,
    /// Time that its threads were stopped, in microseconds
    pub stopped_us: Option<u64>,
    /// Number of programs that its tree has executed, and that were served, since the last such record
    pub programs: Option<u64>,
    /// Number of records that were left out before this one, because its user caused too many
    pub left_out: Option<u64>,
}

impl Target {
    /// Reads what /proc shows of a process, except the inode of its file ([`Target::find_inode`]).
    pub fn read(pid: i32) -> Target {
        let facts = ProcessFacts::of_pid(pid);
        let (uid, executable, cgroup) = match facts {
            Some(facts) => (Some(facts.uid), facts.executable, facts.cgroup),
            None => (None, None, None),
        };
        Target {
            pid: Some(pid),
            start_time: Stat::read(pid).ok().map(|stat| stat.start_time),
            executable,
            executable_inode: None,
            uid,
            cgroup,
        }
    }

    /// Returns this process as it is now, unless it has ended.
    pub fn now(&self) -> Target {
        let now = self.pid.map(Target::read);
        now.filter(|now| now.start_time.is_some() && now.start_time == self.start_time)
            .unwrap_or_else(|| self.clone())
    }

    /// Adds the inode of the program's file. That may wait for a server of NFS.
    pub fn find_inode(&mut self) {
        if let (None, Some(_), Some(pid)) = (self.executable_inode, &self.executable, self.pid) {
            self.executable_inode = executable_of(pid).and_then(|file| Some(Identity::read(file).ok()?.inode));
        }
    }

    /// Sets the program's file, by a handle that was taken of it ([`executable_of`]).
    pub fn set_executable(&mut self, file: &OwnedFd) {
        let path = fs::read_link(fastpath_os::path_of(file)).ok();
        self.executable = path.map(|path| fastpath_os::without_deleted(&path.to_string_lossy()).to_owned());
        self.executable_inode = Identity::read(file).ok().map(|file| file.inode);
    }

    /// Names the process in a message.
    pub fn name(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid} ({})", self.executable.as_deref().unwrap_or("a program")),
            None => "a process".to_owned(),
        }
    }
}

/// Returns the stable word for a daemon's refusal.
pub(crate) fn word_for(refusal: &RequestRefusal) -> &'static str {
    match refusal.code {
        Code::Policy => "forbidden",
        Code::Limit => "limit",
        Code::Denied => "not-permitted",
        Code::Process => "no-process",
        Code::Nothing => "nothing-slow",
        Code::Counter => "counter-distrusted",
        Code::Unsupported => "unsupported",
        Code::Malformed | Code::Version => "malformed",
        Code::Internal | Code::Ok => "failed",
    }
}

/// Takes a handle of the file of a process's program.
pub fn executable_of(pid: i32) -> Option<OwnedFd> {
    foreign::handle(Path::new(&format!("/proc/{pid}/exe"))).ok()
}

impl Requester {
    /// Returns this process.
    pub fn this_process() -> Requester {
        Requester {
            by_uid: nix::unistd::getuid().as_raw(),
            by_pid: std::process::id() as i32,
        }
    }
}

/// The text by which the daemon tells a child who asked.
impl std::fmt::Display for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.by_uid, self.by_pid)
    }
}

impl FromStr for Requester {
    type Err = String;

    fn from_str(text: &str) -> Result<Requester, String> {
        let numbers = text.split_once(':');
        let parsed = numbers.and_then(|(uid, pid)| Some((uid.parse().ok()?, pid.parse().ok()?)));
        let (by_uid, by_pid) = parsed.ok_or("it is not UID:PID")?;
        Ok(Requester { by_uid, by_pid })
    }
}

impl Record {
    /// Returns the record of a change that was made.
    pub fn done(request: What, by: Requester, target: Target) -> Record {
        let name = target.name();
        let message = match request {
            What::Attach => format!("attached {name}"),
            What::Detach => format!("detached {name}"),
            What::Run => format!("started {name} on the fast path"),
            What::Grant => format!("gave {name} a page"),
            What::Refuse | What::Withdraw => name,
        };
        Record::new(request, DONE, by, target, message)
    }

    /// Returns the record of a refusal, with a stable word for the reason, and a sentence.
    pub fn refused(request: What, result: &str, why: &str, by: Requester, target: Target) -> Record {
        let stays = match request {
            What::Detach => "stays attached",
            _ => "stays on the kernel's path",
        };
        let message = format!("{} {stays}: {why}", target.name());
        Record {
            what: What::Refuse,
            ..Record::new(request, result, by, target, message)
        }
    }

    /// Returns the record of a publisher's news about the clocks of a process, or of all of a daemon's.
    pub fn of_news(news: &News, target: Target) -> Record {
        let word = match news {
            News::ServedAgain => "served-again",
            News::Withdrawn(withdrawal) => match withdrawal.reason {
                Reason::CounterStopped => "counter-stopped",
                Reason::CounterJumped => "counter-jumped",
                Reason::RateImplausible => "rate-implausible",
                Reason::Suspended => "suspended",
                Reason::ClocksourceChanged => "clocksource-changed",
                Reason::Warp => "counters-differ",
                Reason::NewPublisher => "new-publisher",
                Reason::StepMissed => "step-missed",
                Reason::Host(_) | Reason::Unknown(_) => "other",
            },
        };
        let message = match target.pid {
            Some(_) => format!("{}: {news}", target.name()),
            None => news.to_string(),
        };
        Record::new(What::Withdraw, word, Requester::this_process(), target, message)
    }

    fn new(request: What, result: &str, by: Requester, target: Target, message: String) -> Record {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Record {
            schema: SCHEMA,
            time_unix_ms: since.as_millis() as u64,
            what: request,
            request,
            result: result.to_owned(),
            message,
            target,
            by,
            rule: None,
            sites: None,
            stopped_us: None,
            programs: None,
            left_out: None,
        }
    }

    /// Returns the severity (syslog(3)).
    pub(crate) fn priority(&self) -> u32 {
        match self.what {
            What::Withdraw if self.result != "served-again" => 4,
            What::Withdraw | What::Refuse => 5,
            _ => 6,
        }
    }

    /// Writes it to the journal, or as JSON to the system's log if there is no journal. Never waits, and reports no
    /// failure: what is recorded has happened.
    pub fn write(mut self) {
        self.target.find_inode();
        if self.send().is_err() {
            let (priority, pid) = (DAEMON << 3 | self.priority(), std::process::id());
            let _ = send_to(
                DEV_LOG,
                format!("<{priority}>{}[{pid}]: {}", this_program(), self.json()).as_bytes(),
            );
        }
    }

    /// Sends it to the journal, without waiting.
    pub(crate) fn send(&self) -> nix::Result<()> {
        send_to(JOURNAL, &self.journal_entry())
    }

    /// Returns it as JSON on one line.
    pub(crate) fn json(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        fastpath_os::printable_json(&json, is_printable)
    }

    /// Returns the fields in the form of journald's protocol, in which a value may contain any bytes.
    fn journal_entry(&self) -> Vec<u8> {
        let mut entry = Vec::new();
        let mut add = |name: &str, value: &str| {
            entry.extend_from_slice(name.as_bytes());
            entry.push(b'\n');
            entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
            entry.extend_from_slice(value.as_bytes());
            entry.push(b'\n');
        };
        add("MESSAGE", &printable(&self.message));
        add("MESSAGE_ID", MESSAGE_ID);
        add("PRIORITY", &self.priority().to_string());
        add("SYSLOG_FACILITY", &DAEMON.to_string());
        add("SYSLOG_IDENTIFIER", this_program());
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "message") {
                let name = format!("FASTPATH_{}", name.to_uppercase());
                match value {
                    Value::Null => {}
                    Value::String(text) => add(&name, text),
                    other => add(&name, &other.to_string()),
                }
            }
        }
        entry
    }
}

fn this_program() -> &'static str {
    let name = std::env::current_exe().unwrap_or_default();
    match name.file_name().is_some_and(|name| name == "fastpathd") {
        true => "fastpathd",
        false => "fastpath",
    }
}

/// Sends a datagram without waiting: a log that is full, or stopped, gets nothing. Makes only such calls as a client of
/// the daemon does: this process may have inherited a seccomp filter.
fn send_to(path: &str, bytes: &[u8]) -> nix::Result<()> {
    let (socket, address) = (datagram_socket()?, UnixAddr::new(path)?);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(bytes)], &[], flags, Some(&address)).map(drop)
}

fn datagram_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Datagram, flags, None)
}

/// Checks whether the journal would take a record now.
pub(crate) fn journal_takes_records() -> Result<(), String> {
    let refused = |why: &dyn std::fmt::Display| format!("{JOURNAL}: {why}");
    let socket = datagram_socket().map_err(|e| refused(&e.desc()))?;
    let connected = UnixAddr::new(JOURNAL).and_then(|address| connect(socket.as_raw_fd(), &address));
    connected.map_err(|e| refused(&e.desc()))?;
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(1) if fds[0].revents() == Some(PollFlags::POLLOUT) => Ok(()),
        Ok(_) => Err(refused(&"its queue is full")),
        Err(e) => Err(refused(&e)),
    }
}

static COUNTS: Mutex<BTreeMap<(What, String), u64>> = Mutex::new(BTreeMap::new());

/// Counts a change or a refusal for the daemon's status.
pub(crate) fn count(what: What, result: &str) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry((what, result.to_owned())).or_default() += 1;
}

/// Returns the counts.
pub(crate) fn counts() -> Vec<Intervention> {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let word = |what: &What| serde_json::to_value(what).ok()?.as_str().map(str::to_owned);
    let each = |((what, result), count): (&(What, String), &u64)| Intervention {
        what: word(what).unwrap_or_default(),
        result: result.clone(),
        count: *count,
    };
    counts.iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn record(executable: &str) -> Record {
        let target = Target {
            pid: Some(7),
            executable: Some(executable.into()),
            ..Target::default()
        };
        let by = Requester {
            by_uid: 1000,
            by_pid: 8,
        };
        Record::refused(What::Attach, "forbidden", "policy.toml says never", by, target)
    }

    /// Returns the fields of an entry.
    fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
            let (name, rest) = (&entry[..end], &entry[end + 1..]);
            let (size, rest) = rest.split_first_chunk::<8>().expect("a size");
            let (value, rest) = rest.split_at(u64::from_le_bytes(*size) as usize);
            let [name, value] = [name, value].map(|text| String::from_utf8(text.to_vec()).unwrap());
            fields.insert(name, value);
            entry = rest.strip_prefix(b"\n").expect("an end");
        }
        fields
    }

    #[test]
    fn a_program_of_any_name_is_one_field_of_the_journal_and_one_line_of_json() {
        let name = "/tmp/a\nFASTPATH_UID=0\n\u{1b}[31m\u{202e}\"";
        let record = record(name);
        let entry = fields(&record.journal_entry());
        assert_eq!(entry["FASTPATH_EXECUTABLE"], name);
        assert!(!entry.contains_key("FASTPATH_UID"), "{entry:?}");
        assert_eq!(entry["MESSAGE"].lines().count(), 1);
        let line = record.json();
        assert!(line.chars().all(is_printable), "{line}");
        let json: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["executable"], name);
    }

    #[test]
    fn the_journal_and_the_line_of_json_have_the_same_fields() {
        let record = Record {
            rule: Some(2),
            ..record("/bin/a")
        };
        let json: Value = serde_json::from_str(&record.json()).unwrap();
        let mut entry = fields(&record.journal_entry());
        for (name, value) in json.as_object().unwrap().iter().filter(|(_, value)| !value.is_null()) {
            let name = match &**name {
                "message" => "MESSAGE".to_owned(),
                name => format!("FASTPATH_{}", name.to_uppercase()),
            };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(entry.remove(&name), Some(text), "{name}");
        }
        let rest: Vec<_> = entry.keys().map(String::as_str).collect();
        assert_eq!(rest, ["MESSAGE_ID", "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER"]);
        let page = include_str!("../../../docs/records.md");
        assert!(page.contains(MESSAGE_ID));
        for name in json.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn a_log_that_is_full_or_missing_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let path = path.to_str().unwrap();
        assert!(send_to(path, b"missing").is_err());
        let listener = UnixDatagram::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        // More than any queue holds.
        let sent = (0..5_000).filter(|_| send_to(path, b"a record").is_ok()).count();
        assert!((1..5_000).contains(&sent), "{sent}");
        let mut bytes = [0; 64];
        let length = listener.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"a record");
    }

    #[test]
    fn who_asked_arrives_as_it_was_sent() {
        let by = Requester::this_process();
        assert_eq!(by.to_string().parse(), Ok(by));
        for wrong in ["", "1", "1:", "a:1", "1:2:3"] {
            assert!(wrong.parse::<Requester>().is_err(), "{wrong}");
        }
    }
}
