//! The files whose code a process executes.

use std::fs::File;
use std::io;

use fastpath_os::{Mapping, foreign};

use super::root::Root;

/// Returns whether the code of a file is mapped there. The code in a memfd does not belong to the program: it is
/// fastpath's image, or was compiled at run time.
pub(super) fn is_code_of_file(mapping: &Mapping) -> bool {
    let is_file = mapping.inode != 0 && mapping.name.starts_with('/') && !mapping.name.starts_with("/memfd:");
    mapping.executable && is_file
}

/// Opens a mapped file: through its mapping, which requires CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, or by its name.
pub(super) fn open(root: &Root, directory: &str, mapping: &Mapping, is_program: bool) -> io::Result<(File, u64)> {
    let directory = root.path_of(directory);
    let program = || foreign::handle(&directory.join("exe"));
    let handle = match foreign::handle_of_mapped(&directory, mapping) {
        Err(_) if is_program => program()?,
        found => found?,
    };
    let file = foreign::open(handle)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}
