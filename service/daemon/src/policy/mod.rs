//! The policy file: which processes are attached as they appear, and which never get a page.

mod attacher;
mod facts;
mod glob;
mod preview;
mod queue;
mod source;
mod task;
mod watcher;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use fastpath_page::Clocks;
use serde::Deserialize;

use crate::{Service, record};
pub use attacher::TRY_AGAIN;
pub use facts::ProcessFacts;
use glob::Glob;
pub use preview::{Fit, Preview};
pub(crate) use watcher::{Attached, Watcher};

/// Rules; the first that fits a process decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    rules: Vec<Rule>,
    /// Whether no process is changed without a record in the journal.
    requires_record: bool,
}

/// The file as it is written. Each rule has its position.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, rename = "rule")]
    rules: Vec<toml::Spanned<Rule>>,
    #[serde(default)]
    require_record: bool,
}

/// A rule fits if all its selectors fit.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Path of its executable, as it is called in its own mount namespace.
    executable: Option<Glob>,
    /// Its cgroup, as /proc/PID/cgroup shows it.
    cgroup: Option<Glob>,
    /// Systemd unit that it belongs to.
    unit: Option<Glob>,
    /// User that it runs as.
    user: Option<User>,
    action: Action,
    /// Clocks that it gets. By default `auto`, and with `rescue` all: a program's own system calls are slow on every host.
    clocks: Option<Clocks>,
    /// Whether its descendants are attached with it, and the programs that they execute are served as they start.
    #[serde(default)]
    children: bool,
    /// Whether the system calls for time in its own code are redirected, too, and with `children` those of the programs
    /// that it executes.
    #[serde(default)]
    rescue: bool,
}

/// Action for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is attached when it appears.
    Attach,
    /// It gets no page, not on request either.
    Never,
}

/// A user, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Name")]
struct User(u32);

#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Number(u32),
    Text(String),
}

impl TryFrom<Name> for User {
    type Error = String;

    fn try_from(name: Name) -> Result<User, String> {
        let name = match name {
            Name::Number(uid) => return Ok(User(uid)),
            Name::Text(name) => name,
        };
        match uid_of(&name) {
            Ok(Some(uid)) => Ok(User(uid)),
            Ok(None) => Err(format!("there is no user `{name}` here")),
            Err(error) => Err(format!(
                "the user `{name}` cannot be looked up by getent: {error}; write the number"
            )),
        }
    }
}

/// Looks a user up, as the C library does for dynamic programs. In a static one, it would load the system's modules, and crash.
fn uid_of(name: &str) -> io::Result<Option<u32>> {
    /// The name is unknown (getent(1)).
    const UNKNOWN: i32 = 2;
    let found = Command::new("getent").args(["passwd", "--", name]).output()?;
    let line = String::from_utf8_lossy(&found.stdout);
    match line.split(':').nth(2).map(str::parse) {
        Some(Ok(uid)) => Ok(Some(uid)),
        _ if found.status.code() == Some(UNKNOWN) => Ok(None),
        _ => Err(io::Error::other(format!("{}, `{}`", found.status, line.trim_end()))),
    }
}

/// A policy's decision about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Action for the process.
    pub action: Action,
    /// What the process gets.
    pub service: Service,
    /// Number of the deciding rule, from 1.
    pub rule: usize,
}

