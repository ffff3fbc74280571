//! The clock ids of Linux, by the names that users type.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use strsim::levenshtein;

/// What kind of answer a clock id has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read from the counter: a vDSO can answer it, and so can fastpath.
    Counter,
    /// The time of the last tick: a vDSO answers it without the counter.
    Coarse,
    /// CPU time, or an alarm clock: only the kernel knows. Always a system call, on every host.
    KernelOnly,
}

/// One clock id that Linux knows by a fixed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    id: i32,
    name: &'static str,
    kind: Kind,
}

macro_rules! clocks {
    ($($name:ident = $id:literal, $kind:ident;)*) => {
        impl Clock {
            $(
                #[allow(missing_docs)]
                pub const $name: Clock = Clock { id: $id, name: stringify!($name), kind: Kind::$kind };
            )*
            /// Every clock, in the order of the ids.
            pub const ALL: &'static [Clock] = &[$(Clock::$name),*];
        }
    };
}

// include/uapi/linux/time.h; 10 was CLOCK_SGI_CYCLE and is gone.
clocks! {
    REALTIME = 0, Counter;
    MONOTONIC = 1, Counter;
    PROCESS_CPUTIME_ID = 2, KernelOnly;
    THREAD_CPUTIME_ID = 3, KernelOnly;
    MONOTONIC_RAW = 4, Counter;
    REALTIME_COARSE = 5, Coarse;
    MONOTONIC_COARSE = 6, Coarse;
    BOOTTIME = 7, Counter;
    REALTIME_ALARM = 8, KernelOnly;
    BOOTTIME_ALARM = 9, KernelOnly;
    TAI = 11, Counter;
}

impl Clock {
    /// The clocks that fastpath can answer from the counter.
    pub const SERVED: &'static [Clock] = &[
        Clock::REALTIME,
        Clock::MONOTONIC,
        Clock::MONOTONIC_RAW,
        Clock::BOOTTIME,
        Clock::TAI,
    ];

    /// The number that `clock_gettime` takes.
    pub fn id(self) -> i32 {
        self.id
    }

    /// The name, without `CLOCK_`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// What kind of answer this clock has.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// The clock with this id.
    pub fn from_id(id: i32) -> Option<Clock> {
        Self::ALL.iter().copied().find(|clock| clock.id == id)
    }

    /// Clocks separated by commas, each at most once, in the order given.
    pub fn parse_list(list: &str) -> Result<Vec<Clock>, UnknownClock> {
        let mut clocks = Vec::new();
        for name in list.split(',') {
            let clock = name.parse()?;
            if !clocks.contains(&clock) {
                clocks.push(clock);
            }
        }
        Ok(clocks)
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

/// A name that is no clock's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown clock '{name}'{}; the clocks are {}", meant(name), valid_names())]
pub struct UnknownClock {
    /// What was typed.
    pub name: String,
}

/// The clock whose name is next to what was typed, as a question.
fn meant(typed: &str) -> String {
    /// More wrong letters than these are another word.
    const MOST: usize = 3;
    let name = plain(typed);
    let nearest = Clock::ALL.iter().min_by_key(|clock| levenshtein(&name, clock.name));
    let nearest = nearest.filter(|clock| {
        let wrong = levenshtein(&name, clock.name);
        wrong <= MOST && wrong * 2 < name.len()
    });
    nearest.map_or(String::new(), |clock| format!(" (did you mean {clock}?)"))
}

/// A name as the kernel's header has it, without its prefix.
fn plain(typed: &str) -> String {
    let name = typed.trim().to_ascii_uppercase().replace('-', "_");
    name.strip_prefix("CLOCK_").unwrap_or(&name).to_owned()
}

fn valid_names() -> String {
    Clock::ALL.iter().map(|clock| clock.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Clock {
    type Err = UnknownClock;

    /// `monotonic-raw`, `CLOCK_MONOTONIC_RAW` and `Monotonic_Raw` are one clock.
    fn from_str(typed: &str) -> Result<Self, UnknownClock> {
        let name = plain(typed);
        let found = Self::ALL.iter().copied().find(|clock| clock.name == name);
        found.ok_or_else(|| UnknownClock { name: typed.to_owned() })
    }
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
    fn a_name_that_was_mistyped_is_answered_with_what_was_meant() {
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
    fn a_list_keeps_its_order_and_drops_what_is_said_twice() {
        let list = Clock::parse_list("tai, realtime,CLOCK_TAI").unwrap();
        assert_eq!(list, [Clock::TAI, Clock::REALTIME]);
        assert_eq!(Clock::parse_list("tai,,realtime").unwrap_err().name, "");
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
