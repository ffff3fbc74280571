//! The clock ids of Linux, by the names that users type.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strsim::levenshtein;

use crate::clock::ClockSet;
pub use crate::clock::{Clock, ClockKind};

impl Clock {
    /// The clocks that are read from the counter and cannot be set, so that a step back of one is always a fault.
    pub const NEVER_SET: [Clock; 3] = [Clock::MONOTONIC, Clock::MONOTONIC_RAW, Clock::BOOTTIME];

    /// Returns the number that `clock_gettime` takes.
    pub fn id(self) -> i32 {
        self.id
    }

    /// Returns the name, without `CLOCK_`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns how this clock is answered.
    pub fn kind(self) -> ClockKind {
        self.kind
    }

    /// Returns the clock with this id.
    pub fn from_id(id: i32) -> Option<Clock> {
        Self::ALL.iter().copied().find(|clock| clock.id == id)
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl Serialize for Clock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Clock {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Clock".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": Clock::ALL.iter().map(|clock| clock.name).collect::<Vec<_>>() })
    }
}

/// Error: no clock has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown clock '{name}'{}; the clocks are {}", meant(name, Clock::ALL.iter().map(|clock| clock.name)), valid_names())]
pub struct UnknownClock {
    /// The name that was typed.
    pub name: String,
}

/// Returns the word that resembles `typed` most, as a question; empty if none resembles it.
fn meant<'w>(typed: &str, words: impl Iterator<Item = &'w str>) -> String {
    /// Largest number of wrong letters in a misspelt word.
    const MOST: usize = 3;
    let name = plain(typed);
    let distance = |word: &str| levenshtein(&name, &plain(word));
    let nearest = words.min_by_key(|word| distance(word));
    let nearest = nearest.filter(|word| {
        let wrong = distance(word);
        (1..=MOST).contains(&wrong) && wrong * 2 < name.len()
    });
    nearest.map_or(String::new(), |word| format!(" (did you mean {word}?)"))
}

/// Returns the name as the kernel's header has it, without its prefix.
fn plain(typed: &str) -> String {
    let name = typed.trim().to_ascii_uppercase().replace('-', "_");
    name.strip_prefix("CLOCK_").unwrap_or(&name).to_owned()
}

