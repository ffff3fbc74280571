use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::target::maps;

#[test]
fn no_call_is_made_in_a_program_that_replaced_the_stopped_one() {
    /// Between two calls, gives the program the line for which it waits to execute the other one.
    struct Executes(std::sync::Mutex<Option<std::process::ChildStdin>>);
    impl Policy for Executes {
        fn must_run(&self) -> bool {
            self.0.lock().unwrap().is_some()
        }

        fn run(&self, tracee: &Tracee, _stop: Stop) -> Result<()> {
            tracee.set_options(Options::PTRACE_O_TRACEEXEC)?;
            tracee.resume(Until::Event, 0)?;
            let mut line = self.0.lock().unwrap().take().unwrap();
            line.write_all(b"go\n").unwrap();
            while tracee.event(true)? != Some(Stop::Exec) {
                tracee.resume(Until::Event, 0)?;
            }
            Err(Error::Gone)
        }
    }
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "read line; exec sh -c 'exit 3'"])
        .stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let waits = || fastpath_os::syscall(shell.id()).is_some_and(|(call, _)| call == libc::SYS_read);
    while !waits() {
        std::thread::sleep(NAP);
    }
    let pid = shell.id() as i32;
    let policy = Executes(std::sync::Mutex::new(shell.stdin.take()));
    let mut tracee = Tracee::seize(pid, pid, Options::empty()).unwrap();
    tracee.interrupt().unwrap();
    let (program, stop) = tracee.wait_for_interrupt::<Error>(None).unwrap();
    let memory = tracee.memory().unwrap();
    let tail = Tail::find(memory, pid, &maps::read(pid).unwrap(), false).unwrap();
    let mut calls = RemoteCalls::begin(&mut tracee, &policy, tail, program, stop).unwrap();
    let gone = |done: Result<u64>| matches!(done, Err(Error::Gone));
    assert!(gone(calls.close(u64::MAX).map(|()| 0)));
    // What a caller cleans up.
    assert!(gone(calls.munmap(0x1000, 4096).map(|()| 0)));
    assert!(matches!(calls.finish(), Err(Error::Gone)));
    tracee.detach(0).unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(3));
}
