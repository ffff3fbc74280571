//! Reads a file's bytes in bounded pieces and never maps the file. A file that is truncated during the audit would kill
//! a process that has it mapped, and a mapping of a large file counts against the memory limit of an audit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A file's bytes, at any offset.
pub trait Bytes {
    /// Returns the number of bytes.
    fn length(&self) -> u64;
    /// Fills `buffer` from `offset` on. Fewer bytes than requested are an error.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// A regular file.
pub struct OnDisk {
    file: File,
    length: u64,
}

impl OnDisk {
    pub fn new(file: File, length: u64) -> OnDisk {
        OnDisk { file, length }
    }
}

impl Bytes for OnDisk {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

impl Bytes for [u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let part = self
            .get(from..)
            .and_then(|rest| rest.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }
}

/// A piece of a part of a file.
pub struct Piece<'a> {
    /// The piece, with its surroundings.
    pub bytes: &'a [u8],
    /// Range of the bytes that belong to this piece and to no other.
    pub own: std::ops::Range<usize>,
    /// Offset of the first byte from the beginning of the part.
    pub offset: u64,
}

/// Size of a piece, in bytes.
const PIECE: u64 = 1 << 20;

/// Passes `size` bytes from `offset` on in pieces that overlap by `before` and `after`.
pub fn in_pieces<B: Bytes + ?Sized>(
    bytes: &B,
    offset: u64,
    size: u64,
    (before, after): (u64, u64),
    mut show: impl FnMut(Piece<'_>),
) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < size {
        let own = PIECE.min(size - at);
        let from = at.saturating_sub(before);
        let to = (at + own + after).min(size);
        buffer.resize((to - from) as usize, 0);
        bytes.read_exact_at(offset + from, &mut buffer)?;
        let first = (at - from) as usize;
        show(Piece {
            bytes: &buffer,
            own: first..first + own as usize,
            offset: from,
        });
        at += own;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_and_include_their_surroundings() {
        let bytes: Vec<u8> = (0..3 * PIECE + 17).map(|i| (i % 251) as u8).collect();
        let mut covered = Vec::new();
        in_pieces(bytes.as_slice(), 5, bytes.length() - 5, (100, 200), |piece| {
            let from = piece.offset as usize + 5;
            assert_eq!(piece.bytes, &bytes[from..from + piece.bytes.len()]);
            covered.extend_from_slice(&piece.bytes[piece.own]);
        })
        .unwrap();
        assert!(covered == bytes[5..]);
    }

    #[test]
    fn missing_bytes_are_an_error() {
        let bytes: &[u8] = &[1, 2, 3];
        assert!(in_pieces(bytes, 1, 3, (0, 0), |_| {}).is_err());
        assert!(bytes.read_exact_at(u64::MAX, &mut [0]).is_err());
    }
}
