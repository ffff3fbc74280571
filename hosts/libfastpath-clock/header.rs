/// Returns `fastpath-clock.h`, one file for all ISAs: `c/interface.h` with each header and source of the
/// repository that it includes in the place where it does so first.
///
/// Names that begin with `fp_` get a longer prefix, so that they conflict with none of the program's.
pub fn header(repository: &Path) -> Result<String, String> {
    let mut out = Out {
        repository,
        seen: Vec::new(),
        text: String::new(),
    };
    out.file("interface.h")?;
    Ok(with_longer_names(&out.text))
}

/// The ISAs, with the condition of each, and the folders of what they differ in, also in this order.
const ISAS: [(Isa, &str, &[&str]); 2] = [
    (
        Isa::X86_64,
        "defined(__x86_64__)",
        &["surgery/inject/hook/x86_64", "surgery/preload/x86_64", "core/image/vdso/x86"],
    ),
    (
        Isa::Aarch64,
        "defined(__aarch64__)",
        &["surgery/inject/hook/aarch64", "surgery/preload/aarch64", "core/image/vdso/aarch64"],
    ),
];
/// The folders of everything else. The first of two files of a name is taken.
const COMMON: [&str; 5] = [
    "hosts/libfastpath-clock/c",
    "core/image/vdso",
    "surgery/preload",
    "surgery/inject/hook",
    "core/protocol/include",
];

struct Out<'a> {
    repository: &'a Path,
    seen: Vec<String>,
    text: String,
}

impl Out<'_> {
    fn read(&self, folders: &[&str], name: &str) -> Option<String> {
        let paths = folders.iter().map(|folder| self.repository.join(folder).join(name));
        paths.into_iter().find_map(|path| std::fs::read_to_string(path).ok())
    }

    /// Appends a file, unless it is there already.
    fn file(&mut self, name: &str) -> Result<(), String> {
        if self.seen.iter().any(|seen| seen == name) {
            return Ok(());
        }
        self.seen.push(name.to_owned());
        if let Some(text) = self.read(&COMMON, name) {
            for line in text.lines() {
                match included(line) {
                    Some(name) => self.file(name)?,
                    None => self.line(line),
                }
            }
            return Ok(());
        }
        let of_isas = ISAS.map(|(isa, condition, folders)| {
            let text = match name {
                "isa.h" => Some(fastpath_isa::c::header(isa)),
                _ => self.read(folders, name),
            };
            (condition, text.unwrap_or_default())
        });
        if of_isas.iter().all(|(_, text)| text.is_empty()) {
            return Err(format!("there is no {name}"));
        }
        // What they include is the same for all, and so outside of the conditions.
        for name in of_isas.iter().flat_map(|(_, text)| text.lines()).filter_map(included) {
            self.file(name)?;
        }
        for (condition, text) in &of_isas {
            self.line(&format!("#if {condition}"));
            for line in text.lines().filter(|line| included(line).is_none()) {
                self.line(line);
            }
            self.line("#endif");
        }
        Ok(())
    }

    fn line(&mut self, line: &str) {
        let is_licence = line.contains("SPDX-License-Identifier");
        if !is_licence || self.text.is_empty() {
            self.text += line;
            self.text += "\n";
        }
    }
}

/// Returns the name of the file that a line includes by a path in quotes, without its folders.
fn included(line: &str) -> Option<&str> {
    let path = line.trim_start().strip_prefix("#include \"")?.strip_suffix('"')?;
    path.rsplit('/').next()
}

fn with_longer_names(text: &str) -> String {
    let mut longer = String::with_capacity(text.len() * 2);
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        let begins_word = !before.is_ascii_alphanumeric() && before != '_';
        match &text[at..] {
            rest if begins_word && rest.starts_with("fp_") => longer += "fastpath_clock_",
            rest if begins_word && rest.starts_with("FP_") => longer += "FASTPATH_CLOCK_",
            _ => {}
        }
        longer.push(letter);
        before = letter;
    }
    longer
}
