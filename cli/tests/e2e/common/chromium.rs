//! A headless Chromium, driven by the DevTools protocol over two pipes: no port, no library.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::skip;

/// Its names in Debian, in Ubuntu and in Chrome's packages.
const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
];

/// A browser with one page.
pub struct Chromium {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    session: String,
    next: u64,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Chromium {
    /// Returns `None`, and skips the test, if there is no Chromium.
    pub fn start() -> Option<Chromium> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
        let Some(name) = NAMES.into_iter().find(is_there) else {
            skip("no Chromium on this machine");
            return None;
        };
        let profile = tempfile::tempdir().expect("a directory");
        let (command_end, commands) = pipe();
        let (answers, answer_end) = pipe();
        let (reads, writes) = (command_end.as_raw_fd(), answer_end.as_raw_fd());
        let mut command = Command::new(name);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: dup2 and fcntl are async-signal-safe. Descriptors that are already 3 or 4 are moved away first.
        unsafe {
            command.pre_exec(move || {
                let high = |fd| libc::fcntl(fd, libc::F_DUPFD, 10);
                let (reads, writes) = (high(reads), high(writes));
                if libc::dup2(reads, 3) < 0 || libc::dup2(writes, 4) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(reads);
                libc::close(writes);
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        drop((command_end, answer_end));
        let mut browser = Chromium {
            child,
            commands: commands.into(),
            answers: BufReader::new(answers.into()),
            session: String::new(),
            next: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let page = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let session = browser.ask(
            "Target.attachToTarget",
            json!({"targetId": page["targetId"], "flatten": true}),
        );
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Returns a command's result.
    #[track_caller]
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.commands
            .write_all(format!("{message}\0").as_bytes())
            .expect("Chromium takes commands");
        loop {
            let answer = self.message();
            if answer["id"] == self.next {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Loads a file and waits until it is loaded.
    #[track_caller]
    pub fn open(&mut self, file: &std::path::Path) {
        self.events.clear();
        self.ask("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.message();
            self.events.push(event);
        }
    }

    /// Returns the value of an expression; waits for a promise.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let result = self.ask(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true}),
        );
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Sets a screen of this width, in light or dark colours.
    pub fn screen(&mut self, width: u32, scheme: &str) {
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}),
        );
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
    }

    /// Returns the page's complaints since it was opened: messages, exceptions, violations of its policy.
    pub fn complaints(&mut self) -> Vec<String> {
        // All messages arrive before the answer to a later command.
        self.evaluate("new Promise(done => setTimeout(done, 0))");
        let is_complaint = |event: &&Value| {
            ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"]
                .iter()
                .any(|method| event["method"] == *method)
        };
        self.events.iter().filter(is_complaint).map(Value::to_string).collect()
    }

    /// Returns the requests that the page made since it was opened.
    pub fn requests(&self) -> Vec<String> {
        let asked = self
            .events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        asked
            .map(|event| event["params"]["request"]["url"].as_str().unwrap_or("?").to_owned())
            .collect()
    }

    #[track_caller]
    fn message(&mut self) -> Value {
        let mut message = Vec::new();
        self.answers.read_until(0, &mut message).expect("Chromium answers");
        assert_eq!(
            message.pop(),
            Some(0),
            "Chromium has ended: {:?}",
            self.child.try_wait()
        );
        serde_json::from_slice(&message).expect("JSON")
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to the array; both are new and have no other owner.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "pipe2");
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}
