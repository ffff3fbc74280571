//! What a process gets: the same four values from a rule, or a command line, to the surgery.

use std::fmt;
use std::str::FromStr;

use fastpath_page::{ClockSet, Clocks, NotServed};
use fastpath_publish::evidence::Trust;

/// What a process gets. Its text is the argument by which the daemon starts a child for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The clocks that the page answers.
    pub clocks: Clocks,
    /// Whether its descendants are served, too: those that exist, and the programs that they execute.
    pub children: bool,
    /// Whether the system calls for time in its own code are redirected, too.
    pub rescue: bool,
    /// Evidence that is required of the counter.
    pub trust: Trust,
}

const CHILDREN: &str = "children";
const RESCUE: &str = "rescue";
const TRUST: &str = "trust-counter";

impl Service {
    /// Returns the clocks that were named; none for `auto`.
    pub fn set(&self) -> ClockSet {
        self.clocks.named().unwrap_or(ClockSet::NONE)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clocks.fmt(f)?;
        let words = [
            (self.children, CHILDREN),
            (self.rescue, RESCUE),
            (self.trust == Trust::AllowNonInvariant, TRUST),
        ];
        let mut words = words.into_iter().filter(|(is_wanted, _)| *is_wanted);
        words.try_for_each(|(_, word)| write!(f, "+{word}"))
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Service, String> {
        let mut words = text.split('+');
        let clocks = words.next().unwrap_or_default().parse();
        let mut service = Service {
            clocks: clocks.map_err(|e: NotServed| e.to_string())?,
            ..Service::default()
        };
        for word in words {
            match word {
                CHILDREN => service.children = true,
                RESCUE => service.rescue = true,
                TRUST => service.trust = Trust::AllowNonInvariant,
                _ => return Err(format!("`{word}` is none of {CHILDREN}, {RESCUE}, {TRUST}")),
            }
        }
        Ok(service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_arrives_as_it_was_sent() {
        for clocks in ["auto", "all", "MONOTONIC,TAI"] {
            for bits in 0..8 {
                let service = Service {
                    clocks: clocks.parse().unwrap(),
                    children: bits & 1 != 0,
                    rescue: bits & 2 != 0,
                    trust: [Trust::Invariant, Trust::AllowNonInvariant][bits >> 2],
                };
                assert_eq!(service.to_string().parse(), Ok(service), "{service}");
            }
        }
        for wrong in ["", "all+", "all+childs", "children", "all children"] {
            assert!(wrong.parse::<Service>().is_err(), "{wrong}");
        }
    }
}
