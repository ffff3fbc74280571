//! What `--version` prints: the version, the commit of the source, and the images of this build.

use std::fmt::Write;
use std::sync::LazyLock;

use fastpath_image::{Image, Isa};

/// Commit of the source, if the build knew it (`cli/build.rs`).
pub const COMMIT: Option<&str> = option_env!("FASTPATH_BUILT_COMMIT");

/// Text after the program's name.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    if let Some(commit) = COMMIT {
        let _ = write!(text, "\ncommit: {commit}");
    }
    text += "\nimages:";
    for isa in Isa::ALL {
        let _ = match Image::for_isa(isa) {
            Some(image) => write!(text, "\n  {:8}{} bytes", isa.name(), image.bytes().len()),
            None => write!(text, "\n  {:8}none: built without clang and lld", isa.name()),
        };
    }
    text
});
