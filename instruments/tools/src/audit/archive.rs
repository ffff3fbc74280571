//! Tar archives, as streams. The tar crate reads the headers; this module goes from one header to the next, so that the
//! archive cannot choose how much memory its names and extension headers take.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tar::{EntryType, Header};

/// Longest name or extension header. Paths on Linux are not longer.
const MOST_NAME: u64 = 64 << 10;
const BLOCK: u64 = 512;

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    /// A hard link to an entry of this name.
    HardLink(String),
    /// A file with holes: its data in the archive is not laid out as in the file.
    Sparse,
    /// Any other entry: a symbolic link, a device.
    Other,
}

/// One entry. Its data must be read from [`Entries`] before the next call of `next`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Path relative to the root, without `.` and `..`. `None` if it would lie outside.
    pub path: Option<String>,
    pub what: EntryKind,
    pub size: u64,
}

/// The entries of an archive.
pub(crate) struct Entries<R> {
    reader: R,
    /// Bytes left of the present entry's data, and of the padding behind it.
    data: u64,
    padding: u64,
}

impl<R: Read> Entries<R> {
    pub(crate) fn new(reader: R) -> Entries<R> {
        Entries {
            reader,
            data: 0,
            padding: 0,
        }
    }

    /// Returns the next entry.
    ///
    /// # Errors
    /// Fails if the archive is broken or ends too early.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let (mut long_name, mut long_link, mut extended) = (None, None, Extended::default());
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let size = header.entry_size()?;
            self.expect(size);
            match kind {
                EntryType::GNULongName => long_name = Some(self.name()?),
                EntryType::GNULongLink => long_link = Some(self.name()?),
                EntryType::XHeader => extended = Extended::parse(&self.name()?),
                EntryType::XGlobalHeader => {}
                _ => {
                    let name = extended
                        .path
                        .or(long_name)
                        .unwrap_or_else(|| header.path_bytes().into_owned());
                    let link = extended
                        .link
                        .or(long_link)
                        .or_else(|| header.link_name_bytes().map(|name| name.into_owned()))
                        .unwrap_or_default();
                    let size = extended.size.unwrap_or(size);
                    self.expect(size);
                    return self.entry(&header, &name, &link, size, extended.is_sparse).map(Some);
                }
            }
        }
    }

    fn entry(&mut self, header: &Header, name: &[u8], link: &[u8], size: u64, is_sparse: bool) -> io::Result<Entry> {
        let kind = header.entry_type();
        if kind == EntryType::GNUSparse {
            // Further headers with the places of the holes come before the data.
            let mut more = header.as_gnu().is_some_and(|header| header.isextended == [1]);
            while more {
                let mut block = [0; BLOCK as usize];
                self.reader.read_exact(&mut block)?;
                more = block[504] == 1;
            }
        }
        let what = match kind {
            _ if is_sparse || kind == EntryType::GNUSparse => EntryKind::Sparse,
            // Old archives mark a directory only by its name.
            EntryType::Regular if name.ends_with(b"/") => EntryKind::Directory,
            EntryType::Regular | EntryType::Continuous => EntryKind::File,
            EntryType::Directory => EntryKind::Directory,
            EntryType::Link => EntryKind::HardLink(inside(link).unwrap_or_default()),
            _ => EntryKind::Other,
        };
        Ok(Entry {
            path: inside(name),
            what,
            size,
        })
    }

    /// Returns the next header, or `None` at a block of zeros or at the last byte, either of which ends an archive.
    fn header(&mut self) -> io::Result<Option<Header>> {
        if io::copy(&mut self.reader.by_ref().take(self.data), &mut io::sink())? < self.data {
            return Err(broken("it is truncated"));
        }
        io::copy(&mut self.reader.by_ref().take(self.padding), &mut io::sink())?;
        self.expect(0);
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < block.len() {
            match self.reader.read(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(broken("it is truncated")),
                more => filled += more,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !is_header(block) {
            return Err(broken("a header's checksum is wrong"));
        }
        Ok(Some(header))
    }

    fn expect(&mut self, size: u64) {
        self.data = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    /// Returns the data of the present entry, which is a name or an extension header.
    fn name(&mut self) -> io::Result<Vec<u8>> {
        if self.data > MOST_NAME {
            return Err(broken("a name is longer than 64 KiB"));
        }
        let mut name = Vec::new();
        self.data().read_to_end(&mut name)?;
        if self.data > 0 {
            return Err(broken("it is truncated"));
        }
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    /// Returns a reader of the present entry's data.
    pub(crate) fn data(&mut self) -> Data<'_, R> {
        Data(self)
    }
}

/// The data of an entry.
pub(crate) struct Data<'a, R>(&'a mut Entries<R>);

impl<R: Read> Read for Data<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.0.data.min(buffer.len() as u64) as usize;
        let count = self.0.reader.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(broken("it is truncated"));
        }
        self.0.data -= count as u64;
        Ok(count)
    }
}

