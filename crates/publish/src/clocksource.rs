//! Notices that the kernel's clocks run on another clocksource, which it does not announce.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kernel's file of the clocksource in use.
const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The clocksource at the last look.
pub struct ClocksourceWatch {
    file: File,
    last: [u8; 32],
}

impl ClocksourceWatch {
    /// Returns `None` if the kernel's file cannot be read here.
    pub fn new() -> Option<ClocksourceWatch> {
        let file = File::open(CURRENT).ok()?;
        let last = read(&file)?;
        Some(ClocksourceWatch { file, last })
    }

    /// Returns whether the clocksource is another one than at the last look.
    pub fn has_changed(&mut self) -> bool {
        let Some(now) = read(&self.file) else { return false };
        std::mem::replace(&mut self.last, now) != now
    }
}

fn read(file: &File) -> Option<[u8; 32]> {
    let mut name = [0; 32];
    file.read_at(&mut name, 0).ok()?;
    Some(name)
}
