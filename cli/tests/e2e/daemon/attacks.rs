//! Parts of the programs of hostile clients.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Place;
use crate::common::{NOBODY, helper_program, skip};
use crate::common::{Running, needs_root, start, tool, wait_until};

/// Returns `None`, and skips the test, if the attacks are not possible here.
pub fn wanted() -> Option<()> {
    needs_root()?;
    tool("python3").map(drop)
}

/// The beginning of a client's program.
const CLIENT: &str = r#"
import array, ctypes, fcntl, os, random, resource, select, signal, socket, struct, sys, time
MAGIC = int.from_bytes(b"fastpath", "little")
PAGE, PREPARE, STATUS = 1, 2, 3
WITH_PROCESS, WITH_MAILBOX = 1, 2
def connect():
    """Connects as clients of fastpathd do, without waiting in connect(2)."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(100)
    while True:
        try:
            s.connect(sys.argv[1])
            return s
        except BlockingIOError:
            time.sleep(0.0002)
def packet_of(operation, flags=0, clocks=62, *words):
    words = words or (0, 0, 0x7f0000000000, 0x7effffff0000)
    return struct.pack("<QIIIIIIQQQQ", MAGIC, 1, operation, flags, words[0], clocks, *words[1:], 0, 0)
def send(s, operation, fds=[], flags=0):
    send_packet(s, packet_of(operation, flags), fds)
def send_packet(s, packet, fds=[]):
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
def listening():
    """A socket that listens."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener
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

/// A process with memory that it must provide itself by userfaultfd(2), and never does: a reader waits for ever. The
/// mapping has this name in /proc/PID/maps.
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
pub struct Traps {
    /// For [`trap`].
    pub python: String,
    /// For [`fuse_trap`].
    pub fuse: String,
}

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
