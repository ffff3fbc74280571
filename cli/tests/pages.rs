//! The documentation's pages: every link between them points to an existing place, and the lists of pages have each page of docs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
        .to_owned()
}

/// Returns the pages: those of the repository's root, of docs, and the README of each folder.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/design",
        "docs/recipes",
        "core",
        "surgery",
        "service",
        "instruments",
        "hosts",
        "lab",
        "deploy",
        "deploy/helm/fastpath",
        "examples",
    ] {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder").flatten();
        pages.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|e| e == "md")),
        );
    }
    pages
}

/// Links and headings of a page.
struct Outline {
    links: Vec<String>,
    anchors: HashSet<String>,
}

impl Outline {
    fn read(page: &Path) -> Outline {
        let text = std::fs::read_to_string(page).expect("a page");
        let mut outline = Outline {
            links: Vec::new(),
            anchors: HashSet::new(),
        };
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(&text, pulldown_cmark::Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. }) => outline.links.push(dest_url.into_string()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    outline.anchors.extend(heading.take().map(|text| anchor(&text)));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        outline
    }
}

/// Returns the anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

#[test]
fn every_link_between_pages_points_to_an_existing_file_and_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in Outline::read(&page).links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            let is_there =
                target.exists() && (fragment.is_empty() || Outline::read(&target).anchors.contains(fragment));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_lists_of_pages_name_every_page_of_docs() {
    let docs = root().join("docs");
    let mut listed = vec![docs.join("README.md")];
    for list in ["", "design"] {
        let links = Outline::read(&docs.join(list).join("README.md")).links.into_iter();
        let pages = links.filter(|link| !link.contains("..") && link.ends_with(".md"));
        listed.extend(pages.map(|page| docs.join(list).join(page)));
    }
    listed.sort();
    listed.dedup();
    let mut there: Vec<PathBuf> = pages().into_iter().filter(|page| page.starts_with(&docs)).collect();
    there.retain(|page| !page.ends_with("SUMMARY.md"));
    there.sort();
    assert_eq!(listed, there);
}

/// In SECURITY.md and ARCHITECTURE.md, a test's file stands before the names of its tests; `...` ends a shortened name.
#[test]
fn every_test_that_a_promise_names_exists() {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 3
            && word
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.'))
    };
    let mut count = 0;
    for page in ["SECURITY.md", "ARCHITECTURE.md"] {
        let page = std::fs::read_to_string(root().join(page)).expect("a page");
        for row in page.lines().filter(|line| line.starts_with('|')) {
            let mut file = "";
            for word in row.split('`').skip(1).step_by(2) {
                if word.ends_with(".rs") {
                    file = word;
                    assert!(
                        !word.contains("/tests/") || root().join(word).exists(),
                        "{word} does not exist"
                    );
                } else if is_name(&word) {
                    let text =
                        std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{word}: {file}: {e}"));
                    let test = match word.strip_suffix("...") {
                        Some(start) => format!("fn {start}"),
                        None => format!("fn {word}()"),
                    };
                    assert!(text.contains(&test), "{file} has no {word}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 20, "{count} tests are named");
}

/// The file that a page, a comment or a manifest names by its path: from the repository's root, or from a folder above the
/// file that names it. A part in capitals, as `ISA`, stands for any name.
fn exists(path: &str, named_in: &Path) -> bool {
    fn is_there(folder: &Path, parts: &[&str]) -> bool {
        let Some((part, rest)) = parts.split_first() else {
            return folder.exists();
        };
        let (name, suffix) = part.split_once('.').unwrap_or((part, ""));
        if !name.bytes().all(|byte| byte.is_ascii_uppercase()) || *part == "README.md" {
            return is_there(&folder.join(part), rest);
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(suffix))
            .any(|entry| is_there(&entry.path(), rest))
    }
    let parts: Vec<&str> = path.split('/').collect();
    let above = named_in
        .ancestors()
        .skip(1)
        .take_while(|folder| folder.starts_with(root()));
    above.into_iter().any(|folder| is_there(folder, &parts))
}

#[test]
fn every_path_that_a_page_a_comment_or_a_manifest_names_exists() {
    const GENERATED: [&str; 3] = ["target", ".git", "node_modules"];
    let folders = std::fs::read_dir(root()).expect("the repository").flatten();
    let folders: Vec<String> = folders
        .filter(|entry| entry.path().is_dir() && !GENERATED.iter().any(|name| entry.file_name() == *name))
        .map(|entry| format!("{}/", entry.file_name().to_string_lossy()))
        .collect();
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    let mut missing = Vec::new();
    let mut count = 0;
    let files = walkdir::WalkDir::new(root()).into_iter().filter_entry(|entry| {
        let is_generated = GENERATED.iter().any(|name| entry.file_name() == *name);
        !is_generated && !entry.path_is_symlink()
    });
    for file in files.flatten().filter(|entry| entry.file_type().is_file()) {
        let Ok(text) = std::fs::read_to_string(file.path()) else {
            continue;
        };
        let kind = file.path().extension().and_then(|kind| kind.to_str()).unwrap_or("");
        let is_prose = matches!(kind, "md" | "toml");
        for line in text.lines() {
            let comment = line.trim_start();
            let is_comment = ["//", "#", "*", "/*", ";"]
                .iter()
                .any(|start| comment.starts_with(start));
            if !is_prose && !is_comment || matches!(kind, "svg" | "lock" | "json") {
                continue;
            }
            // A word with another character in it is a pattern, or a path of somewhere else.
            for word in line.split(|c: char| c.is_whitespace() || "`'\"(),;|[]!".contains(c)) {
                let path = word.trim_end_matches(['.', ':', '/']);
                if folders.iter().any(|folder| path.starts_with(folder.as_str())) && path.chars().all(is_of_path) {
                    count += 1;
                    if !exists(path, file.path()) {
                        missing.push(format!("{}: {path}", file.path().display()));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty() && count > 300, "{count}: {missing:#?}");
}

/// The files in which a record gets its result.
const RESULTS: [&str; 6] = [
    "surgery/inject/src/error.rs",
    "surgery/inject/src/attach/refusal.rs",
    "surgery/inject/src/attach/watchdog.rs",
    "surgery/inject/src/exec/unserved.rs",
    "service/daemon/src/record.rs",
    "service/helper/src/attach/mod.rs",
];

#[test]
fn every_result_of_a_record_is_explained() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let page = read("docs/records.md");
    let mut count = 0;
    for file in RESULTS {
        for line in read(file).lines().filter(|line| !line.contains("Shared::")) {
            let marks = ["=> \"", "=> (\"", "WORD: &str = \"", "DONE: &str = \"", "(Unserved::"];
            let named = marks.iter().find_map(|mark| line.split_once(mark));
            let word = named.and_then(|(_, rest)| rest.rsplit('"').nth(1));
            let is_word = |word: &&str| {
                !word.starts_with("fastpath") && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            };
            if let Some(word) = word.filter(is_word) {
                assert!(page.contains(&format!("`{word}`")), "{file}: {word}");
                count += 1;
            }
        }
    }
    assert!(count > 40, "{count}");
}