fn valid_names() -> String {
    Clock::ALL.iter().map(|clock| clock.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Clock {
    type Err = UnknownClock;

    /// Accepts a name in any case, with `-` or `_`, with or without its prefix: `monotonic-raw`, `CLOCK_MONOTONIC_RAW`
    /// and `Monotonic_Raw` name one clock.
    fn from_str(typed: &str) -> Result<Self, UnknownClock> {
        let name = plain(typed);
        let found = Self::ALL.iter().copied().find(|clock| clock.name == name);
        found.ok_or_else(|| UnknownClock { name: typed.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Clock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Clock, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The clocks that fastpath serves or checks, as users write them: the same for every `--clocks`, and for a rule of
/// fastpathd's policy.
///
/// `surgery/preload/preload.c` parses FASTPATH_PRELOAD_CLOCKS by the same rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Clocks {
    /// `auto`: the clocks with a slow present path.
    #[default]
    Auto,
    /// `all`, or a list.
    Set(ClockSet),
}

impl Clocks {
    /// Every clock that fastpath serves.
    pub const ALL: Clocks = Clocks::Set(ClockSet::ALL);

    /// The valid values, for a command's help.
    pub const HELP: &'static str = "Which clocks: `auto`, those whose present path is slow (for guard: MONOTONIC and REALTIME); \
                                    `all`; or a comma-separated list of REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI";

    /// Returns the clocks that were named; `None` for `auto`.
    pub fn named(self) -> Option<ClockSet> {
        match self {
            Clocks::Auto => None,
            Clocks::Set(set) => Some(set),
        }
    }
}

impl FromStr for Clocks {
    type Err = NotServed;

    fn from_str(typed: &str) -> Result<Clocks, NotServed> {
        match plain(typed).as_str() {
            "AUTO" => return Ok(Clocks::Auto),
            "ALL" => return Ok(Clocks::ALL),
            _ => {}
        }
        let mut set = ClockSet::NONE;
        for name in typed.split(',') {
            let clock = name.parse::<Clock>().ok().filter(|clock| Clock::SERVED.contains(clock));
            let clock = clock.ok_or_else(|| NotServed { name: name.to_owned() })?;
            set = set.union(ClockSet::of_id(clock.id() as u32));
        }
        Ok(Clocks::Set(set))
    }
}

impl TryFrom<String> for Clocks {
    type Error = NotServed;

    fn try_from(typed: String) -> Result<Clocks, NotServed> {
        typed.parse()
    }
}

/// Writes the clocks in the notation that [`Clocks`] is parsed from.
impl fmt::Display for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Clocks::Auto => f.write_str("auto"),
            Clocks::ALL => f.write_str("all"),
            Clocks::Set(set) => {
                let is_in = |clock: &&Clock| set.contains(ClockSet::of_id(clock.id() as u32));
                let names: Vec<_> = Clock::SERVED.iter().filter(is_in).map(|clock| clock.name).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// Error: no clock that fastpath serves has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is not a clock that fastpath serves{}; valid: auto, all, or a list of {}",
    meant(name, ["auto", "all"].into_iter().chain(Clock::SERVED.iter().map(|clock| clock.name))),
    Clock::SERVED.iter().map(|clock| clock.name).collect::<Vec<_>>().join(", ")
)]
pub struct NotServed {
    /// The name that was typed.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_found_however_its_name_is_typed() {
        for typed in [
            "CLOCK_MONOTONIC_RAW",
            "monotonic-raw",
            "Monotonic_Raw",
            " clock-monotonic-raw ",
        ] {
            assert_eq!(typed.parse(), Ok(Clock::MONOTONIC_RAW), "{typed}");
        }
        for clock in Clock::ALL {
            assert_eq!(clock.name().parse(), Ok(*clock));
            assert_eq!(format!("clock_{}", clock.name().to_lowercase()).parse(), Ok(*clock));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_all_valid_ones() {
        for typed in ["", "mono", "CLOCK_", "CLOCK_CLOCK_TAI", "SGI_CYCLE"] {
            let message = typed.parse::<Clock>().unwrap_err().to_string();
            assert!(message.contains(&format!("'{typed}'")), "{message}");
            for clock in Clock::ALL {
                assert!(message.contains(clock.name()), "{message}");
            }
        }
    }

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest_one() {
        for (typed, meant) in [
            ("monotonc", "MONOTONIC?"),
            ("CLOCK_RELATIME", "REALTIME?"),
            ("boot-time", "BOOTTIME?"),
        ] {
            let message = typed.parse::<Clock>().unwrap_err().to_string();
            assert!(message.contains(&format!("did you mean {meant}")), "{message}");
        }
        for typed in ["", "xyz", "cpu"] {
            let message = typed.parse::<Clock>().unwrap_err().to_string();
            assert!(!message.contains("did you mean"), "{message}");
        }
    }

    #[test]
    fn clocks_are_read_as_people_write_them_and_written_as_they_are_read() {
        for (typed, written) in [
            ("auto", "auto"),
            (" ALL ", "all"),
            ("tai, realtime,CLOCK_TAI", "REALTIME,TAI"),
            ("monotonic-raw", "MONOTONIC_RAW"),
            ("tai,boottime,monotonic_raw,Monotonic,realtime", "all"),
        ] {
            let clocks: Clocks = typed.parse().unwrap();
            assert_eq!(clocks.to_string(), written, "{typed}");
            assert_eq!(written.parse(), Ok(clocks), "{typed}");
        }
    }

    #[test]
    fn the_error_about_an_unserved_clock_names_the_served_ones() {
        for (typed, meant) in [
            ("monotonc", " (did you mean MONOTONIC?)"),
            ("autoo", " (did you mean auto?)"),
            ("wall", " (did you mean all?)"),
            ("xyz", ""),
            ("", ""),
            ("PROCESS_CPUTIME_ID", ""),
        ] {
            let message = typed.parse::<Clocks>().unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "`{typed}` is not a clock that fastpath serves{meant}; valid: auto, all, or a list of REALTIME, MONOTONIC, \
                     MONOTONIC_RAW, BOOTTIME, TAI"
                )
            );
        }
        for list in ["auto,tai", "tai,", ",", "tai,all"] {
            assert!(list.parse::<Clocks>().is_err(), "{list}");
        }
        for clock in Clock::SERVED {
            assert!(Clocks::HELP.contains(clock.name()), "{clock}");
        }
    }

    #[test]
    fn the_ids_are_those_of_the_kernels_header() {
        let ids: Vec<i32> = Clock::ALL.iter().map(|clock| clock.id()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
        assert_eq!(Clock::TAI.id(), libc::CLOCK_TAI);
        assert_eq!(Clock::BOOTTIME_ALARM.id(), libc::CLOCK_BOOTTIME_ALARM);
        assert_eq!(Clock::from_id(10), None);
        assert_eq!(Clock::from_id(7), Some(Clock::BOOTTIME));
    }
}
