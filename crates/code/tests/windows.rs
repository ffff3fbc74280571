//! Executes each window of real files as it is and as its thunk does, from random states of the registers, and compares
//! every register and the memory.
//!
//! The files are this machine's libc, and those in FASTPATH_RESCUE_FILES (separated by colons).
#![cfg(target_arch = "x86_64")]

use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;

use fastpath_code::rescue::thunk::{Routine, Thunk, thunk, to_entry};
use fastpath_code::rescue::window::{Jump, Kind};
use fastpath_code::rescue::{Calls, Window, analyse, analyse_all};
use fastpath_isa::Isa;
use libc::user_regs_struct as Registers;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Memory of the child: the window, the thunk and what they read and write.
const CODE: u64 = 0x20_0000_0000;
const THUNK: u64 = CODE + 0x10_0000;
/// Where the routine would be: a breakpoint.
const ROUTINE: u64 = THUNK + 0x800;
const SCRATCH: u64 = 0x10_0000_0000;
const SCRATCH_BYTES: usize = 8192;
/// Where the window is in its page.
const WINDOW: u64 = CODE + 0x800;
/// int3
const BREAKPOINT: u8 = 0xcc;
/// States in which each window is executed.
const STATES: u64 = 24;
/// What the routine returns.
const RESULT: u64 = 0x1234_5678_9abc_def0;
/// Carry, parity, adjust, zero, sign, overflow.
const ARITHMETIC_FLAGS: u64 = 0x8d5;

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns an address of the scratch memory, or any word.
    fn word(&mut self) -> u64 {
        let word = self.next();
        match self.next() % 2 {
            0 => SCRATCH + 2048 + word % 256 * 16,
            _ => word,
        }
    }
}

/// A stopped child in which code is executed.
struct Machine {
    pid: Pid,
    memory: File,
}

/// Where and how an execution ended, and the memory then.
#[derive(PartialEq)]
struct End {
    at: u64,
    signal: Option<Signal>,
    registers: Vec<u64>,
    scratch: Vec<u8>,
}

