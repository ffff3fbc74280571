//! The rules. Their names and meanings stay the same from release to release.

/// The level of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The finding matters only if the program reads a clock, and no such read was found; or it is about a read of the
    /// CPU's counter, which is fast, and right where the counter is.
    Note,
    /// Some of the program's clock reads are system calls.
    Warning,
    /// All of the program's clock reads are system calls, or worse.
    Error,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    StaticGlibc,
    StaticMusl,
    Go,
    Static,
    Libc,
    OwnSystemCall,
    Vsyscall,
    CounterAsClock,
    Counter,
}

impl Rule {
    pub const ALL: [Rule; 9] = [
        Rule::StaticGlibc,
        Rule::StaticMusl,
        Rule::Go,
        Rule::Static,
        Rule::Libc,
        Rule::OwnSystemCall,
        Rule::Vsyscall,
        Rule::CounterAsClock,
        Rule::Counter,
    ];

    pub fn id(self) -> &'static str {
        match self {
            Rule::StaticGlibc => "static-glibc-without-vdso",
            Rule::StaticMusl => "static-musl-without-vdso",
            Rule::Go => "go-without-vdso",
            Rule::Static => "static-without-vdso",
            Rule::Libc => "libc-without-vdso",
            Rule::OwnSystemCall => "own-system-call",
            Rule::Vsyscall => "vsyscall-page",
            Rule::CounterAsClock => "counter-as-clock",
            Rule::Counter => "counter-read",
        }
    }

    /// Returns the rule's level, unless a circumstance of the file lowers it.
    pub fn level(self) -> Level {
        match self {
            Rule::OwnSystemCall => Level::Warning,
            Rule::CounterAsClock | Rule::Counter => Level::Note,
            _ => Level::Error,
        }
    }

    /// Returns whether it is about reads of the CPU's counter.
    pub fn is_about_counter(self) -> bool {
        matches!(self, Rule::CounterAsClock | Rule::Counter)
    }

    /// Returns the statement of the finding.
    pub fn says(self) -> &'static str {
        match self {
            Rule::StaticGlibc => "a static glibc that does not look for the vDSO: every clock read is a system call",
            Rule::StaticMusl => "a static musl that does not look for the vDSO: every clock read is a system call",
            Rule::Go => "a Go runtime that does not look for the vDSO: every clock read is a system call",
            Rule::Static => {
                "a static program that reads clocks and does not look for the vDSO: every read is a system call"
            }
            Rule::Libc => {
                "a C library that does not look for the vDSO: every clock read of every program on it is a system call"
            }
            Rule::OwnSystemCall => "its own code makes the system call: these clock reads never take the vDSO",
            Rule::CounterAsClock => {
                "it reads the CPU's counter itself and scales it, as for a clock: that time is wrong where the counters of the CPUs differ, and after a restore on another host"
            }
            Rule::Counter => {
                "it reads the CPU's counter itself, for a purpose that is not known: counts of cycles, bounds of loops and seeds are harmless, a clock may be wrong"
            }
            Rule::Vsyscall => {
                "it calls the vsyscall page: such a read traps into the kernel, or ends the program where the page is off"
            }
        }
    }

    /// Returns the advice.
    pub fn help(self) -> &'static str {
        match self {
            Rule::StaticGlibc => "link it with glibc 2.31 or newer, or dynamically",
            Rule::StaticMusl => {
                "link it with a newer musl: x86-64 looks for the vDSO since 1.1.0, the others later; on Arm 1.2.0 to 1.2.3 do not"
            }
            Rule::Go => "build it with Go 1.11 or newer, which looks for the vDSO on amd64, 386, arm64 and arm",
            Rule::Static | Rule::OwnSystemCall => {
                "call the C library's clock_gettime instead, or look the function up in the vDSO (AT_SYSINFO_EHDR)"
            }
            Rule::Libc => "use a newer C library",
            Rule::CounterAsClock | Rule::Counter => {
                "read CLOCK_MONOTONIC instead, which costs little more where it is fast; `fastpath doctor` tells whether a host's counter can be trusted"
            }
            Rule::Vsyscall => "link it with a C library of this decade, or call its clock_gettime instead",
        }
    }
}

impl serde::Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl schemars::JsonSchema for Rule {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": Rule::ALL.map(Rule::id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_ids_of_their_own_and_levels_an_order() {
        let mut ids: Vec<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Rule::ALL.len());
        assert!(Level::Note < Level::Warning && Level::Warning < Level::Error);
    }
}
