//! The vDSOs in this process: the one that AT_SYSINFO_EHDR names, and the kernel's, which can be a different one.

use crate::counter;
use crate::functions::{Functions, VdsoCall};
use fastpath_isa::Isa;
use fastpath_os::Mapping;
use fastpath_page::{Clock, MAPPED_NAME, PAGE_SIZE, Page, Reader};
use serde::Serialize;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The facts about a vDSO in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VdsoFacts {
    /// Address at which it is mapped, in hexadecimal.
    pub address: String,
    /// Its build id, in hexadecimal.
    pub build_id: Option<String>,
    /// Whether it is fastpath's.
    pub is_fastpath: bool,
}

/// A vDSO that is mapped into this process.
pub struct Vdso {
    address: usize,
    /// Its exports. `None` if the ELF file cannot be parsed; libc may still be able to use it.
    elf: Option<fastpath_image::Vdso>,
    page: Option<MappedPage>,
    /// Whether it is the kernel's, redirected to fastpath's image in clock_gettime and gettimeofday alone.
    is_redirected: bool,
    /// Whether the kernel's own vDSO is mapped as well.
    kernels_is_mapped: bool,
}

impl Vdso {
    /// Returns the vDSO that AT_SYSINFO_EHDR names, which libc uses.
    pub fn of_auxv() -> Option<Vdso> {
        // SAFETY: getauxval only reads.
        let address = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        Vdso::at(address, &fastpath_os::maps::own().ok()?)
    }

    /// Returns the kernel's vDSO, which is mapped even if the auxiliary vector names another one, or none.
    pub fn of_kernel() -> Option<Vdso> {
        let maps = fastpath_os::maps::own().ok()?;
        let mapping = maps.iter().find(|mapping| mapping.name == "[vdso]")?;
        Vdso::at(mapping.start as usize, &maps)
    }

    fn at(address: usize, maps: &[Mapping]) -> Option<Vdso> {
        let mapping = maps
            .iter()
            .find(|mapping| mapping.start == address as u64 && mapping.readable)?;
        // SAFETY: /proc reports the range as mapped and readable, and neither the kernel nor fastpath writes to a
        // vDSO's code, or unmaps it while its process runs.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, mapping.len() as usize) };
        let elf = fastpath_image::Vdso::parse(bytes).ok();
        let below = MappedPage::below(address, maps);
        let is_redirected = below.is_none();
        Some(Vdso {
            address,
            page: below.or_else(|| MappedPage::redirected_to(address, bytes, elf.as_ref()?, maps)),
            is_redirected,
            elf,
            kernels_is_mapped: maps.iter().any(|mapping| mapping.name == "[vdso]"),
        })
    }

    pub fn facts(&self) -> VdsoFacts {
        VdsoFacts {
            address: format!("{:#x}", self.address),
            build_id: self.elf.as_ref().and_then(fastpath_image::Vdso::build_id).map(hex),
            is_fastpath: self.page.is_some(),
        }
    }

    /// Returns its functions, for direct calls.
    pub fn functions(&self) -> Option<Functions> {
        let find = |name: &str| self.function(&format!("{}{name}", Isa::HOST.facts().prefix));
        // SAFETY: these symbols of a vDSO are functions of these signatures (vdso(7)), and it stays mapped.
        unsafe { Functions::at(find) }
    }

    /// Returns whether it has a symbol of this name.
    pub fn exports(&self, name: &str) -> bool {
        self.function(name).is_some()
    }

    fn function(&self, name: &str) -> Option<usize> {
        let offset = self.elf.as_ref()?.find(name)?;
        Some(self.address.wrapping_add(offset as usize))
    }

