//! Hosts of which there is evidence (`fastpath doctor --evidence`) get the verdict and the first reason that doctor gave
//! there.

use std::path::Path;

use serde_json::Value;

/// Returns the verdict, the first finding and its first reason.
fn said(report: &Value) -> (&Value, &Value, &Value) {
    let first = &report["findings"][0];
    (&report["verdict"], &first["id"], &first["because"][0]["says"])
}

#[test]
fn each_host_in_the_folder_is_judged_as_it_was_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/evidence");
    let mut judged = 0;
    for file in std::fs::read_dir(folder).expect("the folder") {
        let path = file.expect("an entry").path();
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).expect("a file");
        let there: Value = serde_json::from_str(&text).expect("JSON");
        if there["facts"]["kernel"]["machine"] != std::env::consts::ARCH {
            continue;
        }
        let here = fastpath_report::examined(&text, &name).unwrap_or_else(|why| panic!("{why}"));
        let here = serde_json::to_value(&here).expect("JSON");
        assert_eq!(said(&here), said(&there), "{name}");
        judged += 1;
    }
    assert!(judged > 0 || !cfg!(target_arch = "x86_64"));
}
