//! What is mapped into this process.

use std::fs;
use std::io;
use std::ops::Range;

/// One line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub range: Range<usize>,
    /// `r-xp` and the like.
    pub permissions: String,
    /// A path, `[vdso]` and the like, or nothing.
    pub name: String,
}

impl Mapping {
    pub(crate) fn is_readable(&self) -> bool {
        self.permissions.starts_with('r')
    }
}

pub(crate) fn read() -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string("/proc/self/maps")?
        .lines()
        .filter_map(parse)
        .collect())
}

fn parse(line: &str) -> Option<Mapping> {
    // address perms offset dev inode name; the name may hold blanks, and is padded on the left.
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    Some(Mapping {
        range: hex(start)?..hex(end)?,
        permissions: fields.next()?.to_owned(),
        name: fields.nth(3).unwrap_or_default().trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_a_name() {
        let line = "7ffe5a1d6000-7ffe5a1d8000 r-xp 00000000 00:00 0                          [vdso]";
        let vdso = parse(line).unwrap();
        assert_eq!(vdso.range, 0x7ffe5a1d6000..0x7ffe5a1d8000);
        assert_eq!((vdso.permissions.as_str(), vdso.name.as_str()), ("r-xp", "[vdso]"));
        assert!(vdso.is_readable());
        let vsyscall = parse("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]").unwrap();
        assert!(!vsyscall.is_readable());
        assert_eq!(parse("7f17-7f18 rw-p 00000000 00:00 0 ").unwrap().name, "");
        assert_eq!(
            parse("1-2 r--s 00000000 00:01 9  /memfd:a b (deleted)").unwrap().name,
            "/memfd:a b (deleted)"
        );
        assert_eq!(parse("garbage"), None);
    }

    #[test]
    fn this_very_code_is_mapped() {
        let here = this_very_code_is_mapped as *const () as usize;
        assert!(
            read()
                .unwrap()
                .iter()
                .any(|mapping| mapping.range.contains(&here) && mapping.permissions.contains('x'))
        );
    }
}
