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
pub enum AuditRule {
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

impl AuditRule {
    pub const ALL: [AuditRule; 9] = [
        AuditRule::StaticGlibc,
        AuditRule::StaticMusl,
        AuditRule::Go,
        AuditRule::Static,
        AuditRule::Libc,
        AuditRule::OwnSystemCall,
        AuditRule::Vsyscall,
        AuditRule::CounterAsClock,
        AuditRule::Counter,
    ];

    pub fn id(self) -> &'static str {
        match self {
            AuditRule::StaticGlibc => "static-glibc-without-vdso",
            AuditRule::StaticMusl => "static-musl-without-vdso",
            AuditRule::Go => "go-without-vdso",
            AuditRule::Static => "static-without-vdso",
            AuditRule::Libc => "libc-without-vdso",
            AuditRule::OwnSystemCall => "own-system-call",
            AuditRule::Vsyscall => "vsyscall-page",
            AuditRule::CounterAsClock => "counter-as-clock",
            AuditRule::Counter => "counter-read",
        }
    }

    /// Returns the rule's level, unless a circumstance of the file lowers it.
    pub fn level(self) -> Level {
        match self {
            AuditRule::OwnSystemCall => Level::Warning,
            AuditRule::CounterAsClock | AuditRule::Counter => Level::Note,
            _ => Level::Error,
        }
    }

    /// Returns whether it is about reads of the CPU's counter.
    pub fn is_about_counter(self) -> bool {
        matches!(self, AuditRule::CounterAsClock | AuditRule::Counter)
    }

    /// Returns the statement of the finding.
    pub fn says(self) -> &'static str {
        match self {
            AuditRule::StaticGlibc => {
                "a static glibc that does not look for the vDSO: every clock read is a system call"
            }
            AuditRule::StaticMusl => "a static musl that does not look for the vDSO: every clock read is a system call",
            AuditRule::Go => "a Go runtime that does not look for the vDSO: every clock read is a system call",
            AuditRule::Static => {
                "a static program that reads clocks and does not look for the vDSO: every read is a system call"
            }
            AuditRule::Libc => {
                "a C library that does not look for the vDSO: every clock read of every program on it is a system call"
            }
            AuditRule::OwnSystemCall => "its own code makes the system call: these clock reads never take the vDSO",
            AuditRule::CounterAsClock => {
                "it reads the CPU's counter itself and scales it, as for a clock: that time is wrong where the counters of the CPUs differ, and after a restore on another host"
            }
            AuditRule::Counter => {
                "it reads the CPU's counter itself, for a purpose that is not known: counts of cycles, bounds of loops and seeds are harmless, a clock may be wrong"
            }
            AuditRule::Vsyscall => {
                "it calls the vsyscall page: such a read traps into the kernel, or ends the program where the page is off"
            }
        }
    }

    /// Returns the advice.
    pub fn help(self) -> &'static str {
        match self {
            AuditRule::StaticGlibc => "link it with glibc 2.31 or newer, or dynamically",
            AuditRule::StaticMusl => {
                "link it with a newer musl: x86-64 looks for the vDSO since 1.1.0, the others later; on Arm 1.2.0 to 1.2.3 do not"
            }
            AuditRule::Go => "build it with Go 1.11 or newer, which looks for the vDSO on amd64, 386, arm64 and arm",
            AuditRule::Static | AuditRule::OwnSystemCall => {
                "call the C library's clock_gettime instead, or look the function up in the vDSO (AT_SYSINFO_EHDR)"
            }
            AuditRule::Libc => "use a newer C library",
            AuditRule::CounterAsClock | AuditRule::Counter => {
                "read CLOCK_MONOTONIC instead, which costs little more where it is fast; `fastpath doctor` tells whether a host's counter can be trusted"
            }
            AuditRule::Vsyscall => "link it with a C library of this decade, or call its clock_gettime instead",
        }
    }
}

impl serde::Serialize for AuditRule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl schemars::JsonSchema for AuditRule {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": AuditRule::ALL.map(AuditRule::id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_ids_of_their_own_and_levels_an_order() {
        let mut ids: Vec<_> = AuditRule::ALL.iter().map(|rule| rule.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), AuditRule::ALL.len());
        assert!(Level::Note < Level::Warning && Level::Warning < Level::Error);
    }
}
