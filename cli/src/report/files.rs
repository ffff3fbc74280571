//! Reads the reports of other hosts.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use fastpath_report::data::Host;

/// Size limit in bytes: the reports of a thousand hosts are shorter. A longer file is something else, or has no end.
const LONGEST: u64 = 256 << 20;

/// Returns the hosts in all of these files. The error names the file, and the field in it.
pub fn read(files: &[PathBuf]) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for path in files {
        let is_standard_input = path.as_os_str() == "-";
        let name = if is_standard_input {
            "standard input".into()
        } else {
            path.to_string_lossy()
        };
        let text = if is_standard_input {
            text(io::stdin().lock())
        } else {
            File::open(path).and_then(text)
        };
        let text = text.map_err(|error| format!("{name}: {error}"))?;
        let stem = path.file_stem().map_or(name.clone(), |stem| stem.to_string_lossy());
        let stem = if is_standard_input { "unnamed".into() } else { stem };
        hosts.extend(fastpath_report::read(&text, &name, &stem)?);
    }
    Ok(hosts)
}

fn text(from: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!(
            "longer than {} MiB: this is no host's JSON",
            LONGEST >> 20
        )));
    }
    // Text that is not UTF-8 is not JSON either; the JSON error reports its position.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the names that several hosts have, once each.
pub fn of_several(hosts: &[Host]) -> Vec<&str> {
    let mut names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    names.sort_unstable();
    let mut twice: Vec<&str> = names
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    twice.dedup();
    twice
}