    /// Returns whether fastpath's page answers this call at present.
    pub(crate) fn serves_from_page(&self, call: VdsoCall) -> bool {
        let Some(page) = &self.page else { return false };
        match call {
            VdsoCall::ClockGettime(clock) => page.serves(clock),
            VdsoCall::Gettimeofday => page.serves(Clock::REALTIME),
            VdsoCall::ClockGetres(_) | VdsoCall::Getcpu if self.is_redirected => false,
            VdsoCall::ClockGetres(_) => page.page().header.hres_res_ns.load(Ordering::Relaxed) != 0,
            // The image prefers the kernel's function if there is one.
            VdsoCall::Getcpu => {
                let flags = page.page().header.flags.load(Ordering::Relaxed);
                !self.kernels_is_mapped && flags & fastpath_page::layout::FLAG_CPU_SEGMENT != 0
            }
            VdsoCall::Time => false,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Largest distance of an image from its page below.
const DISTANCE: u64 = Isa::HOST.facts().largest_page;

/// Largest distance of a jump's target from the page: the image has few pages, and the code that jumps to it may lie behind it.
const IMAGE_REACH: u64 = 16 * DISTANCE;

/// Returns whether an image at `image` may be that of the page that is mapped there.
fn is_near(page: &Mapping, image: u64) -> bool {
    (page.end..=page.start + DISTANCE).contains(&image)
}

/// fastpath's page, below its image.
struct MappedPage(NonNull<Page>);

impl MappedPage {
    fn below(image: usize, maps: &[Mapping]) -> Option<MappedPage> {
        let is_its = |page: &&Mapping| page.name.starts_with(MAPPED_NAME) && is_near(page, image as u64);
        MappedPage::at(maps.iter().find(is_its)?)
    }

    fn at(mapping: &Mapping) -> Option<MappedPage> {
        if !mapping.readable || mapping.len() < PAGE_SIZE as u64 {
            return None;
        }
        let page = NonNull::new(mapping.start as *mut Page)?;
        let mut copy = [0u64; PAGE_SIZE / 8];
        for (index, word) in copy.iter_mut().enumerate() {
            // SAFETY: within the mapping, readable, aligned; volatile, because a publisher writes there.
            *word = unsafe { page.cast::<u64>().add(index).read_volatile() };
        }
        let bytes: Vec<u8> = copy.iter().flat_map(|word| word.to_ne_bytes()).collect();
        fastpath_page::check(&bytes).ok()?;
        Some(MappedPage(page))
    }

    /// Returns the page of the image to which a vDSO's clock_gettime jumps. If it jumps to the image's code within the
    /// vDSO, that is the page below code that is nearest.
    fn redirected_to(vdso: usize, bytes: &[u8], elf: &fastpath_image::Vdso, maps: &[Mapping]) -> Option<MappedPage> {
        let names = ["__vdso_clock_gettime", "__kernel_clock_gettime"];
        let entry = names.iter().find_map(|name| elf.find(name))? as usize;
        let code = bytes.get(entry..entry + 16)?;
        let target = (Isa::HOST.facts().jump_target)(code, (vdso + entry) as u64)?;
        let is_inside = (vdso as u64..(vdso + bytes.len()) as u64).contains(&target);
        let is_below_code = |page: &Mapping| maps.iter().any(|code| code.executable && is_near(page, code.start));
        let is_before_target = |page: &Mapping| (page.end..page.end + IMAGE_REACH).contains(&target);
        let pages = maps.iter().filter(|mapping| {
            let is_its = if is_inside {
                is_below_code(mapping)
            } else {
                is_before_target(mapping)
            };
            mapping.name.starts_with(MAPPED_NAME) && is_its
        });
        let page = pages.min_by_key(|page| page.end.abs_diff(vdso as u64))?;
        MappedPage::at(page)
    }

    fn page(&self) -> &Page {
        // SAFETY: the page lies in a mapping that stays for as long as the image does; it consists of atomics.
        unsafe { self.0.as_ref() }
    }

    /// Returns whether an anchor answers the clock now. Reads more than once, because an interrupted read may fail.
    fn serves(&self, clock: Clock) -> bool {
        let reader = Reader::new(self.page());
        let counter = counter::of_page(self.page());
        counter::usable() && (0..4).any(|_| reader.read(clock.id() as u32, &counter).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_page::{Anchor, ClockSet, Init, Rate, Writer};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernels_vdso_answers_as_libc_does() {
        if without_a_kernels_vdso() {
            return;
        }
        let kernel = Vdso::of_kernel().unwrap();
        let functions = kernel.functions().unwrap();
        let libc = Functions::libc();
        for clock in Clock::SERVED {
            let (before, here, after) = (libc.now_ns(*clock), functions.now_ns(*clock), libc.now_ns(*clock));
            assert!(
                before <= here && here <= after,
                "{clock}: {before:?} {here:?} {after:?}"
            );
        }
        let facts = kernel.facts();
        assert!(!facts.is_fastpath);
        assert!(
            facts
                .build_id
                .is_some_and(|id| id.len() >= 16 && id.chars().all(|c| c.is_ascii_hexdigit()))
        );
    }

    /// A page and an image in one region, as fastpath maps them: the page is a sealed memfd, the image a copy of the
    /// kernel's.
    struct Region(*mut u8);

    const IMAGE_PAGES: usize = 2;

    impl Region {
        fn new(name: &std::ffi::CStr) -> Region {
            let kernel = Vdso::of_kernel().expect("the kernel's vDSO is what the image is copied from");
            // SAFETY: new mappings of our own; the copy reads the kernel's vDSO, which is two pages long at least.
            unsafe {
                let bytes = PAGE_SIZE * (1 + IMAGE_PAGES);
                let rw = libc::PROT_READ | libc::PROT_WRITE;
                let at = libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    rw,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(at, libc::MAP_FAILED);
                let image = at.cast::<u8>().add(PAGE_SIZE);
                image.copy_from_nonoverlapping(kernel.address as *const u8, PAGE_SIZE * IMAGE_PAGES);
                assert_eq!(
                    libc::mprotect(image.cast(), PAGE_SIZE * IMAGE_PAGES, libc::PROT_READ | libc::PROT_EXEC),
                    0
                );
                let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                rustix::fs::ftruncate(&fd, PAGE_SIZE as u64).unwrap();
                let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
                assert_eq!(libc::mmap(at, PAGE_SIZE, rw, fixed, fd.as_raw_fd(), 0), at);
                Region(at.cast())
            }
        }

        fn writer(&self) -> Writer<'_> {
            // SAFETY: the mapping is writable and stays as long as the region; this is its only writer.
            unsafe { Writer::from_ptr(NonNull::new(self.0).unwrap()) }
        }

        fn vdso(&self) -> Vdso {
            Vdso::at(self.0 as usize + PAGE_SIZE, &fastpath_os::maps::own().unwrap()).unwrap()
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: the region is our own, and nothing refers to it any more.
            unsafe { libc::munmap(self.0.cast(), PAGE_SIZE * (1 + IMAGE_PAGES)) };
        }
    }

    /// Returns an anchor of two clocks that is valid from now on for `cap_cycles` counts.
    fn anchor(cap_cycles: u32) -> Anchor {
        Anchor {
            clocks: ClockSet::REALTIME | ClockSet::BOOTTIME,
            base_cycles: counter::read(),
            rate: Rate {
                mult: 1 << 20,
                shift: 22,
            },
            cap_cycles,
            base: Default::default(),
            utc_error: Default::default(),
        }
    }

    /// Returns whether there is no kernel's vDSO to copy an image from, and prints that.
    fn without_a_kernels_vdso() -> bool {
        let missing = Vdso::of_kernel().is_none();
        if missing {
            crate::skip::skip("this process has no vDSO of the kernel's");
        }
        missing
    }

    #[test]
    fn the_page_serves_its_anchors_clocks_for_as_long_as_it_is_fresh() {
        if without_a_kernels_vdso() {
            return;
        }
        let region = Region::new(c"fastpath-page");
        region.writer().init(&Init {
            hres_res_ns: 1,
            coarse_res_ns: 0,
            flags: 0,
            ..Init::default()
        });
        let vdso = region.vdso();
        assert!(vdso.facts().is_fastpath);
        let realtime = VdsoCall::ClockGettime(Clock::REALTIME);
        assert!(!vdso.serves_from_page(realtime), "never seeded");

        let fresh = anchor(u32::MAX / 4);
        region.writer().publish_hres(&fresh, counter::read).unwrap();
        assert!(vdso.serves_from_page(realtime));
        assert!(vdso.serves_from_page(VdsoCall::ClockGettime(Clock::BOOTTIME)));
        assert!(vdso.serves_from_page(VdsoCall::Gettimeofday));
        assert!(vdso.serves_from_page(VdsoCall::ClockGetres(Clock::MONOTONIC)));
        for not_served in [
            Clock::MONOTONIC,
            Clock::MONOTONIC_RAW,
            Clock::TAI,
            Clock::REALTIME_COARSE,
        ] {
            assert!(
                !vdso.serves_from_page(VdsoCall::ClockGettime(not_served)),
                "{not_served}"
            );
        }
        assert!(!vdso.serves_from_page(VdsoCall::Time) && !vdso.serves_from_page(VdsoCall::Getcpu));

        region.writer().withdraw(fastpath_page::Reason::Warp, counter::read);
        assert!(!vdso.serves_from_page(realtime), "withdrawn");

        region.writer().forget(ClockSet::ALL);
        let stale = anchor(10);
        region.writer().publish_hres(&stale, counter::read).unwrap();
        while counter::read() < stale.base_cycles + 100_000 {}
        assert!(!vdso.serves_from_page(realtime), "stale");
    }

    #[test]
    fn a_page_that_has_another_name_or_is_garbage_makes_no_fastpath() {
        if without_a_kernels_vdso() {
            return;
        }
        let other_name = Region::new(c"of-another-program");
        other_name.writer().init(&Init::default());
        assert!(!other_name.vdso().facts().is_fastpath);
        let garbage = Region::new(c"fastpath-page");
        assert!(!garbage.vdso().facts().is_fastpath);
    }

    #[test]
    fn a_vdso_without_a_page_below_it_is_not_fastpaths() {
        let name = |name: &str| fastpath_os::maps::parse(&format!("1000-2000 r--s 0 00:01 9 {name}"));
        assert!(MappedPage::below(0x2000, &name("[vvar]")).is_none());
        assert!(MappedPage::below(0x3000, &name("/memfd:fastpath-page (deleted)")).is_none());
    }
}
