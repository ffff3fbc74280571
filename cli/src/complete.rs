//! Completions for shells. The script that a shell reads asks the program itself what can follow, so that the offered
//! processes are current.
//!
//! The script sets a variable and passes the words of the command line after `--`.

use std::ffi::{OsStr, OsString};

use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCompleter, Shell};
use fastpath_measure::Clock;

/// A program, as shells know it.
pub struct Program {
    /// Name by which the shell finds it.
    pub name: &'static str,
    /// Variable by which the script asks it. Not clap's COMPLETE, which users may have set.
    pub variable: &'static str,
    /// Definition of its command line.
    pub command: fn() -> clap::Command,
}

impl Program {
    /// Prints what can follow if a shell's script asks for it, and returns the exit status.
    pub fn answer(&self, arguments: Vec<OsString>) -> Option<i32> {
        let current_dir = std::env::current_dir().ok();
        let completion = CompleteEnv::with_factory(self.command).var(self.variable);
        match completion.try_complete(arguments, current_dir.as_deref()) {
            Ok(false) => None,
            Ok(true) => Some(0),
            // An unfinished line can be anything; nothing follows then.
            Err(_) => Some(1),
        }
    }

    /// Returns the script of a shell.
    pub fn script(&self, shell: Shell) -> String {
        let mut script = Vec::new();
        if let Some(writer) = Shells::builtins().completer(&shell.to_string()) {
            // Writing to a Vec does not fail.
            let _ = writer.write_registration(self.variable, self.name, self.name, self.name, &mut script);
        }
        let mut script = String::from_utf8_lossy(&script).into_owned();
        if shell == Shell::Zsh {
            // The file that zsh loads at the first completion becomes the completing function, and has to complete that
            // first time.
            let name = self.name;
            script += &format!(
                "\nif [[ \"$funcstack[1]\" == \"_{name}\" ]]; then\n    _clap_dynamic_completer_{name} \"$@\"\nfi\n"
            );
        }
        script
    }
}

/// Completes `auto`, `all`, or the last of several clocks.
pub fn clocks() -> ArgValueCompleter {
    ArgValueCompleter::new(clocks_after)
}

fn clocks_after(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let (before, last) = match typed.rfind(',') {
        Some(comma) => typed.split_at(comma + 1),
        None => ("", &*typed),
    };
    // Candidates have the case that was typed so far.
    let is_upper = last.starts_with(|c: char| c.is_ascii_uppercase());
    let prefix = match last.get(..6) {
        Some("CLOCK_") => "CLOCK_",
        Some("clock_") => "clock_",
        _ => "",
    };
    let given: Vec<Clock> = before.split(',').filter_map(|name| name.parse().ok()).collect();
    let words = [
        ("auto", "the clocks whose present path is slow"),
        ("all", "all clocks that fastpath serves"),
    ];
    let words = words.into_iter().filter(|_| before.is_empty());
    let clocks = Clock::SERVED
        .iter()
        .filter(|clock| !given.contains(clock))
        .map(|clock| {
            let name = if is_upper {
                clock.name().to_owned()
            } else {
                clock.name().to_ascii_lowercase()
            };
            CompletionCandidate::new(format!("{before}{prefix}{name}"))
        });
    words
        .map(|(word, meaning)| CompletionCandidate::new(word).help(Some(meaning.into())))
        .chain(clocks)
        .filter(|candidate| candidate.get_value().to_string_lossy().starts_with(&*typed))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(typed: &str) -> Vec<String> {
        let candidates = clocks_after(OsStr::new(typed)).into_iter();
        candidates
            .map(|candidate| candidate.get_value().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn clocks_are_completed_one_after_the_other_as_they_are_typed() {
        let names = ["realtime", "monotonic", "monotonic_raw", "boottime", "tai"];
        assert_eq!(offered(""), [&["auto", "all"], &names[..]].concat());
        assert_eq!(offered("a"), ["auto", "all"]);
        assert_eq!(offered("MONO"), ["MONOTONIC", "MONOTONIC_RAW"]);
        assert_eq!(offered("CLOCK_T"), ["CLOCK_TAI"]);
        assert_eq!(offered("tai,m"), ["tai,monotonic", "tai,monotonic_raw"]);
        assert_eq!(offered("tai,t"), [""; 0]);
    }
}
