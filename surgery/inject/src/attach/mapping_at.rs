//! The mapping at an address of a process whose threads are all stopped. The kernel is asked for one at a time: a process
//! may have tens of thousands.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::target::maps::{self, Mapping};

/// Mappings of a process.
pub enum Mappings {
    /// Queried one by one (PROCMAP_QUERY, Linux 6.11).
    Queried(File),
    /// Read as a list, on older kernels.
    Listed(Vec<Mapping>),
}

impl Mappings {
    /// Opens, or reads, the mappings of a process.
    pub fn read(pid: i32) -> Result<Mappings> {
        let path = format!("/proc/{pid}/maps");
        let file = File::open(&path).map_err(|e| Error::io(path, e))?;
        match query(&file, 0, &mut []) {
            Ok(_) | Err(Errno::ENOENT) => Ok(Mappings::Queried(file)),
            Err(_) => Ok(Mappings::Listed(maps::read(pid)?)),
        }
    }

    /// Returns the readable mapping at an address, if there is one.
    pub fn readable_at(&self, address: u64) -> Option<Range<u64>> {
        match self {
            Mappings::Queried(file) => {
                let found = query(file, address, &mut []).ok()?;
                (found.vma_flags & Query::READABLE != 0).then_some(found.vma_start..found.vma_end)
            }
            Mappings::Listed(maps) => {
                let mut readable = maps.iter().filter(|m| m.readable);
                readable.find(|m| m.range().contains(&address)).map(Mapping::range)
            }
        }
    }

    /// Returns whether the kernel's vDSO is mapped at an address.
    pub fn is_vdso(&self, address: u64) -> bool {
        match self {
            Mappings::Queried(file) => {
                // The kernel returns ENAMETOOLONG for a longer name.
                let mut name = [0; VDSO.len() + 1];
                query(file, address, &mut name).is_ok() && name.starts_with(VDSO.as_bytes())
            }
            Mappings::Listed(maps) => {
                let mut vdso = maps.iter().filter(|m| m.name == VDSO);
                vdso.any(|m| m.range().contains(&address))
            }
        }
    }
}

const VDSO: &str = "[vdso]";

/// struct procmap_query, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

impl Query {
    /// PROCMAP_QUERY_VMA_READABLE
    const READABLE: u64 = 1;
}

/// Asks for the mapping at an address, and for its name if there is room for one. The errno is ENOENT if nothing is mapped
/// there.
fn query(maps: &File, address: u64, name: &mut [u8]) -> std::result::Result<Query, Errno> {
    /// PROCMAP_QUERY: _IOWR('f', 17, struct procmap_query), include/uapi/linux/fs.h.
    const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_addr: address,
        vma_name_size: name.len() as u32,
        vma_name_addr: match name {
            [] => 0,
            name => name.as_mut_ptr() as u64,
        },
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes the structure, whose size is in it and in the request's number, and writes a
    // name of at most `vma_name_size` bytes, which is the length of `name`.
    let r = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as libc::Ioctl, &raw mut query) };
    Errno::result(r).map(|_| query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_returns_what_the_list_shows() {
        let own = std::process::id() as i32;
        let opened = Mappings::read(own).expect("the mappings of this process");
        let list = maps::read(own).expect("its list");
        let in_code = a_query_returns_what_the_list_shows as fn() as usize as u64;
        let in_vdso = list.iter().find(|m| m.name == VDSO).expect("a vDSO").end - 1;
        let listed = Mappings::Listed(list);
        for address in [0, in_code, in_vdso] {
            assert_eq!(opened.readable_at(address), listed.readable_at(address), "{address:#x}");
            assert_eq!(opened.is_vdso(address), address == in_vdso, "{address:#x}");
            assert_eq!(listed.is_vdso(address), address == in_vdso, "{address:#x}");
        }
        assert!(listed.readable_at(in_code).is_some());
    }
}
