//! Attacks by hostile clients: parts of their programs, and complete attacks that last.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Place;
#[cfg(target_arch = "x86_64")]
use crate::common::helper_program;
use crate::common::{NOBODY, Running, needs_root, skip, start, tool, wait_until};

/// Returns `None`, and skips the test, if the attacks are not possible here.
pub fn wanted() -> Option<()> {
    needs_root()?;
    tool("python3").map(drop)
}

/// The beginning of a client's program.
const CLIENT: &str = r#"
import array, ctypes, fcntl, os, resource, select, signal, socket, struct, sys, time
MAGIC = int.from_bytes(b"fastpath", "little")
PAGE, PREPARE, STATUS, WITHDRAW = 1, 2, 3, 4
WITH_PROCESS, WITH_MAILBOX = 1, 2
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(100)
    s.connect(sys.argv[1])
    return s
def send(s, operation, fds=[], flags=0):
    packet = struct.pack("<QIIIIIIQQQQ", MAGIC, 1, operation, flags, 0, 62, 0, 0x7f0000000000, 0x7effffff0000, 0, 0)
    s.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
def receive(s):
    """The error, the text and the descriptors of an answer."""
    answer, control, _, _ = s.recvmsg(1 << 18, 64)
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data[:len(data) // 4 * 4])
    return struct.unpack_from("<I", answer, 16)[0], answer[496:], list(fds)
def sealed(seals):
    """A memfd of a page, opened so that the kernel counts the processes that have it open."""
    made = os.memfd_create("mailbox", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 4096)
    fcntl.fcntl(made, 1033, seals)  # F_ADD_SEALS
    opened = os.open(f"/proc/self/fd/{made}", os.O_RDWR)
    os.close(made)
    return opened
def leased():
    """A mailbox whose opening waits until a lease on it is given up."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    memory = sealed(2 | 4)  # F_SEAL_SHRINK, F_SEAL_GROW
    fcntl.fcntl(memory, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return memory
def many_descriptors():
    """Raises the limit of this process's descriptors, and returns it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
def epoll_of(count):
    """An epoll instance whose fdinfo has a line for each of so many descriptors."""
    watched, _ = os.pipe()
    epoll = select.epoll()
    for _ in range(count):
        epoll.register(os.dup(watched), select.EPOLLIN)
    return epoll.fileno()
def lingering(listener, kept):
    """A connection whose last close waits for the other end, which does not read."""
    lingers = socket.create_connection(listener.getsockname())
    kept.append(listener.accept())
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    lingers.setblocking(False)
    try:
        while True:
            lingers.send(bytes(1 << 16))
    except BlockingIOError:
        return lingers
def enter_user_namespace():
    """Becomes root of a user namespace as soon as its map has been written."""
    libc = ctypes.CDLL(None)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        say("no namespace")
        os._exit(0)
    say("unshared")
    while not open("/proc/self/uid_map").read():
        time.sleep(0.01)
def say(*what):
    print(*what, flush=True)
"#;

/// Starts a program that begins with [`CLIENT`].
pub fn client(place: &Place, uid: u32, script: &str) -> Running {
    let mut command = Command::new("python3");
    command.args(["-I", "-c", &format!("{CLIENT}{script}")]);
    command.arg(place.socket()).uid(uid).gid(uid);
    start(command)
}

#[track_caller]
pub fn wait_until_says(client: &Running, word: &str) {
    wait_until(word, || client.out_so_far().contains(word));
}

/// A client with subordinate users (subuid(5)), whose program begins with [`CLIENT`] and calls `enter_user_namespace`.
/// Returns `None`, and skips the test, if users may have no namespace.
#[track_caller]
pub fn client_with_users(place: &Place, script: &str) -> Option<Running> {
    let client = client(place, NOBODY, script);
    wait_until("its namespace", || !client.out_so_far().is_empty());
    if client.out_so_far().contains("no namespace") {
        skip("no user namespaces for users here");
        return None;
    }
    let map = format!("/proc/{}/uid_map", client.pid().0);
    std::fs::write(&map, "0 100000 65536\n").expect(&map);
    Some(client)
}

/// Runs for longer than the test: garbage, partial requests, unrequested descriptors, connections that send nothing,
/// requests whose answers are never read, odd requests, and as many valid requests as possible.
const HOSTILE: &str = r#"
import array, os, random, socket, struct, sys, time
path, kind = sys.argv[1], sys.argv[2]
request = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
prepare = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, 2, 0, 0, 62, 0, 0x7f0000000000, 0x7effffff0000, 0, 0)
kept = []
end = time.monotonic() + 600
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
own = os.pidfd_open(os.getpid())
print("begun", flush=True)
while time.monotonic() < end:
    try:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(1)
        s.connect(path)
        if kind == "garbage":
            for _ in range(20):
                s.send(random.randbytes(random.choice([0, 1, 8, 63, 64, 65, 4000])) or b"x")
        elif kind == "half":
            s.send(request[:random.randrange(1, 64)])
            s.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        elif kind == "silent":
            kept.append(s)
            kept = kept[-500:]
        elif kind == "deaf":
            kept.append(s)
            kept = kept[-500:]
            while True:
                s.send(request)
        elif kind == "odd":
            # The fields that are checked first are well-formed; the others are random.
            for _ in range(20):
                word = lambda: random.choice([0, 1, 2, 3, 0xffffffff, random.getrandbits(32)])
                place = lambda: random.choice([0, 4096, 0x7ffff7fc1000, 2**56 - 4096, 2**64 - 4096, random.getrandbits(64)])
                odd = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, random.randrange(6), random.randrange(5),
                                  word(), random.choice([62, word()]), random.choice([0, 0, word()]), place(), place(), 0, 0)
                given = random.sample(files + [own], random.randrange(4))
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))] if given else []
                s.sendmsg([odd], rights)
                s.recvmsg(496, 64)
        elif kind == "greedy":
            while True:
                s.send(prepare)
                s.recvmsg(496, 64)
    except OSError:
        pass
