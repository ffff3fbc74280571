//! `fastpath run`: starts a helper, and becomes the program, which the helper injects at its exec.

mod exec;
pub mod selection;

use std::ffi::OsStr;

use fastpath_daemon::Service;
use fastpath_daemon::record::{Record, Requester, Target, What};
use fastpath_helper::process::Surroundings;
use fastpath_helper::run::{Program, REQUIREMENT_NOT_MET, leave_behind};
use fastpath_helper::timeline::Timeline;
use fastpath_inject::target::{self, View};
use fastpath_measure::{Clocks, Comparison};
use fastpath_os::foreign;
use fastpath_publish::evidence::{self, Distrust, Trust};

use crate::args;
use crate::limits::{FileSize, LARGEST_FILE};
use crate::output::{note, warn};
use crate::rescue_hint;
use selection::select;

/// Stable word for a counter that is not trusted.
const COUNTER: &str = "counter-distrusted";

/// Runs the command. Returns, with an exit status, only if it cannot be run.
pub fn run(options: &args::Run) -> i32 {
    let prepared = prepare(options);
    if options.verbose && !options.rescue {
        // Only then: reading the program delays its start.
        if let Some(path) = exec::find(&options.command[0]) {
            rescue_hint::give(&path, &shown(&options.command[0]));
        }
    }
    match prepared {
        Prepared::Ready => {}
        Prepared::Nothing(why) if options.verbose => {
            note(format_args!("{why}; running {} untouched", shown(&options.command[0])));
        }
        Prepared::Nothing(_) => {}
        Prepared::Refused(word, why) if options.require => {
            record_refusal(word, &why, options);
            note(format_args!("{}: not started: {why}", shown(&options.command[0])));
            return i32::from(REQUIREMENT_NOT_MET);
        }
        Prepared::Refused(word, why) => {
            record_refusal(word, &why, options);
            if !options.quiet {
                warn(format_args!("{why}; running {} untouched", shown(&options.command[0])));
            }
        }
    }
    exec::become_program(&options.command)
}

fn shown(command: &OsStr) -> std::borrow::Cow<'_, str> {
    command.to_string_lossy()
}

/// Puts on record that the program is not served, unless this process has a seccomp filter: the program inherits what is
/// left of the process, and a filter may kill it for a call that it would not make itself.
fn record_refusal(word: &str, why: &str, options: &args::Run) {
    let is_filtered = |status: fastpath_os::Status| status.number("Seccomp") > Some(0);
    if fastpath_os::Status::read("self").map_or(true, is_filtered) {
        return;
    }
    let by = Requester::this_process();
    let mut target = Target::read(by.by_pid);
    // This process becomes it.
    let file = exec::find(&options.command[0]).and_then(|path| foreign::handle(&path).ok());
    file.iter().for_each(|file| target.set_executable(file));
    Record::refused(What::Run, word, why, by, target).write();
}

enum Prepared {
    /// The helper waits for the exec.
    Ready,
    /// There is nothing to do.
    Nothing(String),
    /// The program cannot be served: a stable word for the reason, and a sentence.
    Refused(&'static str, String),
}

fn prepare(options: &args::Run) -> Prepared {
    let mut timeline = Timeline::start(options.verbose);
    // exec reports a program that does not exist or cannot be executed.
    let Some(path) = exec::find(&options.command[0]) else {
        return Prepared::Ready;
    };
    let trust = Trust::from_option(options.trust_counter);
    let counter = evidence::is_promising(trust);
    if counter == Err(Distrust::NotReadable) {
        // Choosing clocks would already read the counter.
        return Prepared::Refused(COUNTER, Distrust::NotReadable.refusal());
    }
    // It ends once the clocks are chosen, which takes milliseconds.
    let comparison = (trust == Trust::Invariant).then(Comparison::begin_quickly);
    let may = View::read("self", libc::AT_FDCWD).and_then(|view| view.may_serve(path.as_os_str(), None));
    let clocks = match select(options.clocks.as_ref(), options.rescue, options.without_vdso) {
        Ok(clocks) => clocks,
        Err(why) => return Prepared::Nothing(why),
    };
    timeline.mark("choose clocks");
    let unsuited = |e: fastpath_inject::Error| (e.word(), e.to_string());
    let failed = |why: String| ("failed", why);
    let prepared = (|| {
        target::proc_shows_this_namespace().map_err(unsuited)?;
        let refusal = comparison.and_then(Comparison::refusal);
        refusal.map_or(Ok(()), |why| Err(("wrong-rate", why)))?;
        counter.map_err(|e| (COUNTER, e.refusal()))?;
        may.map_err(unsuited)?;
        // Nothing that was opened so far is still open.
        let surroundings = Surroundings::note();
        // The helper inherits this limit.
        let _files = FileSize::at_least(LARGEST_FILE).map_err(failed)?;
        let program = Program {
            name: shown(&options.command[0]).into_owned(),
            service: Service {
                clocks: Clocks::Set(clocks),
                children: true,
                rescue: options.rescue,
                trust,
            },
            without_vdso: options.without_vdso,
            require: options.require,
            timeline,
            note: |text| note(text),
            warn: if options.quiet { |_| {} } else { |text| warn(text) },
        };
        leave_behind(program, &surroundings).map_err(failed)
    })();
    match prepared {
        Ok(()) => Prepared::Ready,
        Err((word, why)) => Prepared::Refused(word, why),
    }
}
