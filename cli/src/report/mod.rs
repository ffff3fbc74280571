//! `fastpath report`: one page of this host, or of many.

mod files;
mod measure;

use std::io::IsTerminal;
use std::path::Path;

use fastpath_report::data::FleetReport;

use crate::args;
use crate::document;
use crate::exit;
use crate::file;
use crate::output::{self, note, warn};

/// Runs the command; returns its exit status.
pub fn run(options: &args::Report) -> i32 {
    if options.output.is_none() && !options.json && std::io::stdout().is_terminal() {
        note("report: the page is HTML, and standard output is a terminal; name a file with -o FILE");
        return exit::USAGE;
    }
    let hosts = if options.files.is_empty() {
        measure::this_host(options.trace).map(|host| vec![host])
    } else {
        files::read(&options.files)
    };
    let hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            note(format_args!("report: {why}"));
            return if options.files.is_empty() {
                exit::CANNOT_TELL
            } else {
                exit::NO_INPUT
            };
        }
    };
    for name in files::of_several(&hosts) {
        warn(format_args!(
            "report: two hosts are called {name}; the page distinguishes them by file and number"
        ));
    }
    let report = FleetReport {
        fastpath: env!("CARGO_PKG_VERSION").to_owned(),
        hosts,
    };
    let text = if options.json {
        match document::line("report", &report) {
            Ok(line) => line,
            Err(why) => {
                note(why);
                return exit::NOT_WRITTEN;
            }
        }
    } else {
        fastpath_report::page(&report)
    };
    match &options.output {
        Some(path) => write(path, &text),
        None => output::print_html(text),
    }
}

fn write(path: &Path, text: &str) -> i32 {
    match file::replace(path, text) {
        Ok(()) => {
            output::progress(format_args!("{} is written; a browser shows it", path.display()));
            0
        }
        Err(error) => {
            note(format_args!("report: {}: {error}", path.display()));
            exit::NOT_WRITTEN
        }
    }
}
