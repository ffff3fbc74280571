//! /proc/PID/maps (proc_pid_maps(5)).

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::LazyLock;

use crate::identity::Identity;

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// Address of the first byte behind it.
    pub end: u64,
    /// Whether it has `r`.
    pub readable: bool,
    /// Whether it has `w`.
    pub writable: bool,
    /// Whether it has `x`.
    pub executable: bool,
    /// Whether it has `s`: writes are visible to other processes.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device, a number as stat(2) gives it.
    pub device: u64,
    /// Inode; 0 for memory without a file.
    pub inode: u64,
    /// Path, or `[vdso]` and the like; empty for anonymous memory.
    pub name: String,
}

impl Mapping {
    /// Returns its size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether it is of memory (memfd_create(2)) whose name in /proc begins with `name`. A file of any file system
    /// may have such a name, and reading it may wait for ever; the device of the kernel's own memory has no other files.
    pub fn is_memory(&self, name: &str) -> bool {
        self.name.starts_with(name) && self.device == device_of_memory()
    }

    /// Returns its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// Returns the device of the kernel's own memory; 1, which it is where no other is mounted first, if it cannot be found
/// out.
pub fn device_of_memory() -> u64 {
    static DEVICE: LazyLock<u64> = LazyLock::new(|| {
        // SAFETY: a C string; the result is a new descriptor, or -1.
        let fd = unsafe { libc::memfd_create(c"fastpath-device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return 1;
        }
        // SAFETY: memfd_create has just returned this descriptor.
        let memory = unsafe { OwnedFd::from_raw_fd(fd) };
        Identity::read(&memory).map_or(1, |memory| memory.device)
    });
    *DEVICE
}

/// Returns all mappings of a process (or a thread's process), lowest first. Needs the right to trace it.
pub fn read(pid: impl Display) -> io::Result<Vec<Mapping>> {
    Ok(parse(&crate::read(pid, "maps", ends_with_the_last)?))
}

/// Returns whether the text of maps ends with the last mapping that there can be: x86's vsyscall page lies above all that a
/// process can map. Otherwise only another read shows the end.
fn ends_with_the_last(text: &[u8]) -> bool {
    let lines = text.strip_suffix(b"\n").unwrap_or_default();
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    last.starts_with(b"ffffffffff600000-")
}

/// Returns all mappings of this process.
pub fn own() -> io::Result<Vec<Mapping>> {
    read("self")
}

/// Parses the text of maps; skips invalid lines.
pub fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(line).collect()
}

/// `start-end permissions offset device inode name`; the name may hold blanks, and is padded on the left.
fn line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let permissions = fields.next()?.as_bytes();
    let is = |at: usize, letter| permissions.get(at) == Some(&letter);
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        readable: is(0, b'r'),
        writable: is(1, b'w'),
        executable: is(2, b'x'),
        shared: is(3, b's'),
        offset: hex(fields.next()?)?,
        device: device(fields.next()?)?,
        inode: fields.next()?.parse().ok()?,
        name: fields.next().unwrap_or_default().trim_start().to_owned(),
    })
}

/// `major:minor`, in hexadecimal.
fn device(field: &str) -> Option<u64> {
    let (major, minor) = field.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    Some(libc::makedev(number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00400000-00401000 r-xp 00001000 fe:00 12 /bin/a b (deleted)\n\
                        7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                        7f0000001000-7f0000002000 r--s 00000000 00:01 9                          /memfd:x (deleted)\n\
                        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    #[test]
    fn every_field_is_read_and_names_are_read_whole() {
        let maps = parse(TEXT);
        assert_eq!(maps.len(), 4);
        assert_eq!(
            maps[0],
            Mapping {
                start: 0x400000,
                end: 0x401000,
                readable: true,
                writable: false,
                executable: true,
                shared: false,
                offset: 0x1000,
                device: libc::makedev(0xfe, 0),
                inode: 12,
                name: "/bin/a b (deleted)".to_owned(),
            }
        );
        assert_eq!(
            (maps[1].name.as_str(), maps[1].writable, maps[1].shared),
            ("", true, false)
        );
        assert_eq!((maps[2].name.as_str(), maps[2].shared), ("/memfd:x (deleted)", true));
        assert_eq!((maps[3].name.as_str(), maps[3].readable), ("[vsyscall]", false));
    }

    #[test]
    fn what_is_no_mapping_is_left_out() {
        assert_eq!(
            parse("garbage\n1-2\n1-2 r--p x 0:0 0\nz-2 r--p 0 0:0 0\n1-2 r--p 0 0:0 x\n"),
            []
        );
    }

    #[test]
    fn a_text_has_an_end_if_nothing_can_be_mapped_above_its_last_line() {
        assert!(ends_with_the_last(TEXT.as_bytes()));
        let (below, _) = TEXT.split_once("ffffffffff600000").unwrap();
        // A file's name may be anything.
        for other in ["", below, &below.replace("memfd:x", "ffffffffff600000-[vsyscall]")] {
            assert!(!ends_with_the_last(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn this_very_code_is_mapped() {
        let here = this_very_code_is_mapped as *const () as u64;
        let maps = own().expect("/proc/self/maps");
        assert!(
            maps.iter()
                .any(|mapping| mapping.range().contains(&here) && mapping.executable)
        );
        assert!(read(u32::MAX).is_err());
    }
}
