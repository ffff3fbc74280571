//! `fastpath install-library`: puts libfastpath-preload.so where containers find it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{args, exit, file, output};

/// Name of the library.
const LIBRARY: &str = "libfastpath-preload.so";

/// Copies the library, and returns the exit status.
pub fn run(options: &args::InstallLibrary) -> i32 {
    let failed = |what: &Path, why: std::io::Error, status| {
        let advice = match (why.kind(), status) {
            (ErrorKind::NotFound, exit::NO_INPUT) => "; `make preload` builds it, and --from names another file",
            (ErrorKind::PermissionDenied, exit::NOT_WRITTEN) => "; run it as root, or name a directory of this user's",
            _ => "",
        };
        output::note(format_args!("install-library: {}: {why}{advice}", what.display()));
        status
    };
    let from = match options.from.clone().map_or_else(beside_this_program, Ok) {
        Ok(from) => from,
        Err(why) => return failed(Path::new(LIBRARY), why, exit::NO_INPUT),
    };
    let library = match fs::read(&from) {
        Ok(library) => library,
        Err(why) => return failed(&from, why, exit::NO_INPUT),
    };
    let to = options.directory.join(LIBRARY);
    if fs::read(&to).is_ok_and(|installed| installed == library) {
        return output::print(format!("{} is up to date\n", to.display()));
    }
    // SAFETY: the call changes this process's umask only, and this is its only thread.
    unsafe { libc::umask(0o022) };
    match fs::create_dir_all(&options.directory).and_then(|()| file::replace(&to, library)) {
        Ok(()) => output::print(format!("{} is installed\n", to.display())),
        Err(why) => failed(&to, why, exit::NOT_WRITTEN),
    }
}

fn beside_this_program() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(LIBRARY))
}
