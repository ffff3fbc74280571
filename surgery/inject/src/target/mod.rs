//! Checks of a program before it starts: whether it may be served.

pub(crate) mod credentials;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod permissions;
pub(crate) mod program;
pub(crate) mod seccomp_filter;
pub(crate) mod sites;
pub(crate) mod stack;
pub(crate) mod tracee;
pub(crate) mod view;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fastpath_image::Isa;
use fastpath_os::foreign::{self, Identity};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::abi;
use crate::abi::host::WAITS_ON_FUTEX;
use crate::error::{Error, Result};
use crate::target::credentials::Credentials;
pub use view::View;

/// Returns why the kernel does not let this process suspend or read the seccomp filters of others, as far as this
/// process is the reason (ptrace(2), PTRACE_O_SUSPEND_SECCOMP and PTRACE_SECCOMP_GET_FILTER).
pub fn why_filters_stay() -> Option<String> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let own = fastpath_os::Status::read("thread-self").ok()?;
    if own.number::<u32>("Seccomp") > Some(0) {
        let why = "fastpath has a seccomp filter itself, of its service or container, and can suspend no other";
        return Some(why.into());
    }
    let lacks = own.set("CapEff").is_some_and(|has| has & CAP_SYS_ADMIN == 0);
    lacks.then(|| "PTRACE_O_SUSPEND_SECCOMP takes CAP_SYS_ADMIN".into())
}

/// Flags for a handle only.
pub const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// Limit of `#!` lines that are followed; the kernel follows five (BINPRM_BUF_SIZE, fs/exec.c).
const MOST_INTERPRETERS: u32 = 5;

/// Programs that were found to be ones that may be served, with the rights of those that may read them.
#[derive(Default)]
pub struct Allowed(Mutex<HashMap<(Identity, Credentials), Isa>>);

impl Allowed {
    const MOST: usize = 4096;
    /// A file system may state the times of two changes that are nearer to each other as the same.
    const LONGEST_TICK_NS: i128 = 3_000_000_000;

    fn get(&self, file: Identity, who: &Credentials) -> Option<Isa> {
        let programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        programs.get(&(file, who.clone())).copied()
    }

    /// Adds a program, unless its file may change without another time of its last change.
    fn add(&self, file: Identity, who: &Credentials, isa: Isa) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if (now.as_nanos() as i128) < file.changed_ns + Allowed::LONGEST_TICK_NS {
            return;
        }
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if programs.len() >= Allowed::MOST {
            programs.clear();
        }
        programs.insert((file, who.clone()), isa);
    }
}

