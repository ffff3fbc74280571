//! execve of files that are not programs.

use std::process::Command;

use crate::common::{comes_to, finish, install_script, served, tool};

#[test]
fn executing_a_file_that_is_not_regular_fails_at_once() {
    let mkfifo = needed!(tool("mkfifo"));
    let directory = tempfile::tempdir().expect("a directory");
    let fifo = directory.path().join("fifo");
    let mut make = Command::new(mkfifo);
    make.args(["-m", "755"]).arg(&fifo);
    finish(make).expect_success();
    let fifo = fifo.to_str().expect("UTF-8");
    let script = install_script(format!("#!{fifo}\n"), directory.path().join("script"));
    for path in [fifo, &script, "/dev/null", "/"] {
        let shell = ["sh", "-c", "\"$0\" 2>/dev/null; echo $?", path];
        comes_to(|| served(&shell), 0, "126");
    }
}
