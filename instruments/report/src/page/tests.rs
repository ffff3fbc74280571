use super::*;
use crate::data::Part;
use crate::samples;

fn rendered(hosts: Vec<Host>) -> String {
    page(&FleetReport {
        fastpath: "0.1.0".to_owned(),
        hosts,
    })
}

/// Asserts that every element that is opened is closed, in order. Returns the opening tags with their attributes.
fn elements(page: &str) -> Vec<&str> {
    const VOID: [&str; 3] = ["meta", "wbr", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let mut all = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split(' ').next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !VOID.contains(&name) {
            open.push(name);
            all.push(tag);
            if name == "style" || name == "script" {
                rest = &rest[rest.find("</").expect("an end")..];
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

/// Returns a tag without the values of its attributes.
fn bare(tag: &str) -> String {
    tag.split('"').step_by(2).collect()
}

fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

#[test]
fn the_page_of_a_healthy_host_says_so_first() {
    let page = rendered(vec![samples::healthy("web1")]);
    let all = elements(&page);
    assert!(page.contains("data-verdict=\"healthy\"") && page.contains("MONOTONIC 21.9 ns, by system call 246 ns."));
    assert!(page.find("healthy").unwrap() < page.find("What to do next").unwrap());
    assert!(page.contains("No process reads clocks by system call.") && page.contains("2026-11-21 12:38 UTC"));
    assert_eq!(all.iter().filter(|tag| tag.starts_with("h1")).count(), 1);
}

#[test]
fn a_slow_host_has_its_evidence_its_remedies_and_its_processes() {
    let page = rendered(vec![samples::slow("db1")]);
    elements(&page);
    let page = page.replace('\'', "&#39;");
    for text in [
        "data-verdict=\"slow\"",
        "<code>fastpath run <span class=\"option\">--trust-counter</span> <span class=\"option\">--</span> PROGRAM</code>",
        "until reboot",
        "Marking clocksource &#39;tsc&#39; as unstable",
        "postgres",
        "Lost for lack of room: 3 calls",
        "40.7×",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn every_chart_has_a_name_a_description_and_a_table() {
    let page = rendered(vec![samples::slow("db1")]);
    let all = elements(&page);
    let charts: Vec<_> = all.iter().filter(|tag| tag.contains("role=\"img\"")).collect();
    assert_eq!(charts.len(), 3, "{charts:?}");
    for chart in charts {
        let id = chart.split("id=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(chart.contains(&format!("aria-labelledby=\"{id}-t {id}-d\"")), "{chart}");
        for part in ["t", "d"] {
            assert!(page.contains(&format!(" id=\"{id}-{part}\">")));
        }
    }
    for table in page.split("<table").skip(1) {
        let table = table.split("</table>").next().unwrap();
        assert!(table.contains("<caption>") && table.contains("scope=\"col\"") && table.contains("scope=\"row\""));
    }
}

#[test]
fn identifiers_are_unique_and_links_have_targets() {
    let page = rendered((0..20).map(|n| samples::slow(&format!("db{n}"))).collect());
    let ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
    for target in page.split("href=\"#").skip(1) {
        let target = target.split('"').next().unwrap();
        assert!(ids.contains(&target), "{target}");
    }
}

#[test]
fn missing_parts_are_listed_with_their_reasons() {
    let page = rendered(vec![samples::partial("db1")]);
    elements(&page);
    assert!(page.contains("Not measured: only root may count the system calls of all processes."));
    assert!(page.contains("Not measured: the counter cannot be trusted."));
    assert!(page.contains("is not allowed"));
    let page = rendered(vec![samples::only_probed("web1")]);
    elements(&page);
    assert_eq!(count(&page, "the file contains only a probe"), 3);
    assert!(!page.contains("role=\"img\""));
}

/// Breaks out of text, attributes, style and script, and reverses the direction of a line.
const HOSTILE: &str =
    "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&lt;</style></title>\u{202e}\u{1b}[31m`";

#[test]
fn names_from_outside_stay_names() {
    let mut host = samples::slow(HOSTILE);
    host.file = Some(HOSTILE.to_owned());
    let facts = &mut host.probe.host;
    facts.kernel = HOSTILE.to_owned();
    facts.cpu = Some(HOSTILE.to_owned());
    facts.clocksource = Some(HOSTILE.to_owned());
    facts.counter = Some(HOSTILE.to_owned());
    host.probe.isa = HOSTILE.to_owned();
    host.probe.clocks[0].clock = HOSTILE.to_owned();
    host.probe.clocks[0].why = Some(HOSTILE.to_owned());
    host.costs.as_mut().unwrap().clocks[0].clock = HOSTILE.to_owned();
    host.probe.functions[0].function = HOSTILE.to_owned();
    host.probe.vsyscall.as_mut().unwrap().mode = HOSTILE.to_owned();
    let doctor = host.doctor.as_mut().unwrap();
    doctor.summary = HOSTILE.to_owned();
    doctor.findings[0].says = HOSTILE.to_owned();
    doctor.findings[0].proofs[0].shows = HOSTILE.to_owned();
    doctor.findings[0].because[0].proof.as_mut().unwrap().shows = HOSTILE.to_owned();
    doctor.remedies[0].does = HOSTILE.to_owned();
    doctor.evidence[0].section = HOSTILE.into();
    doctor.evidence[0].shows = HOSTILE.to_owned();
    let row = &mut host.trace.as_mut().unwrap().rows[0];
    row.comm = HOSTILE.to_owned();
    row.program = Some(HOSTILE.to_owned());
    row.clock = Some(HOSTILE.to_owned());
    row.says = HOSTILE.to_owned();
    host.missing.push(crate::data::Missing {
        what: Part::Trace,
        why: HOSTILE.to_owned(),
    });
    for hosts in [vec![host.clone()], vec![host.clone(), host]] {
        let page = rendered(hosts);
        let all = elements(&page);
        assert_eq!(all.iter().filter(|tag| tag.starts_with("script")).count(), 1);
        assert!(
            !all.iter()
                .any(|tag| tag.starts_with("img") || bare(tag).contains("onerror"))
        );
        assert!(!page.contains(['\u{202e}', '\u{1b}']));
        assert!(count(&page, "&lt;script&gt;alert(1)&lt;/script&gt;") > 10);
    }
}

#[test]
fn the_page_may_load_nothing_and_run_only_its_own_script() {
    let page = rendered(vec![samples::healthy("web1")]);
    let policy = page.split("Content-Security-Policy\" content=\"").nth(1).unwrap();
    let policy = policy.split('"').next().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    // A policy cannot allow attributes with style; nor may the page name anything that could be loaded.
    for tag in elements(&page) {
        assert!(
            !tag.contains(" style=") && !tag.contains(" src=") && !tag.contains("http://"),
            "{tag}"
        );
        assert!(!tag.contains(" href=") || tag.contains(" href=\"#"), "{tag}");
    }
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
}

#[test]
fn a_fleet_shows_its_slow_hosts_first_and_all_of_each() {
    let mut hosts: Vec<Host> = (0..197).map(|n| samples::only_probed(&format!("web{n:03}"))).collect();
    hosts.insert(50, samples::slow("db1"));
    hosts.insert(150, samples::slow("db2"));
    hosts.push(samples::healthy("web001"));
    let page = rendered(hosts);
    elements(&page);
    assert!(page.contains("2 of 200 hosts have slow clocks."));
    let rows: Vec<&str> = page
        .split("data-host=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert_eq!((rows.len(), rows[0], rows[1]), (200, "db1", "db2"));
    assert_eq!(count(&page, "<details class=\"host\""), 200);
    // Both are there and have different labels.
    assert_eq!(rows.iter().filter(|row| row.starts_with("web001")).count(), 2);
    assert!(page.contains("href=\"#h50-host\"") && page.contains("id=\"h50-host\""));
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
}

#[test]
fn figures_carry_their_path_in_the_data() {
    let report = FleetReport {
        fastpath: "0.1.0".to_owned(),
        hosts: vec![samples::healthy("a"), samples::slow("b"), samples::partial("c")],
    };
    let data = serde_json::to_value(&report).unwrap();
    let page = page(&report);
    let figures: Vec<(f64, &str)> = page
        .split("<data value=\"")
        .skip(1)
        .map(|rest| {
            let mut parts = rest.split('"');
            (parts.next().unwrap().parse().unwrap(), parts.nth(1).unwrap())
        })
        .collect();
    assert!(figures.len() > 150);
    for (value, at) in figures {
        assert_eq!(data.pointer(at).and_then(|value| value.as_f64()), Some(value), "{at}");
    }
}
