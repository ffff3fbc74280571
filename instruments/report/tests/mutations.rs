//! Any file of another host's figures becomes a page or an error message.

#[path = "../../../fuzz/mutations.rs"]
mod mutations;

use std::time::Duration;

use fastpath_measure::guard::Baseline;
use fastpath_report::data::FleetReport;

#[test]
fn whatever_the_bytes_they_are_judged_as_evidence_or_refused_with_a_sentence() {
    let seeds = mutations::corpus("evidence");
    let (mut judged, mut refused) = (0, 0);
    mutations::feed(
        &seeds,
        Duration::from_secs(5),
        5,
        |bytes| match fastpath_report::examined(&String::from_utf8_lossy(bytes), "a.json") {
            Ok(report) => {
                judged += 1;
                assert!(!report.summary.is_empty());
            }
            Err(why) => {
                refused += 1;
                assert!(why.starts_with("a.json: "), "{why}");
            }
        },
    );
    assert!(refused > 0, "{judged} judged");
}

#[test]
fn whatever_the_bytes_they_are_hosts_of_a_page_or_refused_with_a_sentence() {
    let seeds = mutations::corpus("report");
    let (mut pages, mut refused) = (0, 0);
    mutations::feed(&seeds, Duration::from_secs(5), 5, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = serde_json::from_str::<Baseline>(&text);
        match fastpath_report::read(&text, "a.json", "a") {
            Ok(hosts) => {
                pages += 1;
                let report = FleetReport {
                    fastpath: String::new(),
                    hosts,
                };
                assert!(fastpath_report::page(&report).ends_with("</html>"));
            }
            Err(why) => {
                refused += 1;
                assert!(!why.is_empty());
            }
        }
    });
    assert!(pages > 0 && refused > 0, "{pages} pages, {refused} refused");
}
