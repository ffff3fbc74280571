//! An instance and its page in this process, as in a host that runs its guest in its own address space.

use std::ptr::NonNull;

use fastpath_page::{PAGE_SIZE, Writer};
use fastpath_publish::host::image::{Image, InstanceConfig, KernelFunctions, Placement};
use fastpath_publish::host::{Page, init};

use crate::region;

/// A reservation for the image with its page far from it, on either side.
pub struct Mapped {
    region: NonNull<u8>,
    image_at: usize,
    page_at: usize,
}

/// Pages between the image and its page.
const APART: usize = 7;

pub type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

impl Mapped {
    /// Maps the page below the image or above it.
    pub fn new(page_below: bool, serve_clocks: bool) -> Mapped {
        let image = Image::host();
        let size = image.size();
        let (image_at, page_at) = if page_below {
            (PAGE_SIZE * APART, 0)
        } else {
            (0, size + PAGE_SIZE * APART)
        };
        let length = size + PAGE_SIZE * (APART + 1);
        let region = region::map(length);
        let address = region.addr().get() + image_at;
        // SAFETY: inside of the mapping just made, which nothing else uses.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(region.as_ptr().add(image_at), size);
            let options = InstanceConfig {
                placement: Placement {
                    address: address as u64,
                    page_offset: page_at as i64 - image_at as i64,
                },
                serve_clocks,
                kernel: KernelFunctions::NONE,
                ..InstanceConfig::at(Placement::at(0))
            };
            image.instantiate_into(&options, bytes).expect("an instance");
            let code = region.as_ptr().add(image_at).cast();
            assert_eq!(libc::mprotect(code, size, libc::PROT_READ | libc::PROT_EXEC), 0);
        }
        let mapped = Mapped {
            region,
            image_at,
            page_at,
        };
        Writer::new(mapped.page()).init(&init::of_this_host());
        mapped
    }

    /// Returns the page, which stays mapped until the process ends.
    pub fn page(&self) -> &'static Page {
        // SAFETY: mapped until the process ends, aligned, and a page is made of atomics.
        unsafe { self.region.add(self.page_at).cast().as_ref() }
    }

    /// Returns the image's clock_gettime.
    pub fn clock_gettime(&self) -> ClockGettime {
        let image = Image::host();
        let offset = ["__vdso_clock_gettime", "__kernel_clock_gettime"]
            .iter()
            .find_map(|name| image.symbol(name))
            .expect("every image has it");
        // SAFETY: the function's code is at this address, and has this type.
        unsafe { std::mem::transmute(self.region.as_ptr().add(self.image_at + offset as usize)) }
    }
}

/// Returns the answer of a clock_gettime, in nanoseconds.
pub fn read(clock_gettime: ClockGettime, id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    assert_eq!(unsafe { clock_gettime(id, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