impl Machine {
    fn start() -> Machine {
        // SAFETY: the child makes system calls only.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let _ = ptrace::traceme();
                let _ = raise(Signal::SIGSTOP);
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(1) };
            }
            ForkResult::Parent { child } => {
                waitpid(child, None).unwrap();
                ptrace::setoptions(child, ptrace::Options::PTRACE_O_EXITKILL).unwrap();
                let path = format!("/proc/{child}/mem");
                let memory = File::options().read(true).write(true).open(path).unwrap();
                Machine { pid: child, memory }
            }
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    fn change(&self, thunk: &Thunk) {
        thunk
            .changes
            .iter()
            .for_each(|change| self.write(change.address, &change.replacement));
    }

    /// Executes from these registers on, until a breakpoint or a fault.
    fn run(&self, from: &Registers) -> (End, Registers) {
        ptrace::setregs(self.pid, *from).unwrap();
        ptrace::cont(self.pid, None).unwrap();
        let signal = match waitpid(self.pid, None).unwrap() {
            WaitStatus::Stopped(_, signal) => signal,
            other => panic!("{other:?}"),
        };
        let mut registers = ptrace::getregs(self.pid).unwrap();
        let is_breakpoint = signal == Signal::SIGTRAP;
        if is_breakpoint {
            registers.rip -= 1;
        }
        let mut scratch = vec![0; SCRATCH_BYTES];
        self.memory.read_exact_at(&mut scratch, SCRATCH).unwrap();
        let end = End {
            at: registers.rip,
            signal: Some(signal).filter(|_| !is_breakpoint),
            registers: words(&registers),
            scratch,
        };
        (end, registers)
    }

    fn fill(&self, random: &mut Random) {
        let words: Vec<u8> = (0..SCRATCH_BYTES / 8)
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        self.write(SCRATCH, &words);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// Returns all registers that code can see, but rip.
fn words(r: &Registers) -> Vec<u64> {
    vec![
        r.rax,
        r.rbx,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        r.rbp,
        r.rsp,
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        // The resume flag is the debugger's.
        r.eflags & !0x10000,
    ]
}

/// Index of rcx and r11 in [`words`].
const FREE: [usize; 2] = [2, 11];

impl End {
    /// Returns the same without the registers that a system call overwrites.
    fn before_call(mut self) -> End {
        FREE.iter().for_each(|index| self.registers[*index] = 0);
        self
    }
}

/// Returns registers as the routine, or a system call in its place, leaves them.
fn answered(mut registers: Registers, rcx: u64, at: u64) -> Registers {
    registers.rax = RESULT;
    registers.r11 = registers.eflags & !0x10000;
    registers.rcx = rcx;
    registers.rip = at;
    registers.orig_rax = u64::MAX;
    registers
}

fn random_state(random: &mut Random, from: &Registers, number: Option<u64>) -> Registers {
    let mut r = *from;
    for register in [
        &mut r.rax, &mut r.rbx, &mut r.rcx, &mut r.rdx, &mut r.rsi, &mut r.rdi, &mut r.rbp, &mut r.r8, &mut r.r9,
        &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13, &mut r.r14, &mut r.r15,
    ] {
        *register = random.word();
    }
    r.rax = number.unwrap_or(r.rax);
    r.rsp = SCRATCH + 4096 + random.next() % 64 * 8;
    r.eflags = 0x202 | random.next() & ARITHMETIC_FLAGS;
    r.rip = WINDOW;
    r.orig_rax = u64::MAX;
    r
}

/// Compares a window before a `syscall` with its thunk, up to that instruction and behind it.
fn compare_before(machine: &Machine, window: &Window, thunk: &Thunk, random: &mut Random, from: &Registers) {
    let syscall = WINDOW + window.bytes.len() as u64;
    for state in 0..STATES {
        // The number is an argument of some sites.
        let number = [228, 96, 201, 229, 309, 39].get(state as usize % 7).copied();
        let registers = random_state(random, from, number);
        let seed = random.0;
        machine.fill(&mut Random(seed));
        machine.write(WINDOW, &[&window.bytes[..], &[BREAKPOINT, 0x05, BREAKPOINT]].concat());
        let (as_it_is, at_call) = machine.run(&registers);
        machine.fill(&mut Random(seed));
        machine.change(thunk);
        let (redirected, at_routine) = machine.run(&registers);
        let what = format!("{:#x} {:02x?} state {state}", window.address, window.bytes);
        if as_it_is.signal.is_some() {
            assert_eq!(as_it_is.signal, redirected.signal, "{what}");
            assert!(
                as_it_is.registers == redirected.registers,
                "{what}: another state at the fault"
            );
            continue;
        }
        assert_eq!(as_it_is.at, syscall, "{what}");
        let reached = redirected.at;
        assert!(reached == syscall || reached == ROUTINE, "{what}: at {reached:#x}");
        let as_it_is = End { at: 0, ..as_it_is }.before_call();
        let redirected = End { at: 0, ..redirected }.before_call();
        assert!(as_it_is == redirected, "{what}: another state at the call");
        if reached == ROUTINE {
            let (end, _) = machine.run(&answered(at_routine, at_routine.rcx, at_routine.rcx));
            let wanted = answered(at_call, syscall + 2, syscall + 2);
            assert_eq!((end.at, end.signal), (syscall + 2, None), "{what}");
            assert_eq!(end.registers, words(&wanted), "{what}: another state behind the call");
        }
    }
}

/// Compares a window that begins with the `syscall` with its thunk, for a call that has a routine and for another.
fn compare_behind(machine: &Machine, window: &Window, thunk: &Thunk, random: &mut Random, from: &Registers) {
    let end = WINDOW + window.bytes.len() as u64;
    for state in 0..STATES {
        let number = [libc::SYS_getppid as u64, 228][state as usize % 2];
        let registers = random_state(random, from, Some(number));
        let seed = random.0;
        let what = format!("{:#x} {:02x?} state {state}", window.address, window.bytes);
        machine.fill(&mut Random(seed));
        machine.write(WINDOW, &[&window.bytes[..], &[BREAKPOINT]].concat());
        let (as_it_is, _) = match number {
            228 => machine.run(&answered(registers, WINDOW + 2, WINDOW + 2)),
            _ => machine.run(&registers),
        };
        machine.fill(&mut Random(seed));
        machine.change(thunk);
        let (mut redirected, at_routine) = machine.run(&registers);
        if number == 228 {
            assert_eq!(redirected.at, ROUTINE, "{what}");
            redirected = machine.run(&answered(at_routine, at_routine.rcx, at_routine.rcx)).0;
        }
        assert_eq!((as_it_is.at, redirected.at), (end, end), "{what}");
        assert_eq!(as_it_is.registers, redirected.registers, "{what}");
        assert!(as_it_is == redirected, "{what}: another memory");
    }
}

/// Compares a window of a `syscall` and its check with its thunk, with and without breakpoints of another tool on the two.
fn compare_at_call(
    machine: &Machine,
    window: &Window,
    thunk: &Thunk,
    number: u32,
    random: &mut Random,
    from: &Registers,
) {
    let end = WINDOW + window.bytes.len() as u64;
    for state in 0..STATES {
        let registers = random_state(random, from, Some(number.into()));
        let what = format!("{:#x} {:02x?} state {state}", window.address, window.bytes);
        machine.fill(&mut Random(1));
        machine.write(WINDOW, &[&window.bytes[..], &[BREAKPOINT]].concat());
        let made = answered(registers, WINDOW + 2, WINDOW + 2);
        let (as_it_is, _) = machine.run(&made);
        machine.change(thunk);
        let is_probed = state % 2 == 1;
        if is_probed {
            machine.write(WINDOW + 2, &[BREAKPOINT]);
        }
        let (redirected, at_routine) = machine.run(&registers);
        assert_eq!(redirected.at, ROUTINE, "{what}");
        let (answered, _) = machine.run(&answered(at_routine, at_routine.rcx, at_routine.rcx));
        machine.change(thunk);
        // The kernel has made the call for a breakpoint on it.
        let (by_kernel, _) = machine.run(&made);
        for found in [answered, by_kernel] {
            assert_eq!((found.at, found.signal), (end, None), "{what}");
            assert_eq!(found.registers, as_it_is.registers, "{what}");
        }
    }
}

/// Checks that the first byte of each of the file's instructions stays.
fn keeps_first_bytes(window: &Window, thunk: &Thunk) {
    let is_kept = |change: &fastpath_code::rescue::thunk::Change| change.original[0] == change.replacement[0];
    assert!(thunk.changes.iter().all(is_kept), "{window:x?}");
    let changed = thunk.changes.iter().filter(|change| change.address >= WINDOW);
    let mut decoder = iced_x86::Decoder::with_ip(64, &window.bytes, WINDOW, 0);
    let starts: Vec<u64> = decoder.iter().map(|instruction| instruction.ip()).collect();
    for change in changed {
        let end = change.address + change.original.len() as u64;
        let inside = starts.iter().filter(|start| (change.address + 1..end).contains(start));
        assert_eq!(inside.count(), 0, "{window:x?}");
    }
}

/// Compares a window with its thunk to an entry, which answers each call or leaves it.
fn compare_with_entry(machine: &Machine, window: &Window, thunk: &Thunk, random: &mut Random, from: &Registers) {
    let is_before = window.kind == Kind::Before;
    let end = WINDOW + window.bytes.len() as u64;
    for state in 0..STATES {
        let registers = random_state(random, from, Some(libc::SYS_getppid as u64));
        let seed = random.0;
        let what = format!("{:#x} {:02x?} state {state}", window.address, window.bytes);
        let behind_call = if is_before { end + 2 } else { end };
        let window_and_end = match is_before {
            true => [&window.bytes[..], &[0x0f, 0x05, BREAKPOINT]].concat(),
            false => [&window.bytes[..], &[BREAKPOINT]].concat(),
        };
        machine.fill(&mut Random(seed));
        machine.write(WINDOW, &window_and_end);
        let (as_it_is, _) = machine.run(&registers);
        machine.fill(&mut Random(seed));
        machine.change(thunk);
        let (redirected, at_entry) = machine.run(&registers);
        if is_before && as_it_is.signal.is_some() {
            assert_eq!(as_it_is.signal, redirected.signal, "{what}");
            continue;
        }
        assert_eq!(redirected.at, ROUTINE, "{what}");
        assert!(as_it_is.at == behind_call || as_it_is.signal.is_some(), "{what}");
        // Not answered: the call is made two bytes before. Its number may be of a call that fails, but does nothing.
        let (made, _) = machine.run(&Registers {
            rip: at_entry.rcx - 2,
            orig_rax: u64::MAX,
            ..at_entry
        });
        let place = |end: &End| if end.signal.is_some() { 0 } else { end.at };
        assert_eq!(
            (place(&made), made.signal),
            (place(&as_it_is), as_it_is.signal),
            "{what}"
        );
        assert_eq!(made.registers, as_it_is.registers, "{what}: not answered");
        assert!(made.scratch == as_it_is.scratch, "{what}: not answered, another memory");
        // Answered, as the kernel answers.
        machine.fill(&mut Random(seed));
        machine.change(thunk);
        let (_, at_entry) = machine.run(&registers);
        let answered = answered(at_entry, at_entry.rcx, at_entry.rcx);
        let (end, _) = machine.run(&answered);
        assert_eq!((place(&end), end.signal), (place(&as_it_is), as_it_is.signal), "{what}");
        if is_before {
            let mut wanted = as_it_is.registers;
            wanted[0] = RESULT;
            assert_eq!(end.registers, wanted, "{what}: answered");
        }
    }
}

/// Numbers of calls that may be made with any arguments.
const HARMLESS: [i64; 4] = [
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_sched_yield,
];

#[test]
fn a_thunk_to_an_entry_does_what_its_window_does() {
    map_for_child();
    let machine = Machine::start();
    let from = ptrace::getregs(machine.pid).unwrap();
    machine.write(ROUTINE, &[BREAKPOINT]);
    let mut random = Random(2);
    let (mut compared, mut proven, mut all) = (0, 0, 0);
    for path in files() {
        for site in analyse_all(&std::fs::read(&path).unwrap()).sites {
            all += 1;
            let Ok(window) = &site.window else { continue };
            proven += 1;
            let bias = WINDOW.wrapping_sub(window.address);
            let thunk = to_entry(window, bias, THUNK, ROUTINE).expect("within reach");
            machine.write(THUNK, &thunk.code);
            if window.kind == Kind::Before {
                compare_before(&machine, window, &thunk, &mut random, &from);
            }
            // A window that sets its own number makes that call.
            let is_harmless = site.number.is_some_and(|number| HARMLESS.contains(&number.into()));
            if window.kind == Kind::Behind || is_harmless {
                compare_with_entry(&machine, window, &thunk, &mut random, &from);
            }
            compared += 1;
        }
    }
    println!("{proven} of {all} sites are proven; {compared} compared in {STATES} states each");
    assert!(compared == proven && proven * 10 > all * 9, "{compared} {proven} {all}");
}

/// Maps the child's memory in this process, of which the child is a copy.
fn map_for_child() {
    static MAPPED: std::sync::Once = std::sync::Once::new();
    MAPPED.call_once(map_memory);
}

fn map_memory() {
    let map = |at: u64, bytes: usize, protection: i32| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: new memory, at an address that nothing else uses.
        let mapped = unsafe { libc::mmap(at as *mut c_void, bytes, protection, flags, -1, 0) };
        assert_eq!(mapped as u64, at, "{}", std::io::Error::last_os_error());
    };
    let read = libc::PROT_READ;
    map(CODE, 4096, read | libc::PROT_EXEC);
    map(THUNK, 4096, read | libc::PROT_EXEC);
    map(SCRATCH, SCRATCH_BYTES, read | libc::PROT_WRITE);
}

