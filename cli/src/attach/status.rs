//! `fastpath status`: the processes that have fastpath's page, and the state of the pages.

use std::time::Duration;

use fastpath_measure::Clock;

use crate::args;
use crate::document;
use crate::exit;
use crate::live::{self, Screen};
use crate::output;
use crate::processes;
use crate::unserved;

use super::served::{Daemon, Served, ServedBy, ServedStatus, look};

/// Prints the processes, with --watch repeatedly; returns the exit status.
pub fn status(options: &args::Status) -> i32 {
    if let Err(why) = processes::listable() {
        output::note(why);
        return exit::CANNOT_TELL;
    }
    match options.watch {
        Some(interval) => watch(options.json, interval),
        None => {
            let (status, warnings) = look();
            warnings.iter().for_each(output::warn);
            print(options.json, &status)
        }
    }
}

fn print(json: bool, status: &ServedStatus) -> i32 {
    if json {
        document::print("status", status)
    } else {
        output::print(text(status))
    }
}

/// Shows the table, or the document, until a signal ends it.
fn watch(json: bool, interval: Duration) -> i32 {
    live::end_by_signal();
    live::redraw_by_signal();
    // SAFETY: SIG_IGN installs no handler. A write to standard output without a reader then returns an error.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let is_redrawn = !json && output::can_redraw();
    let mut screen = Screen::default();
    let mut shown = String::new();
    let mut warned = Vec::new();
    while live::ended_by().is_none() {
        let (status, warnings) = look();
        // The signal may have interrupted the look.
        if live::ended_by().is_some() {
            break;
        }
        let written = if is_redrawn {
            shown = headed(&status, interval);
            // Standard error is usually the same terminal, and would be drawn over.
            let warnings = warnings.iter().map(|why| output::fitted(&format!("warning: {why}")));
            shown.extend(warnings);
            screen.show(&shown)
        } else {
            if warnings != warned {
                warnings.iter().for_each(output::warn);
                warned = warnings;
            }
            if json {
                print(json, &status)
            } else {
                output::print(headed(&status, interval) + "\n")
            }
        };
        if written != 0 {
            return written;
        }
        live::wait(interval);
    }
    // A terminal shows `^C` below the table.
    if shown.is_empty() { 0 } else { screen.show(&shown) }
}

/// Returns the table below a line with the time.
fn headed(status: &ServedStatus, interval: Duration) -> String {
    let what = format!("Every {} s: fastpath status", interval.as_secs_f64());
    let time = output::local_time();
    let columns = output::terminal_size().map_or(0, |(_, columns)| columns);
    let gap = columns.saturating_sub(what.len() + time.len()).max(2);
    format!("{what}{:gap$}{time}\n\n{}", "", text(status))
}

fn text(status: &ServedStatus) -> String {
    let mut table = output::table([
        "PID",
        "COMMAND",
        "BY",
        "CLOCKS",
        "AGE",
        "RESIDUAL",
        "FALLBACKS",
        "PUBLISHER",
    ]);
    for served in &status.processes {
        let dash = || "-".to_owned();
        table.add_row([
            served.pid.to_string(),
            fastpath_os::printable(&served.comm),
            by_in_words(served),
            match &served.withdrawn {
                Some(why) => format!("none ({why})"),
                None if served.clocks.is_empty() => dash(),
                None if served.clocks.len() == Clock::SERVED.len() => "all".to_owned(),
                None => served.clocks.join(","),
            },
            served.age_ns.map_or_else(dash, age),
            served.residual_ns.map_or_else(dash, |ns| format!("{ns} ns")),
            served.fallbacks.map_or_else(dash, |n| n.to_string()),
            match (served.publisher, served.publisher_is_alive) {
                (Some(pid), Some(false)) => format!("{pid} (gone)"),
                (Some(pid), _) => pid.to_string(),
                (None, _) => dash(),
            },
        ]);
    }
    let mut text = if status.processes.is_empty() {
        "no process is on fastpath here\n".to_owned()
    } else {
        // Hides columns that are only useful if something is wrong; --json has them.
        output::fit(&mut table, &[6, 5]);
        format!("{}\n", table.trim_fmt())
    };
    text += &remarks(status);
    if let Some(daemon) = &status.daemon {
        text.extend(daemon.sentence().lines().map(output::fitted));
    }
    text
}

/// Returns the lines about some of the processes, below the table.
fn remarks(status: &ServedStatus) -> String {
    let mut text = String::new();
    let pids = |is_meant: fn(&Served) -> bool| {
        let meant = status.processes.iter().filter(|served| is_meant(served));
        meant.map(|served| served.pid.to_string()).collect::<Vec<_>>()
    };
    let outside = pids(|served| served.in_vdso == Some(false)).join(", ");
    if !outside.is_empty() {
        text += &output::fitted(&format!(
            "profilers do not find the callers of clock reads in {outside} (docs/limits.md)"
        ));
    }
    let forbidden = pids(|served| served.is_forbidden).join(" ");
    if !forbidden.is_empty() {
        text += &output::fitted(&format!(
            "the policy says never now, and these stay served: `fastpath detach {forbidden}`"
        ));
    }
    let unseen = |served: &Served| {
        let library = fastpath_os::printable(served.unseen_library.as_ref()?);
        let line = format!(
            "{} has loaded {library} again: its calls there are not seen (docs/limits.md)",
            served.pid
        );
        Some(output::fitted(&line))
    };
    text.extend(status.processes.iter().filter_map(unseen));
    let counted = status.processes.iter().map(|served| (served.pid, &served.unserved));
    text.extend(unserved::sentences(counted).iter().map(|line| output::fitted(line)));
    if status.unreadable > 0 {
        // SAFETY: geteuid takes nothing and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let why = if is_root {
            "root lacks CAP_SYS_PTRACE for that here"
        } else {
            "of other users: run as root"
        };
        let processes = if status.unreadable == 1 { "process" } else { "processes" };
        text += &output::fitted(&format!(
            "{} {processes} could not be examined ({why})",
            status.unreadable
        ));
    }
    text
}

impl Daemon {
    fn sentence(&self) -> String {
        let many = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let mut text = format!(
            "fastpathd {} ({}), for {}: {}, {} refused\n",
            self.pid,
            self.version,
            duration(self.uptime_seconds),
            many(self.pages as u64, "page"),
            many(self.refused, "request"),
        );
        if let Some(policy) = self.policy.as_ref().filter(|_| self.rules > 0) {
            let noticed = self.notices.as_ref();
            let noticed = noticed.map_or(String::new(), |how| format!(", processes are detected by {how}"));
            text += &format!("{policy}: {}{noticed}\n", many(self.rules as u64, "rule"));
        }
        if let Some(why) = &self.policy_error {
            text += &format!("{why}: the previous policy stays in force\n");
        }
        text
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn age(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.0} s", ns as f64 / 1e9),
    }
}

/// Returns the table's cell for how a process got its page.
fn by_in_words(served: &Served) -> String {
    let by = match (served.by, served.rule) {
        (ServedBy::Detached, _) => "(detached)".into(),
        (_, Some(rule)) => format!("rule {rule}"),
        (ServedBy::Attach, None) => "attach".into(),
        (ServedBy::Run, None) => "run".into(),
    };
    match served.rescued_sites {
        0 => by,
        count => format!("{by}, {count} rescued"),
    }
}
