//! A process, as /proc shows it to this one.

use super::facts::{Process, TimeNamespace, VdsoKind};
use super::root::{Root, Unseen, rights_to_examine};
use super::{calls_in_files, page};
use fastpath_image::Isa;
use fastpath_measure::host::parse_timens_offsets;
use fastpath_os::{Mapping, Stat, foreign};
use fastpath_tools::audit::CounterRead;
use fastpath_tools::program::{self, Library};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Most files of a process that are looked at: Chromium and IDEs map some 500.
const MOST_FILES: usize = 4096;
/// Most bytes of a C library that are searched for its version: glibc has 2 MiB.
const MOST_LIBRARY: u64 = 16 << 20;
/// Most bytes of the file with Java's version: it has 2 KiB.
const MOST_RELEASE: u64 = 64 << 10;
/// Most threads that are looked at.
const MOST_THREADS: usize = 4096;
/// Time for a process. Its program and libraries are searched, of which a browser has 500 MiB.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Examines another process in a worker: its files and its memory may be provided by the process itself, which may never
/// answer.
pub(super) fn look_aside(root: &Root, pid: u32) -> Result<Process, String> {
    let look = |pid: i32| {
        root.take_unseen();
        let looked = look(root, &pid.to_string());
        let mapped = looked.iter().flat_map(|process| &process.counter_reads);
        let mapped: Vec<_> = mapped.map(|reads| &reads.mapped).collect();
        serde_json::to_vec(&(&looked, mapped, root.take_unseen())).unwrap_or_default()
    };
    let looked = fastpath_os::look_at_all(&[pid.cast_signed()], TIMEOUT, look);
    let json = looked.into_iter().find_map(|(_, json)| json);
    let looked = json.and_then(|json| serde_json::from_slice(&json).ok());
    let Some((looked, mapped, unseen)): Option<Looked> = looked else {
        return Err(format!(
            "process {pid} cannot be examined: reads of its memory or files do not return (the process itself may provide them)"
        ));
    };
    root.add_unseen(unseen);
    let mut process = looked?;
    for (reads, mapped) in process.counter_reads.iter_mut().zip(mapped) {
        reads.mapped = mapped;
    }
    Ok(process)
}

/// What a worker found: the process, the places of its reads of the counter, and what could not be seen.
type Looked = (Result<Process, String>, Vec<Vec<(u64, CounterRead)>>, Vec<Unseen>);

/// Examines a process: a number, or `self`. The error says why nothing of it can be seen.
pub(super) fn look(root: &Root, pid: &str) -> Result<Process, String> {
    let directory = format!("/proc/{pid}");
    let status = root
        .text(&format!("{directory}/status"))
        .map_err(|error| absent(root, pid, &error))?;
    let status = fastpath_os::Status::parse(status);
    let state = status.field("State").and_then(|state| state.chars().next());
    let mut process = Process {
        pid: status.number("Pid").unwrap_or(0),
        name: status.field("Name").map(str::to_owned),
        state,
        first_thread_ended: state == Some('Z') && status.number("Threads").is_some_and(|threads: u32| threads > 1),
        // A kernel thread has no memory of its own, and a zombie no longer has any.
        is_kernel_thread: status.field("VmSize").is_none() && !matches!(state, Some('Z' | 'X') | None),
        seccomp: status.number("Seccomp"),
        seccomp_filters: status.number("Seccomp_filters"),
        no_new_privs: status.number("NoNewPrivs").map(|flag: u32| flag != 0),
        tracer_pid: status.number("TracerPid"),
        ..Process::default()
    };
    if process.is_kernel_thread || matches!(state, Some('Z' | 'X')) {
        return Ok(process);
    }
    process.time_namespace = time_namespace(root, &directory);
    if Isa::HOST.facts().counter.trapped.is_some() {
        process.cpus_of_threads = cpus_of_threads(root, &directory);
    }
    look_at_program(root, &directory, &mut process);
    look_at_memory(root, &directory, pid, &mut process);
    if pid == "self" && root.is_host() && !was_given_vdso() {
        process.vdso = Some(VdsoKind::None);
    }
    Ok(process)
}

