//! Man pages and completions, from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Args;
use crate::complete::Program;
use crate::exit;
use crate::man;
use crate::output::{self, note};

/// Writes `fastpath.1`, `fastpath-run.1` and so on.
pub fn man_pages(directory: &Path) -> i32 {
    match man::write(Args::command(), "1", directory) {
        Ok(()) => 0,
        Err(e) => {
            note(format_args!("{}: {e}", directory.display()));
            exit::NOT_WRITTEN
        }
    }
}

/// The program that shells ask for completions.
pub const PROGRAM: Program = Program {
    name: "fastpath",
    variable: "FASTPATH_COMPLETE",
    command: Args::command,
};

/// Prints the script by which a shell completes command lines.
pub fn completions(shell: clap_complete::Shell) -> i32 {
    output::print(PROGRAM.script(shell))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn man_pages_and_completions_have_every_command_and_option() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(man_pages(directory.path()), 0);
        let mut command = Args::command();
        command.build();
        let offered = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            let last = words.len() - 1;
            let found = clap_complete::engine::complete(&mut Args::command(), words, last, None).unwrap();
            let values = found
                .iter()
                .map(|candidate| candidate.get_value().to_string_lossy().into_owned());
            values.collect::<Vec<_>>()
        };
        let commands_offered = offered(&["fastpath", ""]);
        let shown = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set() && command.get_name() != "help");
        let mut commands = 0;
        for command in shown {
            commands += 1;
            let page = directory.path().join(format!("fastpath-{}.1", command.get_name()));
            // roff escapes a literal hyphen.
            let page = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
            let options_offered = offered(&["fastpath", command.get_name(), "--"]);
            for option in command.get_opts().filter_map(|option| option.get_long()) {
                assert!(
                    page.contains(&format!("--{option}")),
                    "{} --{option}",
                    command.get_name()
                );
                assert!(
                    options_offered.contains(&format!("--{option}")),
                    "{} --{option}: {options_offered:?}",
                    command.get_name()
                );
            }
            assert!(
                commands_offered.contains(&command.get_name().to_owned()),
                "{}",
                command.get_name()
            );
        }
        assert!(commands >= 10, "{commands}");
    }
}
