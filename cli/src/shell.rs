//! Man pages and completions, from the one definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Args;
use crate::output::{self, note};

/// Writes `fastpath.1`, `fastpath-run.1` and so on.
pub fn man_pages(directory: &Path) -> i32 {
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Args::command(), directory));
    match written {
        Ok(()) => 0,
        Err(e) => {
            note(format_args!("{}: {e}", directory.display()));
            output::NOT_WRITTEN
        }
    }
}

/// Prints the completions of one shell.
pub fn completions(shell: clap_complete::Shell) -> i32 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "fastpath", &mut script);
    output::print(String::from_utf8_lossy(&script))
}
