//! The pages that there are: whose they are, and how long they are kept.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use fastpath_host::init;
use fastpath_page::{ClockSet, Reader};
use fastpath_protocol::{Code, Refusal, status};
use fastpath_publisher::many::{Handle, Member, Offsets, REASON_LET_GO};
use fastpath_publisher::{SharedPage, counter, evidence};

use crate::lease::Lease;
use crate::peer::Process;

/// What users may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pages of one user but root.
    pub pages_per_user: usize,
}

/// Pages of all users together: a mapping each, of which a process may have 65,530 (vm.max_map_count).
const MOST_PAGES: usize = 32_768;

/// What who asked for a page gets.
#[derive(Debug)]
pub struct Opened {
    /// For reading.
    pub page: OwnedFd,
    /// Keeps it; nothing if he brought one.
    pub mailbox: Option<OwnedFd>,
}

/// A page of a daemon that is gone, and the process that maps it.
pub struct Found {
    pub process: Process,
    pub page: SharedPage,
    pub lease: Lease,
}

struct Entry {
    process: Process,
    inode: u64,
    member: Arc<Member>,
    lease: Lease,
    was_found_again: bool,
}

/// All pages.
pub struct Book {
    entries: BTreeMap<u64, Entry>,
    next_id: u64,
    /// Where the next sweep goes on.
    swept: u64,
    of_user: HashMap<u32, usize>,
    inodes: HashSet<u64>,
    limits: Limits,
    publisher: Handle,
}

impl Book {
    /// An empty one, whose pages `publisher` keeps.
    pub fn new(publisher: Handle, limits: Limits) -> Book {
        Book {
            entries: BTreeMap::new(),
            next_id: 1,
            swept: 0,
            of_user: HashMap::new(),
            inodes: HashSet::new(),
            limits,
            publisher,
        }
    }

    /// Makes a page. `mailbox` is one of the asker's own, if he has one.
    pub fn open(
        &mut self,
        process: Process,
        clocks: ClockSet,
        offsets: Offsets,
        mailbox: Option<BorrowedFd<'_>>,
    ) -> Result<Opened, Refusal> {
        let trouble = |what: &str, error: io::Error| Refusal::new(Code::Internal, format!("{what}: {error}"));
        let has = self.of_user.get(&process.uid).copied().unwrap_or(0);
        if process.uid != 0 && has >= self.limits.pages_per_user {
            let sentence = format!(
                "user {} has {has} pages, and no user but root may have more",
                process.uid
            );
            return Err(Refusal::new(Code::Limit, sentence));
        }
        if self.entries.len() >= MOST_PAGES {
            let sentence = format!("there are {MOST_PAGES} pages already");
            return Err(Refusal::new(Code::Limit, sentence));
        }
        let (lease, mailbox) = match mailbox {
            Some(theirs) => {
                let lease = Lease::of(&theirs);
                let lease = lease.map_err(|e| Refusal::new(Code::Malformed, format!("the mailbox: {e}")))?;
                (lease, None)
            }
            None => {
                let (lease, mailbox) = Lease::create().map_err(|e| trouble("a mailbox", e))?;
                (lease, Some(mailbox))
            }
        };
        let page = new_page().map_err(|e| trouble("a page", e))?;
        page.writer().init(&init::of_this_host());
        let reader = page.reader().map_err(|e| trouble("a page", e))?;
        let member = Member { page, clocks, offsets };
        self.enter(process, member, lease, false)
            .map_err(|e| trouble("a page", e))?;
        Ok(Opened { page: reader, mailbox })
    }

    /// Goes on with a page that lost its daemon. Which clocks it answers, it says itself.
    pub fn take_up(&mut self, found: Found, offsets: Offsets) -> io::Result<()> {
        let Found { process, page, lease } = found;
        let reader = Reader::new(page.page());
        // Whom somebody let go for good stays so.
        if reader.stats().withdrawn_reason == REASON_LET_GO {
            return Ok(());
        }
        let clocks = reader.clocks();
        let member = Member { page, clocks, offsets };
        self.enter(process, member, lease, true)
    }

    fn enter(&mut self, process: Process, member: Member, lease: Lease, was_found_again: bool) -> io::Result<()> {
        let inode = fs::File::from(member.page.reader()?).metadata()?.ino();
        let member = Arc::new(member);
        let id = self.next_id;
        self.next_id += 1;
        self.publisher.add(id, member.clone());
        *self.of_user.entry(process.uid).or_default() += 1;
        self.inodes.insert(inode);
        self.entries.insert(
            id,
            Entry {
                process,
                inode,
                member,
                lease,
                was_found_again,
            },
        );
        Ok(())
    }

