//! The processes on fastpath: all that map one of its pages, by publisher.

use super::facts::PageFacts;
use super::page;
use super::root::Root;
use fastpath_evidence::PageCopy;
use fastpath_os::Mapping;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Contents of the page.
    pub facts: PageFacts,
}

/// Timeout for one process.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What a worker found in a process.
#[derive(Serialize, Deserialize)]
enum Looked<T> {
    /// A page, by its inode, its contents if they were not read before, and what the caller wants to know.
    Page(u64, Option<Box<PageFacts>>, T),
    Unreadable,
    Without,
}

/// A process whose mappings were read.
#[derive(Clone, Serialize, Deserialize)]
struct Walked {
    /// Fields of its stat: no program is executed, and no page mapped, without a change of one.
    memory: String,
    /// The lines of fastpath's mappings.
    maps: String,
}

/// Walks over the processes of a directory like `/`. A walk reads the mappings of those that are new since the last one, or have
/// other memory: to read them costs four times as much as all else.
#[derive(Default)]
pub struct Walks {
    known: HashMap<i32, Walked>,
}

impl Walks {
    /// Walks over the `proc` of a directory like `/`. Returns besides what `also` says of each process that maps a page, from
    /// fastpath's mappings in it.
    pub fn served<T: Serialize + DeserializeOwned>(
        &mut self,
        root: &Path,
        mut also: impl FnMut(i32, &[Mapping]) -> T,
    ) -> (Served, Vec<T>) {
        let root = Root::at(root);
        let (mut served, mut besides) = (Served::default(), Vec::new());
        let mut pages: BTreeMap<u64, ServedPage> = BTreeMap::new();
        let names = root.names("/proc");
        let pids: Vec<i32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        // Every process that maps a page sees the same contents, so one copy is sufficient. A process that may not be
        // examined provides none.
        let mut copied = BTreeSet::new();
        let known = &self.known;
        let look = |pid| {
            let (looked, process) = match mappings(&root, pid, known.get(&pid)) {
                Ok((process, maps)) => (look_at(&root, pid, &maps, &copied, &mut also), process),
                Err(looked) => (looked, None),
            };
            if let Looked::Page(inode, Some(facts), _) = &looked
                && facts.refreshes.is_some()
            {
                copied.insert(*inode);
            }
            serde_json::to_vec(&(looked, process)).unwrap_or_default()
        };
        let answers = fastpath_os::look_at_all(&pids, TIMEOUT, look);
        let present: BTreeSet<i32> = pids.into_iter().collect();
        self.known.retain(|pid, _| present.contains(pid));
        for (pid, json) in answers {
            let (looked, process) = json
                .and_then(|json| serde_json::from_slice::<(Looked<T>, Option<Walked>)>(&json).ok())
                .unwrap_or((Looked::Unreadable, None));
            self.known.extend(process.map(|process| (pid, process)));
            match looked {
                Looked::Page(inode, facts, more) => {
                    let page = pages.entry(inode).or_insert(ServedPage {
                        inode,
                        processes: 0,
                        facts: PageFacts::default(),
                    });
                    page.processes += 1;
                    if let Some(facts) = facts {
                        page.facts = *facts;
                    }
                    besides.push(more);
                }
                Looked::Without => {}
                // Its memory may be provided by the process itself, and never be read.
                Looked::Unreadable => served.unreadable += 1,
            }
        }
        served.pages = pages.into_values().collect();
        (served, besides)
    }
}

/// Returns fastpath's mappings in a process, and the process if they were not `known`.
fn mappings<T>(root: &Root, pid: i32, known: Option<&Walked>) -> Result<(Option<Walked>, Vec<Mapping>), Looked<T>> {
    let memory = root.text(&format!("/proc/{pid}/stat")).ok().and_then(|stat| {
        // Start time, size of the memory, start of the code and of the stack.
        let fields = fastpath_os::Stat::fields(&stat)?;
        Some(
            [22, 23, 26, 28]
                .map(|number| *fields.get(number - 3).unwrap_or(&""))
                .join(" "),
        )
    });
    if let Some(known) = known.filter(|known| memory.as_ref() == Some(&known.memory)) {
        let maps = fastpath_os::maps::parse(&known.maps);
        // Where a process has left its page, other memory is in its place.
        if PageCopy::mapping(&maps).is_none_or(|page| page::is_at(pid, page.start)) {
            return Ok((None, maps));
        }
    }
    let text = match root.text(&format!("/proc/{pid}/maps")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Err(Looked::Unreadable),
        // It has ended in the meantime.
        Err(_) => return Err(Looked::Without),
    };
    let of_fastpath = text
        .split_inclusive('\n')
        .filter(|line| line.contains("/memfd:fastpath"));
    let maps: String = of_fastpath.collect();
    let parsed = fastpath_os::maps::parse(&maps);
    Ok((memory.map(|memory| Walked { memory, maps }), parsed))
}

fn look_at<T>(
    root: &Root,
    pid: i32,
    maps: &[Mapping],
    copied: &BTreeSet<u64>,
    also: &mut impl FnMut(i32, &[Mapping]) -> T,
) -> Looked<T> {
    let inode = match PageCopy::mapping(maps) {
        Some(page) if !PageCopy::is_published_in(maps) => page.inode,
        _ => return Looked::Without,
    };
    let facts = match copied.contains(&inode) {
        true => None,
        false => page::look(root, &pid.to_string(), maps),
    };
    Looked::Page(inode, facts.map(Box::new), also(pid, maps))
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
        let publisher = one.replace("r--s", "rw-s");
        let tree = Tree::new(&[
            ("proc/1/maps", ""),
            ("proc/2/maps", &one),
            ("proc/3/maps", &one),
            ("proc/4/maps", &two),
            ("proc/5/maps", &publisher),
            ("proc/self/maps", &two),
        ]);
        let (served, pids) = Walks::default().served(&tree.root().path_of("/"), |pid, _| pid);
        let counts: Vec<_> = served.pages.iter().map(|page| (page.inode, page.processes)).collect();
        assert_eq!((counts, served.unreadable), (vec![(7, 2), (8, 1)], 0));
        assert_eq!(BTreeSet::from_iter(pids), BTreeSet::from([2, 3, 4]));
    }

    #[test]
    fn mappings_are_read_again_where_the_memory_is_another() {
        let stat = |start: u64, size: u64| {
            format!(
                "2 (a) b) S 1 2 2 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} {size} 10 18446744073709551615 4096 8192 77\n"
            )
        };
        let line = "1000-2000 r--s 00000000 00:01 7 /memfd:fastpath-page (deleted)\n";
        let tree = Tree::new(&[("proc/2/maps", ""), ("proc/2/stat", &stat(5, 100))]);
        let mut walks = Walks::default();
        let mut is_served = || !walks.served(&tree.root().path_of("/"), |_, _| ()).0.pages.is_empty();
        assert!(!is_served());
        tree.add("proc/2/maps", line.as_bytes());
        assert!(!is_served(), "nothing says that it has changed");
        tree.add("proc/2/stat", stat(5, 136).as_bytes());
        assert!(is_served());
        // No page is at this address of a process with such a number: its mappings are read again.
        tree.add("proc/2/maps", b"");
        assert!(!is_served());
        tree.add("proc/2/maps", line.as_bytes());
        tree.add("proc/2/stat", stat(6, 136).as_bytes());
        assert!(is_served(), "another process");
    }
}
