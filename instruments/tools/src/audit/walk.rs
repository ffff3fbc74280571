//! Walks directories and judges the files on all CPUs.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use walkdir::WalkDir;

use crate::audit::judge::judge;
use crate::audit::open::open;
use crate::audit::options::{AuditOptions, Progress};
use crate::audit::report::Judged;
use crate::audit::report::{AuditFinding, AuditReport, Gathered, Unjudged};
use crate::audit::{archive, layers};
use fastpath_code::bytes::OnDisk;

/// Largest number of threads, on any number of CPUs: each takes up to some 20 MiB, and together they must stay below
/// 512.
const MOST_THREADS: usize = 16;
/// Deepest nesting of directories. Linux has paths of 4,096 bytes.
const DEEPEST: usize = 2_000;
/// Most files with findings whose calls that `--rescue` redirects are counted.
const MOST_COUNTED_FILES: usize = 1000;

/// Audits files, directories, and images.
pub fn audit(paths: &[PathBuf], options: &AuditOptions, progress: &Progress) -> AuditReport {
    let began = Instant::now();
    let audit = Audit {
        options,
        progress,
        gathered: Mutex::default(),
        seen: Mutex::default(),
        analysed: Mutex::default(),
        may_come_again: paths.len() > 1,
    };
    let mut asked_for = HashSet::new();
    for path in paths {
        // A path may be given twice, under different names.
        if asked_for.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())) {
            audit.path(path);
        }
    }
    let mut gathered = audit.gathered.into_inner().unwrap_or_else(|e| e.into_inner());
    gathered.summary.files = progress.files.load(Ordering::Relaxed);
    gathered.into_report(began.elapsed().as_secs_f64())
}

struct Audit<'a> {
    options: &'a AuditOptions,
    progress: &'a Progress,
    gathered: Mutex<Gathered>,
    /// Device and inode of files that may be found again, and are judged only once.
    seen: Mutex<HashSet<(u64, u64)>>,
    /// Number of files that were analysed for `--rescue`. Locked meanwhile: each is read into memory.
    analysed: Mutex<usize>,
    /// Whether any file may be found again, because one path may lie below another.
    may_come_again: bool,
}

