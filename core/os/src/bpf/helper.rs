//! Numbers of the kernel's functions that programs call (include/uapi/linux/bpf.h).

pub const MAP_LOOKUP: i32 = 1;
pub const MAP_UPDATE: i32 = 2;
pub const KTIME_GET_NS: i32 = 5;
pub const GET_PRANDOM: i32 = 7;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
pub(crate) const GET_CURRENT_PID_TGID: i32 = 14;
pub const GET_CURRENT_COMM: i32 = 16;
pub const CURRENT_TASK_UNDER_CGROUP: i32 = 37;
pub const PROBE_READ_USER: i32 = 112;
pub const PROBE_READ_KERNEL: i32 = 113;
pub(crate) const GET_NS_CURRENT_PID_TGID: i32 = 120;
pub const RINGBUF_OUTPUT: i32 = 130;
pub const RINGBUF_RESERVE: i32 = 131;
pub const RINGBUF_SUBMIT: i32 = 132;
pub const GET_CURRENT_TASK_BTF: i32 = 158;
pub const TASK_PT_REGS: i32 = 175;
