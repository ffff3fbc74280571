//! Processes that a shell's completion offers.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

/// Offers processes of all users.
pub fn any() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(all(|_| true)))
}

/// Offers processes that this user may attach: its own, or for root all.
pub fn own() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        // SAFETY: geteuid takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        let owner = |pid: i32| Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid());
        candidates(all(|pid| user == 0 || owner(pid) == Some(user)))
    })
}

/// Offers attached processes.
pub fn attached() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(crate::attach::status::attached_quietly()))
}

fn all(is_meant: impl Fn(i32) -> bool) -> Vec<i32> {
    super::matching(|pid| is_meant(pid) && fastpath_os::Stat::read(pid).is_ok_and(|stat| !stat.is_kernel_thread()))
}

/// Returns the numbers, each with its name, and the names, each once.
fn candidates(pids: Vec<i32>) -> Vec<CompletionCandidate> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut numbers = Vec::new();
    for pid in pids {
        // Only the name: the command line lies in the process's memory, and reading that can wait for ever.
        let Ok(comm) = fastpath_os::comm(pid) else {
            continue;
        };
        let name = fastpath_os::printable(&comm);
        numbers.push(CompletionCandidate::new(pid.to_string()).help(Some(name.clone().into())));
        if is_plain(&name) {
            *names.entry(name).or_default() += 1;
        }
    }
    let names = names.into_iter().map(|(name, count)| {
        let processes = if count == 1 { "process" } else { "processes" };
        CompletionCandidate::new(name).help(Some(format!("{count} {processes}").into()))
    });
    numbers.into_iter().chain(names).collect()
}

/// Returns whether fastpath parses this as a name, and every shell as one plain word.
fn is_plain(name: &str) -> bool {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._+-@".contains(c);
    name.chars().all(is_safe) && !name.starts_with('-') && matches!(name.parse(), Ok(super::Named::Program(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_shell_would_expand_is_not_offered() {
        for plain in ["redis-server", "python3.11", "7z"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in ["", "-x", "a b", "$(x)", "(sd-pam)", "a:b", "1234", "`x`", "a;b"] {
            assert!(!is_plain(other), "{other}");
        }
    }

    #[test]
    fn a_process_is_offered_with_its_name_and_the_kernels_are_not() {
        let own = std::process::id() as i32;
        let found = candidates(vec![own]);
        assert_eq!(found[0].get_value(), own.to_string().as_str());
        assert_eq!(
            found[0].get_help().map(ToString::to_string).as_deref(),
            fastpath_os::comm("self").ok().as_deref()
        );
        // Process 2 is the first of the kernel's own, where they are visible.
        assert!(all(|pid| pid == 2).is_empty() || fastpath_os::executable(2).is_ok());
    }
}
