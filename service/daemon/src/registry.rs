//! The pages: their owners, and how long they are kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use fastpath_page::{ClockSet, Grant, Reader};
use fastpath_protocol::{Code, RequestRefusal, status};
use fastpath_publish::{Handle, Member, Offsets, SharedPage, counter};

use crate::account::Account;
use crate::lease::{Lease, Plan, is_page_read, reopen};
use crate::peer::{Peer, Process};
use crate::policy::Attached;

/// Limits of users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Pages of one user other than root.
    pub pages_per_user: usize,
    /// Pages of all users together, some of which are reserved for root.
    pub pages_in_all: usize,
}

impl Limits {
    /// Returns limits for as many pages as there is room for, and `pages_per_user` for one user.
    pub(crate) fn of_this_process(pages_per_user: usize) -> Limits {
        // A page takes one descriptor, its mailbox another, and its plan a third; clients and the rest of the daemon
        // need some, too.
        let descriptors = rlimit(libc::RLIMIT_NOFILE).saturating_sub(OTHER_DESCRIPTORS) / 3;
        Limits {
            pages_per_user,
            pages_in_all: descriptors.clamp(64, MOST_PAGES as u64) as usize,
        }
    }
}

fn rlimit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit writes one rlimit, to a valid one.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => limit.rlim_cur,
        _ => 1024,
    }
}

/// Descriptors for the largest number of clients, what they send, and the rest of the daemon.
const OTHER_DESCRIPTORS: u64 = 2048;
/// Limit of pages of all users together: each takes a mapping, and a process may have 65,530 (vm.max_map_count).
const MOST_PAGES: usize = 32_768;

/// The process that a page is for.
pub(crate) struct Owner {
    pub process: Process,
    /// The account whose share it takes.
    pub account: Account,
    /// Why the daemon attaches it, if it does.
    pub attached: Option<Attached>,
}

/// A page of a daemon that has ended, and the process that maps it.
pub(crate) struct FoundPage {
    pub owner: Owner,
    pub page: SharedPage,
    pub lease: Lease,
}

struct Entry {
    owner: Owner,
    inode: u64,
    member: Arc<Member>,
    lease: Lease,
    plan: Option<Plan>,
    was_found_again: bool,
    is_forbidden: bool,
}

impl Entry {
    /// Returns whether another process still has any of its memory, which is charged to the daemon.
    fn is_held(&self) -> bool {
        self.lease.in_use() == Some(true)
            || self.plan.as_ref().is_some_and(Plan::is_held)
            || is_page_read(&self.member.page)
    }
}

/// All pages.
pub(crate) struct Registry {
    entries: BTreeMap<u64, Entry>,
    /// Pages that are not published any more, but that another process still has: they count while they take memory.
    held: VecDeque<Entry>,
    next_id: u64,
    /// Id at which the next sweep continues.
    swept: u64,
    of_user: HashMap<Account, usize>,
    of_containers: usize,
    limits: Limits,
    /// Mark of its pages, by which the next daemon finds them.
    keeper: u64,
    publisher: Handle,
}

impl Registry {
    /// Creates an empty registry, whose pages `publisher` keeps. They are marked as `keeper`'s
    /// ([`crate::sockets::Listener::keeper`]).
    pub(crate) fn new(publisher: Handle, limits: Limits, keeper: u64) -> Registry {
        Registry {
            entries: BTreeMap::new(),
            held: VecDeque::new(),
            next_id: 1,
            swept: 0,
            of_user: HashMap::new(),
            of_containers: 0,
            limits,
            keeper,
            publisher,
        }
    }

