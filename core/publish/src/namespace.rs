//! The offsets of a process's clocks, from /proc (time_namespaces(7)).

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::Offsets;

/// Reason why the offsets of a process's clocks are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownOffsets {
    /// The process does not exist.
    #[error("there is no process {0} any more")]
    Gone(i32),
    /// They cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

impl Offsets {
    /// Reads how a process's clocks differ from this process's (time_namespaces(7)).
    pub fn read(process: i32) -> Result<Offsets, UnknownOffsets> {
        let link = |of: &str, name: &str| match fs::read_link(format!("/proc/{of}/ns/{name}")) {
            Ok(link) => Ok(Some(link)),
            // A kernel without time namespaces has no such link.
            Err(e) if e.kind() == io::ErrorKind::NotFound && fs::metadata("/proc/self/ns/time").is_err() => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(UnknownOffsets::Gone(process)),
            Err(e) => Err(UnknownOffsets::Unreadable(format!(
                "the time namespace of process {process} cannot be told: {e}"
            ))),
        };
        // A first thread that has ended is in no namespace any more; others of the process may live.
        let has_ended = fs::read_link(format!("/proc/{process}/ns/time")).is_err();
        let living = || fastpath_os::threads(process).ok()?.find(|tid| *tid != process);
        let pid = match living().filter(|_| has_ended) {
            Some(tid) => format!("{process}/task/{tid}"),
            None => process.to_string(),
        };
        let theirs: Option<PathBuf> = link(&pid, "time")?;
        if theirs == link("self", "time")? {
            return Ok(Offsets::default());
        }
        // The file shows the offsets of the namespace that children will be in.
        if theirs != link(&pid, "time_for_children")? {
            return Err(UnknownOffsets::Unreadable(format!(
                "process {pid} is about to enter another time namespace"
            )));
        }
        let of = |process: &str| {
            let path = format!("/proc/{process}/timens_offsets");
            let text = fs::read_to_string(&path).ok();
            text.as_deref().and_then(parse_offsets).ok_or_else(|| {
                UnknownOffsets::Unreadable(format!(
                    "the clocks of process {pid} cannot be told: {path} cannot be read"
                ))
            })
        };
        let (theirs, ours) = (of(&pid)?, of("self")?);
        Ok(Offsets {
            monotonic_ns: theirs.monotonic_ns - ours.monotonic_ns,
            boottime_ns: theirs.boottime_ns - ours.boottime_ns,
        })
    }
}

/// Parses `monotonic  SECONDS  NANOSECONDS` and the same for boottime, in seconds that fit an i64 of nanoseconds.
fn parse_offsets(text: &str) -> Option<Offsets> {
    let of = |clock: &str| {
        let (_, seconds, ns) = fastpath_os::parse_time_offsets(text).find(|(of, ..)| *of == clock)?;
        seconds.checked_mul(1_000_000_000)?.checked_add(ns)
    };
    Some(Offsets {
        monotonic_ns: of("monotonic")?,
        boottime_ns: of("boottime")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_prints_them() {
        let text = "monotonic           86400         0\nboottime         -604800        -5\n";
        assert_eq!(
            parse_offsets(text),
            Some(Offsets {
                monotonic_ns: 86_400_000_000_000,
                boottime_ns: -604_800_000_000_005
            })
        );
        assert_eq!(parse_offsets("monotonic 1 0\n"), None);
        assert_eq!(parse_offsets("monotonic 9223372036854775807 0\nboottime 0 0\n"), None);
    }
}
