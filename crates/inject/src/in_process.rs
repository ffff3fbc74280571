//! The synthetic vDSO mapped in this process, beside the kernel's, for `bench` to compare.

use std::os::fd::{AsRawFd, OwnedFd};

use fastpath_image::{Image, Instance, KernelFunctions, Options, Placement, Vdso, own_vdso};
use nix::errno::Errno;

use crate::error::{Error, Result, tried};
use crate::{region, target};

/// A page and an image, mapped until the process ends.
pub struct InProcess {
    image: usize,
    /// Symbols of the instance: some are the addresses of the kernel's functions.
    symbols: Vdso,
}

impl InProcess {
    /// Maps `page` and an image that falls back to this process's own vDSO.
    pub fn map(page: &OwnedFd) -> Result<InProcess> {
        target::kernels_pages_suit()?;
        let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("this process's vDSO: {e}"));
        let own = own_vdso().map_err(|e| refuse(&e))?;
        let kernel = match &own {
            Some(own) => KernelFunctions::of(&own.vdso, own.base),
            None => KernelFunctions::NONE,
        };
        let size = (region::HOOK - region::PAGE) as usize;
        let map = |at: usize, size: usize, protection, flags, fd| {
            // SAFETY: a fresh mapping, or one over a part of it that nothing uses yet.
            let mapped = unsafe { libc::mmap(at as *mut libc::c_void, size, protection, flags, fd, 0) };
            if mapped == libc::MAP_FAILED {
                Err(tried("mmap")(Errno::last()))
            } else {
                Ok(mapped as usize)
            }
        };
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(0, size, write, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        map(
            base,
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_FIXED,
            page.as_raw_fd(),
        )?;
        let image = base + region::IMAGE as usize;
        let options = Options {
            kernel,
            ..Options::at(Placement::at(image as u64))
        };
        let instance = Instance::new(Image::host(), &options).map_err(|e| refuse(&e))?;
        let bytes = instance.bytes();
        // SAFETY: the image's room was mapped writable above and holds that many bytes; it is not written afterwards.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                image as *mut u8,
                bytes.len().min(region::IMAGE_ROOM as usize),
            );
            let code = image as *mut libc::c_void;
            if libc::mprotect(code, region::IMAGE_ROOM as usize, libc::PROT_READ | libc::PROT_EXEC) != 0 {
                return Err(tried("mprotect")(Errno::last()));
            }
        }
        let symbols = Vdso::parse(bytes).map_err(|e| refuse(&e))?;
        Ok(InProcess { image, symbols })
    }

    /// Returns the address that a program's C library finds for a function, given by its plain name such as
    /// `clock_gettime`.
    pub fn function(&self, name: &str) -> Option<usize> {
        // AArch64's vDSO has the prefix __kernel_ where the others have __vdso_.
        let offset = ["__vdso_", "__kernel_"]
            .iter()
            .find_map(|prefix| self.symbols.find(&format!("{prefix}{name}")))?;
        Some(self.image.wrapping_add(offset as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: `bench` measured the image's own `time`, which no program calls.
    #[test]
    fn a_function_that_is_the_kernels_own_is_found_where_a_c_library_finds_it() {
        let Some(own) = own_vdso().unwrap() else {
            return eprintln!("SKIPPED: this process has no vDSO");
        };
        let Some(time) = own.vdso.find("__vdso_time") else {
            return eprintln!("SKIPPED: this ISA's vDSO has no time");
        };
        let page = nix::sys::memfd::memfd_create(c"page", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&page, 4096).unwrap();
        let mapped = InProcess::map(&page).unwrap();
        assert_eq!(mapped.function("time"), Some((own.base + time) as usize));
        let here = mapped.image..mapped.image + 4096;
        assert!(here.contains(&mapped.function("clock_gettime").unwrap()));
    }
}
