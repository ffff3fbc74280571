//! `fastpath report`: the page shows the data, on every screen and on paper.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::chromium::{chromium, evaluate};
use crate::common::{fastpath, finish, install, needs_root, skip, unprivileged};

/// A directory with the output of `report --json` for this host without a vDSO, so that there are slow clocks to show,
/// and the page made from it.
struct Made {
    directory: tempfile::TempDir,
    data: Value,
}

impl Made {
    fn of_this_host() -> Made {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("a.json");
        let words = ["run", "--without-vdso", "--", env!("CARGO_BIN_EXE_fastpath"), "report"];
        // On a busy machine, no program may read a clock in that time.
        let mut measured = (0..10).map(|_| {
            let mut measure = fastpath(&words);
            measure.args(["--json", "--trace", "0.3", "-o"]).arg(&file);
            finish(measure).expect_success();
            let text = std::fs::read_to_string(&file).expect("the data");
            assert_eq!(text.lines().count(), 1);
            serde_json::from_str(&text).expect("JSON")
        });
        let has_rows = |data: &Value| data["hosts"][0]["trace"]["rows"] != json!([]);
        let mut data: Value = measured.find(has_rows).expect("a program that reads a clock");
        // A program that reads much, with names as long as they get.
        let row = &mut data["hosts"][0]["trace"]["rows"][0];
        row["calls_per_second"] = json!(1_279_793.0);
        row["comm"] = json!("misuse-9bffea1b");
        row["program"] = json!("/srv/target/release/deps/misuse-9bffea1bdb99d0ab");
        row["clock"] = json!("MONOTONIC_COARSE");
        Made { directory, data }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, data: &Value) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, data.to_string()).expect("write");
        path
    }

    /// Makes the page of this file's hosts.
    fn page(&self, data: &Path) -> PathBuf {
        let page = data.with_extension("html");
        let mut make = fastpath(&["report", "-o"]);
        make.arg(&page).arg(data);
        finish(make).expect_success();
        page
    }

    /// This host and others: two healthy ones, and one with a malicious name.
    fn fleet(&self) -> Value {
        let mut fleet = self.data.clone();
        for name in ["web1", "web2", "\"'><script>document.title='taken'</script><img src=x>"] {
            let mut host = self.data["hosts"][0].clone();
            host["name"] = name.into();
            for clock in host["probe"]["clocks"].as_array_mut().expect("clocks") {
                clock["path"] = "vdso".into();
                clock["verdict"] = "fast".into();
                clock["ns"] = 20.1.into();
            }
            for function in host["probe"]["functions"].as_array_mut().expect("functions") {
                function["verdict"] = "fast".into();
            }
            for part in ["doctor", "costs", "trace"] {
                host[part] = Value::Null;
            }
            fleet["hosts"].as_array_mut().expect("hosts").push(host);
        }
        fleet
    }
}

/// Finds text whose contrast with its background is less than WCAG 2's AA requires: 4.5, and 3 for large text.
const TOO_PALE: &str = r#"
(() => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const parse = colour => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = element => {
        for (; element; element = element.parentElement) {
            const colour = parse(getComputedStyle(element).backgroundColor);
            if (colour[3] > 0) return colour;
        }
        return [255, 255, 255, 255];
    };
    const pale = [];
    let seen = 0;
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || ["script", "title", "desc"].includes(element.localName)) continue;
        const style = getComputedStyle(element);
        const svg = element.closest("svg") !== null;
        const [a, b] = [light(parse(svg ? style.fill : style.color)), light(ground(element))].sort((x, y) => y - x);
        const large = parseFloat(style.fontSize) >= 24;
        seen++;
        if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) pale.push(element.textContent.slice(0, 40) + " " + style.color);
    }
    return { pale, seen };
})()"#;

/// Finds labels in charts that a line crosses.
const CROSSED: &str = r#"
[...document.querySelectorAll("figure > svg")].flatMap(chart => {
    const places = what => [...chart.querySelectorAll(what)].map(element => [element, element.getBoundingClientRect()]);
    const lines = places("line.grid, line.counter, line.syscall");
    return places("text.label").filter(([, text]) => lines.some(([, line]) =>
        line.left < text.right && line.right > text.left && line.top < text.bottom - 3 && line.bottom > text.top + 3))
        .map(([label]) => label.textContent);
})"#;

