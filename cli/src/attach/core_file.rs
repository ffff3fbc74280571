//! `fastpath status --core`: whether the process of a core dump was served.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fastpath_evidence::{PageCopy, Residuals};
use fastpath_inject::core_note::{Dumped, NotRead, read_core};
use fastpath_os::printable;
use fastpath_page::Reader;

use super::status::{clock_names, clocks};
use crate::exit;
use crate::output;

/// Prints what the core dump says; returns the exit status.
pub fn print(path: &Path) -> i32 {
    let name = printable(&path.display().to_string());
    match open(path)
        .map_err(NotRead::Io)
        .and_then(|mut core| read_core(&mut core))
    {
        Ok(None) => output::print(format_args!("{name}: not served by fastpath\n")),
        Ok(Some(dumped)) => match output::print(text(&name, &dumped)) {
            0 => exit::FOUND,
            not_written => not_written,
        },
        Err(why) => {
            output::note(format_args!("status: {name}: {why}"));
            match why {
                NotRead::NoFiles => exit::CANNOT_TELL,
                _ => exit::NO_INPUT,
            }
        }
    }
}

/// Opens a regular file only: a pipe would be waited for.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("this is no regular file, as a core dump is")),
    }
}

fn text(name: &str, dumped: &Dumped) -> String {
    let region = dumped.at;
    let Some(note) = &dumped.note else {
        return format!(
            "{name}: served by fastpath, region at {region:#x}\n  version and changes: not in this dump (coredump_filter, or another version)\n"
        );
    };
    let version = printable(&note.version);
    if note.by == "detached" {
        return format!("{name}: detached by fastpath {version}; its region at {region:#x} is unused\n");
    }
    let functions = match &note.functions[..] {
        [] => "none; only its descendants are served".to_owned(),
        [all] if all == "all" => "all: the image is this program's vDSO".to_owned(),
        some => printable(&some.join(", ")),
    };
    let page = dumped.page.as_ref().and_then(|bytes| PageCopy::from_bytes(bytes));
    let page = page.map_or_else(
        || "not in this dump (the kernel leaves out fastpathd's)".to_owned(),
        |page| {
            let clocks = match &clock_names(clocks(&page))[..] {
                [] => "no clock".to_owned(),
                names => names.join(", "),
            };
            let past = Residuals::of_page(&page);
            let publisher = Reader::new(&page).stats().publisher_pid;
            format!("{clocks}; {} withdrawals; publisher {publisher}", past.withdrawals)
        },
    );
    format!(
        "{name}: served by fastpath {version} ({}), region at {region:#x}\n  functions  {functions}\n  calls      {} for time redirected, {} reported before an exec or a change of namespace\n  page       {page}\n",
        printable(&note.by),
        note.rescued,
        note.hooked,
    )
}
