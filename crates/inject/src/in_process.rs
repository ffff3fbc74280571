//! Our vDSO mapped in this very process, beside the kernel's: what `bench` compares.

use std::os::fd::{AsRawFd, OwnedFd};

use fastpath_image::{Instance, Vdso, own_vdso};
use nix::errno::Errno;

use crate::error::{Error, Result, tried};
use crate::region;

/// A page and an image, mapped until the process ends.
pub struct InProcess {
    image: usize,
    vdso: Vdso,
}

impl InProcess {
    /// Maps `page` and an image that goes back to this process's own vDSO.
    pub fn map(page: &OwnedFd) -> Result<InProcess> {
        let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("this process's vDSO: {e}"));
        let own = own_vdso().map_err(|e| refuse(&e))?;
        let instance = Instance::new(own.as_ref().map(|own| (&own.vdso, own.base))).map_err(|e| refuse(&e))?;
        let bytes = instance.bytes();
        let size = (region::HOOK - region::PAGE) as usize;
        let map = |at: usize, size: usize, protection, flags, fd| {
            // SAFETY: a fresh mapping, or one over part of it.
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
        // SAFETY: the image's room was mapped writable above and holds that many bytes; afterwards nobody writes it.
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
        let vdso = Vdso::parse(bytes).map_err(|e| refuse(&e))?;
        Ok(InProcess { image, vdso })
    }

    /// Address of a function by its plain name, `clock_gettime` for one.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.vdso
            .find(&format!("__vdso_{name}"))
            .map(|offset| self.image + offset as usize)
    }
}