    /// Looks at so many pages, and lets those go that nobody maps any more.
    pub fn sweep(&mut self, how_many: usize) {
        let mut ids: Vec<u64> = self
            .entries
            .range(self.swept + 1..)
            .map(|(id, _)| *id)
            .take(how_many)
            .collect();
        if ids.len() < how_many {
            let rest = how_many - ids.len();
            ids.extend(self.entries.range(..=self.swept).map(|(id, _)| *id).take(rest));
        }
        for id in ids {
            self.swept = id;
            let Some(entry) = self.entries.get(&id) else { continue };
            let in_use = entry.lease.in_use();
            // Where nothing else can be told, as long as the first who mapped it lives.
            if !in_use.unwrap_or_else(|| Process::of(entry.process.pid).is_ok()) {
                self.forget(id);
                self.publisher.remove(id);
            }
        }
    }

    fn forget(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.inodes.remove(&entry.inode);
        if let Some(has) = self.of_user.get_mut(&entry.process.uid) {
            *has -= 1;
            if *has == 0 {
                self.of_user.remove(&entry.process.uid);
            }
        }
    }

    /// Takes the clocks off a process's pages, for good, as far as they are the asking user's; how many there were.
    pub fn let_go(&mut self, pid: i32, asker: u32) -> usize {
        let may = |entry: &Entry| asker == 0 || entry.process.uid == asker;
        let of_process = |(id, entry): (&u64, &Entry)| (entry.process.pid == pid && may(entry)).then_some(*id);
        let ids: Vec<u64> = self.entries.iter().filter_map(of_process).collect();
        for id in &ids {
            self.forget(*id);
            self.publisher.let_go(*id);
        }
        ids.len()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is one with this inode.
    pub fn has(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }

    /// Those that a user may see.
    pub fn shown_to(&self, uid: u32) -> Vec<status::Page> {
        let shown = self
            .entries
            .values()
            .filter(|entry| uid == 0 || entry.process.uid == uid);
        shown.map(Entry::status).collect()
    }

    /// How often the publisher has woken up: it lives as long as this changes.
    pub fn publishers_turns(&self) -> u64 {
        self.publisher.turns()
    }
}

impl Entry {
    fn status(&self) -> status::Page {
        let reader = Reader::new(self.member.page.page());
        let stats = reader.stats();
        status::Page {
            pid: self.process.pid,
            uid: self.process.uid,
            inode: self.inode,
            clocks: self.member.clocks.iter().collect(),
            is_offset: self.member.offsets != Offsets::default(),
            refreshes: stats.refreshes,
            residual_ns: stats.residual_ns,
            age_ns: reader.age_ns(counter::read()),
            withdrawn: (stats.withdrawn_reason != 0).then(|| evidence::reason(stats.withdrawn_reason)),
            was_found_again: self.was_found_again,
            rule: None,
        }
    }
}

/// Root's pages can be taken up by the next daemon, for nobody else may open what root alone may. Another user's processes are
/// the daemon's own user's, so there a seal has to keep them from writing, and it keeps the next daemon from it, too.
fn new_page() -> io::Result<SharedPage> {
    if nix::unistd::geteuid().is_root() {
        SharedPage::create_to_be_taken_up()
    } else {
        SharedPage::create()
    }
}

#[cfg(test)]
mod tests {
    use fastpath_publisher::evidence::Trust;
    use fastpath_publisher::many::Publisher;

    use super::*;

    #[test]
    fn a_user_lets_go_of_his_own_pages_and_root_of_all() {
        let (_publisher, handle) = Publisher::new(ClockSet::ALL, Trust::Anyway).unwrap();
        let mut book = Book::new(handle, Limits { pages_per_user: 1 });
        let process = Process { pid: 7, uid: 1000 };
        let opened = book.open(process, ClockSet::ALL, Offsets::default(), None).unwrap();
        assert_eq!(book.let_go(7, 1001), 0);
        assert_eq!((book.let_go(8, 1000), book.count()), (0, 1));
        assert_eq!((book.let_go(7, 1000), book.count()), (1, 0));
        drop(opened);
        let _opened = book.open(process, ClockSet::ALL, Offsets::default(), None).unwrap();
        assert_eq!((book.let_go(7, 0), book.count()), (1, 0));
    }
}
