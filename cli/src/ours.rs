//! fastpath's own functions in this process; `bench` and `report` compare the kernel's with them.

use std::time::Duration;

use fastpath_helper::{grant, process};
use fastpath_inject::{InProcess, Shared};
use fastpath_measure::Functions;
use fastpath_page::ClockSet;
use fastpath_publish::Offsets;
use fastpath_publish::evidence::Trust;

/// Returns the functions, on a page that is kept up to date as long as this process runs, or the reason why there are
/// none.
pub fn functions() -> Result<Functions, String> {
    let mailbox = Shared::create().map_err(|e| e.to_string())?;
    let (grant, mut publisher) = grant::publish(ClockSet::ALL, Offsets::default(), &mailbox, Trust::Invariant, |_| {})?;
    grant::begin(&mut publisher, Trust::Invariant)?;
    process::spawn(move || publisher.run(|| true))?;
    let vdso = InProcess::map(&grant.page).map_err(|e| e.to_string())?;
    if !grant::wait_for_anchor(&grant.page, Duration::from_secs(2)) {
        return Err("its clock could not be calibrated in 2 s".into());
    }
    // The first windows are short; the steady state must be compared.
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: the addresses are of functions of the image, which has the kernel's signatures and stays mapped.
    unsafe { Functions::at(|name| vdso.function(name)) }.ok_or_else(|| "the image has no clock_gettime".into())
}