/// Returns the CPU on which each thread ran last.
fn cpus_of_threads(root: &Root, directory: &str) -> Vec<usize> {
    /// Index of `processor` (proc_pid_stat(5)) behind the name.
    const PROCESSOR: usize = 39 - 3;
    let threads = std::fs::read_dir(root.path_of(&format!("{directory}/task")));
    let cpu = |thread: std::fs::DirEntry| {
        let stat = root.text(&format!("{directory}/task/{}/stat", thread.file_name().display()));
        Stat::fields(&stat.ok()?)?.get(PROCESSOR)?.parse().ok()
    };
    let threads = threads.into_iter().flatten().flatten().take(MOST_THREADS);
    threads.filter_map(cpu).collect()
}

/// Reads this process's own auxiliary vector. /proc shows the vector as the kernel wrote it, but the program that
/// starts another one can hide the vDSO from it.
fn was_given_vdso() -> bool {
    // SAFETY: getauxval only reads.
    unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) != 0 }
}

/// Returns what this process knows of itself if /proc is not available.
pub(super) fn unseen_self() -> Process {
    Process {
        pid: std::process::id(),
        word_bits: Some(usize::BITS as u8),
        isa: Some(std::env::consts::ARCH.to_owned()),
        vdso: (!was_given_vdso()).then_some(VdsoKind::None),
        ..Process::default()
    }
}

fn absent(root: &Root, pid: &str, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return format!("process {pid} cannot be seen: /proc/{pid}/status: {error}");
    }
    if root.text("/proc/self/status").is_err() {
        return format!("process {pid} cannot be seen: /proc is not mounted here");
    }
    let exists = pid.parse().is_ok_and(|pid: i32| {
        // SAFETY: signal 0 is not sent; the call only reports whether a signal could be sent.
        let answer = unsafe { libc::kill(pid, 0) };
        root.is_host() && (answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
    });
    if exists {
        return format!(
            "process {pid} exists, but /proc hides it (mounted with hidepid): run doctor as its user, or as root"
        );
    }
    format!("there is no process {pid}")
}

fn look_at_program(root: &Root, directory: &str, process: &mut Process) {
    let file = format!("{directory}/exe");
    let opened = root.link(&file).ok().map(|name| process.program = Some(name));
    match foreign::handle(&root.path_of(&file)).and_then(foreign::open) {
        Ok(program) => {
            let Some(program) = program::read(program) else { return };
            process.word_bits = Some(program.word_bits);
            process.isa = Some(program.isa);
            process.is_static = Some(program.is_static);
            process.go = program.go;
            process.libc = program.libc;
            process.asks_for_vdso = program.asks_for_vdso;
        }
        // A process that has no name either is reported with its mappings.
        Err(error) if opened.is_some() => root.miss("the process's program", &file, &error, &rights_to_examine()),
        Err(_) => {}
    }
}

fn look_at_memory(root: &Root, directory: &str, pid: &str, process: &mut Process) {
    let file = format!("{directory}/maps");
    let Some(text) = root.expect(
        "the process's memory map, program and namespaces",
        &file,
        &rights_to_examine(),
    ) else {
        return;
    };
    let maps = fastpath_os::maps::parse(&text);
    let named = |name: &str| maps.iter().find(|mapping| mapping.name == name);
    process.has_kernel_vdso = Some(named("[vdso]").is_some());
    process.has_vvar = Some(named("[vvar]").is_some());
    process.page = page::look_with_image(root, pid, &maps);
    process.vdso = Some(vdso_kind(root, directory, process, &maps));
    // A file may be mapped tens of thousands of times.
    let mut seen = HashSet::new();
    let files: Vec<&Mapping> = maps.iter().filter(|mapping| seen.insert(&mapping.name)).collect();
    let library = |mapping: &&Mapping| library(root, directory, &mapping.name);
    process.libc = files.iter().take(MOST_FILES).find_map(library).or(process.libc.take());
    if pid != "self" {
        calls_in_files::look(root, directory, process, &maps);
    }
    process.java = files
        .iter()
        .take(MOST_FILES)
        .find_map(|mapping| java(root, directory, &mapping.name));
}

