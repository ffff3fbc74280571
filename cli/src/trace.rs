//! `fastpath trace`: the processes that make system calls to read clocks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use comfy_table::{Cell, CellAlignment, Table};
use fastpath_os::printable;
use fastpath_tools::trace::{
    Caller, CommandEnd, Method, NOT_EXECUTABLE, NOT_FOUND, Observer, TraceOptions, TraceReport, TraceRow, Whom,
};

use crate::args;
use crate::document;
use crate::exit;
use crate::file;
use crate::live::{self, Screen};
use crate::output::{self, nanoseconds, note, warn};
use crate::processes::{self, Named};

/// Runs the command; returns its exit status.
pub fn run(options: &args::Trace) -> i32 {
    let process = match options.pid.as_ref().map(Named::one).transpose() {
        Ok(pid) => pid,
        Err(why) => {
            note(why);
            return processes::status_of_none();
        }
    };
    let whom = match (process, options.command.is_empty()) {
        (_, false) => Whom::Command(options.command.clone()),
        (Some(pid), _) => Whom::Process(pid.cast_unsigned()),
        (None, _) => Whom::All,
    };
    let is_command = matches!(whom, Whom::Command(_));
    // Before anything is started: an output that cannot be written must not waste a measurement.
    let mut out = match Out::open(options, is_command) {
        Ok(out) => out,
        Err(why) => {
            note(why);
            return exit::NOT_WRITTEN;
        }
    };
    live::end_by_signal();
    let mut live = Live {
        is_live: !options.json && matches!(out, Out::Standard) && output::can_redraw(),
        screen: Screen::default(),
    };
    let traced = fastpath_tools::trace::run(
        &TraceOptions {
            whom,
            method: options.by.as_deref().map(|by| match by {
                "bpf" => Method::Bpf,
                _ => Method::Ptrace,
            }),
            stacks: options.stacks,
            sites: options.places,
            duration: options.duration,
        },
        &mut live,
    );
    let outcome = match traced {
        Ok(outcome) => outcome,
        Err(why) => {
            note(format_args!("trace: {why}"));
            return exit::without(process);
        }
    };
    if let Some(CommandEnd::NotStarted(error)) = &outcome.end {
        note(format_args!("{}: {error}", options.command[0].to_string_lossy()));
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        return if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
    }
    live.screen.clear();
    let written = out.write(options, &outcome.report);
    if outcome.report.lost.is_anything() {
        warn(lost(&outcome.report));
    }
    if let (Some(pid), 0) = (process, outcome.report.calls) {
        output::progress(format_args!(
            "reads that a vDSO answers are no system calls; `fastpath doctor {pid}` samples them"
        ));
    }
    let end = outcome.end.or_else(|| {
        let running = outcome.running?;
        // The sender of the signal wants to end the program too; Ctrl-C has already reached it.
        if let Some(signal @ (libc::SIGTERM | libc::SIGHUP)) = live::ended_by() {
            // SAFETY: kill takes integers; the child has not been waited for.
            unsafe { libc::kill(running.pid() as i32, signal) };
        }
        running.wait()
    });
    match end {
        _ if written != 0 => written,
        Some(CommandEnd::Exited(status)) => status,
        Some(CommandEnd::Killed(signal)) => die_by(signal),
        Some(CommandEnd::NotStarted(_)) | None => 0,
    }
}

/// Ends this process by the signal that ended the program.
fn die_by(signal: i32) -> i32 {
    // SAFETY: system calls with valid pointers to locals; the core limit of 0 keeps this process from dumping core.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    128 + signal
}

/// Destination of the result.
enum Out {
    Standard,
    /// Standard output is the program's own.
    StandardError,
    File(File, std::path::PathBuf),
}

impl Out {
    fn open(options: &args::Trace, is_command: bool) -> Result<Out, String> {
        match &options.output {
            Some(path) => file::create(path)
                .map(|file| Out::File(file, path.clone()))
                .map_err(|error| format!("{}: {error}", path.display())),
            None if is_command => Ok(Out::StandardError),
            None => Ok(Out::Standard),
        }
    }

    fn write(&mut self, options: &args::Trace, report: &TraceReport) -> i32 {
        let text = if options.json {
            match document::line("trace", report) {
                Ok(line) => line,
                Err(why) => {
                    note(why);
                    return exit::NOT_WRITTEN;
                }
            }
        } else {
            text(report, usize::MAX)
        };
        let (written, name) = match self {
            Out::Standard => return output::print(text),
            Out::StandardError => (output::error_output(&text), "standard error".into()),
            Out::File(file, path) => (file.write_all(text.as_bytes()), path.display().to_string()),
        };
        match written {
            Ok(()) => 0,
            Err(error) => {
                note(format_args!("{name}: {error}"));
                exit::NOT_WRITTEN
            }
        }
    }
}

/// The table while it grows.
struct Live {
    is_live: bool,
    screen: Screen,
}

impl Observer for Live {
    fn is_to_stop(&self) -> bool {
        live::ended_by().is_some()
    }

    fn note(&mut self, text: String) {
        note(text);
    }

