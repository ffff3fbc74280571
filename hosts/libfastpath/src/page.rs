//! The page of a host: initialization and reads.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use fastpath_page::layout::{FLAG_CPU_SEGMENT, FLAG_ONE_CPU};
use fastpath_page::{Init, PAGE_SIZE, Reader, Writer};
use fastpath_publish::host::{Page, init};

use crate::error::{Error, answer};
use crate::plain::{Sized32, take};

/// `struct fastpath_page_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageOptions {
    /// Size of this struct.
    pub size: u32,
    /// `FASTPATH_PAGE_*`
    pub flags: u32,
    /// Resolution of the clocks with an anchor, in nanoseconds.
    pub hres_res_ns: u32,
    /// Resolution of the COARSE clocks, in nanoseconds.
    pub coarse_res_ns: u32,
    /// CPU, with `FASTPATH_PAGE_ONE_CPU`.
    pub cpu: u32,
    /// Node, with `FASTPATH_PAGE_ONE_CPU`.
    pub node: u32,
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers.
unsafe impl Sized32 for PageOptions {}

/// Makes an unseeded page.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` writable bytes; `options` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_page_init(page: *mut c_void, options: *const PageOptions) -> c_int {
    // SAFETY: the caller guarantees what `fastpath_page_init` requires.
    answer(unsafe { page_init(page.cast(), options) })
}

unsafe fn page_init(page: *mut u8, options: *const PageOptions) -> Result<c_int, Error> {
    let init = if options.is_null() {
        init::of_this_host()
    } else {
        // SAFETY: the caller guarantees that the options begin with their size.
        let options = unsafe { take(options)? };
        let one_cpu = options.flags & FLAG_ONE_CPU != 0;
        if options.flags & !(FLAG_CPU_SEGMENT | FLAG_ONE_CPU) != 0
            || (!one_cpu && (options.cpu, options.node) != (0, 0))
        {
            return Err(Error::INVALID);
        }
        Init {
            hres_res_ns: options.hres_res_ns,
            coarse_res_ns: options.coarse_res_ns,
            flags: options.flags,
            cpu: options.cpu,
            node: options.node,
        }
    };
    let page = aligned(page).ok_or(Error::INVALID)?;
    // SAFETY: the caller guarantees that the page is writable; it is aligned.
    unsafe {
        page.write_bytes(0, PAGE_SIZE);
        Writer::from_ptr(page).init(&init);
    }
    Ok(0)
}

/// Returns a page's address, if it is aligned and not NULL.
fn aligned(page: *mut u8) -> Option<NonNull<u8>> {
    NonNull::new(page).filter(|page| page.addr().get() % PAGE_SIZE == 0)
}

/// Returns a page that is mapped here and has been initialized.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes that stay mapped for `'p`.
pub(crate) unsafe fn page_at<'p>(page: *mut u8) -> Result<&'p Page, Error> {
    let page = aligned(page).ok_or(Error::INVALID)?;
    // SAFETY: the caller guarantees that the page is readable; it is aligned. A page is made of atomics and valid in
    // any bit pattern.
    let page: &Page = unsafe { page.cast().as_ref() };
    page.check().map_err(|_| Error::PAGE)?;
    Ok(page)
}

/// Reads what a guest would read at a count of its counter.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes; `sec` and `nsec` are NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_page_read(
    page: *const c_void,
    clock_id: i32,
    guest_cycles: u64,
    sec: *mut u64,
    nsec: *mut u32,
) -> c_int {
    if sec.is_null() || nsec.is_null() {
        return Error::INVALID.0;
    }
    // SAFETY: the caller guarantees that the page is readable; it is not written.
    let page = match unsafe { page_at(page.cast_mut().cast()) } {
        Ok(page) => page,
        Err(error) => return error.0,
    };
    let time = u32::try_from(clock_id)
        .ok()
        .and_then(|id| Reader::new(page).read(id, || guest_cycles));
    let Some(time) = time else { return 0 };
    // SAFETY: the caller guarantees that both are valid for writes, and neither is NULL.
    unsafe {
        sec.write(time.0);
        nsec.write(time.1);
    }
    1
}

/// `struct fastpath_withdrawal`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CWithdrawal {
    /// Time on the host's CLOCK_BOOTTIME.
    pub boottime_ns: u64,
    /// How far the anchor was ahead; [`AHEAD_UNKNOWN`] where unknown.
    pub ahead_ns: i64,
    /// The reason; never 0.
    pub reason: u32,
    /// 0.
    pub reserved: u32,
}

/// `FASTPATH_AHEAD_UNKNOWN`
pub const AHEAD_UNKNOWN: i64 = fastpath_page::layout::AHEAD_UNKNOWN;
/// `FASTPATH_WITHDRAWALS`
pub const WITHDRAWALS: usize = fastpath_page::layout::HISTORY;

/// Stores the last withdrawals of a page's history, oldest first.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes; `withdrawals` is NULL or can hold `room` of them; `total` is
/// NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_page_withdrawals(
    page: *const c_void,
    withdrawals: *mut CWithdrawal,
    room: u32,
    total: *mut u64,
) -> c_int {
    if withdrawals.is_null() && room > 0 {
        return Error::INVALID.0;
    }
    // SAFETY: the caller guarantees that the page is readable; it is not written.
    let page = match unsafe { page_at(page.cast_mut().cast()) } {
        Ok(page) => page,
        Err(error) => return error.0,
    };
    let reader = Reader::new(page);
    if !total.is_null() {
        // SAFETY: the caller guarantees that it is valid for a write.
        unsafe { total.write(reader.withdrawals()) };
    }
    let mut last = [None; WITHDRAWALS];
    let mut known = 0;
    for (slot, withdrawal) in last.iter_mut().zip(reader.history()) {
        *slot = Some(withdrawal);
        known += 1;
    }
    let stored = known.min(room as usize);
    let newest = last[known - stored..known].iter().flatten();
    for (at, withdrawal) in newest.enumerate() {
        // SAFETY: `at` is below `room`, which the caller guarantees.
        unsafe {
            withdrawals.add(at).write(CWithdrawal {
                boottime_ns: withdrawal.boottime_ns,
                ahead_ns: withdrawal.ahead_ns.unwrap_or(AHEAD_UNKNOWN),
                reason: withdrawal.reason.code(),
                reserved: 0,
            });
        }
    }
    stored as c_int
}
