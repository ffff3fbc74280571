//! What the kernel reads its own clock from.

use std::fs::File;
use std::io::Read as _;

/// What the kernel reads its own clock from. Where that is the counter, and the CPUs' counters differ, that clock is no
/// reference by which offsets could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelsClock {
    /// From the counter.
    Counter,
    /// From its own timer ticks, which are milliseconds apart.
    Ticks,
    /// From another source, such as the HPET.
    Other,
}

/// The kernel's file with the name of the clocksource in use.
pub const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// The kernel's file with the number of suspends from which it came back (Linux 5.4).
pub const SUSPENDS: &str = "/sys/power/suspend_stats/success";

/// Returns a short file of the kernel, and zeros behind it; `None` if this process cannot read it. Keeps no file open, and
/// does not allocate.
pub fn kernel_file(path: &str) -> Option<[u8; 64]> {
    let mut text = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read(&mut text));
    read.ok().map(|_| text)
}

impl KernelsClock {
    /// Returns the clock of the kernel whose current clocksource has this name.
    pub fn of_clocksource(name: &str) -> KernelsClock {
        match name {
            // x86's and Arm's counter that fastpath reads.
            "tsc" | "arch_sys_counter" => KernelsClock::Counter,
            "jiffies" | "refined-jiffies" => KernelsClock::Ticks,
            _ => KernelsClock::Other,
        }
    }

    pub(crate) fn of_this_host() -> KernelsClock {
        let name = kernel_file(CLOCKSOURCE).unwrap_or([0; 64]);
        let name = str::from_utf8(&name).unwrap_or_default();
        KernelsClock::of_clocksource(name.trim_end_matches(['\0', '\n']))
    }
}