/// Returns whether bytes begin as a compressed archive does.
pub(crate) fn is_packed(first: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"BZh",
        b"\xfd7zXZ",
        b"\x04\x22\x4d\x18",
    ];
    FORMS.iter().any(|form| first.starts_with(form))
}

/// Returns whether a block is a header, by its checksum.
pub(crate) fn is_header(block: &[u8; BLOCK as usize]) -> bool {
    let sum: u32 = block[..148]
        .iter()
        .chain(&block[156..])
        .map(|byte| u32::from(*byte))
        .sum::<u32>()
        + 8 * u32::from(b' ');
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    header.cksum().is_ok_and(|stated| stated == sum)
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The fields of a POSIX extended header about the entry behind it.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Extended {
    fn parse(records: &[u8]) -> Extended {
        let mut extended = Extended::default();
        for record in tar::PaxExtensions::new(records).flatten() {
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => extended.path = Some(value.to_vec()),
                b"linkpath" => extended.link = Some(value.to_vec()),
                b"size" => extended.size = record.value().ok().and_then(|value| value.parse().ok()),
                key if key.starts_with(b"GNU.sparse.") => extended.is_sparse = true,
                _ => {}
            }
        }
        extended
    }
}

/// Returns a name as a path in the root: a leading `/` is dropped, as tar and container engines do. `None` if it lies
/// outside of the root.
fn inside(name: &[u8]) -> Option<String> {
    let name = String::from_utf8_lossy(name);
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..")).then(|| parts.join("/"))
}

/// Limits of a stream: bytes, time, and the ratio of decompression.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub bytes: u64,
    pub time: Duration,
    /// Largest number of bytes out for one byte in, beyond the first [`FREE_BYTES`].
    pub ratio: u64,
}

/// Bytes that are exempt from the ratio: small files of zeros compress better than real programs.
const FREE_BYTES: u64 = 64 << 20;

/// Counts what has been read, against a budget.
#[derive(Clone)]
pub(crate) struct Meter {
    budget: Budget,
    began: Instant,
    taken: Rc<Cell<u64>>,
    read: Rc<Cell<u64>>,
}

impl Meter {
    pub(crate) fn new(budget: Budget) -> Meter {
        Meter {
            budget,
            began: Instant::now(),
            taken: Rc::default(),
            read: Rc::default(),
        }
    }

    /// Returns a reader that counts the bytes read from the archive itself.
    pub(crate) fn input<R>(&self, reader: R) -> Counted<R> {
        Counted {
            reader,
            count: self.read.clone(),
        }
    }

    /// Returns a reader of a layer that is plain, gzip or zstd, as its first bytes show.
    ///
    /// # Errors
    /// Fails if it cannot be read or has another format.
    pub(crate) fn unpacked<'a>(&self, mut reader: impl Read + 'a) -> io::Result<Metered<'a>> {
        let mut first = Vec::new();
        reader.by_ref().take(BLOCK).read_to_end(&mut first)?;
        let form: fn(&[u8]) -> Option<&'static str> = |first| match first {
            [0x42, 0x5a, 0x68, ..] => Some("bzip2"),
            [0xfd, 0x37, 0x7a, 0x58, 0x5a, ..] => Some("xz"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
            _ => None,
        };
        if let Some(form) = form(&first) {
            return Err(broken(&format!("{form} is not read here; images use gzip and zstd")));
        }
        let is_gzip = first.starts_with(&[0x1f, 0x8b]);
        let is_zstd = first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        let whole = io::Cursor::new(first).chain(reader);
        let plain: Box<dyn Read + 'a> = if is_gzip {
            Box::new(flate2::read::MultiGzDecoder::new(whole))
        } else if is_zstd {
            // The library limits its window, which is memory, to 100 MiB.
            Box::new(ruzstd::decoding::StreamingDecoder::new(whole).map_err(|e| broken(&format!("zstd: {e}")))?)
        } else {
            Box::new(whole)
        };
        Ok(Metered {
            reader: plain,
            meter: self.clone(),
        })
    }
}

