//! Reads the reports of other hosts.

use std::path::PathBuf;

use fastpath_report::data::Host;

use crate::file;

/// Returns the hosts in all of these files. The error names the file, and the field in it.
pub fn read(files: &[PathBuf]) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for path in files {
        let (name, text) = file::read(path)?;
        let stem = match path.as_os_str() == "-" {
            true => "unnamed".into(),
            false => path.file_stem().map_or((&*name).into(), |stem| stem.to_string_lossy()),
        };
        hosts.extend(fastpath_report::read(&text, &name, &stem)?);
    }
    Ok(hosts)
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
