//! The effect of a policy on the processes that exist now, shown to a user before it is put in force.

use fastpath_protocol::DaemonStatus;

use super::{Action, Clocks, Decision, Policy, ProcessFacts, is_ours};
use crate::peer::Process;

/// Effect of a policy now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Reason why the daemon attaches no process that has a seccomp filter; `None`: it does, or no daemon runs.
    pub leaves_filtered: Option<String>,
    /// Reason why no process would be attached: the policy requires a record, and it cannot be written.
    pub unrecordable: Option<String>,
    /// Processes that a rule decides about, by process id.
    pub fits: Vec<Fit>,
    /// Number of processes whose executables this user cannot see: whether a rule fits them is not known.
    pub unseen: usize,
}

/// A process and the rule that decides about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Process id.
    pub pid: i32,
    /// Path of its executable.
    pub executable: String,
    /// The rule's decision.
    pub decision: Decision,
    /// Whether a thread of it has a seccomp filter.
    pub is_filtered: bool,
}

impl Policy {
    /// Examines all processes, for a daemon with this status. Changes nothing.
    pub fn preview(&self, daemon: Option<&DaemonStatus>) -> Preview {
        let mut preview = Preview {
            leaves_filtered: daemon.and_then(|daemon| daemon.leaves_filtered.clone()),
            unrecordable: self.unrecordable(),
            ..Preview::default()
        };
        for pid in fastpath_os::processes().into_iter().flatten() {
            // The process may have ended.
            let Ok(process) = Process::read(pid) else { continue };
            let facts = ProcessFacts::read(process);
            let Some(executable) = facts.executable.clone() else {
                preview.unseen += usize::from(has_program(pid));
                continue;
            };
            if is_ours(&executable) {
                continue;
            }
            if let Some(decision) = self.decide(&facts) {
                preview.fits.push(Fit {
                    pid,
                    executable,
                    decision,
                    is_filtered: is_filtered(pid),
                });
            }
        }
        preview.fits.sort_by_key(|fit| fit.pid);
        preview
    }
}

/// Returns whether a process has a command line, which kernel threads and zombies do not.
fn has_program(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Returns whether a thread of a process has a seccomp filter.
fn is_filtered(pid: i32) -> bool {
    let mut threads = fastpath_os::threads(pid).into_iter().flatten();
    threads.any(|tid| fastpath_os::Status::read(tid).is_ok_and(|status| status.number("Seccomp") > Some(0)))
}

impl Preview {
    /// Returns why the daemon will not attach a process that a rule attaches.
    fn hindrance(&self, fit: &Fit) -> Option<String> {
        if let Some(why) = &self.unrecordable {
            return Some(format!("not: {why}"));
        }
        let why = self.leaves_filtered.as_ref().filter(|_| fit.is_filtered)?;
        Some(format!(
            "not: it has a seccomp filter, which cannot be suspended: {why}"
        ))
    }

    /// Returns, for each rule, its action and how many processes it decides about now.
    pub fn by_rule(&self, policy: &Policy) -> String {
        let mut text = String::new();
        for (index, rule) in policy.rules.iter().enumerate() {
            let fits: Vec<&Fit> = self.fits.iter().filter(|fit| fit.decision.rule == index + 1).collect();
            let shown: Vec<String> = fits
                .iter()
                .take(5)
                .map(
                    |fit| match self.hindrance(fit).filter(|_| rule.action == Action::Attach) {
                        Some(not) => format!("{} {} ({not})", fit.pid, name(fit)),
                        None => format!("{} {}", fit.pid, name(fit)),
                    },
                )
                .collect();
            let more = if fits.len() > shown.len() { ", ..." } else { "" };
            let which = if shown.is_empty() {
                String::new()
            } else {
                format!(": {}{more}", shown.join(", "))
            };
            let processes = if fits.len() == 1 { "process" } else { "processes" };
            let action = action(rule.action);
            text += &format!("rule {}: {action}, {} {processes} now{which}\n", index + 1, fits.len());
        }
        if text.is_empty() {
            text = "no rule is active: nothing would be attached\n".to_owned();
        }
        text + &self.unseen()
    }

    /// Returns the processes that would be attached.
    pub fn attached(&self) -> String {
        let attached = self.fits.iter().filter(|fit| fit.decision.action == Action::Attach);
        let mut text = String::new();
        for fit in attached {
            let Decision { service, rule, .. } = fit.decision;
            let clocks = match service.clocks {
                Clocks::Auto => "clocks that are slow".to_owned(),
                Clocks::ALL => "all clocks".to_owned(),
                some => some.to_string(),
            };
            let children = if service.children { ", with its descendants" } else { "" };
            let rescue = if service.rescue { ", rescued" } else { "" };
            let how = self
                .hindrance(fit)
                .unwrap_or_else(|| format!("{clocks}{children}{rescue}"));
            text += &format!("{:>8} {}: {how} (rule {rule})\n", fit.pid, name(fit));
        }
        if text.is_empty() {
            text = "no process would be attached\n".to_owned();
        }
        text + &self.unseen()
    }

    fn unseen(&self) -> String {
        match self.unseen {
            0 => String::new(),
            1 => "1 more process cannot be examined by this user\n".to_owned(),
            count => format!("{count} more processes cannot be examined by this user\n"),
        }
    }
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Attach => "attach",
        Action::Never => "never",
    }
}

fn name(fit: &Fit) -> String {
    fastpath_os::printable(&fit.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_tells_of_each_rule_which_processes_it_decides_about() {
        let own = std::env::current_exe().unwrap();
        let policy = Policy::parse(&format!(
            "[[rule]]\nexecutable = \"/nonexistent\"\naction = \"never\"\n\
             [[rule]]\nexecutable = \"{}\"\naction = \"attach\"\nclocks = \"all\"\n",
            own.display()
        ))
        .unwrap();
        let preview = policy.preview(None);
        let pid = std::process::id() as i32;
        let fit = preview.fits.iter().find(|fit| fit.pid == pid).expect("this process");
        assert_eq!((fit.decision.rule, fit.decision.action), (2, Action::Attach));
        let by_rule = preview.by_rule(&policy);
        assert!(
            by_rule.starts_with("rule 1: never, 0 processes now\nrule 2: attach, "),
            "{by_rule}"
        );
        assert!(
            preview
                .attached()
                .contains(&format!("{pid} {}: all clocks (rule 2)", own.display()))
        );
        let none = Policy::default();
        let text = none.preview(None).by_rule(&none);
        assert!(text.starts_with("no rule is active"), "{text}");
        let rescues = format!(
            "[[rule]]\nexecutable = \"{}\"\naction = \"attach\"\nchildren = true\nrescue = true\n",
            own.display()
        );
        let attached = Policy::parse(&rescues).unwrap().preview(None).attached();
        assert!(
            attached.contains(&format!(
                "{pid} {}: all clocks, with its descendants, rescued (rule 1)",
                own.display()
            )),
            "{attached}"
        );
    }
}
