//! What is executed is no program at all.

use std::process::Command;

use crate::common::{comes_to, finish, install_script, served, tool};

#[test]
fn to_execute_what_is_no_regular_file_is_refused_at_once() {
    let Some(mkfifo) = tool("mkfifo") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let fifo = directory.path().join("fifo");
    let mut make = Command::new(mkfifo);
    make.args(["-m", "755"]).arg(&fifo);
    finish(make).expect_success();
    let fifo = fifo.to_str().expect("UTF-8");
    let script = install_script(&format!("#!{fifo}\n"), directory.path().join("script"));
    for path in [fifo, &script, "/dev/null", "/"] {
        let shell = ["sh", "-c", "\"$0\" 2>/dev/null; echo $?", path];
        comes_to(|| served(&shell), 0, "126");
    }
}
