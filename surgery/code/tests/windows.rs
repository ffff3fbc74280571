//! The windows of this machine's libc. `tests/proof` proves that a thunk does what its window does.
#![cfg(target_arch = "x86_64")]

use fastpath_code::rescue::thunk::{Routine, Thunk, thunk, to_entry};
use fastpath_code::rescue::window::WindowKind;
use fastpath_code::rescue::{Calls, Reason, RescueSite, Window, analyse, analyse_all};
use fastpath_isa::Isa;

const THUNK: u64 = 0x7f12_0000_0000;
const ROUTINE: u64 = THUNK + 0x800;

fn libc() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6"));
    std::fs::read(path.expect("this test is linked with glibc")).unwrap()
}

/// Returns the distance that moves a window to the page before the thunk.
fn bias(window: &Window) -> u64 {
    (THUNK - 0x800).wrapping_sub(window.address)
}

/// Checks that the first byte of each of the file's instructions stays.
fn keeps_first_bytes(window: &Window, thunk: &Thunk) {
    let start = bias(window).wrapping_add(window.address);
    let is_kept = |change: &fastpath_code::rescue::thunk::Change| change.original[0] == change.replacement[0];
    assert!(thunk.changes.iter().all(is_kept), "{window:x?}");
    let mut decoder = iced_x86::Decoder::with_ip(64, &window.bytes, start, 0);
    let starts: Vec<u64> = decoder.iter().map(|instruction| instruction.ip()).collect();
    for change in thunk.changes.iter().filter(|change| change.address >= start) {
        let behind_first = change.address + 1..change.address + change.original.len() as u64;
        assert!(!starts.iter().any(|start| behind_first.contains(start)), "{window:x?}");
    }
}

#[test]
fn nine_of_ten_calls_of_libc_can_be_redirected_to_an_entry() {
    let sites = analyse_all(&libc()).sites;
    let windows = sites.iter().filter_map(|site| site.window.as_ref().ok());
    let thunks = windows.map(|window| to_entry(window, bias(window), THUNK, ROUTINE));
    let proven = thunks.inspect(|thunk| assert!(thunk.is_some(), "within reach")).count();
    println!("{proven} of {} sites are proven", sites.len());
    assert!(proven * 10 > sites.len() * 9);
}

#[test]
fn the_first_byte_of_each_instruction_that_rescue_changes_stays() {
    let routines = ["clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres"];
    let routines = routines.map(|name| Routine::for_call(Isa::X86_64, name, ROUTINE).unwrap());
    let mut thunks = 0;
    for site in analyse(&libc()).unwrap().sites {
        // The constant of a vsyscall window is inside an instruction.
        let Some(window) = site
            .window
            .as_ref()
            .ok()
            .filter(|window| window.kind != WindowKind::Vsyscall)
        else {
            continue;
        };
        for calls in [site.calls, Calls::Any] {
            let relay = window.jump.relays().and_then(<[_]>::first);
            if let Some(thunk) = thunk(window, calls, bias(window), THUNK, &routines, None, relay) {
                keeps_first_bytes(window, &thunk);
                thunks += 1;
            }
        }
    }
    assert!(thunks > 0, "this machine's libc has sites");
}

#[test]
fn the_sites_of_a_file_without_section_headers_are_named_and_left_alone() {
    let mut libc = libc();
    let whole = analyse(&libc).unwrap().sites;
    // e_shoff; e_shnum and e_shstrndx.
    libc[0x28..0x30].fill(0);
    libc[0x3c..0x40].fill(0);
    let bare = analyse(&libc).unwrap().sites;
    let left_alone = |site: &RescueSite| site.window == Err(Reason::NoTables);
    assert!(!bare.is_empty() && bare.iter().all(left_alone), "{bare:x?}");
    let is_named = |site: &RescueSite| bare.iter().any(|bare| bare.address == site.address);
    assert!(whole.iter().all(is_named));
    assert_eq!(analyse_all(&libc).sites, []);
}
