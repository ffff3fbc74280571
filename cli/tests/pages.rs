//! The documentation's pages: every link between them points to an existing place, and the book has each page.

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
fn the_book_has_every_page_of_docs_once() {
    let docs = root().join("docs");
    let mut listed = Outline::read(&docs.join("SUMMARY.md")).links;
    listed.sort();
    let in_docs = pages().into_iter().filter_map(|page| {
        let page = page.strip_prefix(&docs).ok()?;
        Some(page.to_str().expect("a name").to_owned())
    });
    let mut there: Vec<String> = in_docs.filter(|name| name != "SUMMARY.md").collect();
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
