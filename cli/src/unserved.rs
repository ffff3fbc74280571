//! Requests for programs that were then not served, as the trees of processes count them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fastpath_inject::unserved::{Counts, Unserved};
use fastpath_os::Mapping;
use serde::{Deserialize, Serialize};

/// Requests of a tree of processes, which has one mailbox.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct UnservedRequests {
    /// The inode of the mailbox.
    mailbox: u64,
    /// Their numbers, by reason.
    requests: BTreeMap<String, u32>,
}

impl UnservedRequests {
    /// Reads those of a process's tree, from a process with these mappings. `None`: there are none.
    pub fn read(pid: i32, maps: &[Mapping]) -> Option<UnservedRequests> {
        let of = Counts::read(pid, maps)?;
        let some = Unserved::ALL.iter().zip(of.counts).filter(|(_, count)| *count > 0);
        let requests: BTreeMap<_, _> = some.map(|((_, name), count)| ((*name).to_owned(), count)).collect();
        (!requests.is_empty()).then_some(UnservedRequests {
            mailbox: of.tree,
            requests,
        })
    }
}

/// Returns a sentence for each tree that has some, with its first process.
pub fn sentences<'a>(processes: impl Iterator<Item = (i32, &'a Option<UnservedRequests>)>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let counted = processes.filter_map(|(pid, unserved)| Some((pid, unserved.as_ref()?)));
    let first = counted.filter(|(_, unserved)| seen.insert(unserved.mailbox));
    let sentence = |(pid, unserved): (i32, &UnservedRequests)| {
        let counts = unserved.requests.iter().map(|(why, count)| format!("{count} {why}"));
        let counts: Vec<String> = counts.collect();
        format!(
            "programs executed in the tree of {pid} were not served: {} (docs/status.md)",
            counts.join(", ")
        )
    };
    first.map(sentence).collect()
}

/// The counts of one tree, and the inode of its mailbox, which names it.
pub type OfTree = (u64, [u32; Unserved::ALL.len()]);

/// Reads the counts of a process's tree, from a process with these mappings.
pub fn of_tree(pid: i32, maps: &[Mapping]) -> Option<OfTree> {
    Counts::read(pid, maps).map(|of| (of.tree, of.counts))
}

/// Returns the sums for all trees of which these are, by reason.
pub fn totals(of_trees: Vec<Option<OfTree>>) -> [(&'static str, u64); Unserved::ALL.len()] {
    let trees: HashMap<_, _> = of_trees.into_iter().flatten().collect();
    Unserved::ALL.map(|(reason, name)| {
        let counts = trees.values().map(|counts| u64::from(counts[reason as usize]));
        (name, counts.sum())
    })
}
