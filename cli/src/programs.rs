//! Programs that a shell's completion offers.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap_complete::ArgValueCompleter;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};

/// Completes a program and its arguments: an executable, then files.
pub fn any() -> ArgValueCompleter {
    ArgValueCompleter::new(ProgramAndFiles)
}

struct ProgramAndFiles;

impl ValueCompleter for ProgramAndFiles {
    fn complete(&self, typed: &OsStr) -> Vec<CompletionCandidate> {
        self.complete_at(0, typed)
    }

    fn complete_at(&self, index: usize, typed: &OsStr) -> Vec<CompletionCandidate> {
        let start = typed.to_string_lossy();
        if index > 0 || start.contains('/') {
            return PathCompleter::any().complete(typed);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut names: Vec<OsString> = std::env::split_paths(&path)
            .flat_map(|directory| executables(&directory, &start))
            .collect();
        names.sort();
        names.dedup();
        names.into_iter().map(CompletionCandidate::new).collect()
    }
}

fn executables(directory: &Path, start: &str) -> Vec<OsString> {
    use std::os::unix::fs::PermissionsExt;
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(start));
    let is_executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    files
        .filter(|file| is_executable(&file.path()))
        .map(|file| file.file_name())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_one_that_could_be_executed() {
        let names = ProgramAndFiles.complete(OsStr::new("en"));
        assert!(names.iter().any(|name| name.get_value() == "env"), "{names:?}");
        let files = ProgramAndFiles.complete_at(1, OsStr::new("/etc/pass"));
        assert!(files.iter().any(|file| file.get_value() == "/etc/passwd"), "{files:?}");
    }
}
