//! `fastpath guard`: a check that fails if the fast path is lost.

use std::io::Read;
use std::path::Path;

use fastpath_measure::guard::{Baseline, GuardOptions, GuardOutcome, GuardReport};
use fastpath_measure::{Clock, Clocks};
use fastpath_page::ClockSet;

use crate::args;
use crate::document;
use crate::exit;
use crate::file;
use crate::output::{self, Paint, note};

/// Size limit of a baseline, which has some hundred bytes for each call. A device may have no end.
const LARGEST_BASELINE: u64 = 1 << 20;

/// Runs the command; returns its exit status.
pub fn run(options: &args::Guard) -> i32 {
    let baseline = match options.versus_baseline.as_deref().map(read).transpose() {
        Ok(baseline) => baseline,
        Err(why) => {
            note(why);
            return exit::NO_INPUT;
        }
    };
    let report = fastpath_measure::guard::guard(&GuardOptions {
        clocks: clocks(options.clocks),
        max_ns: options.max_ns,
        paths: options.path.0.clone(),
        baseline,
        tolerance: options.tolerance,
    });
    if let Some(path) = options
        .write_baseline
        .as_deref()
        .filter(|_| report.outcome == GuardOutcome::Ok)
    {
        if let Err(why) = write(path, &report) {
            note(why);
            return exit::NOT_WRITTEN;
        }
        // Nothing but the baseline.
        if file::is_standard_output(path) {
            return 0;
        }
    }
    let written = if options.json {
        document::print("guard", &report)
    } else {
        output::print(line(&report))
    };
    match (written, report.outcome) {
        (0, GuardOutcome::Ok) => 0,
        (0, GuardOutcome::Broken) => exit::FOUND,
        (0, GuardOutcome::Unknown) => exit::CANNOT_TELL,
        (written, _) => written,
    }
}

fn clocks(clocks: Clocks) -> Vec<Clock> {
    let Some(named) = clocks.named() else {
        // The clocks that programs read most.
        return vec![Clock::MONOTONIC, Clock::REALTIME];
    };
    let is_named = |clock: &Clock| named.contains(ClockSet::of_id(clock.id() as u32));
    Clock::SERVED.iter().copied().filter(is_named).collect()
}

fn line(report: &GuardReport) -> String {
    let (word, paint) = match report.outcome {
        GuardOutcome::Ok => ("ok", Paint::Good),
        GuardOutcome::Broken => ("broken", Paint::Bad),
        GuardOutcome::Unknown => ("unknown", Paint::Doubtful),
    };
    let plain = output::fitted(&format!("{word}: {}", fastpath_os::printable(&report.summary)));
    plain.replacen(word, &output::painted(word, paint), 1)
}

fn read(path: &Path) -> Result<Baseline, String> {
    let name = path.display();
    let text = text(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("guard: {name}: {error}; --write-baseline {name} makes one"),
        _ => format!("guard: {name} cannot be read: {error}"),
    })?;
    parse(&text)
        .map_err(|why| format!("guard: {name} is not a baseline, which --write-baseline or --json writes: {why}"))
}

fn text(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(LARGEST_BASELINE + 1).read_to_end(&mut text)?;
    Ok(text)
}

fn parse(text: &[u8]) -> Result<Baseline, String> {
    if text.len() as u64 > LARGEST_BASELINE {
        return Err("it is larger than 1 MiB".into());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn write(path: &Path, report: &GuardReport) -> Result<(), String> {
    // A file that was named by mistake: its owner may need it.
    let is_file = path.metadata().is_ok_and(|is| is.is_file() && is.len() > 0);
    if is_file && text(path).is_ok_and(|text| parse(&text).is_err()) {
        return Err(format!(
            "guard: {} is not a baseline, so it is not replaced; name another file, or remove it",
            path.display()
        ));
    }
    let line = document::line("guard", report)?;
    file::replace(path, &line).map_err(|error| format!("guard: {}: {error}", path.display()))
}
