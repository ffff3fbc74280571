//! Prints how many of a file's RDTSC instructions rescue's proof could redirect (docs/design/counter-readers.md): a copy of
//! the file has a `syscall`, which is as long, in the place of each.
//!
//!     cargo run --release -p fastpath-code --example counter-windows -- FILE...

use std::collections::BTreeMap;

use fastpath_code::{calls, elf, rescue};

const RDTSC: &[u8] = &[0x0f, 0x31];
const SYSCALL: &[u8] = &[0x0f, 0x05];

fn main() {
    for path in std::env::args().skip(1) {
        match count(&path) {
            Ok(line) => println!("{path}: {line}"),
            Err(why) => eprintln!("{path}: {why}"),
        }
    }
}

fn count(path: &str) -> Result<String, String> {
    let mut bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let elf = elf::read(bytes.as_slice())?.ok_or("no program of a known ISA")?;
    let found = calls::find(elf.isa, bytes.as_slice(), &elf.code).map_err(|error| error.to_string())?;
    let mut reads = Vec::new();
    for read in found.counter_reads {
        let place = read.offset as usize..read.offset as usize + RDTSC.len();
        if bytes[place.clone()] == *RDTSC {
            bytes[place].copy_from_slice(SYSCALL);
            reads.push(read);
        }
    }
    let sites = rescue::analyse_all(&bytes).sites;
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut proven = 0;
    for read in &reads {
        let site = sites.iter().find(|site| site.address == read.address);
        match site.map(|site| &site.window) {
            Some(Ok(_)) => proven += 1,
            Some(Err(reason)) => {
                *reasons
                    .entry(format!("{reason:?}").split('(').next().unwrap_or_default().to_owned())
                    .or_default() += 1
            }
            None => *reasons.entry("NotReached".to_owned()).or_default() += 1,
        }
    }
    let clocks = reads.iter().filter(|read| read.is_scaled).count();
    Ok(format!(
        "{} rdtsc, {clocks} as a clock; {proven} with a window; without: {reasons:?}",
        reads.len()
    ))
}