    /// Makes a page, of memory of that name. `mailbox` is the client's own, if it has one; `plan` is what the client gets besides.
    pub(crate) fn open(
        &mut self,
        name: &CStr,
        owner: Owner,
        clocks: ClockSet,
        offsets: Offsets,
        mailbox: Option<OwnedFd>,
        plan: Option<Plan>,
    ) -> Result<Grant, RequestRefusal> {
        let trouble = |what: &str, error: io::Error| RequestRefusal::new(Code::Internal, format!("{what}: {error}"));
        let account = owner.account;
        let has = self.of_user.get(&account).copied().unwrap_or(0);
        if !account.is_root() && has >= self.limits.pages_per_user {
            let whose = match account {
                Account::User(uid) => format!("user {uid} has"),
                _ => "this container has".into(),
            };
            let sentence = format!("{whose} {has} pages, and none but the host's root may have more");
            return Err(RequestRefusal::new(Code::Limit, sentence));
        }
        let most = self.limits.pages_in_all;
        let kept_for_root = if account.is_root() { 0 } else { most / 16 };
        let is_full = account.is_container() && self.of_containers >= most / 2;
        if self.size() + kept_for_root >= most || is_full {
            let sentence = format!("there are {} pages already", self.size());
            return Err(RequestRefusal::new(Code::Limit, sentence));
        }
        let (lease, mailbox) = match mailbox {
            Some(theirs) => {
                let lease = Lease::take(&theirs);
                let lease = lease.map_err(|e| RequestRefusal::new(Code::Malformed, format!("the mailbox: {e}")))?;
                (lease, theirs)
            }
            None => {
                let (lease, memfd) = Lease::create().map_err(|e| trouble("a mailbox", e))?;
                (lease, reopen(&memfd).map_err(|e| trouble("a mailbox", e))?)
            }
        };
        let page = new_page(name, self.keeper).map_err(|e| trouble("a page", e))?;
        let (member, reader) = Member::new(page, clocks, offsets).map_err(|e| trouble("a page", e))?;
        self.enter(owner, member, (lease, plan), false)
            .map_err(|e| trouble("a page", e))?;
        Ok(Grant {
            page: reader,
            mailbox,
            clocks,
        })
    }

    /// Continues to publish a page whose daemon has ended. The page itself records which clocks it answers.
    pub(crate) fn adopt(&mut self, found: FoundPage, offsets: Offsets) -> io::Result<()> {
        let FoundPage { owner, page, lease } = found;
        let account = owner.account;
        let reader = Reader::new(page.page());
        let has = self.of_user.get(&account).copied().unwrap_or(0);
        if !account.is_root() && has >= self.limits.pages_per_user || self.size() >= self.limits.pages_in_all {
            return Err(io::Error::other("there are as many pages as there may be"));
        }
        let clocks = reader.clocks();
        let member = Member { page, clocks, offsets };
        self.enter(owner, member, (lease, None), true)
    }

    fn enter(
        &mut self,
        owner: Owner,
        member: Member,
        (lease, plan): (Lease, Option<Plan>),
        was_found_again: bool,
    ) -> io::Result<()> {
        let inode = fs::File::from(member.page.reader()?).metadata()?.ino();
        let member = Arc::new(member);
        let id = self.next_id;
        self.next_id += 1;
        self.publisher.add(id, member.clone());
        *self.of_user.entry(owner.account).or_default() += 1;
        self.of_containers += usize::from(owner.account.is_container());
        self.entries.insert(
            id,
            Entry {
                owner,
                inode,
                member,
                lease,
                plan,
                was_found_again,
                is_forbidden: false,
            },
        );
        Ok(())
    }

    /// Checks `how_many` pages, and releases those that no process maps any more.
    pub(crate) fn sweep(&mut self, how_many: usize) {
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
            // Where leases are not available, a page is kept as long as the process lives that mapped it first.
            if !in_use.unwrap_or_else(|| Process::read(entry.owner.process.pid).is_ok()) {
                self.forget(id);
                self.publisher.remove(id);
            }
        }
        for _ in 0..how_many.min(self.held.len()) {
            if let Some(entry) = self.held.pop_front() {
                self.hold_or_release(entry);
            }
        }
    }

    /// Returns how many pages take memory, published or not.
    pub(crate) fn size(&self) -> usize {
        self.entries.len() + self.held.len()
    }

    fn forget(&mut self, id: u64) {
        let Some(mut entry) = self.entries.remove(&id) else {
            return;
        };
        entry.owner.attached = None;
        self.hold_or_release(entry);
    }

    fn hold_or_release(&mut self, entry: Entry) {
        if entry.is_held() {
            return self.held.push_back(entry);
        }
        self.of_containers -= usize::from(entry.owner.account.is_container());
        if let Some(has) = self.of_user.get_mut(&entry.owner.account) {
            *has -= 1;
            if *has == 0 {
                self.of_user.remove(&entry.owner.account);
            }
        }
    }

    /// Returns the number of published pages.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns up to `most` pages that a user may see, after the one with the id `after`, and the id to continue from,
    /// if there are more.
    pub(crate) fn shown_to(&self, peer: Peer, after: u64, most: usize) -> (Vec<status::Page>, Option<u64>) {
        let mut shown = self
            .entries
            .range((Bound::Excluded(after), Bound::Unbounded))
            .filter(|(_, entry)| peer.has_to_do_with(entry.owner.process.uid, entry.owner.account));
        let mut last = after;
        let mut pages = Vec::new();
        for (id, entry) in shown.by_ref().take(most) {
            last = *id;
            pages.push(entry.status());
        }
        (pages, shown.next().map(|_| last))
    }

    /// Notes which processes the policy forbids from now on, and returns them. Their pages stay.
    pub(crate) fn forbid(&mut self, is_forbidden: impl Fn(Process) -> bool) -> Vec<i32> {
        let mut pids = Vec::new();
        for entry in self.entries.values_mut() {
            entry.is_forbidden = is_forbidden(entry.owner.process);
            pids.extend(entry.is_forbidden.then_some(entry.owner.process.pid));
        }
        pids
    }

    /// Returns how often the publisher has woken up: it is alive as long as this changes.
    pub(crate) fn publishers_turns(&self) -> u64 {
        self.publisher.turns()
    }
}

