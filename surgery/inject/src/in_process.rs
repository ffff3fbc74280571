//! The functions of a served program, in this process and beside the kernel's vDSO, for `bench` to compare.

use std::os::fd::{AsRawFd, OwnedFd};

use fastpath_image::{Image, Instance, InstanceConfig, KernelFunctions, MappedVdso, own_vdso};
use nix::errno::Errno;

use crate::error::{Error, Result, tried};
use crate::plan::redirection::{self, SERVED};
use crate::region;

/// Distance in bytes between two jumps: the alignment of the kernel's functions.
const ENTRY_BYTES: usize = 16;

/// A page and an image, mapped until the process ends.
pub struct InProcess {
    image: usize,
    /// The kernel's vDSO of this process, which is left as it is.
    kernels: Option<MappedVdso>,
    /// Jumps to the image, for each of [`SERVED`]: in a served program, the kernel's functions begin with them.
    entries: usize,
}

impl InProcess {
    /// Maps `page` and an image that falls back to this process's own vDSO.
    pub fn map(page: &OwnedFd) -> Result<InProcess> {
        let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("this process's vDSO: {e}"));
        let kernels = own_vdso().map_err(|e| refuse(&e))?;
        let kernel = match &kernels {
            Some(own) => KernelFunctions::from_vdso(&own.vdso, own.base),
            None => KernelFunctions::NONE,
        };
        let size = region::STATE as usize;
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
        let (image, entries) = (base + region::IMAGE as usize, base + region::HOOK as usize);
        let options = InstanceConfig {
            kernel,
            ..InstanceConfig::at(region::placement(base as u64, region::IMAGE))
        };
        let mut instance = Instance::new(Image::host(), &options).map_err(|e| refuse(&e))?;
        instance.pin(Image::host(), image as u64);
        let jumps = jumps(image, entries).map_err(|e| refuse(&e))?;
        let (bytes, room) = (instance.bytes(), region::IMAGE_ROOM as usize);
        // SAFETY: the image's room and the page after it were mapped writable above, and hold that many bytes; they are
        // not written afterwards.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), image as *mut u8, bytes.len().min(room));
            std::ptr::copy_nonoverlapping(jumps.as_ptr(), entries as *mut u8, jumps.len());
            let code = image as *mut libc::c_void;
            if libc::mprotect(code, size - region::IMAGE as usize, libc::PROT_READ | libc::PROT_EXEC) != 0 {
                return Err(tried("mprotect")(Errno::last()));
            }
        }
        Ok(InProcess {
            image,
            kernels,
            entries,
        })
    }

    /// Returns the address of the function that a served program calls, given by its plain name such as
    /// `clock_gettime`: a jump to the image's in place of the kernel's, or the kernel's own, or the image's where the
    /// kernel has none.
    pub fn function(&self, name: &str) -> Option<usize> {
        // AArch64's vDSO has the prefix __kernel_ where the others have __vdso_.
        let prefixed = ["__vdso_", "__kernel_"].map(|prefix| format!("{prefix}{name}"));
        let in_kernels = |own: &MappedVdso| {
            let offset = prefixed.iter().find_map(|name| own.vdso.find(name))?;
            Some((own.base + offset) as usize)
        };
        let in_image = prefixed.iter().find_map(|name| Image::host().symbol(name));
        let served = SERVED.iter().position(|served| *served == name);
        match (self.kernels.as_ref().and_then(in_kernels), served) {
            (Some(_), Some(index)) => in_image.map(|_| self.entries + index * ENTRY_BYTES),
            (Some(kernels), None) => Some(kernels),
            (None, _) => in_image.map(|offset| self.image + offset as usize),
        }
    }
}

/// Returns the code of the jumps, to be mapped at `entries`, to the functions of the image at `image`.
fn jumps(image: usize, entries: usize) -> std::result::Result<Vec<u8>, String> {
    let mut code = vec![0; SERVED.len() * ENTRY_BYTES];
    for (index, name) in SERVED.iter().enumerate() {
        let Some(function) = redirection::function_of(Image::host(), name) else {
            continue;
        };
        let at = index * ENTRY_BYTES;
        let jump = redirection::jump(
            Image::host().isa(),
            (entries + at) as u64,
            image as u64 + function.start,
        )?;
        code[at..at + jump.len()].copy_from_slice(&jump);
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: `bench` measured the image's own `time`, which no program calls.
    #[test]
    fn a_function_is_found_where_a_served_program_finds_it() {
        let Some(own) = own_vdso().unwrap() else {
            return crate::skip::skip("this process has no vDSO");
        };
        let page = nix::sys::memfd::memfd_create(c"page", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&page, 4096).unwrap();
        let mapped = InProcess::map(&page).unwrap();
        let time = own.vdso.find("__vdso_time").map(|time| (own.base + time) as usize);
        assert_eq!(mapped.function("time"), time);
        let entry = mapped.function("clock_gettime").unwrap();
        let image = mapped.image..mapped.image + region::IMAGE_ROOM as usize;
        assert!(!image.contains(&entry));
        // SAFETY: 16 bytes of the page of jumps.
        let code = unsafe { std::slice::from_raw_parts(entry as *const u8, ENTRY_BYTES) };
        let target = (Image::host().isa().facts().jump_target)(code, entry as u64).unwrap();
        assert!(image.contains(&(target as usize)));
    }
}
