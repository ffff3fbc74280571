//! Notices that a file of the kernel has changed, of which it does not tell.

use fastpath_evidence::kernel_file;

/// A file, as it was at the last look.
pub(crate) struct KernelFile {
    path: &'static str,
    last: [u8; 64],
}

impl KernelFile {
    /// Returns `None` if the file cannot be read here.
    pub(crate) fn new(path: &'static str) -> Option<KernelFile> {
        kernel_file(path).map(|last| KernelFile { path, last })
    }

    /// Returns whether it differs from the last look.
    pub(crate) fn has_changed(&mut self) -> bool {
        let Some(now) = kernel_file(self.path) else {
            return false;
        };
        std::mem::replace(&mut self.last, now) != now
    }
}