/// Returns the kind of vDSO from the mappings. The auxiliary vector in /proc is the kernel's own copy: it names the
/// kernel's vDSO even where fastpath has redirected the program to another one.
fn vdso_kind(root: &Root, directory: &str, process: &Process, maps: &[Mapping]) -> VdsoKind {
    if process.page.is_some() {
        return VdsoKind::Fastpath;
    }
    let address = sysinfo_ehdr(root, directory, process.word_bits.unwrap_or(64));
    match maps.iter().find(|mapping| mapping.name == "[vdso]") {
        Some(vdso) if address.is_none_or(|address| address == vdso.start) => VdsoKind::Kernel,
        Some(_) => VdsoKind::Other,
        None if address.is_some_and(|a| maps.iter().any(|m| m.start == a)) => VdsoKind::Other,
        None => VdsoKind::None,
    }
}

/// Returns AT_SYSINFO_EHDR (getauxval(3)).
fn sysinfo_ehdr(root: &Root, directory: &str, word_bits: u8) -> Option<u64> {
    const AT_SYSINFO_EHDR: u64 = 33;
    let bytes = root.bytes(&format!("{directory}/auxv")).ok()?;
    let word = usize::from(word_bits / 8);
    let mut words = bytes.chunks_exact(word).map(|bytes| {
        let mut value = [0; 8];
        value[..word].copy_from_slice(bytes);
        u64::from_le_bytes(value)
    });
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_SYSINFO_EHDR {
            return Some(value);
        }
    }
    None
}

/// Returns a libc by its file's name, with the version in that file. The path is as the process sees it, below its
/// root.
fn library(root: &Root, directory: &str, path: &str) -> Option<Library> {
    let path = fastpath_os::without_deleted(path);
    let file = Path::new(path).file_name()?.to_str()?;
    let is_glibc = file == "libc.so.6" || file.starts_with("libc-2.");
    // musl's loader and its libc are one file; where the loader is a link, the file may have the name of any libc.
    let is_musl = file.starts_with("ld-musl-") || file.starts_with("libc.musl-");
    if !path.starts_with('/') || !(is_glibc || is_musl || file == "libc.so") {
        return None;
    }
    let bytes = root.bytes_of(directory, path, MOST_LIBRARY).ok();
    let musl = bytes.as_deref().and_then(program::musl_version);
    if !is_glibc && !is_musl && musl.is_none() {
        return None;
    }
    Some(Library {
        name: if is_glibc { "glibc" } else { "musl" }.into(),
        version: musl.or(bytes.as_deref().and_then(program::glibc_version)),
        path: Some(path.to_owned()),
    })
}

