//! Prints `fastpath-clock.h` (hosts/libfastpath-clock), for builds by make and for packages.
//!
//!     cargo run --package fastpath-isa --example clock-header

use std::path::Path;
use std::process::ExitCode;

use fastpath_isa::Isa;

include!("../../../hosts/libfastpath-clock/header.rs");

fn main() -> ExitCode {
    match header(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")) {
        Ok(text) => {
            // Warnings that a program asks for are about its own code.
            let guard = "#define FASTPATH_CLOCK_H\n";
            print!(
                "{}",
                text.replacen(guard, &format!("{guard}#pragma GCC system_header\n"), 1)
            );
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("clock-header: {message}");
            ExitCode::FAILURE
        }
    }
}
