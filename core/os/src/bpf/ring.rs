//! The user-space side of a ring of samples (Documentation/bpf/ringbuf.rst).

use super::sys::Map;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Flags in a record's length: the record is still being written, or must be skipped.
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const RECORD_HEAD: u64 = 8;

/// Records that programs have written.
pub struct Ring {
    consumer: *mut libc::c_void,
    producer: *mut libc::c_void,
    size: u64,
    page: usize,
}

// SAFETY: only this value uses the mappings, and they are not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring `map`, of `size` bytes.
    pub fn new(map: &Map, size: u32) -> io::Result<Ring> {
        // SAFETY: sysconf takes only an integer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mapped = |protection, length, offset: usize| {
            // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    protection,
                    libc::MAP_SHARED,
                    map.fd(),
                    offset as libc::off_t,
                )
            };
            if at == libc::MAP_FAILED {
                Err(io::Error::last_os_error())
            } else {
                Ok(at)
            }
        };
        let consumer = mapped(libc::PROT_READ | libc::PROT_WRITE, page, 0)?;
        // The kernel maps the data twice in a row, so that every record is contiguous.
        let producer = mapped(libc::PROT_READ, page + 2 * size as usize, page).inspect_err(|_| {
            // SAFETY: mapped just above with this length, and not used elsewhere.
            unsafe { libc::munmap(consumer, page) };
        })?;
        Ok(Ring {
            consumer,
            producer,
            size: u64::from(size),
            page,
        })
    }

    /// Passes every complete record to `each`, in order.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        // SAFETY: both positions are aligned words at the beginning of mappings that live as long as `self`.
        let (consumer, producer) =
            unsafe { (&*self.consumer.cast::<AtomicU64>(), &*self.producer.cast::<AtomicU64>()) };
        let mut at = consumer.load(Ordering::Relaxed);
        while at < producer.load(Ordering::Acquire) {
            // SAFETY: `at % size` is the offset of a record's head, within the data.
            let head = unsafe {
                let data = self.producer.cast::<u8>().add(self.page);
                data.add((at % self.size) as usize)
            };
            // SAFETY: the head is aligned to 8 bytes, and the kernel writes the length atomically.
            let length = unsafe { &*head.cast::<std::sync::atomic::AtomicU32>() }.load(Ordering::Acquire);
            if length & BUSY != 0 {
                return;
            }
            let bytes = length & !DISCARD;
            if length & DISCARD == 0 {
                // SAFETY: the record is complete, and the kernel does not overwrite it before the consumer's position
                // passes it.
                each(unsafe { std::slice::from_raw_parts(head.add(RECORD_HEAD as usize), bytes as usize) });
            }
            at += (u64::from(bytes) + RECORD_HEAD).next_multiple_of(8);
            consumer.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both were mapped with these lengths, and nothing uses them after `self`.
        unsafe {
            libc::munmap(self.consumer, self.page);
            libc::munmap(self.producer, self.page + 2 * self.size as usize);
        }
    }
}
