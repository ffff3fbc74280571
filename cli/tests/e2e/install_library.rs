//! `fastpath install-library`: the library reaches a node's directory whole, and processes keep the one they have.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::common::{Outcome, fastpath, finish};

fn install(from: &Path, to: &Path) -> Outcome {
    let mut command = Command::new("sh");
    // A container engine may give any umask.
    command.args(["-c", "umask 077; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_fastpath")]);
    command.arg("install-library").arg(to).arg("--from").arg(from);
    finish(command)
}

#[test]
fn a_library_is_replaced_at_once_and_processes_keep_the_previous_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let (library, node) = (directory.path().join("library"), directory.path().join("var/lib/node"));
    let installed = node.join("libfastpath-preload.so");
    fs::write(&library, "old").expect("write");
    let outcome = install(&library, &node).expect_success();
    assert_eq!(outcome.out, format!("{} is installed\n", installed.display()));
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!((mode(&node), mode(&installed)), (0o755, 0o644));

    let mut in_use = File::open(&installed).expect("open");
    fs::write(&library, "new").expect("write");
    install(&library, &node).expect_success();
    let mut has = String::new();
    in_use.read_to_string(&mut has).expect("read");
    assert_eq!(has, "old");
    assert_eq!(fs::read_to_string(&installed).expect("read"), "new");

    let inode = |path: &Path| fs::metadata(path).expect("metadata").ino();
    let before = inode(&installed);
    let outcome = install(&library, &node).expect_success();
    assert_eq!(outcome.out, format!("{} is up to date\n", installed.display()));
    assert_eq!(inode(&installed), before);
    assert_eq!(fs::read_dir(&node).expect("a directory").count(), 1);
}

#[test]
fn a_library_that_cannot_be_read_or_written_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let (library, lost) = (directory.path().join("library"), directory.path().join("lost"));
    fs::write(&library, "library").expect("write");
    let outcome = install(&lost, directory.path()).expect_code(66);
    assert!(outcome.err.contains("lost: No such file"), "{outcome:#?}");
    assert!(outcome.err.contains("`make preload` builds it"), "{outcome:#?}");
    let outcome = install(&library, &library.join("below")).expect_code(74);
    assert!(
        outcome.err.contains("libfastpath-preload.so: Not a directory"),
        "{outcome:#?}"
    );
    // The one beside the program.
    let beside = Path::new(env!("CARGO_BIN_EXE_fastpath")).with_file_name("libfastpath-preload.so");
    if !beside.exists() {
        let outcome = finish(fastpath(&[
            "install-library",
            directory.path().to_str().expect("UTF-8"),
        ]))
        .expect_code(66);
        assert!(outcome.err.contains(beside.to_str().expect("UTF-8")), "{outcome:#?}");
    }
}
