//! The page as a host makes and reads it.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use fastpath_host::{Page, init};
use fastpath_page::layout::{FLAG_CPU_SEGMENT, FLAG_ONE_CPU};
use fastpath_page::{Init, PAGE_SIZE, Reader, Writer};

use crate::error::{Error, answer};
use crate::plain::{Sized32, take};

/// `struct fastpath_page_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageOptions {
    /// Of this struct.
    pub size: u32,
    /// `FASTPATH_PAGE_*`
    pub flags: u32,
    /// Of the clocks with an anchor.
    pub hres_res_ns: u32,
    /// Of the COARSE clocks.
    pub coarse_res_ns: u32,
    /// With `FASTPATH_PAGE_ONE_CPU`.
    pub cpu: u32,
    /// With `FASTPATH_PAGE_ONE_CPU`.
    pub node: u32,
}

// SAFETY: as required.
unsafe impl Sized32 for PageOptions {}

/// Makes an unseeded page.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` writable bytes; `options` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_page_init(page: *mut c_void, options: *const PageOptions) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { page_init(page.cast(), options) })
}

unsafe fn page_init(page: *mut u8, options: *const PageOptions) -> Result<c_int, Error> {
    let init = if options.is_null() {
        init::of_this_host()
    } else {
        // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise; aligned.
    unsafe {
        page.write_bytes(0, PAGE_SIZE);
        Writer::from_ptr(page).init(&init);
    }
    Ok(0)
}

/// A page's address, if it can be one.
fn aligned(page: *mut u8) -> Option<NonNull<u8>> {
    NonNull::new(page).filter(|page| page.addr().get() % PAGE_SIZE == 0)
}

/// A page that is mapped here and has been made.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes that stay for `'p`.
pub(crate) unsafe fn page_at<'p>(page: *mut u8) -> Result<&'p Page, Error> {
    let page = aligned(page).ok_or(Error::INVALID)?;
    // SAFETY: the caller's promise; aligned. A page is made of atomics and valid in any bit pattern.
    let page: &Page = unsafe { page.cast().as_ref() };
    page.check().map_err(|_| Error::PAGE)?;
    Ok(page)
}

/// What a guest would read at a count of its counter.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes; `sec` and `nsec` are NULL or can be written.
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
    // SAFETY: the caller's promise; it is only read.
    let page = match unsafe { page_at(page.cast_mut().cast()) } {
        Ok(page) => page,
        Err(error) => return error.0,
    };
    let time = u32::try_from(clock_id)
        .ok()
        .and_then(|id| Reader::new(page).read(id, || guest_cycles));
    let Some(time) = time else { return 0 };
    // SAFETY: the caller's promise.
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
    /// On the host's CLOCK_BOOTTIME.
    pub boottime_ns: u64,
    /// [`AHEAD_UNKNOWN`] where it could not be told.
    pub ahead_ns: i64,
    /// Never 0.
    pub reason: u32,
    /// 0.
    pub reserved: u32,
}

/// `FASTPATH_AHEAD_UNKNOWN`
pub const AHEAD_UNKNOWN: i64 = fastpath_page::layout::AHEAD_UNKNOWN;
/// `FASTPATH_WITHDRAWALS`
pub const WITHDRAWALS: usize = fastpath_page::layout::HISTORY;

/// The last withdrawals that a page remembers, oldest first.
///
/// # Safety
/// `page` is NULL or `FASTPATH_PAGE_SIZE` readable bytes; `withdrawals` is NULL or can hold `room` of them; `total` is NULL or can be
/// written.
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
    // SAFETY: the caller's promise; it is only read.
    let page = match unsafe { page_at(page.cast_mut().cast()) } {
        Ok(page) => page,
        Err(error) => return error.0,
    };
    let reader = Reader::new(page);
    if !total.is_null() {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise: `at` is below `room`.
        unsafe {
            withdrawals.add(at).write(CWithdrawal {
                boottime_ns: withdrawal.boottime_ns,
                ahead_ns: withdrawal.ahead_ns.unwrap_or(AHEAD_UNKNOWN),
                reason: withdrawal.reason,
                reserved: 0,
            });
        }
    }
    stored as c_int
}