impl Audit<'_> {
    fn gathered<T>(&self, with: impl FnOnce(&mut Gathered) -> T) -> T {
        with(&mut self.gathered.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Handles one of the requested paths. It may be a symbolic link; links below it are not followed.
    fn path(&self, path: &Path) {
        let missing = |why: String| {
            self.gathered(|gathered| {
                gathered.missing.push(Unjudged {
                    path: path.display().to_string(),
                    why,
                });
            });
        };
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) => return missing(e.to_string()),
        };
        if meta.is_dir() && path.join("oci-layout").is_file() {
            self.image(path, |gathered| {
                layers::of_layout(path, self.options, self.progress, gathered)
            });
        } else if meta.is_dir() {
            if let Err(e) = fs::read_dir(path) {
                return missing(e.to_string());
            }
            self.directory(path);
        } else if meta.is_file() {
            let Ok(real) = fs::canonicalize(path) else {
                return missing("it went away".to_owned());
            };
            match open(&real) {
                Ok((file, meta)) if is_archive(&file) => {
                    self.image(path, |gathered| {
                        layers::of_archive(path, &file, meta.len(), self.options, self.progress, gathered)
                    });
                }
                Ok((file, meta)) => self.file(path, file, &meta, Gathered::give_up_image),
                Err(e) => missing(e.to_string()),
            }
        } else {
            missing("it is neither a file nor a directory".to_owned());
        }
    }

    fn image(&self, path: &Path, judge: impl FnOnce(&mut Gathered) -> Result<(), String>) {
        let mut gathered = Gathered::default();
        if let Err(why) = judge(&mut gathered) {
            gathered.give_up_image(path.display().to_string(), why);
        }
        self.gathered(|all| all.append(gathered));
    }

    fn directory(&self, path: &Path) {
        let walk = WalkDir::new(path).max_depth(DEEPEST).into_iter();
        let entries = walk.filter_entry(|entry| !entry.file_type().is_dir() || !is_kernels(entry.path()));
        let entries = Mutex::new(entries);
        let next = || entries.lock().unwrap_or_else(|e| e.into_inner()).next();
        let work = || {
            while let Some(entry) = next() {
                self.entry(path, entry);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(MOST_THREADS));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be started, this one does the work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }

    /// Handles one entry of a directory, or of one below it.
    fn entry(&self, directory: &Path, entry: walkdir::Result<walkdir::DirEntry>) {
        match entry {
            Ok(entry) if entry.file_type().is_file() => match open(entry.path()) {
                Ok((file, meta)) => self.file(entry.path(), file, &meta, Gathered::give_up),
                Err(e) => self.give_up(entry.path(), e.to_string()),
            },
            Ok(_) => {}
            Err(e) => {
                let path = e.path().unwrap_or(directory).to_owned();
                let why = e
                    .io_error()
                    .map_or_else(|| "a directory in itself".to_owned(), ToString::to_string);
                self.give_up(&path, why);
            }
        }
    }

    fn give_up(&self, path: &Path, why: String) {
        self.gathered(|gathered| gathered.give_up(path.display().to_string(), why));
    }

    fn is_first_visit(&self, meta: &Metadata) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        seen.insert((meta.dev(), meta.ino()))
    }

    fn file(&self, path: &Path, file: File, meta: &Metadata, give_up: fn(&mut Gathered, String, String)) {
        // The type may have changed since the file was listed.
        if !meta.is_file() {
            return;
        }
        let may_come_again = self.may_come_again || meta.nlink() > 1;
        if may_come_again && !self.is_first_visit(meta) {
            return;
        }
        self.progress.add(meta.len());
        let file = OnDisk::new(file, meta.len());
        match judge(&file) {
            Ok(Some(mut judged)) => {
                self.analyse(&file, &mut judged);
                self.gathered(|gathered| {
                    gathered.add(&path.display().to_string(), None, judged, self.options.with_programs);
                });
            }
            Ok(None) => {}
            Err(why) => self.gathered(|gathered| give_up(gathered, path.display().to_string(), why)),
        }
    }
}

impl Audit<'_> {
    /// Adds what `--rescue` does with a file's system calls. A file that cannot be examined has none that it redirects.
    fn analyse(&self, file: &OnDisk, judged: &mut Judged) {
        if !self.options.with_sites && !judged.findings.iter().any(AuditFinding::has_calls) {
            return;
        }
        let mut count = self.analysed.lock().unwrap_or_else(|e| e.into_inner());
        if !self.options.with_sites && *count == MOST_COUNTED_FILES {
            return;
        }
        *count += 1;
        let analysis = judged.analyse(file);
        if let Ok(analysis) = &analysis {
            judged.count(analysis);
        }
        judged.program.sites = self.options.with_sites.then(|| analysis.map(|analysis| analysis.sites));
    }
}

/// Returns whether a file begins as a tar archive does, plain or compressed.
fn is_archive(file: &File) -> bool {
    let mut block = [0; 512];
    let Ok(count) = file.read_at(&mut block, 0) else {
        return false;
    };
    archive::is_packed(&block[..count]) || (count == 512 && archive::is_header(&block))
}

/// Returns whether a directory is on a pseudo file system of the kernel: it contains no programs, and some of its files
/// never end.
fn is_kernels(path: &Path) -> bool {
    // linux/magic.h
    const KERNELS: [u64; 13] = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0xcafe_4a11, // bpf
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0x7363_6673, // securityfs
        0xf97c_ff8c, // selinuxfs
        0x1cd1,      // devpts
        0x1980_0202, // mqueue
        0x6165_676c, // pstore
        0xde5e_81e4, // efivarfs
    ];
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `path` is a C string, and `about` has room for a `statfs`.
    if unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: statfs(2) succeeded, so it has filled `about`.
    let kind = unsafe { about.assume_init() }.f_type as u64 & 0xffff_ffff;
    KERNELS.contains(&kind)
}