impl View {
    /// Refuses a program that must be left alone: setuid, setgid or with file capabilities (tracing its exec would
    /// remove its privileges, ptrace(2)), unreadable, or for an ISA that is not served. Follows `#!` lines. The result
    /// only holds while the file is not replaced; after that the program runs untouched or without its privileges,
    /// never with more. A file that was `allowed` to a process with the same rights is not opened again.
    pub fn may_serve(&self, path: &OsStr, allowed: Option<(&Allowed, &Credentials)>) -> Result<Isa> {
        let mut path = path.to_owned();
        for _ in 0..MOST_INTERPRETERS {
            let handle = self.open(&path)?;
            let known = allowed.map(|(programs, who)| Ok::<_, io::Error>((programs, who, Identity::read(&handle)?)));
            let known = known.transpose().map_err(|e| Error::io(path.to_string_lossy(), e))?;
            if let Some(isa) = known.and_then(|(programs, who, file)| programs.get(file, who)) {
                return Ok(isa);
            }
            let by_fd = fastpath_os::path_of(&handle);
            let name = path.to_string_lossy().into_owned();
            let mut file = foreign::open(&handle).map_err(|e| Error::io(&name, e))?;
            let meta = file.metadata().map_err(|e| Error::io(&name, e))?;
            if meta.mode() & 0o111 == 0 {
                return Err(Error::Unsupported(format!("{name} is not executable")));
            }
            if meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 || has_capabilities(&by_fd) {
                return Err(Error::Unsupported(format!(
                    "{name} runs with other privileges than its caller's"
                )));
            }
            let mut head = [0; 256];
            let mut length = 0;
            while length < head.len() {
                match file.read(&mut head[length..]).map_err(|e| Error::io(&name, e))? {
                    0 => break,
                    n => length += n,
                }
            }
            match &head[..length] {
                // e_ident: magic, class; e_machine, little-endian (elf(5)).
                h if h.len() >= 20 && h.starts_with(b"\x7fELF") => {
                    let isa = Isa::of_elf(u16::from_le_bytes([h[18], h[19]]), h[4] == 2);
                    let abi = isa.and_then(abi::of_isa).ok_or_else(|| {
                        Error::Unsupported(format!("{name} is a program for another instruction set"))
                    })?;
                    abi::of_this_build(abi)?;
                    if let Some((programs, who, file)) = known {
                        programs.add(file, who, abi.isa());
                    }
                    return Ok(abi.isa());
                }
                h if h.starts_with(b"#!") => {
                    let line = h[2..].split(|b| *b == b'\n').next().unwrap_or_default();
                    let word = line
                        .split(|b| b" \t".contains(b))
                        .find(|w| !w.is_empty())
                        .unwrap_or_default();
                    path = OsStr::from_bytes(word).to_owned();
                }
                _ => {
                    return Err(Error::Unsupported(format!(
                        "{name} is not a program that Linux starts by itself"
                    )));
                }
            }
        }
        Err(Error::Unsupported(format!(
            "{} has too many interpreters",
            path.to_string_lossy()
        )))
    }
}

/// Opens a path as a handle only (O_PATH).
pub fn open_path(path: &str) -> Result<OwnedFd> {
    open(path, HANDLE, Mode::empty()).map_err(|e| Error::io(path, e.into()))
}

fn has_capabilities(path: &str) -> bool {
    rustix::fs::getxattr(path, c"security.capability", &mut [0; 0]).is_ok_and(|size| size > 0)
}

/// Fields of /proc/PID/status that decide whether a process may be changed (proc_pid_status(5)).
#[derive(Debug, PartialEq, Eq, Clone, Copy, Default)]
pub struct ThreadStatus {
    /// Process that it is a thread of.
    pub group: i32,
    /// Process id in its own, innermost PID namespace.
    pub inner_pid: i32,
    /// Whether that namespace is an inner one of this process's.
    pub is_nested: bool,
    /// PID of its tracer; 0: none.
    pub tracer: i32,
    /// Whether it blocks SIGSYS, and the process has a handler for it.
    pub blocks_handled_sigsys: bool,
    /// Number of installed seccomp filters. Kernels before 5.9 do not count them: then 1 for any.
    pub filters: u32,
    /// Whether it is in seccomp's strict mode, which also forbids it the counter.
    pub is_strict: bool,
}

impl ThreadStatus {
    /// Reads the status of a process or thread.
    pub fn read(pid: &str) -> Result<ThreadStatus> {
        Ok(ThreadStatus::from(&read_status(pid)?))
    }
}

/// Reads all that /proc shows of the status of a process or thread.
pub fn read_status(pid: impl std::fmt::Display) -> Result<fastpath_os::Status> {
    let path = format!("/proc/{pid}/status");
    fastpath_os::Status::read(pid).map_err(|e| Error::io(path, e))
}

