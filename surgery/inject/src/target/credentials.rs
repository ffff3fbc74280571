//! The rights of a process: which files it may open, and whether an exec gave it more.

use std::cell::RefCell;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid};

use crate::error::{Error, Result, tried};

/// Rights of a thread, from its /proc/PID/status (credentials(7), capabilities(7)).
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Credentials {
    effective_uid: u32,
    effective_gid: u32,
    files: FileRights,
    permitted: u64,
    effective: u64,
}

/// Ids that decide which files a thread may open.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
struct FileRights {
    uid: u32,
    gid: u32,
    /// In ascending order.
    groups: Vec<u32>,
}

impl FileRights {
    /// Returns those that the calling thread has by itself. They are asked for once: fastpath gives up rights before it
    /// serves programs, not later.
    fn own() -> Result<FileRights> {
        thread_local! {
            static OWN: RefCell<Option<FileRights>> = const { RefCell::new(None) };
        }
        OWN.with_borrow_mut(|own| match own {
            Some(own) => Ok(own.clone()),
            None => Ok(own.insert(FileRights::asked()?).clone()),
        })
    }

    fn asked() -> Result<FileRights> {
        let groups = rustix::process::getgroups().map_err(tried("getgroups"))?;
        let mut groups: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        Ok(FileRights {
            uid: nix::unistd::setfsuid(Uid::from_raw(u32::MAX)).as_raw(),
            gid: nix::unistd::setfsgid(Gid::from_raw(u32::MAX)).as_raw(),
            groups,
        })
    }
}

impl Credentials {
    /// Returns those in the status of a process or thread.
    pub fn from_status(status: &fastpath_os::Status) -> Result<Credentials> {
        let hidden = || Error::Unsupported("/proc does not show its credentials".into());
        Credentials::parse(status).ok_or_else(hidden)
    }

    fn parse(status: &fastpath_os::Status) -> Option<Credentials> {
        // Real, effective, saved, file system.
        let [_, effective_uid, _, file_uid] = status.numbers("Uid")?.try_into().ok()?;
        let [_, effective_gid, _, file_gid] = status.numbers("Gid")?.try_into().ok()?;
        let mut groups: Vec<u32> = status.numbers("Groups")?;
        groups.sort_unstable();
        Some(Credentials {
            effective_uid,
            effective_gid,
            files: FileRights {
                uid: file_uid,
                gid: file_gid,
                groups,
            },
            permitted: status.set("CapPrm")?,
            effective: status.set("CapEff")?,
        })
    }

    /// Returns whether `later` are another user's rights, or more.
    pub fn have_grown_to(&self, later: &Credentials) -> bool {
        self.effective_uid != later.effective_uid
            || self.effective_gid != later.effective_gid
            || later.permitted & !self.permitted != 0
            || later.effective & !self.effective != 0
    }
}

/// The calling thread opens files with another thread's rights. Dropping this restores its own.
pub struct Assumed(Option<FileRights>);

impl Assumed {
    /// Assumes the rights of a thread with these credentials. The capabilities that go beyond a user's rights to files
    /// are lost with user 0 (capabilities(7), "Effect of user ID changes on capabilities").
    pub fn assume(wanted: &Credentials) -> Result<Assumed> {
        let (own, wanted) = (FileRights::own()?, &wanted.files);
        if own == *wanted {
            return Ok(Assumed(None));
        }
        let assumed = Assumed(Some(own));
        set_groups(&wanted.groups)?;
        set_file_gid(wanted.gid)?;
        set_file_uid(wanted.uid)?;
        Ok(assumed)
    }
}

impl Drop for Assumed {
    fn drop(&mut self) {
        let Some(own) = &self.0 else { return };
        // The user first: that restores the capabilities. A failure leaves this thread with fewer rights, and programs
        // untouched.
        let _ = set_file_uid(own.uid);
        let _ = set_file_gid(own.gid);
        let _ = set_groups(&own.groups);
    }
}

/// Changes this thread's groups only; the C library's function would change those of all threads.
fn set_groups(groups: &[u32]) -> Result<()> {
    let groups: Vec<_> = groups.iter().map(|group| rustix::fs::Gid::from_raw(*group)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(tried("setgroups"))
}

/// The kernel reports no failure of setfsgid(2) and setfsuid(2), but returns the id that was in force: a second call
/// with -1, which changes nothing, shows the result of the first.
fn set_file_gid(gid: u32) -> Result<()> {
    nix::unistd::setfsgid(Gid::from_raw(gid));
    is_set(
        nix::unistd::setfsgid(Gid::from_raw(u32::MAX)).as_raw() == gid,
        "setfsgid",
    )
}

fn set_file_uid(uid: u32) -> Result<()> {
    nix::unistd::setfsuid(Uid::from_raw(uid));
    is_set(
        nix::unistd::setfsuid(Uid::from_raw(u32::MAX)).as_raw() == uid,
        "setfsuid",
    )
}

fn is_set(is_set: bool, what: &'static str) -> Result<()> {
    is_set.then_some(()).ok_or_else(|| tried(what)(Errno::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 9 \nCapPrm:\t0000000000000003\n\
        CapEff:\t0000000000000001\n";

    #[test]
    fn credentials_are_read_as_the_kernel_shows_them() {
        let expected = Credentials {
            effective_uid: 2,
            effective_gid: 6,
            files: FileRights {
                uid: 4,
                gid: 8,
                groups: vec![9, 10],
            },
            permitted: 3,
            effective: 1,
        };
        let parse = |text: &str| Credentials::parse(&fastpath_os::Status::parse(text));
        assert_eq!(parse(TEXT), Some(expected));
        assert_eq!(parse("Uid:\t1\n"), None);
        let own = Credentials::from_status(&fastpath_os::Status::read("thread-self").unwrap()).unwrap();
        assert_eq!(own.files, FileRights::own().unwrap());
    }

    #[test]
    fn another_effective_user_or_a_new_capability_is_growth() {
        let before = Credentials::parse(&fastpath_os::Status::parse(TEXT)).unwrap();
        let grown = |change: fn(&mut Credentials)| {
            let mut after = before.clone();
            change(&mut after);
            before.have_grown_to(&after)
        };
        assert!(grown(|c| c.effective_uid = 0) && grown(|c| c.effective_gid = 0));
        assert!(grown(|c| c.permitted |= 4) && grown(|c| c.effective |= 2));
        assert!(!grown(|c| c.permitted = 1) && !grown(|_| ()));
    }

    #[test]
    fn root_opens_with_anothers_rights_what_that_one_may_open() {
        if crate::skip::needs_root().is_none() {
            return;
        }
        let secret = std::env::temp_dir().join(format!("fastpath-secret-{}", std::process::id()));
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let own = || Credentials::from_status(&fastpath_os::Status::read("thread-self").unwrap()).unwrap();
        let before = own();
        let nobody = Credentials {
            files: FileRights {
                uid: 65534,
                gid: 65534,
                groups: Vec::new(),
            },
            ..before.clone()
        };
        let assumed = Assumed::assume(&nobody).unwrap();
        let refused = std::fs::File::open(&secret).is_err();
        drop(assumed);
        assert!(refused && std::fs::File::open(&secret).is_ok());
        assert_eq!(own(), before);
        std::fs::remove_file(secret).unwrap();
    }
}
