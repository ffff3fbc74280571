//! Pseudo-terminals for tests.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::skip::give_up;

/// The master side of a pseudo-terminal.
pub struct Terminal {
    master: File,
}

/// Makes a terminal, which becomes the controlling terminal of `command` and a session of its own.
pub fn give_terminal(command: &mut Command) -> Terminal {
    let (master, slave) = pair();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            let tty = slave.as_raw_fd();
            let done = libc::setsid() >= 0 && libc::ioctl(tty, libc::TIOCSCTTY, 0) == 0 && libc::dup2(tty, 0) == 0;
            done.then_some(()).ok_or_else(std::io::Error::last_os_error)
        });
    }
    Terminal { master }
}

/// Makes a terminal, 80 columns wide, which becomes the standard output of `command`.
pub fn output_to_terminal(command: &mut Command) -> Terminal {
    let (master, slave) = pair();
    resize(&master, 24, 80);
    command.stdin(Stdio::null()).stdout(slave);
    Terminal { master }
}

/// Makes a terminal, 80 columns wide, which becomes the standard error of `command`.
pub fn error_to_terminal(command: &mut Command) -> Terminal {
    let (master, slave) = pair();
    resize(&master, 24, 80);
    command.stdin(Stdio::null()).stderr(slave);
    Terminal { master }
}

fn resize(master: &File, lines: u16, columns: u16) {
    let size = libc::winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the call reads the struct.
    let set = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    assert_eq!(set, 0, "TIOCSWINSZ: {}", std::io::Error::last_os_error());
}

/// Returns the two ends of a terminal. (openpty(3) would make descriptors that a child of another test's inherits.)
fn pair() -> (File, OwnedFd) {
    const FLAGS: libc::c_int = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the calls take integers; each descriptor was just made, and has no other owner.
    unsafe {
        let master = libc::posix_openpt(FLAGS);
        if master < 0 || libc::unlockpt(master) != 0 {
            // A chroot where devpts is not mounted.
            give_up(format_args!("posix_openpt: {}", std::io::Error::last_os_error()));
        }
        let slave = libc::ioctl(master, libc::TIOCGPTPEER, FLAGS);
        assert!(slave >= 0, "TIOCGPTPEER: {}", std::io::Error::last_os_error());
        (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

impl Terminal {
    /// Types on the terminal.
    pub fn type_in(&mut self, keys: &[u8]) {
        self.master.write_all(keys).expect("typing");
    }

    /// Returns a function that sets the terminal's lines and columns. The writer gets no signal: this is not its
    /// controlling terminal.
    pub fn resizer(&self) -> impl Fn(u16, u16) + use<> {
        let master = self.master.try_clone().expect("dup");
        move |lines, columns| resize(&master, lines, columns)
    }

    /// Returns all that is shown until no process has the other end open, with plain line ends. `seen` is called with
    /// the text so far, each time that there is more.
    pub fn read_to_end(&mut self, mut seen: impl FnMut(&str)) -> String {
        let (mut shown, mut part) = (Vec::new(), [0; 4096]);
        let text = |shown: &[u8]| String::from_utf8_lossy(shown).replace("\r\n", "\n");
        // The end is reported as EIO.
        while let Ok(length @ 1..) = self.master.read(&mut part) {
            shown.extend_from_slice(&part[..length]);
            seen(&text(&shown));
        }
        text(&shown)
    }
}