impl From<&fastpath_os::Status> for ThreadStatus {
    fn from(status: &fastpath_os::Status) -> ThreadStatus {
        let number = |name| status.number::<u32>(name);
        let has_sigsys = |name| status.set(name).is_some_and(|set| set >> (libc::SIGSYS - 1) & 1 == 1);
        let pids: Vec<i32> = status.numbers("NSpid").unwrap_or_default();
        ThreadStatus {
            blocks_handled_sigsys: has_sigsys("SigBlk") && has_sigsys("SigCgt"),
            group: status.number("Tgid").unwrap_or(0),
            inner_pid: pids.last().copied().or(status.number("Pid")).unwrap_or(0),
            is_nested: pids.len() > 1,
            tracer: status.number("TracerPid").unwrap_or(0),
            filters: number("Seccomp_filters")
                .unwrap_or(0)
                .max(u32::from(number("Seccomp").unwrap_or(0) > 0)),
            is_strict: number("Seccomp") == Some(libc::SECCOMP_MODE_STRICT),
        }
    }
}

/// Refuses if /proc is not mounted, or shows another PID namespace than this process's: a number then means one process
/// there, and another one to ptrace(2).
pub fn proc_shows_this_namespace() -> Result<()> {
    let why = match ThreadStatus::read("self") {
        Ok(own) if !own.is_nested => return Ok(()),
        Err(_) if !std::path::Path::new("/proc/stat").exists() => {
            "/proc is not mounted, and processes are seen there: mount -t proc proc /proc"
        }
        _ => {
            "/proc shows the processes of another PID namespace; mount this one's: mount -t proc proc /proc, or unshare --mount-proc"
        }
    };
    Err(Error::Unsupported(why.into()))
}

/// Returns whether a thread waits on the futex at `address` (proc_pid_syscall(5)). `None`: this kernel does not show the
/// calls of threads (it takes CONFIG_HAVE_ARCH_TRACEHOOK, which User Mode Linux has not). The error: this process may not
/// look at the thread.
pub fn waits_on_futex(tid: i32, address: u64) -> io::Result<Option<bool>> {
    match fastpath_os::record(tid, "syscall") {
        Ok(text) => Ok(Some(futex_in(&text) == Some(address))),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e),
        Err(_) => Ok(std::path::Path::new("/proc/self/syscall").exists().then_some(false)),
    }
}

/// Returns the address of the futex that a thread waits on; `None` if it does not, or the kernel does not show it.
pub fn futex_of(tid: i32) -> Option<u64> {
    futex_in(&fastpath_os::record(tid, "syscall").ok()?)
}

/// Returns whether the kernel's function in which a thread waits is one of a futex (proc_pid_wchan(5)).
pub fn waits_on_some_futex(tid: i32) -> bool {
    fastpath_os::wchan(tid).starts_with("futex")
}

