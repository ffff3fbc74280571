//! The processes on fastpath: all that map one of its pages, by publisher.

use super::facts::PageFacts;
use super::page;
use super::root::Root;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Result of a walk over /proc.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Served {
    /// All pages; each has a publisher of its own.
    pub pages: Vec<ServedPage>,
    /// Number of processes whose mappings this process may not read.
    pub unreadable: u64,
}

/// A page, and how many processes map it.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct ServedPage {
    /// Inode number of its memfd, which is different for each page of a host.
    pub inode: u64,
    /// Number of processes that map it.
    pub processes: u64,
    /// These processes.
    #[serde(skip)]
    pub pids: Vec<i32>,
    /// Contents of the page.
    pub facts: PageFacts,
}

/// Timeout for one process.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What a worker found in a process.
#[derive(Serialize, Deserialize)]
enum Looked {
    /// A page, by its inode, and its contents if they were not read before.
    Page(u64, Option<Box<PageFacts>>),
    Unreadable,
    Without,
}

/// Walks over the `proc` of a directory like `/`.
pub fn served(root: &Path) -> Served {
    let root = Root::at(root);
    let mut served = Served::default();
    let mut pages: BTreeMap<u64, ServedPage> = BTreeMap::new();
    let names = root.names("/proc");
    let pids: Vec<i32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    // Every process that maps a page sees the same contents, so one copy is sufficient. A process that may not be
    // examined provides none.
    let mut known = BTreeSet::new();
    let look = |pid| {
        let looked = look_at(&root, pid, &known);
        if let Looked::Page(inode, Some(facts)) = &looked
            && facts.refreshes.is_some()
        {
            known.insert(*inode);
        }
        serde_json::to_vec(&looked).unwrap_or_default()
    };
    for (pid, json) in fastpath_os::look_at_all(&pids, TIMEOUT, look) {
        match json.and_then(|json| serde_json::from_slice(&json).ok()) {
            Some(Looked::Page(inode, facts)) => {
                let page = pages.entry(inode).or_insert(ServedPage {
                    inode,
                    processes: 0,
                    pids: Vec::new(),
                    facts: PageFacts::default(),
                });
                page.processes += 1;
                page.pids.push(pid);
                if let Some(facts) = facts {
                    page.facts = *facts;
                }
            }
            Some(Looked::Without) => {}
            // Its memory may be provided by the process itself, and never be read.
            Some(Looked::Unreadable) | None => served.unreadable += 1,
        }
    }
    served.pages = pages.into_values().collect();
    served
}

fn look_at(root: &Root, pid: i32, known: &BTreeSet<u64>) -> Looked {
    let maps = match root.text(&format!("/proc/{pid}/maps")) {
        Ok(text) => fastpath_os::maps::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Looked::Unreadable,
        // It has ended in the meantime.
        Err(_) => return Looked::Without,
    };
    let Some(inode) = page::find(&maps).map(|page| page.inode) else {
        return Looked::Without;
    };
    let facts = match known.contains(&inode) {
        true => None,
        false => page::look(root, &pid.to_string(), &maps),
    };
    Looked::Page(inode, facts.map(Box::new))
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Tree;
    use super::*;

    #[test]
    fn processes_are_counted_by_the_page_that_they_map() {
        let page = |inode| {
            format!(
                "10-20 r-xp 00 00:00 0 [vdso]\n1000-2000 r--s 00000000 00:01 {inode} /memfd:fastpath-page (deleted)\n"
            )
        };
        let (one, two) = (page(7), page(8));
        let tree = Tree::new(&[
            ("proc/1/maps", ""),
            ("proc/2/maps", &one),
            ("proc/3/maps", &one),
            ("proc/4/maps", &two),
            ("proc/self/maps", &two),
        ]);
        let served = served(&tree.root().path_of("/"));
        let counts: Vec<_> = served.pages.iter().map(|page| (page.inode, page.processes)).collect();
        assert_eq!((counts, served.unreadable), (vec![(7, 2), (8, 1)], 0));
    }
}
