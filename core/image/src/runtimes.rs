//! The version of a C library or of Go, as a program states it.

/// Returns the version of Go from the section `.go.buildinfo` (Go's debug/buildinfo). It begins with a magic; since Go
/// 1.18 it contains the version, after its length.
pub fn go_version(section: &[u8]) -> Option<String> {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    const INLINE: u8 = 2;
    let rest = section.strip_prefix(MAGIC)?;
    // Pointer size and flags; the strings begin at byte 32.
    if rest.get(1)? & INLINE == 0 {
        return Some("older than go1.18".to_owned());
    }
    let strings = section.get(32..)?;
    let (length, at) = uvarint(strings)?;
    let version = strings.get(at..at.checked_add(length)?)?;
    Some(String::from_utf8_lossy(version).into_owned())
}

/// Decodes encoding/binary's Uvarint, of numbers below 2^35. Returns the number, and its length.
fn uvarint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(value).ok()?, index + 1));
        }
    }
    None
}

/// Returns the version of musl, a string of its own, `1.2.3`, which its loader prints.
pub fn musl_version(bytes: &[u8]) -> Option<String> {
    let is_version = |text: &&[u8]| {
        let parts: Vec<&[u8]> = text.split(|byte| *byte == b'.').collect();
        let number = |part: &&[u8]| (1..=3).contains(&part.len()) && part.iter().all(u8::is_ascii_digit);
        parts.len() == 3 && parts.iter().all(number) && matches!(parts[0], b"0" | b"1")
    };
    let version = bytes.split(|byte| *byte == 0).find(is_version)?;
    Some(String::from_utf8_lossy(version).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(flags: u8, strings: &[u8]) -> Vec<u8> {
        let mut section = b"\xff Go buildinf:\x08".to_vec();
        section.push(flags);
        section.resize(32, 0);
        section.extend(strings);
        section
    }

    #[test]
    fn the_version_is_read_by_its_length_whatever_that_takes() {
        assert_eq!(
            go_version(&section(2, b"\x08go1.22.1rest")).as_deref(),
            Some("go1.22.1")
        );
        // Development versions carry a commit and a date.
        let long = "x".repeat(200);
        let strings = [&[0xc8, 0x01], long.as_bytes()].concat();
        assert_eq!(go_version(&section(2, &strings)), Some(long));
        assert_eq!(go_version(&section(0, b"")).as_deref(), Some("older than go1.18"));
    }

    #[test]
    fn what_is_cut_short_or_none_has_no_version() {
        for strings in [&b""[..], b"\x08go1", b"\xff\xff\xff\xff\xff\x01", b"\x80"] {
            assert_eq!(go_version(&section(2, strings)), None);
        }
        assert_eq!(go_version(b"\xff Go buildinf:"), None);
        assert_eq!(go_version(b""), None);
    }

    #[test]
    fn musls_loader_states_its_version() {
        assert_eq!(musl_version(b"\x001.22.333x\x001.2.5\0").as_deref(), Some("1.2.5"));
        assert_eq!(musl_version(b"\x003.2.5\0"), None);
    }
}