/// Finds verdicts, and the first costs of rows, for which one needs to scroll.
const OUTSIDE: &str = r#"
[...document.querySelectorAll("tbody .call, tbody .badge, .scroll tbody tr td.number:not(td.number ~ td.number)")]
    .filter(cell => cell.getBoundingClientRect().right > innerWidth).map(cell => cell.closest("tr").textContent)"#;

/// Finds paths in the colour of a warning where no host has another one.
const ALARMING: &str = r#"
[...document.querySelectorAll(".scroll tr")].filter(row => row.textContent.includes("syscall only") && row.querySelector(".path-syscall"))
    .map(row => row.textContent)"#;

/// Finds names in the first column of tables in which a line ends within a word, but for the malicious one, and those that a
/// colon makes one long word (`memfd:fastpath-`, of a test that runs beside this one) or that no column holds (the hash of a
/// test's program).
const BROKEN: &str = r#"
[...document.querySelectorAll(".scroll tbody th")].flatMap(name => {
    const walker = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
    const broken = [];
    while (walker.nextNode()) {
        const range = document.createRange();
        const text = walker.currentNode;
        const top = at => (range.setStart(text, at), range.setEnd(text, at + 1), range.getBoundingClientRect().top);
        for (let at = 1; at < text.length; at++)
            if (!/[<:]|[a-z0-9]{15}/i.test(text.data) && /^[a-z0-9]{2}$/i.test(text.data.slice(at - 1, at + 1)) && top(at) > top(at - 1) + 2) broken.push(text.data);
    }
    return broken;
})"#;