/// A reader that counts.
pub(crate) struct Counted<R> {
    reader: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// A reader that ends with an error when the budget is spent.
pub(crate) struct Metered<'a> {
    reader: Box<dyn Read + 'a>,
    meter: Meter,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Meter {
            budget,
            began,
            taken,
            read,
        } = &self.meter;
        if taken.get() > budget.bytes {
            return Err(broken(&format!(
                "more than {} MiB come out of it; given up",
                budget.bytes >> 20
            )));
        }
        if taken.get() > FREE_BYTES.saturating_add(read.get().saturating_mul(budget.ratio)) {
            return Err(broken(&format!(
                "more than {} bytes come out of each byte of it; given up",
                budget.ratio
            )));
        }
        if began.elapsed() > budget.time {
            return Err(broken(&format!(
                "it takes longer than {} s; given up",
                budget.time.as_secs()
            )));
        }
        let count = self.reader.read(buffer)?;
        taken.set(taken.get() + count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_root() {
        assert_eq!(inside(b"./usr/bin/x").as_deref(), Some("usr/bin/x"));
        assert_eq!(inside(b"/usr//bin/x/").as_deref(), Some("usr/bin/x"));
        assert_eq!(inside(b"../x"), None);
    }

    #[test]
    fn long_names_of_both_kinds_and_the_data_behind_them_are_read() {
        let long = "d/".repeat(120) + "file";
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(3);
        builder.append_data(&mut header, &long, &b"abc"[..]).unwrap();
        builder.append_pax_extensions([("path", b"of/pax".as_slice())]).unwrap();
        header.set_path("short").unwrap();
        header.set_cksum();
        builder.append(&header, &b"xyz"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        let mut entries = Entries::new(bytes.as_slice());
        for (path, data) in [(long.as_str(), "abc"), ("of/pax", "xyz")] {
            let entry = entries.next().unwrap().unwrap();
            assert_eq!(
                (entry.path.as_deref(), &entry.what, entry.size),
                (Some(path), &EntryKind::File, 3)
            );
            let mut text = String::new();
            entries.data().read_to_string(&mut text).unwrap();
            assert_eq!(text, data);
        }
        assert!(entries.next().unwrap().is_none());
    }

    #[test]
    fn data_that_is_not_read_must_be_there_too() {
        let mut header = Header::new_gnu();
        header.set_size(1000);
        header.set_cksum();
        let mut entries = Entries::new(header.as_bytes().chain(io::repeat(b'x').take(999)));
        assert!(entries.next().unwrap().is_some());
        assert!(entries.next().unwrap_err().to_string().contains("truncated"));
    }

    #[test]
    fn a_name_of_gigabytes_is_refused_before_it_is_read() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(1 << 40);
        header.set_cksum();
        let stream = header.as_bytes().chain(io::repeat(b'x'));
        assert!(Entries::new(stream).next().unwrap_err().to_string().contains("64 KiB"));
    }

    #[test]
    fn a_bomb_is_given_up() {
        let budget = Budget {
            bytes: 1 << 30,
            time: Duration::from_secs(60),
            ratio: 100,
        };
        let meter = Meter::new(budget);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        io::copy(&mut io::repeat(0).take(200 << 20), &mut packed).unwrap();
        let packed = packed.finish().unwrap();
        let error = io::copy(
            &mut meter.unpacked(meter.input(packed.as_slice())).unwrap(),
            &mut io::sink(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("each byte"), "{error}");
        let small = Meter::new(Budget { bytes: 1000, ..budget });
        let error = io::copy(&mut small.unpacked(io::repeat(1)).unwrap(), &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("come out of it"), "{error}");
    }
}
