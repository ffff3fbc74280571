//! Robust futexes (get_robust_list(2)): the kernel reports the end of a thread to other processes, however it ends.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// struct robust_list (linux/futex.h).
#[repr(C)]
struct Node {
    next: *const Node,
}

/// struct robust_list_head.
#[repr(C)]
struct Head {
    list: Node,
    futex_offset: libc::c_long,
    list_op_pending: *const Node,
}

#[repr(C)]
struct List {
    head: Head,
    only: Node,
}

/// Makes the calling thread the owner of a futex: when the thread ends, the kernel sets FUTEX_OWNER_DIED in it. A kernel
/// without robust futexes never does. It replaces the list of the C library, which has no robust mutexes here.
///
/// # Safety
///
/// `word` must stay mapped until the process ends.
pub unsafe fn own(word: *const AtomicU32) {
    // The kernel reads the list when the thread ends.
    let list: &mut List = Box::leak(Box::new(List {
        head: Head {
            list: Node { next: ptr::null() },
            futex_offset: 0,
            list_op_pending: ptr::null(),
        },
        only: Node { next: ptr::null() },
    }));
    list.head.list.next = &raw const list.only;
    list.only.next = &raw const list.head.list;
    list.head.futex_offset = (word.addr().wrapping_sub((&raw const list.only).addr())) as libc::c_long;
    // SAFETY: the list is leaked; gettid takes nothing; `word` is mapped, as the caller promises.
    unsafe {
        libc::syscall(libc::SYS_set_robust_list, &raw const list.head, size_of::<Head>());
        let tid = libc::syscall(libc::SYS_gettid) as u32;
        (*word).store(tid, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_an_owner_that_has_ended() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        // SAFETY: a static.
        let owner = std::thread::spawn(|| unsafe { own(&raw const WORD) });
        owner.join().unwrap();
        assert_eq!(WORD.load(Ordering::Acquire), libc::FUTEX_OWNER_DIED);
    }
}
