//! A signal handler that forks in the middle of a request for random bytes, at each of its instructions: the child fills
//! its own ring before it returns there, and no byte of that ring may be erased without being handed out.
#![cfg(target_arch = "x86_64")]

#[allow(dead_code)]
mod guest;
mod region;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use fastpath_page::PAGE_SIZE;
use guest::{Guest, Registers};

static GUEST: OnceLock<&Guest> = OnceLock::new();
/// Instructions until the fork, and those that have been executed.
static FORK_AT: AtomicUsize = AtomicUsize::new(0);
static EXECUTED: AtomicUsize = AtomicUsize::new(0);
/// The addresses of the image.
static CODE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// What fork has returned; -1: there was none.
static CHILD: AtomicI32 = AtomicI32::new(-1);

/// EFLAGS.TF
const SINGLE_STEP: i64 = 0x100;

fn guest() -> &'static Guest {
    GUEST.get().expect("it was made")
}

/// Fills the ring. Where the buffer is not on the page of the stack pointer, which depends on the size of a signal's
/// frame, the kernel answers the first call, and the image learns from it that it may write there.
fn start_ring() {
    guest().has_one_thread();
    guest().answers().set_random(true).expect("mapped");
    let mut bytes = [0; 16];
    let arguments = [bytes.as_mut_ptr() as u64, 16, 0];
    for _ in 0..2 {
        assert_eq!(guest().call(libc::SYS_getrandom, arguments), 16);
    }
}

extern "C" fn at_step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as u64;
    let [start, end] = [0, 1].map(|index| CODE[index].load(Ordering::Relaxed));
    let executed = EXECUTED.load(Ordering::Relaxed);
    if !(start..end).contains(&at) {
        // Behind the call.
        if executed > 0 {
            registers[libc::REG_EFL as usize] &= !SINGLE_STEP;
        }
        return;
    }
    EXECUTED.store(executed + 1, Ordering::Relaxed);
    if executed != FORK_AT.load(Ordering::Relaxed) {
        return;
    }
    registers[libc::REG_EFL as usize] &= !SINGLE_STEP;
    // SAFETY: the child uses nothing that another thread may have locked.
    let child = unsafe { libc::fork() };
    CHILD.store(child, Ordering::Relaxed);
    if child == 0 {
        start_ring();
    }
}

fn handle_steps() {
    // SAFETY: the struct is plain data, and the handler has the type of SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = at_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
}

/// In the child, whose ring has been filled by the handler: no word of what is left may be zero.
fn is_whole() -> bool {
    let ring = guest().ring();
    let left = usize::from(u16::from_ne_bytes([ring[0], ring[1]]));
    let bytes = &ring[1024..1024 + left];
    left > 0 && bytes.windows(8).all(|window| window != [0; 8])
}

/// Forks at the instruction of this number. Returns whether the request has as many.
fn fork_at(instruction: usize, to: &mut [u8]) -> bool {
    FORK_AT.store(instruction, Ordering::Relaxed);
    EXECUTED.store(0, Ordering::Relaxed);
    CHILD.store(-1, Ordering::Relaxed);
    let mut registers = Registers::for_call(libc::SYS_getrandom, [to.as_mut_ptr() as u64, to.len() as u64, 0]);
    registers.flags |= SINGLE_STEP as u64;
    guest().enter(&mut registers);
    let result = registers.result();
    let child = CHILD.load(Ordering::Relaxed);
    if child == 0 {
        let is_right = result == to.len() as i64 && is_whole();
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    assert_eq!(result, to.len() as i64);
    if child > 0 {
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(
            status,
            0,
            "the child of a fork at instruction {instruction} of a request of {}",
            to.len()
        );
    }
    child > 0
}

#[test]
fn a_fork_at_any_instruction_of_a_request_leaves_the_childs_ring_whole() {
    let guest = *GUEST.get_or_init(|| Box::leak(Box::new(Guest::new())));
    let image = std::ptr::from_ref(guest.page()).addr() as u64 + PAGE_SIZE as u64;
    CODE[0].store(image, Ordering::Relaxed);
    CODE[1].store(image + 2 * PAGE_SIZE as u64, Ordering::Relaxed);
    handle_steps();
    start_ring();
    let mut bytes = vec![0; 256];
    for size in [1, 16, 61, 256] {
        let mut instruction = 0;
        while fork_at(instruction, &mut bytes[..size]) {
            instruction += 1;
        }
        assert!(instruction > 30, "{instruction} instructions of a request of {size}");
    }
}
