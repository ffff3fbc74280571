//! Man pages and completions, from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Args;
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

/// Prints the script by which a shell completes command lines.
pub fn completions(shell: clap_complete::Shell) -> i32 {
    output::print(String::from_utf8_lossy(&man::completions(Args::command(), shell)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_pages_have_every_command_and_option() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(man_pages(directory.path()), 0);
        let mut command = Args::command();
        command.build();
        let shown = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set() && command.get_name() != "help");
        let mut commands = 0;
        for command in shown {
            commands += 1;
            let name = command.get_name();
            let page = directory.path().join(format!("fastpath-{name}.1"));
            // roff escapes a literal hyphen.
            let page = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
            for option in command.get_opts().filter_map(|option| option.get_long()) {
                assert!(page.contains(&format!("--{option}")), "{name} --{option}");
            }
        }
        assert!(commands >= 10, "{commands}");
    }
}