impl Entry {
    fn status(&self) -> status::Page {
        let reader = Reader::new(self.member.page.page());
        let stats = reader.stats();
        status::Page {
            pid: self.owner.process.pid,
            uid: self.owner.process.uid,
            inode: self.inode,
            clocks: self.member.clocks.iter().collect(),
            is_offset: self.member.offsets != Offsets::default(),
            refreshes: stats.refreshes,
            residual_ns: stats.residual_ns,
            age_ns: reader.age_ns(counter::read()),
            withdrawn: stats.withdrawn_reason.map(|reason| reason.to_string()),
            was_found_again: self.was_found_again,
            rule: self.owner.attached.as_ref().and_then(Attached::rule),
            is_forbidden: self.is_forbidden,
        }
    }
}

/// Makes a page. The next daemon can adopt root's pages, because no other user may open them. The processes of
/// another user's daemon are that user's own, so a seal has to keep them from writing, and it also keeps the next
/// daemon from it.
fn new_page(name: &CStr, keeper: u64) -> io::Result<SharedPage> {
    SharedPage::create_as(name, nix::unistd::geteuid().is_root().then_some(keeper))
}

#[cfg(test)]
mod tests {
    use fastpath_publish::Publisher;
    use fastpath_publish::evidence::Trust;

    use super::*;

    fn limits(pages_per_user: usize) -> Limits {
        Limits {
            pages_per_user,
            pages_in_all: 1000,
        }
    }

    fn peer(uid: u32) -> Peer {
        let account = if uid == 0 { Account::Root } else { Account::User(uid) };
        Peer { pid: 1, uid, account }
    }

    #[test]
    fn pages_are_shown_a_few_at_a_time_each_once_and_only_to_who_may_see_them() {
        let (_publisher, handle) = Publisher::new(ClockSet::ALL, Trust::AllowNonInvariant).unwrap();
        let mut registry = Registry::new(handle, limits(10), 1);
        let mut kept = Vec::new();
        for pid in 0..10 {
            let uid = 1000 + pid as u32 % 2;
            let process = Process { pid, uid };
            kept.push(
                registry
                    .open(
                        fastpath_page::MEMFD_NAME,
                        Owner {
                            process,
                            account: Account::User(process.uid),
                            attached: None,
                        },
                        ClockSet::ALL,
                        Offsets::default(),
                        None,
                        None,
                    )
                    .unwrap(),
            );
        }
        let all = |uid| {
            let (mut seen, mut after) = (Vec::new(), Some(0));
            while let Some(from) = after {
                let (pages, next) = registry.shown_to(peer(uid), from, 2);
                assert!(pages.len() <= 2);
                seen.extend(pages.iter().map(|page| page.pid));
                after = next;
            }
            seen
        };
        assert_eq!(all(0), (0..10).collect::<Vec<_>>());
        assert_eq!(all(1001), [1, 3, 5, 7, 9]);
        assert!(all(1002).is_empty());
    }
}