/// Returns the JVM by its library. The version is in the file `release` of its directory.
fn java(root: &Root, directory: &str, path: &str) -> Option<String> {
    if Path::new(path).file_name()? != "libjvm.so" {
        return None;
    }
    let release = |home: &Path| {
        let bytes = root
            .bytes_of(directory, home.join("release").to_str()?, MOST_RELEASE)
            .ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    // HOME/lib/server/libjvm.so; up to Java 8, HOME/jre/lib/amd64/server/libjvm.so.
    let release = Path::new(path).ancestors().skip(2).take(5).find_map(release);
    let value = |key: &str| {
        let release = release.as_ref()?;
        let line = release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    Some(
        value("JAVA_RUNTIME_VERSION")
            .or(value("JAVA_VERSION"))
            .unwrap_or_else(|| "version unknown".to_owned()),
    )
}

fn time_namespace(root: &Root, directory: &str) -> Option<TimeNamespace> {
    let link = |process: &str, name: &str| root.link(&format!("{process}/ns/{name}")).ok();
    let (id, children) = (link(directory, "time"), link(directory, "time_for_children"));
    let own = link("/proc/self", "time");
    // The offsets are those of the children's namespace, which is a different one after unshare(CLONE_NEWTIME).
    let offsets = match (&id, &children) {
        (Some(id), Some(children)) if id == children => {
            parse_timens_offsets(&root.text(&format!("{directory}/timens_offsets")).unwrap_or_default())
        }
        _ => Vec::new(),
    };
    id.is_some().then(|| TimeNamespace {
        is_ours: own.is_some().then(|| own == id),
        id,
        offsets,
    })
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Tree;
    use super::*;

    const STATUS: &str = "Name:\tapp\nState:\tS (sleeping)\nPid:\t7\nTracerPid:\t0\nVmSize:\t 100 kB\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r-xp 00000000 00:01 2 /app
7f0000000000-7f0000001000 r-xp 00000000 00:01 3 /opt/java/lib/server/libjvm.so
7f0000100000-7f0000101000 r-xp 00000000 00:01 4 /lib/x86_64-linux-gnu/libc.so.6
7ffe00000000-7ffe00004000 r--p 00000000 00:00 0 [vvar]
7ffe00004000-7ffe00006000 r-xp 00000000 00:00 0 [vdso]
";

    fn auxv(address: u64) -> Vec<u8> {
        [16u64, 1, 33, address, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    fn a_jvm() -> Tree {
        let tree = Tree::new(&[
            ("proc/7/status", STATUS),
            ("proc/7/maps", MAPS),
            (
                "proc/7/root/opt/java/release",
                "IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"17.0.15\"\n",
            ),
            (
                "proc/7/root/lib/x86_64-linux-gnu/libc.so.6",
                "GNU C Library (X) stable release version 2.36.\n",
            ),
        ]);
        tree.add("proc/7/auxv", &auxv(0x7ffe00004000));
        tree
    }

    #[test]
    fn a_jvm_on_glibc_is_known_by_what_it_maps() {
        let process = look(&a_jvm().root(), "7").unwrap();
        assert_eq!((process.pid, process.name.as_deref()), (7, Some("app")));
        assert_eq!(process.java.as_deref(), Some("17.0.15"));
        let libc = process.libc.unwrap();
        assert_eq!((&*libc.name, libc.version.as_deref()), ("glibc", Some("2.36")));
        assert_eq!(process.vdso, Some(VdsoKind::Kernel));
        assert_eq!((process.has_kernel_vdso, process.has_vvar), (Some(true), Some(true)));
        assert_eq!((process.seccomp, process.no_new_privs), (Some(2), Some(true)));
        assert_eq!(process.page, None);
    }

    #[test]
    fn musl_is_known_by_its_loaders_name_or_by_what_stands_in_its_libc() {
        const MUSL: &str = "musl libc (x86_64)\n\x001.2.5\0";
        for (path, bytes, known) in [
            ("/lib/ld-musl-x86_64.so.1", MUSL, true),
            ("/usr/lib/x86_64-linux-musl/libc.so", MUSL, true),
            ("/system/lib64/libc.so", "another libc", false),
        ] {
            let tree = Tree::new(&[(&format!("proc/7/root{path}"), bytes)]);
            let found = library(&tree.root(), "/proc/7", path).and_then(|libc| libc.version);
            assert_eq!(found.as_deref(), known.then_some("1.2.5"), "{path}");
        }
    }

    #[test]
    fn a_library_is_read_beneath_the_processs_root_and_only_if_it_is_a_regular_file() {
        const GLIBC: &str = "GNU C Library (Debian GLIBC 2.36) stable release version 2.36.\n";
        let tree = Tree::new(&[("secret", GLIBC), ("proc/7/root/lib/libc-2.36.so", GLIBC)]);
        let root = tree.root();
        let version = |path| library(&root, "/proc/7", path).expect("a libc").version;
        tree.link("proc/7/root/within/libc.so.6", "/lib/libc-2.36.so");
        tree.link("proc/7/root/out/libc.so.6", root.path_of("/secret").to_str().unwrap());
        tree.link("proc/7/root/up/libc.so.6", "../../../../secret");
        assert_eq!(version("/within/libc.so.6").as_deref(), Some("2.36"));
        assert_eq!(version("/out/libc.so.6"), None);
        assert_eq!(version("/up/libc.so.6"), None);
        let fifo = std::ffi::CString::new(root.path_of("/proc/7/root/libc.so.6").to_str().unwrap()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(version("/libc.so.6"), None);
    }

    #[test]
    fn a_process_whose_vdso_was_taken_away_has_none() {
        let tree = a_jvm();
        let without: String = MAPS.lines().take(3).map(|line| line.to_owned() + "\n").collect();
        tree.add("proc/7/maps", without.as_bytes());
        assert_eq!(look(&tree.root(), "7").unwrap().vdso, Some(VdsoKind::None));
        tree.add("proc/7/auxv", &auxv(0x7f0000100000));
        assert_eq!(look(&tree.root(), "7").unwrap().vdso, Some(VdsoKind::Other));
    }

    #[test]
    fn a_process_with_a_page_is_on_fastpath_whatever_its_auxv_says() {
        let tree = a_jvm();
        let page = "7ffd00000000-7ffd00001000 r--s 00000000 00:01 9 /memfd:fastpath-page (deleted)\n";
        tree.add("proc/7/maps", (page.to_owned() + MAPS).as_bytes());
        let process = look(&tree.root(), "7").unwrap();
        assert_eq!(process.vdso, Some(VdsoKind::Fastpath));
        assert!(process.page.is_some());
    }

    #[test]
    fn of_another_users_process_only_the_status_is_known_and_that_is_said() {
        let tree = Tree::new(&[("proc/7/status", STATUS)]);
        let root = tree.root();
        let process = look(&root, "7").unwrap();
        assert_eq!((process.vdso, process.libc, process.word_bits), (None, None, None));
        let unseen = root.into_unseen();
        assert_eq!(unseen.len(), 1, "{unseen:?}");
        assert!(unseen[0].source == "/proc/7/maps" && unseen[0].remedy.contains("root"));
    }

    #[test]
    fn a_kernel_thread_and_a_zombie_are_told_apart() {
        let status = |state: &str| format!("Name:\tx\nState:\t{state}\nPid:\t2\n");
        let tree = Tree::new(&[
            ("proc/2/status", &status("I (idle)")),
            ("proc/3/status", &status("Z (zombie)")),
            ("proc/4/status", &format!("{}Threads:\t2\n", status("Z (zombie)"))),
        ]);
        assert!(look(&tree.root(), "2").unwrap().is_kernel_thread);
        let zombie = look(&tree.root(), "3").unwrap();
        assert!(!zombie.is_kernel_thread && zombie.state == Some('Z') && !zombie.first_thread_ended);
        assert!(look(&tree.root(), "4").unwrap().first_thread_ended);
    }

    #[test]
    fn a_process_that_is_not_there_is_told_from_a_proc_that_is_not() {
        let tree = Tree::new(&[("proc/self/status", STATUS)]);
        assert_eq!(look(&tree.root(), "9").unwrap_err(), "there is no process 9");
        let bare = Tree::new(&[]);
        assert!(look(&bare.root(), "9").unwrap_err().contains("not mounted"));
    }

    #[test]
    fn a_time_namespaces_offsets_are_its_own_only_after_the_fork() {
        let tree = a_jvm();
        for process in ["7", "self"] {
            tree.link(
                &format!("proc/{process}/ns/time"),
                if process == "7" { "time:[2]" } else { "time:[1]" },
            );
            tree.link(&format!("proc/{process}/ns/time_for_children"), "time:[2]");
        }
        tree.add("proc/7/timens_offsets", b"monotonic  86400 0\nboottime 0 0\n");
        let namespace = look(&tree.root(), "7").unwrap().time_namespace.unwrap();
        assert_eq!((namespace.is_ours, namespace.offsets.len()), (Some(false), 1));
        assert_eq!(time_namespace(&tree.root(), "/proc/self").unwrap().offsets, []);
    }

    #[test]
    fn an_auxiliary_vector_of_32_bits_is_read_as_one() {
        let tree = Tree::new(&[]);
        let words: Vec<u8> = [6u32, 4096, 33, 0xf7fc_0000, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        tree.add("proc/7/auxv", &words);
        assert_eq!(sysinfo_ehdr(&tree.root(), "/proc/7", 32), Some(0xf7fc_0000));
    }
}
