//! `fastpath attach`, `detach` and `status`, on running programs.

pub mod children;
mod hazards;
mod killed;
mod named;
pub mod namespaces;
mod refusals;
mod rescue;
mod restored;
mod runtimes;
mod sequences;
mod sleepers;
pub mod status;
pub mod stepping;

use std::hash::{DefaultHasher, Hasher};
use std::process::Command;
use std::time::Duration;

use crate::common::{Outcome, Pid, Running, fastpath, finish, helper_program, skip, start, wait_until};

/// `fastpath attach --quiet --clocks all PID`.
pub fn attach(pid: Pid) -> Outcome {
    finish(fastpath(&["attach", "--quiet", "--clocks", "all", &pid.0.to_string()]))
}

/// `fastpath detach --quiet PID`.
pub fn detach(pid: Pid) -> Outcome {
    finish(fastpath(&["detach", "--quiet", &pid.0.to_string()]))
}

/// Starts a process that sleeps.
fn sleeper() -> Running {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    running
}

/// Starts a helper program and waits for its first word. `None`: this kernel lacks what the program needs.
pub fn hazard(name: &str, arguments: &[&str], word: &str) -> Option<Running> {
    hazard_of(helper_program(name, "cc", &[]), arguments, word)
}

/// The same for a program at this path.
pub fn hazard_of(program: Option<String>, arguments: &[&str], word: &str) -> Option<Running> {
    let program = program?;
    let mut command = Command::new(&program);
    command.args(arguments);
    let running = start(command);
    wait_until("its word", || {
        running.out_so_far().contains(word) || !running.pid().exists()
    });
    if !running.pid().exists() {
        skip(running.finish().first_line());
        return None;
    }
    std::thread::sleep(Duration::from_millis(100));
    Some(running)
}

/// The state that an attach may change only while it lasts: mappings and the vDSO's code.
#[derive(Debug, PartialEq, Eq)]
pub struct Memory {
    /// Addresses, access and names; heaps and stacks may grow.
    mappings: Vec<String>,
    /// A hash of the vDSO's bytes, because a failed comparison prints this.
    vdso: u64,
    descriptors: usize,
}

impl Memory {
    pub fn open(pid: Pid) -> Memory {
        let maps = pid.read("maps");
        let lines = maps
            .lines()
            .filter(|line| !line.ends_with("[heap]") && !line.ends_with("[stack]"));
        Memory {
            mappings: lines.map(str::to_owned).collect(),
            vdso: hash(&vdso(pid).1),
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", pid.0))
                .expect("its descriptors")
                .count(),
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the address of a process's vDSO, and its bytes.
pub fn vdso(pid: Pid) -> (u64, Vec<u8>) {
    let [start, end] = range(pid, "[vdso]");
    (start, bytes(pid, start, end))
}

/// Returns the memory of a process from `start` to `end`; memory that cannot be read is left out.
pub fn bytes(pid: Pid, start: u64, end: u64) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open(format!("/proc/{}/mem", pid.0)).expect("its memory");
    let pages = (start..end).step_by(4096).filter_map(|at| {
        let mut page = vec![0; 4096];
        memory.read_exact_at(&mut page, at).ok().map(|()| page)
    });
    pages.flatten().collect()
}

/// Returns the mappings of this name, from the first's start to the last's end.
pub fn range(pid: Pid, name: &str) -> [u64; 2] {
    let maps = pid.read("maps");
    let mut all = [u64::MAX, 0];
    for line in maps.lines().filter(|line| line.contains(name)) {
        let (range, _) = line.split_once(' ').expect("a line of maps");
        let (start, end) = range.split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        all = [all[0].min(number(start)), all[1].max(number(end))];
    }
    assert!(all[0] < all[1], "no {name} in\n{maps}");
    all
}
