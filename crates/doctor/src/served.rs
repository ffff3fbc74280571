//! The processes on fastpath: all that map one of its pages, by publisher.

use super::facts::PageFacts;
use super::page;
use super::root::Root;
use fastpath_page::MAPPED_NAME;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

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

/// Walks over the `proc` of a directory like `/`.
pub fn served(root: &Path) -> Served {
    let root = Root::at(root);
    let mut served = Served::default();
    let mut pages: BTreeMap<u64, ServedPage> = BTreeMap::new();
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    for pid in root.names("/proc").into_iter().filter(is_number) {
        let text = match root.text(&format!("/proc/{pid}/maps")) {
            Ok(text) => text,
            // A process that has ended in the meantime is not counted.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                served.unreadable += 1;
                continue;
            }
            Err(_) => continue,
        };
        let Some(inode) = text.lines().find(|line| line.contains(MAPPED_NAME)).and_then(inode) else {
            continue;
        };
        // Every process that maps a page sees the same contents, so one copy is sufficient. A process that may not be
        // examined provides none.
        let known = pages.get(&inode).is_some_and(|page| page.facts.refreshes.is_some());
        let facts = if known {
            None
        } else {
            page::look(&root, &pid, &fastpath_os::maps::parse(&text))
        };
        let page = pages.entry(inode).or_insert(ServedPage {
            inode,
            processes: 0,
            pids: Vec::new(),
            facts: PageFacts::default(),
        });
        page.processes += 1;
        page.pids.extend(pid.parse::<i32>());
        if let Some(facts) = facts {
            page.facts = facts;
        }
    }
    served.pages = pages.into_values().collect();
    served
}

/// Parses a line of `/proc/PID/maps`.
fn inode(line: &str) -> Option<u64> {
    line.split(' ').nth(4)?.parse().ok()
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
