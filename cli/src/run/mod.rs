//! `fastpath run`: becomes the program, after a helper has been left behind that meets it as it starts.

mod exec;
mod helper;
mod selection;
mod timeline;
pub mod title;
mod trial;

use std::ffi::OsStr;

use fastpath_inject::target::View;
use fastpath_publisher::Publisher;
use fastpath_publisher::evidence::{self, Distrust};

use crate::args;
use crate::output::{note, warn};
use selection::Selection;
use timeline::Timeline;

/// Exit status where `--require` is not met, as `env` has it for its own failures.
const REQUIREMENT_NOT_MET: i32 = 125;

/// Runs the command. Returns, with an exit status, only if it cannot be run.
pub fn run(options: &args::Run, title: title::Title) -> i32 {
    match prepare(options, title) {
        Prepared::Ready => {}
        Prepared::Nothing(why) => note(format_args!("{why}; running {} untouched", shown(&options.command[0]))),
        Prepared::Refused(why) if options.require => {
            note(format_args!("{}: not started: {why}", shown(&options.command[0])));
            return REQUIREMENT_NOT_MET;
        }
        Prepared::Refused(why) => warn(format_args!("{why}; running {} untouched", shown(&options.command[0]))),
    }
    exec::become_program(&options.command)
}

fn shown(command: &OsStr) -> std::borrow::Cow<'_, str> {
    command.to_string_lossy()
}

enum Prepared {
    /// The helper waits for the exec.
    Ready,
    /// There is nothing to do.
    Nothing(String),
    /// The program cannot be served.
    Refused(String),
}

fn prepare(options: &args::Run, title: title::Title) -> Prepared {
    let surroundings = helper::Surroundings::note(title);
    let mut timeline = Timeline::start(options.verbose);
    // A program that is not there or cannot be executed is exec's to report.
    let Some(path) = exec::find(&options.command[0]) else {
        return Prepared::Ready;
    };
    let counter = evidence::is_promising();
    if counter == Err(Distrust::NotReadable) {
        // Even to choose clocks it would be read.
        return Prepared::Refused(untrusted(&Distrust::NotReadable));
    }
    let selection = match Selection::of(options) {
        Selection::Nothing(why) => return Prepared::Nothing(why),
        selection => selection,
    };
    timeline.mark("choose clocks");
    let prepared = (|| {
        counter.map_err(|e| untrusted(&e))?;
        let may = View::of("self", libc::AT_FDCWD).and_then(|view| view.may_serve(path.as_os_str()));
        may.map_err(|e| e.to_string())?;
        let filters = trial::seccomp_allows_surgery()?;
        let publisher = Publisher::new(selection.clocks()).map_err(|e| format!("the page could not be made: {e}"))?;
        timeline.mark("map the page");
        helper::leave_behind(options, &selection, filters, publisher, timeline, surroundings)
    })();
    match prepared {
        Ok(()) => Prepared::Ready,
        Err(why) => Prepared::Refused(why),
    }
}

fn untrusted(why: &Distrust) -> String {
    format!("the counter cannot be trusted: {why}")
}
