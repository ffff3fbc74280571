//! CPU features that improve an image beyond its ISA's baseline.

/// Better instructions to read the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures {
    /// x86: RDTSCP, which waits for earlier loads by itself.
    pub rdtscp: bool,
    /// x86: LFENCE orders RDTSC on this CPU by its own statement, and both take less time than RDTSCP. Measured by
    /// [`crate::cpu::choose_read`]; false before.
    pub fence: bool,
    /// AArch64: CNTVCTSS_EL0, which is not read speculatively (FEAT_ECV).
    pub cntvctss: bool,
}

impl CpuFeatures {
    /// Returns the features of this CPU that are useful to images of its own family.
    pub fn of_this_cpu() -> CpuFeatures {
        crate::cpu::features()
    }

    /// Returns whether images for x86 read by RDTSCP.
    pub(crate) fn reads_by_rdtscp(self) -> bool {
        self.rdtscp && !self.fence
    }
}
