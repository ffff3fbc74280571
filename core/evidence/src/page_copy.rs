//! A copy of the page of a process that is served, from /proc.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fastpath_os::Mapping;
use fastpath_page::{MAPPED_NAME, PAGE_SIZE, Page, Reader};

use crate::counter;

/// Age of an anchor that no publisher leaves in force for so long, unless it was killed or stopped, or gets no CPU.
pub const STALE: Duration = Duration::from_secs(2);

/// Returns the age of a page's anchor in force; `None` without one, or where this process cannot read the counter.
pub fn age_of(page: &Page) -> Option<Duration> {
    let age_ns = || Reader::new(page).age_ns(counter::of_page(page)());
    counter::is_readable().then(age_ns).flatten().map(Duration::from_nanos)
}

/// The contents of a page at one moment. A copy made in the middle of a refresh answers less, or nothing; the next is
/// whole.
pub struct PageCopy(Box<Page>);

impl PageCopy {
    /// Copies the page that a process maps; `Ok(None)` if it maps none.
    ///
    /// # Errors
    /// Fails if /proc/PID/maps or /proc/PID/mem cannot be read, which need the right to trace the process.
    pub fn of_process(pid: u32) -> io::Result<Option<PageCopy>> {
        PageCopy::of_mappings(pid, &fastpath_os::maps::read(pid)?)
    }

    /// The same for a process with these mappings.
    ///
    /// # Errors
    /// Fails if /proc/PID/mem cannot be read.
    pub fn of_mappings(pid: u32, maps: &[Mapping]) -> io::Result<Option<PageCopy>> {
        let Some(page) = PageCopy::mapping(maps) else {
            return Ok(None);
        };
        PageCopy::read(&File::open(format!("/proc/{pid}/mem"))?, page.start)
    }

    /// Returns the first page among these mappings.
    pub fn mapping(maps: &[Mapping]) -> Option<&Mapping> {
        maps.iter().find(|mapping| mapping.is_memory(MAPPED_NAME))
    }

    /// Returns whether these are the mappings of a publisher, which maps its page as well, to write it.
    pub fn is_published_in(maps: &[Mapping]) -> bool {
        let is_written = |mapping: &Mapping| mapping.is_memory(MAPPED_NAME) && mapping.writable;
        maps.iter().any(is_written)
    }

    /// Copies the page at an address in a process's memory (/proc/PID/mem); `Ok(None)` if there is no page of this
    /// version.
    pub fn read(memory: &File, address: u64) -> io::Result<Option<PageCopy>> {
        let mut bytes = [0; PAGE_SIZE];
        memory.read_exact_at(&mut bytes, address)?;
        Ok(PageCopy::from_bytes(&bytes))
    }

    /// Makes a copy from bytes; `None` if they are not a page of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<PageCopy> {
        fastpath_page::check(bytes).ok()?;
        let mut page = Box::new(MaybeUninit::<Page>::uninit());
        // SAFETY: check() found enough bytes for a whole page, and a page consists of integers, for which all bytes are
        // valid.
        let page = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.as_mut_ptr().cast(), size_of::<Page>());
            page.assume_init()
        };
        Some(PageCopy(page))
    }
}

impl Deref for PageCopy {
    type Target = Page;

    fn deref(&self) -> &Page {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use fastpath_os::maps::parse;
    use fastpath_page::{Init, Writer};

    use super::*;

    #[test]
    fn the_page_is_found_among_mappings_by_its_name() {
        let line =
            "7f0000001000-7f0000002000 r--s 00000000 00:01 9                          /memfd:fastpath-page (deleted)";
        let address_of_page = |line| PageCopy::mapping(&parse(line)).map(|page| page.start);
        assert_eq!(address_of_page(line), Some(0x7f00_0000_1000));
        for other in [
            "7f0000001000-7f0000002000 r--s 00000000 00:01 9",
            "7f0000001000-7f0000002000 r--s 00000000 00:01 9 /tmp/memfd:fastpath-page",
        ] {
            assert_eq!(address_of_page(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_without_a_page_has_no_copy_of_it() {
        assert!(
            PageCopy::of_process(std::process::id())
                .expect("our own maps")
                .is_none()
        );
        assert!(PageCopy::of_process(0).is_err());
    }

    #[test]
    fn memory_of_a_process_is_copied_if_it_is_a_page() {
        let page = Page::zeroed();
        let memory = File::open("/proc/self/mem").expect("our own memory");
        let address = NonNull::from(&page).as_ptr() as u64;
        assert!(PageCopy::read(&memory, address).expect("mapped").is_none(), "zeroes");
        Writer::new(&page).init(&Init {
            hres_res_ns: 1,
            ..Init::default()
        });
        let copy = PageCopy::read(&memory, address).expect("mapped").expect("a page");
        let same = std::sync::atomic::Ordering::Relaxed;
        assert_eq!(copy.header.hres_res_ns.load(same), page.header.hres_res_ns.load(same));
        assert!(PageCopy::read(&memory, 0).is_err(), "nothing is mapped there");
    }
}
