//! Container images, made by hand: only the topmost version of a file counts. And SARIF, whose format other tools rely
//! on.

use std::path::Path;

use fastpath_tools::audit::{AuditOptions, AuditReport, Progress, audit, of_bytes, sarif};
use serde_json::json;

mod common;

use common::{gzip, program};

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        // Sets the name unchecked, as a hostile archive would.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn found(report: &AuditReport) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.path.as_str()).collect()
}

const LOW: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const HIGH: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// Returns two layers. The upper one removes, replaces or hides all files of the lower one but `bin/kept`.
fn layers() -> (Vec<u8>, Vec<u8>) {
    let program = program();
    let low = tar(&[
        ("bin/kept", &program),
        ("bin/removed", &program),
        ("bin/replaced", &program),
        ("opt/hidden", &program),
        ("srv/deep/gone", &program),
    ]);
    let high = tar(&[
        ("bin/.wh.removed", b""),
        ("bin/replaced", b"#!/bin/sh"),
        ("opt/.wh..wh..opq", b""),
        ("opt/new", &program),
        (".wh.srv", b""),
    ]);
    (low, high)
}

#[test]
fn files_that_a_later_layer_removes_or_replaces_are_not_reported() {
    let (low, high) = layers();
    let (low_name, high_name) = (format!("{LOW}/layer.tar"), format!("{HIGH}/layer.tar"));
    let manifest = json!([{ "RepoTags": ["app:1"], "Layers": [low_name, high_name] }]).to_string();
    let high_first = [
        (high_name.as_str(), &high[..]),
        (low_name.as_str(), &low[..]),
        ("manifest.json", manifest.as_bytes()),
    ];
    let archive = tar(&high_first);
    for bytes in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let report = of_bytes(&bytes, &AuditOptions::default());
        assert_eq!(found(&report), ["x!/bin/kept", "x!/opt/new"], "{:?}", report.unjudged);
        assert_eq!(report.findings[1].layer.as_deref(), Some(high_name.as_str()));
        assert_eq!(report.unjudged, []);
    }
}