fn futex_in(text: &str) -> Option<u64> {
    let (number, address) = fastpath_os::parse_syscall(text)?;
    WAITS_ON_FUTEX.contains(&number).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_waits_on_this_very_futex_is_taken_for_one() {
        let futex = libc::SYS_futex;
        let waiting = format!("{futex} 0x7f00c040 0x0 0x3 0x7ffd10 0x0 0x0 0x7ffd00 0x7f0000\n");
        assert_eq!(futex_in(&waiting), Some(0x7f00c040));
        for other in [
            "running\n",
            "-1 0x7f00c040 0x7f0000\n",
            "1 0x7f00c040 0x0 0x3 0x0 0x0 0x0 0x0 0x0\n",
            "",
        ] {
            assert_ne!(futex_in(other), Some(0x7f00c040), "{other}");
        }
    }

    fn serve(path: &str) -> Result<Isa> {
        View::read("self", libc::AT_FDCWD)
            .unwrap()
            .may_serve(OsStr::new(path), None)
    }

    #[test]
    fn a_program_that_was_allowed_is_allowed_only_as_long_as_its_file_is_the_same_and_to_the_same_user() {
        let program = std::env::temp_dir().join(format!("fastpath-allowed-{}", std::process::id()));
        std::fs::copy("/bin/sh", &program).unwrap();
        let file = || Identity::of_link(&program).unwrap();
        let own = Credentials::from_status(&fastpath_os::Status::read("thread-self").unwrap()).unwrap();
        let allowed = Allowed::default();
        let serve = || {
            let view = View::read("self", libc::AT_FDCWD).unwrap();
            view.may_serve(program.as_os_str(), Some((&allowed, &own)))
        };
        let isa = serve().unwrap();
        assert_eq!(allowed.get(file(), &own), None, "it has just been written");
        let mut before = file();
        before.changed_ns -= Allowed::LONGEST_TICK_NS;
        allowed.add(before, &own, isa);
        assert_eq!(allowed.get(before, &own), Some(isa));
        assert_eq!(allowed.get(before, &Credentials::default()), None);
        assert_eq!(allowed.get(file(), &own), None);
        // The file itself is not looked at again.
        allowed.0.lock().unwrap().insert((file(), own.clone()), Isa::I386);
        assert_eq!(serve().unwrap(), Isa::I386);
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
        let refusal = serve().unwrap_err().to_string();
        std::fs::remove_file(program).unwrap();
        assert!(refusal.contains("privileges"), "{refusal}");
    }

    #[test]
    fn an_ordinary_program_and_a_script_may_be_served() {
        serve("/bin/sh").unwrap();
        let dir = std::env::temp_dir().join(format!("fastpath-target-{}", std::process::id()));
        std::fs::write(&dir, "#! /bin/sh -e\ntrue\n").unwrap();
        assert!(
            serve(dir.to_str().unwrap())
                .unwrap_err()
                .to_string()
                .contains("not executable")
        );
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        serve(dir.to_str().unwrap()).unwrap();
        std::fs::write(&dir, "#!/nonexistent\n").unwrap();
        assert!(serve(dir.to_str().unwrap()).is_err());
        std::fs::write(&dir, format!("#!{}\n", dir.display())).unwrap();
        assert!(
            serve(dir.to_str().unwrap())
                .unwrap_err()
                .to_string()
                .contains("too many interpreters")
        );
        std::fs::remove_file(dir).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let fifo = std::env::temp_dir().join(format!("fastpath-fifo-{}", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o755)).unwrap();
        let refusals = [fifo.to_str().unwrap(), "/dev/null", "/"].map(|path| serve(path).unwrap_err().to_string());
        std::fs::remove_file(fifo).unwrap();
        for refusal in refusals {
            assert!(refusal.contains("not a regular file"), "{refusal}");
        }
    }

    #[test]
    fn a_setuid_program_is_left_alone() {
        let program = std::env::temp_dir().join(format!("fastpath-setuid-{}", std::process::id()));
        std::fs::copy("/bin/sh", &program).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
        let error = serve(program.to_str().unwrap()).unwrap_err().to_string();
        std::fs::remove_file(program).unwrap();
        assert!(error.contains("privileges"), "{error}");
    }

    #[test]
    fn status_reads_the_innermost_pid() {
        let parse = |text: &str| ThreadStatus::from(&fastpath_os::Status::parse(text));
        let text = "Name:\tx\nTgid:\t6\nPid:\t7\nTracerPid:\t3\nNSpid:\t7\t1\nSigBlk:\t0000000040000000\nSigCgt:\t0000000040000000\n\
                    Seccomp:\t2\nSeccomp_filters:\t4\n";
        assert_eq!(
            parse(text),
            ThreadStatus {
                blocks_handled_sigsys: true,
                group: 6,
                inner_pid: 1,
                is_nested: true,
                tracer: 3,
                filters: 4,
                is_strict: false
            }
        );
        assert!(parse("Seccomp:\t1\nSeccomp_filters:\t0\n").is_strict);
        assert_eq!(
            parse("Pid:\t7\nSigBlk:\t0000000040000000\nSigCgt:\t0000000000000000\nSeccomp:\t2\n"),
            ThreadStatus {
                blocks_handled_sigsys: false,
                group: 0,
                inner_pid: 7,
                is_nested: false,
                tracer: 0,
                filters: 1,
                is_strict: false
            }
        );
    }
}
