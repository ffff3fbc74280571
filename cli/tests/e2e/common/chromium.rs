//! A headless Chromium that loads a page, runs a script in it, and prints the result.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{finish, skip};

/// Its names in Debian, in Ubuntu and in Chrome's packages.
const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
];

/// Returns the name of this machine's; otherwise skips the test.
pub fn chromium() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    let found = NAMES.into_iter().find(is_there);
    if found.is_none() {
        skip("no Chromium on this machine");
    }
    found
}

/// Returns the value of an expression in a copy of the page, on a screen of this width, in light or dark colours. The copy
/// may execute the script; the title becomes the result.
#[track_caller]
pub fn evaluate(chromium: &str, page: &Path, width: u32, is_dark: bool, expression: &str) -> Value {
    let text = std::fs::read_to_string(page).expect("the page");
    let (before, policy) = text
        .split_once("<meta http-equiv=\"Content-Security-Policy\"")
        .expect("a policy");
    let (_, rest) = policy.split_once('>').expect("its end");
    let script = format!("<script>document.title = JSON.stringify({expression})</script>");
    let copy = page.with_extension("copy.html");
    std::fs::write(&copy, [before, rest, &script].concat()).expect("a copy");
    let profile = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(chromium);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ])
        .args(["--virtual-time-budget=1000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("--blink-settings=preferredColorScheme={}", u32::from(!is_dark)))
        .arg(format!("file://{}", copy.display()));
    let shown = finish(command).expect_success().out;
    let title = shown
        .split("<title>")
        .nth(1)
        .and_then(|rest| rest.split("</title>").next());
    let json = title
        .expect("a title")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{expression}: {error}: {json}"))
}
