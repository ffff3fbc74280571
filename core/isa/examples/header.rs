//! Prints the header `isa.h` of an ISA, for builds by make.
//!
//!     cargo run --package fastpath-isa --example header -- aarch64

use std::process::ExitCode;

use fastpath_isa::{Isa, c};

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Some(isa) = Isa::of_name(&name) {
        print!("{}", c::header(isa));
        return ExitCode::SUCCESS;
    }
    let known: Vec<_> = Isa::ALL.into_iter().map(Isa::name).collect();
    eprintln!("header: there is no ISA \"{name}\"; known: {}", known.join(", "));
    ExitCode::FAILURE
}