#[test]
fn the_page_is_readable_on_a_phone_and_in_dark_colours() {
    let chromium = needed!(chromium());
    let made = Made::of_this_host();
    let pages = [
        made.page(&made.write("host.json", &made.data)),
        made.page(&made.write("fleet.json", &made.fleet())),
    ];
    let script = format!(
        "(document.querySelectorAll('details').forEach(details => details.open = true), {{
            wide: document.documentElement.scrollWidth,
            ground: getComputedStyle(document.body).backgroundColor,
            text: Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)),
            added: document.querySelectorAll('img, main script').length,
            named: document.querySelectorAll('#fleet text.label .name').length,
            title: document.title, crossed: {CROSSED}, broken: {BROKEN}, outside: {OUTSIDE}, alarming: {ALARMING}, contrast: {TOO_PALE},
        }})"
    );
    for page in &pages {
        for (width, is_dark) in [(1000, false), (390, false), (375, true), (320, false)] {
            let seen = evaluate(chromium, page, width, is_dark, &script);
            let what = format!("{} at {width}, dark: {is_dark}: {seen:#}", page.display());
            assert!(seen["wide"].as_u64() <= Some(width.into()), "too wide: {what}");
            assert_eq!(seen["ground"] == "rgb(255, 255, 255)", !is_dark, "{what}");
            assert!(seen["text"].as_f64() > Some(9.0), "text that is too small: {what}");
            assert!(seen["contrast"]["seen"].as_u64() > Some(100), "{what}");
            assert_eq!(seen["contrast"]["pale"], json!([]), "{what}");
            for fault in ["crossed", "broken", "outside", "alarming"] {
                assert_eq!(seen[fault], json!([]), "{fault}: {what}");
            }
            assert_eq!(seen["added"], 0, "{what}");
            if page == &pages[1] {
                assert_eq!(
                    (&seen["title"], &seen["named"]),
                    (&"4 hosts: clocks".into(), &4.into()),
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn a_fleet_is_sorted_by_a_click_and_a_host_is_opened_by_its_link() {
    let chromium = needed!(chromium());
    let made = Made::of_this_host();
    let page = made.page(&made.write("fleet.json", &made.fleet()));
    let script = "(() => {
        const hosts = () => [...document.querySelectorAll('tr[data-host]')].map(row => row.dataset.host);
        const column = at => [...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[at].dataset.sort ?? row.cells[at].textContent);
        const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b, 'en', { numeric: true }) : a - b;
        const first = hosts()[0];
        const wrong = [[0, 'ascending'], [0, 'descending'], [2, 'ascending']].filter(([at, sorted]) => {
            const head = document.querySelectorAll('.sortable thead th')[at];
            head.querySelector('button').click();
            const cells = sorted == 'descending' ? column(at).reverse() : column(at);
            return head.ariaSort != sorted || cells.some((cell, row) => row > 0 && order(cells[row - 1], cell) > 0);
        });
        document.querySelector('tr[data-host=web1] a').click();
        addEventListener('hashchange', () => setTimeout(() => {
            const open = [...document.querySelectorAll('details.host[open] summary h3')].map(h => h.textContent);
            document.title = JSON.stringify({ first, wrong, open });
        }));
    })()";
    let seen = evaluate(chromium, &page, 1000, false, script);
    assert_eq!(
        seen["first"], made.data["hosts"][0]["name"],
        "the slow one comes first: {seen}"
    );
    assert_eq!(
        (&seen["wrong"], &seen["open"]),
        (&json!([]), &json!(["web1"])),
        "{seen}"
    );
}

#[test]
fn missing_parts_of_a_measurement_are_listed() {
    let made = Made::of_this_host();
    let host = &made.data["hosts"][0];
    assert_eq!(
        (&made.data["schema"], made.data["hosts"].as_array().map(Vec::len)),
        (&json!(1), Some(1))
    );
    assert_eq!(host["doctor"]["verdict"], "slow");
    let missing = |part: &str| {
        let missing = host["missing"].as_array().expect("a list");
        missing
            .iter()
            .any(|missing| missing["what"] == part && missing["why"] != "")
    };
    for (part, name) in [("doctor", "doctor"), ("trace", "trace")] {
        assert_ne!(host[part].is_null(), !missing(name), "{part}");
    }
    let clocks = host["costs"]["clocks"].as_array().expect("costs");
    assert!(clocks.len() >= 5);
    for clock in clocks {
        for whose in ["now", "fastpath"] {
            let spread = &clock[whose];
            if spread.is_null() {
                let is_coarse = clock["clock"].as_str().is_some_and(|name| name.ends_with("_COARSE"));
                assert!(whose == "fastpath" && (is_coarse || missing("fastpath")), "{clock}");
                continue;
            }
            let buckets = spread["buckets"].as_array().expect("buckets").iter();
            assert_eq!(
                buckets.map(|bucket| bucket["count"].as_u64().unwrap_or(0)).sum::<u64>(),
                1000
            );
            assert!(spread["p50_ns"].as_f64() <= spread["p99_ns"].as_f64(), "{spread}");
        }
    }
    // The written data is read again, unchanged but for the time of writing.
    let file = made.write("again.json", &made.data);
    let mut again = fastpath(&["report", "--json"]);
    again.arg(file);
    let outcome = finish(again).expect_success();
    let mut again: Value = serde_json::from_str(&outcome.out).expect("JSON");
    again["time_unix"] = made.data["time_unix"].clone();
    assert_eq!(again, made.data);
}

#[test]
fn without_permission_to_count_system_calls_the_rest_is_measured() {
    if needs_root().is_none() {
        return;
    }
    let mut command = unprivileged();
    command.arg("--bounding-set=-all");
    let binary = tempfile::tempdir().expect("a directory");
    let copy = install(env!("CARGO_BIN_EXE_fastpath"), binary.path().join("fastpath"), 0o755);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(binary.path(), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    command.arg(&copy).args(["report", "--json"]);
    let outcome = finish(command).expect_success();
    let data: Value = serde_json::from_str(&outcome.out).expect("JSON");
    let host = &data["hosts"][0];
    assert!(host["trace"].is_null() && !host["doctor"].is_null() && !host["costs"].is_null());
    let missing = host["missing"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|missing| missing["what"] == "trace");
    assert!(
        missing.is_some_and(|missing| missing["why"].as_str().is_some_and(|why| why.contains("CAP_BPF"))),
        "{missing:?}"
    );
}

#[test]
fn probes_of_many_hosts_may_come_in_one_stream() {
    let probe = finish(fastpath(&["probe", "--json"])).expect_success().out;
    let directory = tempfile::tempdir().expect("a directory");
    let (file, page) = (directory.path().join("fleet.json"), directory.path().join("fleet.html"));
    std::fs::write(&file, probe.repeat(200)).expect("write");
    let mut make = fastpath(&["report", "-o"]);
    make.arg(&page).arg(&file);
    let outcome = finish(make).expect_success();
    assert!(
        outcome.err.contains("two hosts are called") && outcome.err.lines().count() == 1,
        "{outcome:#?}"
    );
    let text = std::fs::read_to_string(page).expect("the page");
    assert!(
        text.contains("<h1>Clocks of 200 hosts</h1>") && text.contains(" #200</h3>"),
        "{}",
        text.len()
    );
}

#[test]
fn the_error_for_an_unreadable_input_names_file_and_field() {
    let directory = tempfile::tempdir().expect("a directory");
    let probe = finish(fastpath(&["probe", "--json"])).expect_success().out;
    let probe: Value = serde_json::from_str(&probe).expect("JSON");
    let mut wrong = probe.clone();
    wrong["clocks"][2]["path"] = "warp".into();
    let mut huge = probe;
    huge["clocks"][0]["ns"] = 1e300.into();
    for (name, contents, message) in [
        ("not.json", "<html>".to_owned(), "not JSON"),
        ("empty.json", String::new(), "no host"),
        (
            "doctor.json",
            "{\"schema\":1,\"beliefs\":[]}".to_owned(),
            "neither a probe nor a report",
        ),
        ("wrong.json", wrong.to_string(), "clocks[2].path"),
        ("huge.json", huge.to_string(), "clocks[0].ns"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, contents).expect("write");
        let page = directory.path().join("page.html");
        let mut make = fastpath(&["report", "-o"]);
        make.arg(&page).arg(&path);
        let outcome = finish(make).expect_code(66);
        assert!(
            outcome.err.contains(name) && outcome.err.contains(message),
            "{outcome:#?}"
        );
        assert!(outcome.err.lines().count() == 1 && !page.exists(), "{outcome:#?}");
    }
    for path in ["/nonexistent/a.json", "/"] {
        let outcome = finish(fastpath(&["report", path])).expect_code(66);
        assert!(outcome.err.contains(path), "{outcome:#?}");
    }
    let outcome = finish(fastpath(&["report", "/dev/zero"])).expect_code(66);
    assert!(outcome.err.contains("longer than"), "{outcome:#?}");
}

#[test]
fn a_page_that_cannot_be_written_is_exit_status_74_and_an_old_one_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let probe = directory.path().join("probe.json");
    std::fs::write(&probe, finish(fastpath(&["probe", "--json"])).expect_success().out).expect("write");
    let probe = probe.to_str().expect("UTF-8");
    let shown = finish(fastpath(&["report", probe, "-o", "-"])).expect_success().out;
    assert!(
        shown.contains("<html") && shown.trim_end().ends_with("</html>"),
        "{shown}"
    );
    for path in ["/dev/full", "/nonexistent/a.html", "/"] {
        let outcome = finish(fastpath(&["report", probe, "-o", path])).expect_code(74);
        assert!(outcome.err.contains(path), "{outcome:#?}");
        assert_eq!(outcome.err.lines().count(), 1, "{outcome:#?}");
    }
    let mut full = std::process::Command::new("sh");
    full.args([
        "-c",
        "exec \"$0\" report \"$1\" >/dev/full",
        env!("CARGO_BIN_EXE_fastpath"),
        probe,
    ]);
    finish(full).expect_code(74);
    let page = directory.path().join("page.html");
    std::fs::write(&page, "old").expect("write");
    finish(fastpath(&[
        "report",
        "/nonexistent.json",
        "-o",
        page.to_str().expect("UTF-8"),
    ]))
    .expect_code(66);
    assert_eq!(std::fs::read_to_string(&page).expect("the page"), "old");
    finish(fastpath(&["report", probe, "-o", page.to_str().expect("UTF-8")])).expect_success();
    assert!(std::fs::read_to_string(&page).expect("the page").ends_with("</html>"));
    assert_eq!(std::fs::read_dir(&directory).expect("the directory").count(), 2);
}

#[test]
fn invalid_options_are_usage_errors() {
    for words in [
        &["report", "--trace", "x"][..],
        &["report", "--trace", "-1"],
        &["report", "--trace", "3", "a.json"],
        &["report", "-o"],
    ] {
        finish(fastpath(words)).expect_code(2);
    }
    let script = needed!(crate::common::tool("script"));
    let mut terminal = std::process::Command::new(script);
    terminal.args([
        "-qec",
        &format!("{} report", env!("CARGO_BIN_EXE_fastpath")),
        "/dev/null",
    ]);
    let outcome = finish(terminal);
    if outcome.err.contains("pseudo-terminal: No such file") {
        return skip("openpty: No such file or directory (os error 2)");
    }
    let outcome = outcome.expect_code(2);
    if !outcome.out.contains("standard output is a terminal") {
        skip(format_args!("script shows no terminal: {outcome:?}"));
    }
}