impl Policy {
    /// Reads a file. `Ok(None)`: there is none. Errors contain line and column.
    pub fn read(path: &Path) -> Result<Option<Policy>, String> {
        match text_of(path) {
            Ok(text) => Policy::parse(&text)
                .map(Some)
                .map_err(|why| format!("{}: {why}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Parses a file's text. Errors contain line and column.
    pub fn parse(text: &str) -> Result<Policy, String> {
        let at = |start: usize, what: &str| {
            let (line, column) = place(text, start);
            format!("line {line}, column {column}: {what}")
        };
        let written: Written = toml::from_str(text).map_err(|error| match error.span() {
            Some(span) => at(span.start, error.message()),
            None => error.message().to_owned(),
        })?;
        let mut rules = Vec::new();
        for rule in written.rules {
            let start = rule.span().start;
            let rule = rule.into_inner();
            if !rule.selects() {
                return Err(at(start, NO_SELECTOR));
            }
            rules.push(rule);
        }
        Ok(Policy {
            rules,
            requires_record: written.require_record,
        })
    }

    /// Returns the number of rules.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Returns why no process may be changed now: a record is required, and the journal takes none.
    pub fn unrecordable(&self) -> Option<String> {
        let takes = self.requires_record.then(record::journal_takes_records)?;
        let why = takes.err()?;
        Some(format!(
            "no process is changed without a record (require_record), and {why}"
        ))
    }

    /// Returns whether any process may have to be attached.
    pub fn attaches(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == Action::Attach)
    }

    /// Returns the decision of the first rule that fits; `None` if none does.
    pub fn decide(&self, facts: &ProcessFacts) -> Option<Decision> {
        let (index, rule) = self.rules.iter().enumerate().find(|(_, rule)| rule.fits(facts))?;
        Some(Decision {
            action: rule.action,
            service: rule.service(),
            rule: index + 1,
        })
    }

    /// Returns whether a process with these facts must never get a page.
    pub(crate) fn excludes(&self, facts: &ProcessFacts) -> bool {
        let decision = self.decide(facts);
        decision.is_some_and(|decision| decision.action == Action::Never)
    }

    /// The same for a process that asks for itself. `fastpath run` does so for the program that it becomes: a rule about
    /// executables is for that program, and is asked at its exec.
    pub(crate) fn excludes_itself(&self, facts: &ProcessFacts) -> bool {
        let is_ours = facts.executable.as_deref().is_some_and(is_ours);
        let decision = self.decide(facts).filter(|decision| decision.action == Action::Never);
        decision.is_some_and(|decision| !is_ours || self.rules[decision.rule - 1].executable.is_none())
    }

    /// Returns whether a process must never get a page; false also if it has ended.
    pub fn forbids(&self, pid: i32) -> bool {
        self.rules() > 0 && ProcessFacts::of_pid(pid).is_some_and(|facts| self.excludes(&facts))
    }
}

/// Error for a rule without a selector, which would fit every process.
const NO_SELECTOR: &str = "the rule says of no process that it is about it: it needs executable, cgroup, unit or user (executable = \"/**\" \
                           is every program)";

impl Rule {
    /// Returns whether it has a selector.
    fn selects(&self) -> bool {
        self.executable.is_some() || self.cgroup.is_some() || self.unit.is_some() || self.user.is_some()
    }

    /// Returns what its processes get. The clocks are those that it names or implies, as `fastpath attach` chooses them.
    fn service(&self) -> Service {
        let implied = if self.rescue { Clocks::ALL } else { Clocks::Auto };
        Service {
            clocks: self.clocks.unwrap_or(implied),
            children: self.children,
            rescue: self.rescue,
            ..Service::default()
        }
    }

    /// Returns whether the rule fits. An unknown fact fits a rule with `never`, and none that attaches: leaving a
    /// process alone is safe.
    fn fits(&self, facts: &ProcessFacts) -> bool {
        let unknown = self.action == Action::Never;
        let by = |glob: &Option<Glob>, fact: Option<&str>| match glob {
            None => true,
            Some(glob) => fact.map_or(unknown, |fact| glob.matches(fact)),
        };
        self.user.is_none_or(|user| user.0 == facts.uid)
            && by(&self.executable, facts.executable.as_deref())
            && by(&self.cgroup, facts.cgroup.as_deref())
            && by(&self.unit, facts.unit().as_deref())
    }
}

/// Returns whether a program is one of fastpath's. Publishers must always read the kernel's clocks.
fn is_ours(executable: &str) -> bool {
    matches!(executable.rsplit('/').next(), Some("fastpath" | "fastpathd"))
}

/// Reads a policy file. Refuses other kinds of files: a read of them might not end, or wait for a writer, and keep the
/// daemon waiting.
fn text_of(path: &Path) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if about.len() > MOST {
        return Err(io::Error::other(format!(
            "it has {} bytes, and no policy has more than {MOST}",
            about.len()
        )));
    }
    fs::read_to_string(path)
}

/// Returns line and column of a byte, counted from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.char_indices().take_while(|(index, _)| *index < at);
    before.fold((1, 1), |(line, column), (_, character)| match character {
        '\n' => (line + 1, 1),
        _ => (line, column + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
        [[rule]]
        executable = "/usr/bin/gdb"
        action = "never"

        [[rule]]
        unit = "postgresql@*.service"
        user = "root"
        action = "attach"
        clocks = "all"

        [[rule]]
        executable = "/opt/*/bin/**"
        action = "attach"
    "#;

    fn facts(executable: &str, cgroup: &str, uid: u32) -> ProcessFacts {
        ProcessFacts {
            uid,
            executable: Some(executable.into()),
            cgroup: Some(cgroup.into()),
        }
    }

    fn decide(text: &str, facts: &ProcessFacts) -> Option<(Action, Clocks)> {
        let policy = Policy::parse(text).expect("a policy");
        policy
            .decide(facts)
            .map(|decision| (decision.action, decision.service.clocks))
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let postgres = "/system.slice/system-postgresql.slice/postgresql@17-main.service";
        assert_eq!(
            decide(EXAMPLE, &facts("/usr/bin/gdb", postgres, 0)),
            Some((Action::Never, Clocks::Auto))
        );
        assert_eq!(
            decide(EXAMPLE, &facts("/usr/lib/x", postgres, 0)),
            Some((Action::Attach, Clocks::ALL))
        );
        assert_eq!(decide(EXAMPLE, &facts("/usr/lib/x", postgres, 7)), None);
        assert_eq!(
            decide(EXAMPLE, &facts("/opt/a/bin/b/c", "/", 7)),
            Some((Action::Attach, Clocks::Auto))
        );
        assert_eq!(decide(EXAMPLE, &facts("/opt/a/b/bin/c", "/", 7)), None);
    }

    #[test]
    fn a_rule_rescues_if_it_says_so_and_serves_all_clocks_then() {
        let decision = |keys: &str| {
            let text = format!("[[rule]]\nexecutable = \"/x\"\naction = \"attach\"\n{keys}");
            let policy = Policy::parse(&text).expect(keys);
            let service = policy.decide(&facts("/x", "/", 0)).expect("a decision").service;
            (service.rescue, service.clocks, service.children)
        };
        assert_eq!(decision(""), (false, Clocks::Auto, false));
        assert_eq!(decision("rescue = false"), (false, Clocks::Auto, false));
        assert_eq!(decision("rescue = true"), (true, Clocks::ALL, false));
        assert_eq!(decision("children = true\nrescue = true"), (true, Clocks::ALL, true));
        assert_eq!(
            decision("clocks = \"auto\"\nrescue = true"),
            (true, Clocks::Auto, false)
        );
        let tai = "tai".parse().expect("a clock");
        assert_eq!(decision("rescue = true\nclocks = \"tai\""), (true, tai, false));
    }

    #[test]
    fn a_rule_that_changes_any_key_makes_another_decision() {
        let decision = |keys: &str| {
            let text = format!("[[rule]]\nexecutable = \"/x\"\naction = \"attach\"\n{keys}");
            let policy = Policy::parse(&text).expect(keys);
            policy.decide(&facts("/x", "/", 0)).expect("a decision")
        };
        let plain = decision("clocks = \"all\"");
        assert_eq!(plain, decision("clocks = \"all\"\nrescue = false\nchildren = false"));
        for keys in [
            "rescue = true",
            "clocks = \"all\"\nchildren = true",
            "clocks = \"auto\"",
        ] {
            assert_ne!(plain, decision(keys), "{keys}");
        }
    }

    #[test]
    fn a_process_that_asks_for_itself_is_excluded_as_any_other_and_run_by_rules_without_an_executable() {
        let policy =
            |selector: &str| Policy::parse(&format!("[[rule]]\n{selector}\naction = \"never\"")).expect("a policy");
        let (program, run) = (facts("/opt/x", "/", 7), facts("/usr/bin/fastpath", "/", 7));
        let every = policy("executable = \"/**\"");
        assert!(every.excludes_itself(&program) && !every.excludes_itself(&run));
        let user = policy("user = 7");
        assert!(user.excludes_itself(&program) && user.excludes_itself(&run));
        assert!(!policy("executable = \"/usr/*\"").excludes_itself(&program));
    }

    #[test]
    fn an_unknown_property_attaches_no_process_and_forbids_it() {
        let unknown = ProcessFacts {
            uid: 0,
            executable: None,
            cgroup: None,
        };
        let attach = "[[rule]]\nexecutable = \"/**\"\naction = \"attach\"";
        assert_eq!(decide(attach, &unknown), None);
        let never = "[[rule]]\nexecutable = \"/x\"\naction = \"never\"";
        assert_eq!(decide(never, &unknown), Some((Action::Never, Clocks::Auto)));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_column() {
        let wrong = [
            ("[[rule]]\naction = \"atach\"\n", "line 2, column 10: ", "atach"),
            (
                "[[rule]]\nuser = \"nobody-at-all\"\naction = \"never\"\n",
                "line 2, column 8: ",
                "no user",
            ),
            (
                "[[rule]]\n  executeable = \"/x\"\naction = \"never\"\n",
                "line 2, column 3: ",
                "executeable",
            ),
            (
                "[[rule]]\nexecutable = \"relative\"\naction = \"never\"\n",
                "line 2, column 14: ",
                "begin",
            ),
            ("[[rule]\n", "line 1, column ", ""),
            // Regression test: this rule attached every process of the host.
            ("\n[[rule]]\naction = \"attach\"\n", "line 2, column 1: ", "executable"),
            (
                "[[rule]]\nclocks = \"all\"\naction = \"never\"\n",
                "line 1, column 1: ",
                "every program",
            ),
            ("[[rule]]\nuser = \"root\"\n", "line 1, column 1: ", "action"),
            (
                "[[rule]]\nuser = \"root\"\naction = \"attach\"\nclocks = \"monotonc\"\n",
                "line 4, column 10: ",
                "did you mean MONOTONIC?",
            ),
            (
                "[[rule]]\nuser = \"root\"\naction = \"attach\"\nrescue = \"yes\"\n",
                "line 4, column 10: ",
                "boolean",
            ),
        ];
        for (text, place, what) in wrong {
            let why = Policy::parse(text).expect_err(text);
            assert!(why.starts_with(place) && why.contains(what), "{text:?}: {why}");
        }
    }

    #[test]
    fn an_empty_file_is_a_policy_and_a_missing_one_is_none() {
        assert_eq!(Policy::parse(""), Ok(Policy::default()));
        assert_eq!(Policy::read(Path::new("/nonexistent/policy.toml")), Ok(None));
        let directory = tempfile::tempdir().expect("a directory");
        let why = Policy::read(directory.path()).expect_err("a directory");
        assert!(why.contains(directory.path().to_str().expect("UTF-8")), "{why}");
    }

    #[test]
    fn the_example_that_is_installed_is_a_policy() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/fastpath-policy.toml");
        let text = fs::read_to_string(path).expect("the example");
        // Its rules are commented out with `#`, so that they do nothing by default.
        assert_eq!(Policy::parse(&text), Ok(Policy::default()));
        let rules: String = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix('#')
                    .filter(|line| !line.starts_with(' ') && !line.is_empty())
            })
            .map(|line| format!("{line}\n"))
            .collect();
        let rules = rules.replace("\"postgres\"", "\"root\"");
        assert_eq!(Policy::parse(&rules).expect(&rules).rules(), 6);
    }
}
