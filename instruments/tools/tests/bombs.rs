//! Tests with small archives that were made to take much time or memory. The test is alone in its process, because its
//! allocator counts the memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastpath_tools::audit::{AuditOptions, AuditReport, of_bytes};
use nix::time::ClockId;
use serde_json::json;

mod common;

use common::{gzip, program};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both functions only count, and pass the call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` is from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most memory that an audit may take, as documented.
const MOST_BYTES: usize = 512 << 20;
/// Most CPU time: many times the usual one, and a tenth of what it takes without limits.
const MOST_TIME: Duration = Duration::from_secs(60);

/// Returns the CPU time of this thread, in which an audit does all its work.
fn cpu_time() -> Duration {
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    time.expect("the CPU time of this thread").into()
}

/// Returns the report about these bytes and asserts the limits. Runs one audit at a time.
fn audited(archive: &[u8]) -> AuditReport {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    assert!(archive.len() < 100_000, "{} bytes are no small archive", archive.len());
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let before_it = cpu_time();
    let report = of_bytes(archive, &AuditOptions::default());
    let (took, most) = (cpu_time() - before_it, MOST.load(Ordering::Relaxed) - before);
    assert!(took < MOST_TIME, "it took {took:?}");
    assert!(most < MOST_BYTES, "it took {} MiB", most >> 20);
    report
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, name, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn blob(digit: u8) -> (String, String) {
    let digest = String::from_utf8(vec![digit; 64]).unwrap();
    (format!("sha256:{digest}"), format!("blobs/sha256/{digest}"))
}

#[test]
fn an_index_that_names_a_large_manifest_thousands_of_times_is_given_up() {
    let (digest, path) = blob(b'1');
    let index = json!({ "manifests": vec![json!({ "digest": digest }); 40_000] }).to_string();
    let index = format!("{index}{}", " ".repeat(100));
    let large = format!("{{\"manifests\":[],\"x\":[{}0]}}", "{},".repeat(1_300_000));
    let report = audited(&gzip(&tar(&[
        ("index.json", index.as_bytes()),
        (&path, large.as_bytes()),
    ])));
    assert_eq!(report.summary.incomplete, 1, "{:?}", report.unjudged);
}

#[test]
fn indices_that_multiply_on_every_level_are_given_up() {
    let blobs: Vec<_> = (b'1'..=b'4').map(blob).collect();
    let naming = |digest: &str| json!({ "manifests": vec![json!({ "digest": digest }); 100] }).to_string();
    let mut files = vec![("index.json".to_owned(), naming(&blobs[0].0))];
    for pair in blobs.windows(2) {
        files.push((pair[0].1.clone(), naming(&pair[1].0)));
    }
    files.push((blobs[3].1.clone(), json!({ "layers": [] }).to_string()));
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_bytes()))
        .collect();
    audited(&gzip(&tar(&files)));
}

#[test]
fn long_names_that_a_thousand_images_share_are_not_kept_a_thousand_times() {
    let program = program();
    let long = |number: usize| format!("{number:04}{}", "/abcdefg".repeat(4_000));
    let names: Vec<String> = (0..100).map(long).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), program.as_slice())).collect();
    let layer = tar(&files);
    let name = format!("{}/layer.tar", "1".repeat(64));
    let image = |number: usize| json!({ "RepoTags": [format!("app:{number}")], "Layers": [name] });
    let manifest = json!((0..1000).map(image).collect::<Vec<_>>()).to_string();
    let report = audited(&gzip(&tar(&[
        (name.as_str(), layer.as_slice()),
        ("manifest.json", manifest.as_bytes()),
    ])));
    let kept = report.findings.len();
    assert!(
        kept > 0 && report.summary.errors > kept,
        "more are counted than kept: {kept}"
    );
}

#[test]
fn a_hundred_thousand_programs_of_a_few_bytes_are_not_all_kept() {
    let program = program();
    let names: Vec<String> = (0..100_000).map(|number| format!("{number}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), program.as_slice())).collect();
    // Compressed twice, it is small.
    let layer = gzip(&tar(&files));
    let name = format!("{}/layer.tar", "1".repeat(64));
    let manifest = json!([{ "Layers": [name] }]).to_string();
    audited(&gzip(&tar(&[
        (name.as_str(), layer.as_slice()),
        ("manifest.json", manifest.as_bytes()),
    ])));
}