#[test]
fn an_oci_layout_is_read_as_a_directory_and_as_an_archive() {
    let (low, high) = layers();
    let directory = tempfile::tempdir().unwrap();
    let blob = |digest: &str| format!("blobs/sha256/{digest}");
    let manifest = "3333333333333333333333333333333333333333333333333333333333333333";
    let described = |digest: &str, kind: &str| json!({ "mediaType": kind, "digest": format!("sha256:{digest}") });
    let files = [
        ("oci-layout".to_owned(), b"{\"imageLayoutVersion\":\"1.0.0\"}".to_vec()),
        (
            "index.json".to_owned(),
            json!({ "manifests": [described(manifest, "manifest")] })
                .to_string()
                .into(),
        ),
        (
            blob(manifest),
            json!({ "layers": [described(LOW, "layer.v1.tar+gzip"), described(HIGH, "layer.v1.tar+zstd")] })
                .to_string()
                .into(),
        ),
        (blob(LOW), gzip(&low)),
        (blob(HIGH), zstd(&high)),
    ];
    std::fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
    for (name, bytes) in &files {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    let report = audit(
        &[directory.path().to_owned()],
        &AuditOptions::default(),
        &Progress::default(),
    );
    let prefix = directory.path().display();
    assert_eq!(
        found(&report),
        [format!("{prefix}!/bin/kept"), format!("{prefix}!/opt/new")]
    );

    let borrowed: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    let report = of_bytes(&tar(&borrowed), &AuditOptions::default());
    assert_eq!(found(&report), ["x!/bin/kept", "x!/opt/new"], "{:?}", report.unjudged);
}

#[test]
fn hostile_archives_give_a_line_each() {
    let program = program();
    let outside = of_bytes(
        &tar(&[("../../etc/x", &program), ("/abs/x", &program)]),
        &AuditOptions::default(),
    );
    assert_eq!(found(&outside), ["x!/abs/x"]);
    assert_eq!(outside.unjudged.len(), 1);

    let whole = tar(&[("bin/x", &program)]);
    let cut = of_bytes(&whole[..600], &AuditOptions::default());
    assert!(
        cut.unjudged.len() == 1 && cut.unjudged[0].why.contains("truncated"),
        "{:?}",
        cut.unjudged
    );

    let mut long = program.clone();
    long.truncate(100);
    let broken = of_bytes(&tar(&[("bin/x", &long)]), &AuditOptions::default());
    assert_eq!(broken.unjudged.len(), 1, "{:?}", broken.unjudged);

    let cyclic = json!({ "manifests": [{ "digest": format!("sha256:{LOW}") }] }).to_string();
    let name = format!("blobs/sha256/{LOW}");
    let index = of_bytes(
        &tar(&[("index.json", cyclic.as_bytes()), (&name, cyclic.as_bytes())]),
        &AuditOptions::default(),
    );
    assert!(
        index.unjudged.iter().any(|line| line.why.contains("nested")),
        "{:?}",
        index.unjudged
    );

    let missing = json!([{ "Layers": ["../../../etc/passwd", "none.tar"] }]).to_string();
    let missing = of_bytes(&tar(&[("manifest.json", missing.as_bytes())]), &AuditOptions::default());
    assert_eq!(missing.unjudged.len(), 2, "{:?}", missing.unjudged);
}

#[test]
fn links_and_special_files_of_a_directory_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("program"), program()).unwrap();
    std::fs::hard_link(at("program"), at("program-too")).unwrap();
    std::os::unix::fs::symlink(directory.path(), at("cycle")).unwrap();
    std::os::unix::fs::symlink(at("program"), at("link")).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status()
            .unwrap()
            .success()
    );
    let report = audit(
        &[directory.path().to_owned(), Path::new("/nowhere").to_owned()],
        &AuditOptions::default(),
        &Progress::default(),
    );
    assert_eq!((report.findings.len(), report.summary.programs), (1, 1));
    assert_eq!((report.unjudged.len(), report.missing.len()), (0, 1));
}

#[test]
fn a_file_that_is_requested_twice_is_judged_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("below")).unwrap();
    std::fs::write(at("below/program"), program()).unwrap();
    std::fs::write(at("image.tar"), tar(&[("bin/x", &program())])).unwrap();
    std::os::unix::fs::symlink(at("image.tar"), at("link")).unwrap();
    for (paths, programs) in [
        (["below", "below"], 1),
        (["below", "below/program"], 1),
        (["below/program", "."], 1),
        (["image.tar", "link"], 1),
        (["image.tar", "below"], 2),
    ] {
        let report = audit(&paths.map(at), &AuditOptions::default(), &Progress::default());
        let summary = &report.summary;
        assert_eq!(
            (report.findings.len(), summary.programs),
            (programs, programs as u64),
            "{paths:?}"
        );
    }
    let report = audit(
        &[at("below"), at("below")],
        &AuditOptions::default(),
        &Progress::default(),
    );
    assert_eq!(report.summary.files, 1);
}

#[test]
fn sarif_has_the_shape_that_code_scanning_wants() {
    let report = of_bytes(&tar(&[("bin/x", &program())]), &AuditOptions::default());
    let sarif = sarif(&report, "1.2.3");
    assert_eq!(sarif["version"], "2.1.0");
    let run = &sarif["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let result = &run["results"][0];
    assert_eq!(
        rules[result["ruleIndex"].as_u64().unwrap() as usize]["id"],
        result["ruleId"]
    );
    assert!(["note", "warning", "error"].contains(&result["level"].as_str().unwrap()));
    assert!(result["message"]["text"].is_string());
    let location = &result["locations"][0]["physicalLocation"];
    assert_eq!(location["artifactLocation"]["uri"], "x!/bin/x");
    assert_eq!(location["address"]["absoluteAddress"], 0x40_007d);
    assert!(run["invocations"][0]["executionSuccessful"].is_boolean());
}
