//! Room between the mappings of a process.

use crate::error::{Error, Result};

pub use fastpath_os::Mapping;

/// Returns all mappings of a process (or a thread's process), lowest first.
pub fn read(pid: i32) -> Result<Vec<Mapping>> {
    fastpath_os::maps::read(pid).map_err(|e| Error::io(format!("/proc/{pid}/maps"), e))
}

/// Returns the highest address below `below` at which `size` bytes are free, at least `guard` bytes away from the
/// mapping at `below` and from the one underneath.
pub fn gap_below(maps: &[Mapping], below: u64, size: u64, guard: u64) -> Option<u64> {
    /// Lowest address of a mapping: Linux refuses user mappings below vm.mmap_min_addr, 64 KiB as distributions set it.
    const LOWEST: u64 = 0x10000;
    let mut ceiling = below;
    for mapping in maps.iter().rev().filter(|m| m.start < below) {
        let candidate = ceiling.checked_sub(guard + size)?;
        if candidate >= mapping.end + guard {
            return Some(candidate);
        }
        ceiling = ceiling.min(mapping.start);
    }
    ceiling.checked_sub(guard + size).filter(|a| *a >= LOWEST)
}

/// Returns the lowest address, above the mappings that closely follow each other from `above` on, at which `size` bytes
/// are free, at least `guard` bytes away from either neighbour.
pub fn gap_above(maps: &[Mapping], above: u64, size: u64, guard: u64) -> Option<u64> {
    let mut floor = above;
    for mapping in maps.iter().filter(|m| m.end > above) {
        if mapping.start >= floor.checked_add(size + 2 * guard)? {
            break;
        }
        floor = floor.max(mapping.end);
    }
    floor.checked_add(guard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_os::maps::parse;

    const TEXT: &str = "00400000-00401000 r-xp 00001000 fe:00 12 /bin/a b (deleted)\n\
                        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    #[test]
    fn a_gap_keeps_its_distance_from_both_neighbours() {
        let maps = parse(TEXT);
        assert_eq!(gap_below(&maps, 0x400000, 0x7000, 0x100000), Some(0x400000 - 0x107000));
        assert_eq!(
            gap_below(&maps, 0x7f0000000000, 0x1000, 0x1000),
            Some(0x7f0000000000 - 0x2000)
        );
        assert_eq!(gap_below(&maps, 0x400000, 0x400000, 0), None);
        assert_eq!(gap_above(&maps, 0x400000, 0x7000, 0x100000), Some(0x501000));
        let neighbours =
            parse("00010000-00011000 r-xp 0 0:0 0\n00012000-00013000 r--p 0 0:0 0\n00020000-00021000 r--p 0 0:0 0\n");
        assert_eq!(gap_above(&neighbours, 0x10000, 0x7000, 0x1000), Some(0x14000));
        assert_eq!(gap_above(&neighbours, 0x10000, 0x7000, 0x4000), Some(0x25000));
    }
}
