//! The process that calls, by its number in the PID namespace of this process.

use super::asm::*;
use super::helper;
use std::io;
use std::os::linux::fs::MetadataExt;

/// The inode of the initial PID namespace (include/linux/proc_ns.h).
const PROC_PID_INIT_INO: u64 = 0xEFFF_FFFC;

/// Device and inode of the PID namespace to number processes in; `None` for the initial one.
#[derive(Clone, Copy, Default)]
pub struct PidNamespace(Option<(u64, u64)>);

impl PidNamespace {
    /// Returns this process's.
    pub fn own() -> io::Result<PidNamespace> {
        let namespace = std::fs::metadata("/proc/self/ns/pid")?;
        let is_initial = namespace.st_ino() == PROC_PID_INIT_INO;
        Ok(PidNamespace(
            (!is_initial).then(|| (namespace.st_dev(), namespace.st_ino())),
        ))
    }

    /// Loads the calling process's number into R0, or branches to `elsewhere` if the process is not in this namespace
    /// itself. `scratch` is the offset of 8 unused bytes in the stack frame.
    pub fn load_pid(self, asm: &mut Assembler, scratch: i16, elsewhere: &str) {
        match self.0 {
            Some((device, inode)) => {
                asm.set64(R1, device);
                asm.set64(R2, inode);
                asm.address(R3, scratch);
                asm.set(R4, 8);
                asm.call(helper::GET_NS_CURRENT_PID_TGID);
                asm.if_is_not(R0, 0, elsewhere);
                asm.load(Width::Word, R0, FP, scratch + 4);
            }
            None => {
                asm.call(helper::GET_CURRENT_PID_TGID);
                asm.shift_right(R0, 32);
            }
        }
    }
}
