//! Man pages and completions, from the definition of a command line: the text after its options in `--help` becomes the
//! sections that man-pages(7) names.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap::builder::StyledStr;
use clap_mangen::Man;
use roff::{Roff, roman};

/// A page that another one refers to: `fastpath(1)`.
struct Page {
    name: String,
    section: &'static str,
}

/// Writes a page for the command, in this section of the manual, and one for each of its subcommands.
pub fn write(command: Command, section: &'static str, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut siblings = vec![Page {
        name: command.get_name().to_owned(),
        section,
    }];
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    siblings.extend(below.map(|below| Page {
        name: title(below),
        section,
    }));
    write_built(&command, section, &siblings, directory)
}

/// Returns the script by which a shell completes the command's lines.
pub fn completions(mut command: Command, shell: clap_complete::Shell) -> Vec<u8> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Returns `fastpath-run` and the like.
fn title(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn write_built(command: &Command, section: &'static str, siblings: &[Page], directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_built(below, section, siblings, directory)?;
    }
    let page = Man::new(command.clone()).section(section);
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    let name = title(command);
    // A long help repeats the short one, a list of the commands, which have a section already.
    let text_of = |help: Option<&StyledStr>| help.map(ToString::to_string).unwrap_or_default();
    let (short, long) = (
        text_of(command.get_after_help()),
        text_of(command.get_after_long_help()),
    );
    let mut ours = Sections::parse(match &*long {
        "" => &short,
        long => long.strip_prefix(&*short).unwrap_or(long),
    });
    ours.0.push(("FILES", files(&name).join("\n")));
    ours.0.push(("SEE ALSO", see_also(&name, siblings)));
    ours.render(&mut text)?;
    let text = with_lines_kept(&String::from_utf8_lossy(&text));
    fs::write(directory.join(page.get_filename()), text)
}

/// Headings and their text.
struct Sections(Vec<(&'static str, String)>);

impl Sections {
    /// Separates the examples, which are indented, and the exit status, which has a heading, from the other paragraphs
    /// of a help text.
    fn parse(help: &str) -> Sections {
        const EXIT_STATUS: &str = "Exit status: ";
        let (mut notes, mut status, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        for paragraph in help.split("\n\n") {
            if let Some(says) = paragraph.strip_prefix(EXIT_STATUS) {
                status.push(capitalized(says));
            } else if paragraph.lines().all(|line| line.starts_with("  ")) {
                examples.push(paragraph.to_owned());
            } else {
                notes.push(paragraph.to_owned());
            }
        }
        let sections = [("NOTES", notes), ("EXIT STATUS", status), ("EXAMPLES", examples)];
        Sections(
            sections
                .map(|(heading, paragraphs)| (heading, paragraphs.join("\n\n")))
                .into(),
        )
    }

    fn render(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut roff = Roff::new();
        for (heading, text) in self.0.iter().filter(|(_, text)| !text.trim().is_empty()) {
            roff.control("SH", [*heading]);
            for line in text.trim_matches('\n').lines() {
                roff.text([roman(line)]);
            }
        }
        roff.to_writer(out)
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Returns the files that a command reads, or makes.
fn files(name: &str) -> &'static [&'static str] {
    match name {
        "fastpathd" => &[
            "  /run/fastpath/fastpathd.sock   socket that it listens on; FASTPATH_SOCKET sets another",
            "  /etc/fastpath/policy.toml      policy: the processes that are attached when they appear, or never",
        ],
        "fastpath-nri" => &[
            "  /opt/nri/plugins/10-fastpath       the program, or a link to it, where the runtime starts it",
            "  /etc/nri/conf.d/10-fastpath.conf   its options then: socket, library, method",
            "  /var/run/nri/nri.sock              socket of the runtime",
            "  /run/fastpath/fastpathd.sock       socket of fastpathd(8)",
        ],
        "fastpath-nri-oci-hook" => &[
            "  /usr/share/containers/oci/hooks.d/fastpath.json   says for which containers CRI-O and Podman run the hook",
            "  /run/fastpath/fastpathd.sock                      socket of fastpathd(8)",
        ],
        "fastpath-run" | "fastpath-attach" | "fastpath-status" => {
            &["  /run/fastpath/fastpathd.sock   socket of fastpathd(8); FASTPATH_SOCKET sets another"]
        }
        "fastpath-doctor" => &[
            "  /sys/devices/system/clocksource/clocksource0   the kernel's clocksource, and those that it could use",
            "  /dev/kmsg                                      the kernel's log, with the reason; needs root if kernel.dmesg_restrict is 1",
        ],
        _ => &[],
    }
}

fn see_also(name: &str, siblings: &[Page]) -> String {
    let own = siblings.iter().filter(|page| page.name != name);
    let mut named: Vec<String> = own.map(|page| format!("{}({})", page.name, page.section)).collect();
    let others = match name {
        "fastpathd" => &[
            "fastpath(1)",
            "fastpath-attach(1)",
            "fastpath-run(1)",
            "fastpath-status(1)",
        ][..],
        _ => &["fastpathd(8)"],
    };
    named.extend(
        others
            .iter()
            .chain(&["clock_gettime(2)", "vdso(7)"])
            .map(ToString::to_string),
    );
    named.join(", ")
}

/// Keeps the lines of indented text in a help text (examples and tables): it must not be filled to the width of the
/// screen.
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
    fn examples_in_a_help_text_keep_their_lines_and_paragraphs_are_filled() {
        let command = Command::new("x").after_long_help(
            "Words,\nmore.\n\nExit status: 0; else\n   1  some\n   2  other\n\nAnd more.\n\n  x -a   one\n  x -b   other",
        );
        let directory = tempfile::tempdir().unwrap();
        write(command, "8", directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("x.8")).unwrap();
        let at = |heading: &str| page.find(heading).unwrap_or_else(|| panic!("{heading}: {page}"));
        let sections = [
            ".SH NOTES\nWords,\nmore.\n\nAnd more.\n",
            ".SH \"EXIT STATUS\"\n0; else\n.nf\n   1  some\n   2  other\n.fi\n",
            ".SH EXAMPLES\n.nf\n  x \\-a   one\n  x \\-b   other\n.fi\n",
            ".SH \"SEE ALSO\"\nfastpathd(8), clock_gettime(2), vdso(7)\n",
        ];
        assert!(sections.map(at).is_sorted(), "{page}");
        assert!(!page.contains(".SH EXTRA") && !page.contains("FILES"), "{page}");
    }
}
