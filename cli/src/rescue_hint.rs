//! Says that `--rescue` would help.

use std::fs::File;
use std::path::Path;

use fastpath_tools::audit::OnDisk;

use crate::output::note;

/// Size in bytes above which a program is not examined for this: it takes 10 ms.
const MOST_BYTES: u64 = 16 << 20;

/// Notes that a program's own code makes system calls for time, if it does. `whom`: the program, as the user knows it.
pub fn give(program: &Path, whom: &dyn std::fmt::Display) {
    let count = own_calls(program);
    if count > 0 {
        let places = if count == 1 { "place" } else { "places" };
        note(format_args!(
            "{whom}: its own code makes system calls for time ({count} {places}), which no vDSO answers; --rescue redirects \
             those that `fastpath audit --rescue {}` lists",
            program.display()
        ));
    }
}

fn own_calls(program: &Path) -> usize {
    let judged = File::open(program).ok().and_then(|file| {
        let meta = file.metadata().ok()?;
        if !meta.is_file() || meta.len() > MOST_BYTES {
            return None;
        }
        fastpath_tools::audit::judge(&OnDisk::new(file, meta.len())).ok()?
    });
    let findings = judged.map(|judged| judged.findings).unwrap_or_default();
    // 32-bit programs are not rescued.
    let of_64_bits = findings.iter().filter(|finding| finding.isa != "i386");
    of_64_bits.map(|finding| finding.site_count).sum()
}
