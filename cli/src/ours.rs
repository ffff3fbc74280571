//! fastpath's own functions in this process; `bench` and `report` compare the kernel's with them.

use std::time::{Duration, Instant};

use fastpath_helper::grant::{self, Examination, Purpose};
use fastpath_inject::{InProcess, Shared};
use fastpath_measure::Functions;
use fastpath_page::ClockSet;
use fastpath_publisher::evidence::{self, Trust};

/// Returns the functions, on a page that is kept up to date as long as this process runs, or the reason why there are
/// none.
pub fn functions() -> Result<Functions, String> {
    evidence::examine_with_offsets(Trust::Invariant)?;
    let mailbox = Shared::create().map_err(|e| e.to_string())?;
    let purpose = Purpose {
        clocks: ClockSet::ALL,
        process: None,
    };
    let own = std::process::id() as i32;
    let grant = grant::of_private(purpose, &mailbox, Trust::Invariant, own, Examination::First, |_| {})?;
    let seeded = grant::seeded(&grant.page);
    let vdso = InProcess::map(&grant.page).map_err(|e| e.to_string())?;
    // The mailbox keeps the page.
    std::mem::forget(grant);
    let begun = Instant::now();
    while !seeded() {
        if begun.elapsed() > Duration::from_secs(2) {
            return Err("its clock could not be calibrated in 2 s".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first windows are short; the steady state must be compared.
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: the addresses are of functions of the image, which has the kernel's signatures and stays mapped.
    unsafe { Functions::at(|name| vdso.function(name)) }.ok_or_else(|| "the image has no clock_gettime".into())
}