fn files() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6"));
    let more = std::env::var("FASTPATH_RESCUE_FILES").unwrap_or_default();
    let more = more.split(':').filter(|path| !path.is_empty()).map(str::to_owned);
    libc.map(str::to_owned).into_iter().chain(more).collect()
}

#[test]
fn a_thunk_does_what_its_window_does_and_a_system_call_no_more() {
    map_for_child();
    let machine = Machine::start();
    let from = ptrace::getregs(machine.pid).unwrap();
    machine.write(ROUTINE, &[BREAKPOINT]);
    let routines = ["clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres"];
    let routines = routines.map(|name| Routine::for_call(Isa::X86_64, name, ROUTINE).unwrap());
    let mut random = Random(1);
    let (mut before, mut behind) = (0, 0);
    for path in files() {
        let bytes = std::fs::read(&path).unwrap();
        for site in analyse(&bytes).unwrap().sites {
            let Ok(window) = &site.window else { continue };
            // What i386's windows do is compared by the end-to-end tests.
            if window.isa != Isa::X86_64 {
                continue;
            }
            let bias = WINDOW.wrapping_sub(window.address);
            // Jumps are the same for all calls, so each site is tried with its number as an argument too.
            for calls in [site.calls, Calls::Any] {
                let relay = window.jump.relays().and_then(<[_]>::first);
                let Some(thunk) = thunk(window, calls, bias, THUNK, &routines, None, relay) else {
                    continue;
                };
                machine.write(THUNK, &thunk.code);
                // The constant of a vsyscall window is inside an instruction.
                if window.kind != Kind::Vsyscall {
                    keeps_first_bytes(window, &thunk);
                }
                match window.kind {
                    Kind::Behind if window.jump != Jump::First => {
                        let Calls::One(call) = calls else { continue };
                        let number = Routine::for_call(Isa::X86_64, call.name(), ROUTINE).unwrap().number;
                        compare_at_call(&machine, window, &thunk, number, &mut random, &from);
                    }
                    Kind::Before => compare_before(&machine, window, &thunk, &mut random, &from),
                    Kind::Behind => compare_behind(&machine, window, &thunk, &mut random, &from),
                    Kind::Vsyscall => continue,
                }
                *(if window.kind == Kind::Before {
                    &mut before
                } else {
                    &mut behind
                }) += 1;
            }
        }
    }
    println!("{before} thunks before a call and {behind} behind one, in {STATES} states each");
    assert!(before > 0, "this machine's libc has sites");
}
