//! SARIF 2.1.0, for code scanning. Files are the artifacts; calls in a file's code are located by their addresses.

use serde_json::{Value, json};

use crate::audit::report::{AuditFinding, AuditReport};
use crate::audit::rules::{AuditRule, Level};

/// Returns the report as SARIF.
pub fn sarif(report: &AuditReport, version: &str) -> Value {
    let rules: Vec<Value> = AuditRule::ALL
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id(),
                "shortDescription": { "text": rule.says() },
                "help": { "text": rule.help() },
                "defaultConfiguration": { "level": rule.level().name() },
            })
        })
        .collect();
    let unjudged: Vec<Value> = report
        .unjudged
        .iter()
        .chain(&report.missing)
        .map(|unjudged| {
            json!({
                "level": "note",
                "message": { "text": format!("{}: {}", unjudged.path, unjudged.why) },
                "locations": [{ "physicalLocation": { "artifactLocation": { "uri": uri(&unjudged.path) } } }],
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "fastpath audit", "semanticVersion": version, "rules": rules } },
            "invocations": [{
                "executionSuccessful": report.missing.is_empty(),
                "toolExecutionNotifications": unjudged,
            }],
            "results": report.findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn result(finding: &AuditFinding) -> Value {
    let level = match finding.level {
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let artifact = json!({ "uri": uri(&finding.path) });
    let locations: Vec<Value> = if finding.sites.is_empty() {
        vec![json!({ "physicalLocation": { "artifactLocation": artifact } })]
    } else {
        // SARIF permits an address without a region.
        finding
            .sites
            .iter()
            .map(|site| {
                json!({ "physicalLocation": {
                    "artifactLocation": artifact,
                    "address": { "absoluteAddress": site.address, "kind": "instruction" },
                } })
            })
            .collect()
    };
    let index = AuditRule::ALL.iter().position(|rule| *rule == finding.rule);
    json!({
        "ruleId": finding.rule.id(),
        "ruleIndex": index,
        "level": level,
        "message": { "text": message(finding) },
        "locations": locations,
        "partialFingerprints": { "file/v1": format!("{}:{}", finding.rule.id(), finding.path) },
    })
}

fn message(finding: &AuditFinding) -> String {
    let family = finding.names_family().map_or_else(String::new, |says| says + " ");
    format!("{}. {family}To fix it: {}.", finding.says, finding.help)
}

/// Returns the URI of a path: everything but unreserved characters and slashes is escaped (RFC 3986).
fn uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri += "file://";
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b'!' => uri.push(byte as char),
            _ => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uris() {
        assert_eq!(uri("/a b/%ü"), "file:///a%20b/%25%C3%BC");
        assert_eq!(uri("bin/x"), "bin/x");
    }
}
