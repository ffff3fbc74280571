//! /proc/PID/maps (proc_pid_maps(5)).

use std::fs;

use crate::error::{Error, Result};

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub executable: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device as maps prints it, and inode: 0 for memory without a file.
    pub device: String,
    pub inode: u64,
    /// Path, or `[vdso]` and the like; empty for anonymous memory.
    pub name: String,
}

/// All mappings of a process (or a thread's process), lowest first.
pub fn of(pid: i32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let text = fs::read(&path).map_err(|e| Error::io(path, e))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: device.to_owned(),
        inode: inode.parse().ok()?,
        name: name.trim_start().to_owned(),
    })
}

/// The highest address below `below` at which `size` bytes are free, no closer than `guard` bytes to the mapping at `below`
/// and to whatever lies underneath.
pub fn gap_below(maps: &[Mapping], below: u64, size: u64, guard: u64) -> Option<u64> {
    /// Linux refuses user mappings below vm.mmap_min_addr, 64 KiB as distributions set it.
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00400000-00401000 r-xp 00001000 fe:00 12 /bin/a b (deleted)\n\
                        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    #[test]
    fn names_with_spaces_are_read_whole() {
        let maps = parse(TEXT);
        assert_eq!(maps.len(), 3);
        assert_eq!(maps[0].name, "/bin/a b (deleted)");
        assert!(maps[0].executable && !maps[1].executable);
        assert_eq!(
            (maps[0].device.as_str(), maps[0].inode, maps[0].offset),
            ("fe:00", 12, 0x1000)
        );
        assert_eq!(maps[1].name, "");
        assert_eq!(maps[2].name, "[vsyscall]");
    }

    #[test]
    fn a_gap_keeps_its_distance_from_both_neighbours() {
        let maps = parse(TEXT);
        assert_eq!(gap_below(&maps, 0x400000, 0x7000, 0x100000), Some(0x400000 - 0x107000));
        assert_eq!(
            gap_below(&maps, 0x7f0000000000, 0x1000, 0x1000),
            Some(0x7f0000000000 - 0x2000)
        );
        assert_eq!(gap_below(&maps, 0x400000, 0x400000, 0), None);
    }
}