"#;

/// Starts one of these programs.
pub fn hostile(place: &Place, kind: &str) -> Running {
    let mut command = Command::new("python3");
    let socket = place.socket();
    command.args(["-I", "-c", HOSTILE, socket.to_str().expect("UTF-8"), kind]);
    command.uid(NOBODY).gid(NOBODY);
    start(command)
}

/// A process with memory that it must provide itself by userfaultfd(2), and never does: a reader waits for ever. The
/// mapping has this name in /proc/PID/maps.
#[cfg(target_arch = "x86_64")]
pub fn trap(program: &str, name: &str) -> Option<Running> {
    let script = format!(
        r#"{CLIENT}
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ulong
libc.mmap.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SIZE = 1 << 20
memory = os.memfd_create("{name}")
os.ftruncate(memory, SIZE)
at = libc.mmap(0, SIZE, 1 | 4, 1, memory, 0)
handler = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)  # userfaultfd
if handler < 0:
    say("none")
    os._exit(0)
fcntl.ioctl(handler, 0xc018aa3f, bytearray(struct.pack("<QQQ", 0xaa, 0, 0)))  # UFFDIO_API
fcntl.ioctl(handler, 0xc020aa00, bytearray(struct.pack("<QQQQ", at, SIZE, 1, 0)))  # UFFDIO_REGISTER, missing
libc.prctl(15, b"\x1b[31mred", 0, 0, 0)  # PR_SET_NAME
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
say("ready")
time.sleep(1000)
"#
    );
    let mut command = Command::new(program);
    command.args(["-I", "-c", &script]);
    let running = start(command);
    wait_until("the trap", || !running.out_so_far().is_empty());
    if running.out_so_far().contains("none") {
        skip("no userfaultfd here");
        return None;
    }
    Some(running)
}

/// A process of this user that maps a file of FUSE, which it serves itself and never answers; with a second name, it
/// maps that at this offset. It prints "touched" when its memory is read, and "opened" when its file is opened.
#[cfg(target_arch = "x86_64")]
pub fn fuse_trap(program: &str, user: u32, name: &str, other: Option<(u64, &str)>) -> Option<Running> {
    let mut command = Command::new(program);
    command.args([&user.to_string(), name]);
    if let Some((offset, name)) = other {
        command.args([&offset.to_string(), name]);
    }
    let running = start(command);
    let is_ready = || running.out_so_far().contains("ready");
    wait_until("the trap", || is_ready() || !running.pid().exists());
    if !is_ready() {
        skip(format_args!("no FUSE here: {}", running.err_so_far().trim()));
        return None;
    }
    Some(running)
}

/// Copies of the traps in this place, which a policy can name.
#[cfg(target_arch = "x86_64")]
pub struct Traps {
    /// For [`trap`].
    pub python: String,
    /// For [`fuse_trap`].
    pub fuse: String,
}

#[cfg(target_arch = "x86_64")]
impl Traps {
    /// Returns `None`, and skips the test, if they cannot be built.
    pub fn install(place: &Place) -> Option<Traps> {
        let python = std::fs::canonicalize("/usr/bin/python3").expect("python3");
        let fuse = helper_program("fuse-mapped", "cc", &[])?;
        let copy = |from: &std::path::Path, name: &str| crate::common::install(from, place.0.path().join(name), 0o755);
        Some(Traps {
            python: copy(&python, "trapped"),
            fuse: copy(fuse.as_ref(), "fuse-mapped"),
        })
    }
}
