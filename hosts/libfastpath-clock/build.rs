//! Compiles the functions of `fastpath-clock.h`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use fastpath_isa::Isa;

include!("header.rs");

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = here.join("../..");
    let folders = ISAS.iter().flat_map(|(_, _, folders)| *folders).chain(&COMMON);
    for path in folders
        .map(|folder| repository.join(folder))
        .chain([here.join("header.rs")])
    {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    let [header_path, source] = [out.join("fastpath-clock.h"), out.join("clock.c")];
    let publish = match env::var_os("CARGO_FEATURE_PUBLISH") {
        Some(_) => "#define FASTPATH_CLOCK_PUBLISH\n",
        None => "",
    };
    let code = format!("#define FASTPATH_CLOCK_IMPLEMENTATION\n{publish}#include <fastpath-clock.h>\n");
    for (path, text) in [(&header_path, &*header(&repository)?), (&source, &*code)] {
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let mut compiler = cc::Build::new();
    compiler
        .file(source)
        .include(&out)
        .include(here.join("../libfastpath/include"));
    compiler
        .flag("-std=gnu11")
        .flag("-Werror=implicit-function-declaration")
        .opt_level(2);
    compiler.try_compile("fastpath_clock").map_err(|e| e.to_string())
}
