//! Man pages, from the definition of a command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

/// Writes a page for the command, and one for each of its subcommands.
pub fn write(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_built(&command, directory)
}

fn write_built(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_built(below, directory)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = with_lines_kept(&String::from_utf8_lossy(&text));
    fs::write(directory.join(page.get_filename()), text)
}

/// What is indented in a help text, examples and tables, is not to be filled to the width of the screen.
fn with_lines_kept(roff: &str) -> String {
    let mut text = String::new();
    let mut is_kept = false;
    for line in roff.lines() {
        let keep = line.starts_with("  ");
        if keep != is_kept {
            text += if keep { ".nf\n" } else { ".fi\n" };
        }
        is_kept = keep;
        text += line;
        text.push('\n');
    }
    if is_kept {
        text += ".fi\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_all_else_is_filled() {
        let command = Command::new("x").after_help("Words,\nmore.\n\n  x -a   one\n  x -b   other\n\nAnd more.\n  x");
        let directory = tempfile::tempdir().unwrap();
        write(command, directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("x.1")).unwrap();
        let kept = ".nf\n  x \\-a   one\n  x \\-b   other\n.fi\n\nAnd more.\n.nf\n  x\n.fi\n";
        assert!(page.ends_with(&format!("Words,\nmore.\n\n{kept}")), "{page}");
        assert_eq!(page.matches(".nf").count(), 2, "{page}");
    }
}
