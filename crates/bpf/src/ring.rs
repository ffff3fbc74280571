//! The user's side of a ring of samples (Documentation/bpf/ringbuf.rst).

use crate::sys::Map;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in a record's length while it is being written, and where it is to be skipped.
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

// SAFETY: the mappings are this value's alone, and are not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring that `map` is, of `size` bytes.
    pub fn new(map: &Map, size: u32) -> io::Result<Ring> {
        // SAFETY: sysconf takes an integer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mapped = |protection, length, offset: usize| {
            // SAFETY: a new mapping of the ring's.
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
        // The data are mapped twice in a row, so that no record is torn.
        let producer = mapped(libc::PROT_READ, page + 2 * size as usize, page).inspect_err(|_| {
            // SAFETY: mapped just now.
            unsafe { libc::munmap(consumer, page) };
        })?;
        Ok(Ring {
            consumer,
            producer,
            size: u64::from(size),
            page,
        })
    }

    /// Every record that is complete, in order.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        // SAFETY: both positions are aligned words at the beginning of mappings that live as long as this.
        let (consumer, producer) =
            unsafe { (&*self.consumer.cast::<AtomicU64>(), &*self.producer.cast::<AtomicU64>()) };
        let mut at = consumer.load(Ordering::Relaxed);
        while at < producer.load(Ordering::Acquire) {
            // SAFETY: a record's head, at a multiple of 8 within the data.
            let head = unsafe {
                let data = self.producer.cast::<u8>().add(self.page);
                data.add((at % self.size) as usize)
            };
            // SAFETY: its length is written by the kernel, atomically.
            let length = unsafe { &*head.cast::<std::sync::atomic::AtomicU32>() }.load(Ordering::Acquire);
            if length & BUSY != 0 {
                return;
            }
            let bytes = length & !DISCARD;
            if length & DISCARD == 0 {
                // SAFETY: the record is complete, and the kernel does not touch it before the consumer's position passes it.
                each(unsafe { std::slice::from_raw_parts(head.add(RECORD_HEAD as usize), bytes as usize) });
            }
            at += (u64::from(bytes) + RECORD_HEAD).next_multiple_of(8);
            consumer.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both were mapped with these lengths.
        unsafe {
            libc::munmap(self.consumer, self.page);
            libc::munmap(self.producer, self.page + 2 * self.size as usize);
        }
    }
}
