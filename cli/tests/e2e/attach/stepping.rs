//! Follows a program's clock reads by single steps.

use std::collections::BTreeSet;

use super::{range, vdso};
use crate::common::Pid;

/// Enough for some reads of a clock, and for the work of a runtime between them.
const STEPS: u32 = 40_000;

/// Instructions that a thread was seen to execute.
#[derive(Debug, Default)]
pub struct Steps {
    /// Instructions in fastpath's region.
    pub in_region: u32,
    /// Instructions in the kernel's vDSO, except the first bytes of functions, which jump to the region.
    pub in_kernels_vdso: u32,
}

impl Steps {
    /// Returns whether the page answered most reads. If the publisher gets no CPU for longer than an anchor lasts,
    /// reads correctly go to the kernel: such a read takes more steps there than in the region.
    pub fn are_of_reads_by_the_page(&self) -> bool {
        self.in_region > self.in_kernels_vdso
    }
}

/// Steps through the first thread of a busy process.
pub fn step(pid: Pid) -> Steps {
    let [code_start, code_end] = range(pid, "[vdso]");
    let region = pid.is_served().then(|| range(pid, "/memfd:fastpath-region"));
    let entries = entries(pid);
    let body = body(pid);
    let ptrace = |request, data: usize| {
        // SAFETY: these requests take no pointer.
        unsafe { libc::ptrace(request, pid.0, 0usize, data) }
    };
    let wait = || {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        unsafe { libc::waitpid(pid.0, &mut status, libc::__WALL) };
        status
    };
    let mut steps = Steps::default();
    assert_eq!(ptrace(libc::PTRACE_SEIZE, 0), 0, "{}", std::io::Error::last_os_error());
    ptrace(libc::PTRACE_INTERRUPT, 0);
    let mut status = wait();
    for _ in 0..STEPS {
        // Its number or -1, the stack pointer and the program counter, between them the arguments of a call that it is in.
        let line = pid.read("syscall");
        let pc = line.split_whitespace().last().and_then(|pc| pc.strip_prefix("0x"));
        let pc = u64::from_str_radix(pc.expect("its program counter"), 16).expect("a number");
        let is_in_region = region.is_some_and(|[start, end]| (start..end).contains(&pc));
        if is_in_region || body.contains(&pc) {
            steps.in_region += 1;
        } else if (code_start..code_end).contains(&pc) && !entries.contains(&pc) {
            steps.in_kernels_vdso += 1;
        }
        let signal = libc::WSTOPSIG(status);
        let passed_on = if signal == libc::SIGTRAP { 0 } else { signal as usize };
        ptrace(libc::PTRACE_SINGLESTEP, passed_on);
        status = wait();
    }
    ptrace(libc::PTRACE_DETACH, 0);
    steps
}

/// Addresses of the kernel's gettimeofday, if the image's code is in its place; else none.
fn body(pid: Pid) -> std::ops::Range<u64> {
    let own = fastpath_image::own_vdso().expect("an ELF file").expect("a vDSO");
    let functions = own.vdso.exports().iter();
    let mut found =
        functions.filter(|export| ["__vdso_gettimeofday", "__kernel_gettimeofday"].contains(&export.name.as_str()));
    let function = found.next().expect("every kernel has it");
    let (base, bytes) = vdso(pid);
    let range = function.offset as usize..(function.offset + function.size) as usize;
    match bytes[range.clone()] == own.bytes[range] {
        true => 0..0,
        false => base + function.offset..base + function.offset + function.size,
    }
}

/// Addresses of the kernel's functions whose first bytes are not the kernel's.
pub fn entries(pid: Pid) -> BTreeSet<u64> {
    let own = fastpath_image::own_vdso().expect("an ELF file").expect("a vDSO");
    let (base, bytes) = vdso(pid);
    let functions = own.vdso.exports().iter().map(|export| export.offset);
    let first = |bytes: &[u8], at: u64| bytes[at as usize..][..8].to_vec();
    functions
        .filter(|at| first(&bytes, *at) != first(&own.bytes, *at))
        .map(|at| base + at)
        .collect()
}
