//! Asserts that C and Rust have the same layout of the messages.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use fastpath_protocol::*;

fn header() -> String {
    format!("{}/include/fastpath-protocol.h", env!("CARGO_MANIFEST_DIR"))
}

fn compile(compiler: &str, arguments: &[&str], source: &str) {
    let mut child = Command::new(compiler)
        .args(arguments)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect(compiler);
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(source.as_bytes()).expect("the compiler reads");
    drop(stdin);
    assert!(
        child.wait().expect("a status").success(),
        "{compiler} refuses:\n{source}"
    );
}

#[test]
fn every_field_and_number_is_the_same_in_c_as_in_rust() {
    let mut text = format!("#include \"{}\"\n", header());
    let mut equal = |c: String, rust: u64| {
        let _ = writeln!(text, "_Static_assert({c} == {rust}, \"{c} is {rust} in Rust\");");
    };
    let messages = [
        (Request::fields(), Request::SIZE),
        (Answer::fields(), Answer::SIZE),
        (Section::fields(), Section::SIZE),
        (Patch::fields(), Patch::SIZE),
    ];
    for (fields, size) in messages {
        for (of, field, offset, field_size) in &fields {
            equal(format!("offsetof(struct {of}, {field})"), *offset as u64);
            equal(format!("sizeof(((struct {of} *)0)->{field})"), *field_size as u64);
        }
        equal(format!("sizeof(struct {})", fields[0].0), size as u64);
    }
    for operation in Operation::ALL {
        let name = format!("{operation:?}").to_uppercase();
        equal(format!("FASTPATHD_{name}"), *operation as u64);
    }
    for code in Code::ALL {
        let name = match code {
            Code::Ok => "OK".to_owned(),
            other => format!("E{other:?}").to_uppercase(),
        };
        equal(format!("FASTPATHD_{name}"), *code as u64);
    }
    equal("FASTPATHD_BYTES".into(), Source::Bytes as u64);
    equal("FASTPATHD_FROM_PAGE".into(), Source::Page as u64);
    equal("FASTPATHD_MAILBOX".into(), Source::Mailbox as u64);
    equal("FASTPATHD_MAGIC".into(), MAGIC);
    equal("FASTPATHD_VERSION".into(), VERSION.into());
    equal("FASTPATHD_WITH_PROCESS".into(), WITH_PROCESS.into());
    equal("FASTPATHD_WITH_MAILBOX".into(), WITH_MAILBOX.into());
    equal("FASTPATHD_FOR_CLOCK".into(), FOR_CLOCK.into());
    equal("FASTPATHD_REGION_ROOM".into(), REGION_ROOM.into());
    equal("FASTPATHD_SECTIONS".into(), SECTIONS as u64);
    equal("FASTPATHD_SENTENCE".into(), SENTENCE as u64);
    equal("FASTPATHD_TEXT".into(), TEXT as u64);
    equal("FASTPATHD_PATCH_BYTES".into(), PATCH_BYTES as u64);
    compile("cc", &["-std=c11", "-xc"], &text);
}

#[test]
fn the_socket_is_the_same_in_c_as_in_rust() {
    let text = std::fs::read_to_string(header()).expect("the header");
    assert!(text.contains(&format!("#define FASTPATHD_SOCKET \"{SOCKET}\"\n")));
    assert!(text.contains(SOCKET_VARIABLE));
}

#[test]
fn the_header_is_cpp_too() {
    compile(
        "clang++",
        &["-std=c++17", "-xc++"],
        &format!("#include \"{}\"\n", header()),
    );
}
