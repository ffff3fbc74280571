//! The system calls of the surgery as they are made in a 32-bit program: by `int $0x80`, with 32-bit numbers. A filter
//! distinguishes them from a 64-bit program's.

use std::arch::asm;

/// arch/x86/entry/syscalls/syscall_32.tbl
mod number {
    pub(super) const MUNMAP: u32 = 91;
    pub(super) const PRCTL: u32 = 172;
    pub(super) const MMAP2: u32 = 192;
    pub(super) const GETTID: u32 = 224;
    pub(super) const FUTEX: u32 = 240;
    pub(super) const READLINKAT: u32 = 305;
    pub(super) const SOCKETPAIR: u32 = 360;
    pub(super) const RECVMSG: u32 = 372;
}

/// Calls that are tried, in this order.
pub(super) const CALLS: [&str; 8] = [
    "socketpair",
    "recvmsg",
    "executable memory",
    "mmap of a memfd",
    "munmap",
    "futex",
    "readlinkat",
    "prctl",
];

/// Makes the calls; the error is the number, from 1, of the call that failed.
pub(super) fn try_calls() -> Result<(), i32> {
    let check = |ok: bool, nth: i32| if ok { Ok(()) } else { Err(nth) };
    // Arguments that are passed by pointer must be within 32-bit addresses.
    // SAFETY: a fresh mapping, used by nothing else.
    let low = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
            -1,
            0,
        )
    };
    check(low != libc::MAP_FAILED, 3)?;
    let words: *mut u32 = low.cast();
    let at = |word: usize| low as u32 + 4 * word as u32;
    let datagram = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u32;
    check(
        call(number::SOCKETPAIR, [libc::AF_UNIX as u32, datagram, 0, at(0), 0, 0]) == 0,
        1,
    )?;
    // SAFETY: words 0 to 15 of the mapping above: the pair, struct msghdr and struct iovec of 32-bit programs, and a
    // byte.
    let sent = unsafe {
        // name, namelen, iov, iovlen, control, controllen, flags; base, length
        for (word, value) in [0, 0, at(12), 1, 0, 0, 0, 0, at(14), 1].into_iter().enumerate() {
            words.add(4 + word).write(value);
        }
        libc::send(words.read() as i32, low, 1, 0)
    };
    let received = call(
        number::RECVMSG,
        [word(words, 1), at(4), libc::MSG_DONTWAIT as u32, 0, 0, 0],
    );
    check(sent == 1 && received == 1, 2)?;

    let map = |protection, flags, fd: i32| call(number::MMAP2, [0, 4096, protection, flags, fd as u32, 0]);
    let is_error = |answer: i32| (-4095..0).contains(&answer);
    // SAFETY: memfd_create with a C string; the result is a new descriptor.
    let memfd = unsafe { libc::memfd_create(c"fastpath-trial".as_ptr(), libc::MFD_CLOEXEC) };
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as u32;
    let code = map(executable, libc::MAP_PRIVATE as u32, memfd);
    check(!is_error(code), 3)?;
    check(
        memfd >= 0 && !is_error(map(libc::PROT_READ as u32, libc::MAP_SHARED as u32, memfd)),
        4,
    )?;
    check(call(number::MUNMAP, [code as u32, 4096, 0, 0, 0, 0]) == 0, 5)?;
    let woken = call(number::FUTEX, [at(0), libc::FUTEX_WAKE as u32, 1, 0, 0, 0]) == 0;
    check(woken && call(number::GETTID, [0; 6]) > 0, 6)?;
    // SAFETY: as above; word 15 is the path "/".
    unsafe { words.add(15).write(u32::from_ne_bytes(*b"/\0\0\0")) };
    let link = call(number::READLINKAT, [libc::AT_FDCWD as u32, at(15), at(0), 1, 0, 0]);
    check(link == -libc::EINVAL, 7)?;
    check(
        call(number::PRCTL, [libc::PR_GET_TSC as u32, at(0), 0, 0, 0, 0]) == 0,
        8,
    )
}

fn word(words: *mut u32, index: usize) -> u32 {
    // SAFETY: a word of the mapping that the caller made.
    unsafe { words.add(index).read() }
}

/// Makes a system call as 32-bit code does.
fn call(number: u32, args: [u32; 6]) -> i32 {
    let answer: i32;
    // SAFETY: the arguments are integers and addresses of memory that belongs to the call; the stack is pushed to below
    // the red zone, because the compiler reserves rbx and rbp. Older kernels clear r8 to r11.
    unsafe {
        asm!(
            "lea rsp, [rsp - 128]",
            "push rbx",
            "push rbp",
            "mov ebx, [rdi]",
            "mov ecx, [rdi + 4]",
            "mov edx, [rdi + 8]",
            "mov esi, [rdi + 12]",
            "mov ebp, [rdi + 20]",
            "mov edi, [rdi + 16]",
            "int 0x80",
            "pop rbp",
            "pop rbx",
            "lea rsp, [rsp + 128]",
            inlateout("eax") number => answer,
            inout("rdi") args.as_ptr() => _,
            out("rcx") _, out("rdx") _, out("rsi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    answer
}