    fn show(&mut self, report: TraceReport) {
        let (lines, _) = Screen::room();
        if self.screen.show(&text(&report, lines.saturating_sub(1))) != 0 {
            live::end(libc::SIGPIPE);
        }
    }

    fn is_looking(&self) -> bool {
        self.is_live
    }
}

fn lost(report: &TraceReport) -> String {
    let lost = &report.lost;
    let mut parts = Vec::new();
    if lost.calls > 0 {
        parts.push(format!(
            "{} calls are in no row, because the table is full (--places makes it larger)",
            lost.calls
        ));
    }
    if lost.stacks > 0 {
        parts.push(format!("{} stacks were lost", lost.stacks));
    }
    if lost.process_events > 0 {
        parts.push(format!(
            "{} forks, execs or mappings were lost: names may be wrong",
            lost.process_events
        ));
    }
    parts.join("; ")
}

/// Merges rows of ended processes of the same program, unless functions are shown.
fn merged(rows: &[TraceRow]) -> Vec<(String, TraceRow)> {
    let mut merged: Vec<(String, TraceRow)> = Vec::new();
    let mut ended: BTreeMap<_, (usize, u32)> = BTreeMap::new();
    for row in rows {
        if !row.has_ended || !row.callers.is_empty() {
            merged.push((row.pid.to_string(), row.clone()));
            continue;
        }
        let key = (
            row.comm.as_str(),
            row.program.as_deref(),
            row.call,
            row.clock.as_deref(),
            row.abi,
            row.says,
        );
        match ended.get_mut(&key) {
            None => {
                ended.insert(key, (merged.len(), 1));
                merged.push((row.pid.to_string(), row.clone()));
            }
            Some((index, count)) => {
                *count += 1;
                let (pid, sum) = &mut merged[*index];
                *pid = format!("{count} ended");
                sum.calls += row.calls;
                sum.calls_per_second += row.calls_per_second;
                sum.cpu_percent = sum.cpu_percent.zip(row.cpu_percent).map(|(a, b)| a + b);
            }
        }
    }
    merged.sort_by(|(_, a), (_, b)| b.cpu_percent.unwrap_or(0.0).total_cmp(&a.cpu_percent.unwrap_or(0.0)));
    merged
}

/// Width of a table: on a narrow terminal, clocks and reasons are named by one word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Wide,
    Narrow,
}

fn table(report: &TraceReport, most_rows: usize, width: Width) -> Table {
    let mut table = output::table(["PID", "program", "call", "calls", "calls/s", "ns", "CPU", "why"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for (pid, row) in merged(&report.rows).into_iter().take(most_rows) {
        let mut call = match &row.clock {
            Some(clock) if width == Width::Narrow && row.call == "clock_gettime" => clock.clone(),
            Some(clock) => format!("{} {clock}", row.call),
            None => row.call.to_owned(),
        };
        if row.abi != std::env::consts::ARCH {
            call += &format!(" ({})", row.abi);
        }
        let percent = row
            .cpu_percent
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.3} %"));
        table.add_row(vec![
            right(pid),
            Cell::new(printable(&row.comm)),
            Cell::new(call),
            right(row.calls.to_string()),
            right(format!("{:.0}", row.calls_per_second)),
            right(nanoseconds(row.cost_ns)),
            right(percent),
            match width {
                Width::Wide => Cell::new(row.says),
                Width::Narrow => Cell::new(row.why.word()),
            },
        ]);
        for caller in row.callers.iter().take(5) {
            table.add_row(vec![
                Cell::new(""),
                Cell::new(""),
                Cell::new(format!("  {}", printable(&of_caller(caller)))),
                right(caller.calls.to_string()),
            ]);
        }
    }
    table
}

fn text(report: &TraceReport, most_rows: usize) -> String {
    let mut shown = table(report, most_rows, Width::Wide);
    let mut legend = String::new();
    if !output::fits(&shown) {
        shown = table(report, most_rows, Width::Narrow);
        // The cost of a call, and the total number.
        output::fit(&mut shown, &[5, 3]);
        let words: BTreeMap<_, _> = report.rows.iter().map(|row| (row.why.word(), row.says)).collect();
        legend = words
            .iter()
            .map(|(word, says)| output::wrapped(&format!("  {word}: "), says))
            .collect();
    }
    let how = match report.method {
        Method::Bpf => "counted in the kernel",
        Method::Ptrace => "counted by ptrace: the program ran slower",
    };
    let mut text = format!(
        "{} system calls to read clocks in {:.1} s, {how}\n",
        report.calls, report.seconds
    );
    if report.lost.is_anything() {
        text += &format!("lost: {}\n", lost(report));
    }
    if !report.rows.is_empty() {
        text += &format!("\n{}\n", shown.trim_fmt());
        if !legend.is_empty() {
            text += &format!("\n{legend}");
        }
    }
    text
}

fn of_caller(caller: &Caller) -> String {
    let library = caller.library.as_deref().unwrap_or("unknown");
    let library = library.rsplit('/').next().unwrap_or_default();
    match &caller.function {
        Some(function) => format!("{function} ({library})"),
        None => format!("? ({library})"),
    }
}
