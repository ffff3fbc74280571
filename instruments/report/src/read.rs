//! Reads the output of `probe --json`, `report --json` and `doctor --evidence` from other hosts.

use crate::data::{FleetReport, Host, Probe, SCHEMA};
use fastpath_doctor::{DoctorReport, Facts};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns the hosts in a text that contains one or several JSON values in a row. `file` is the text's name, `stem` the
/// name of a host whose probe does not contain one. An error names the value and the field.
pub fn read(text: &str, file: &str, stem: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (index, value) in serde_json::Deserializer::from_str(text).into_iter().enumerate() {
        let place = if index == 0 {
            String::new()
        } else {
            format!("value {}: ", index + 1)
        };
        let value: Value = value.map_err(|error| format!("{file}: {place}not JSON: {error}"))?;
        hosts.extend(hosts_of(value, stem).map_err(|why| format!("{file}: {place}{why}"))?);
    }
    if hosts.is_empty() {
        return Err(format!("{file}: there is no host in it; {WANTED}"));
    }
    hosts.iter_mut().for_each(|host| host.file = Some(file.to_owned()));
    Ok(hosts)
}

const WANTED: &str = "expected the output of `fastpath probe --json` or `fastpath report --json`";

/// Refuses a value of another schema.
fn check_schema(value: &Value) -> Result<(), String> {
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema != u64::from(SCHEMA) => Err(format!(
            "schema {schema}: another fastpath wrote this; this one reads schema {SCHEMA}"
        )),
        _ => Ok(()),
    }
}

/// Judges the facts in the output of `doctor --evidence` or `doctor --json` anew. An error names the field.
pub fn examined(text: &str, file: &str) -> Result<DoctorReport, String> {
    const WANTED: &str = "expected the output of `fastpath doctor --evidence` or `fastpath doctor --json`";
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{file}: not JSON: {error}; {WANTED}"))?;
    let facts = || {
        check_schema(&value)?;
        let machine = value["facts"]["kernel"]["machine"].as_str();
        let machine = machine.ok_or_else(|| format!("no facts are in it; {WANTED}"))?;
        match machine == std::env::consts::ARCH {
            true => parse::<Facts>(value["facts"].clone()),
            false => Err(format!(
                "the facts are those of another kind of machine ({machine}): replay them with fastpath for that one"
            )),
        }
    };
    let facts = facts().map_err(|why| format!("{file}: {}", fastpath_os::printable(&why)))?;
    // What could not be seen matters to no verdict.
    let unseen = serde_json::from_value(value["unseen"].clone()).unwrap_or_default();
    Ok(DoctorReport::from_facts(facts, unseen))
}

fn hosts_of(value: Value, stem: &str) -> Result<Vec<Host>, String> {
    check_schema(&value)?;
    if value.get("hosts").is_some() {
        return Ok(parse::<FleetReport>(value)?.hosts);
    }
    // Doctor's JSON has neither; a trace has rows. They contain no paths, or not all.
    if value.get("clocks").is_none() && value.get("host").is_none() {
        return Err(format!("neither a probe nor a report; {WANTED}"));
    }
    let measured_unix = value.get("time_unix").and_then(Value::as_u64);
    let probe = parse::<Probe>(value)?;
    Ok(vec![Host {
        name: probe.host.name.clone().unwrap_or_else(|| stem.to_owned()),
        file: None,
        measured_unix,
        probe,
        costs: None,
        doctor: None,
        trace: None,
        missing: Vec::new(),
    }])
}

/// Parses a part of a page from the JSON of the command with its name. An error names the field.
pub fn parse<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let what = error.into_inner();
        if path == "." {
            what.to_string()
        } else {
            format!("{path}: {what}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn probe() -> Value {
        serde_json::to_value(samples::healthy("web1").probe).unwrap()
    }

    fn refused(value: &Value) -> String {
        read(&value.to_string(), "a.json", "a").unwrap_err()
    }

    #[test]
    fn a_probe_is_a_host_by_its_own_name_or_the_files() {
        let mut value = probe();
        assert_eq!(read(&value.to_string(), "x/a.json", "a").unwrap()[0].name, "web1");
        value["host"].as_object_mut().unwrap().remove("name");
        let hosts = read(&value.to_string(), "x/a.json", "a").unwrap();
        assert_eq!(
            (hosts[0].name.as_str(), hosts[0].file.as_deref()),
            ("a", Some("x/a.json"))
        );
    }

    #[test]
    fn written_data_is_read_again() {
        let report = FleetReport {
            fastpath: "0.1.0".to_owned(),
            hosts: vec![samples::healthy("a"), samples::slow("b")],
        };
        let text = serde_json::to_string(&report).unwrap();
        let hosts = read(&text, "a.json", "a").unwrap();
        let again = FleetReport { hosts, ..report };
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }

    #[test]
    fn a_file_of_an_older_version_is_read_and_unknown_fields_are_left_out() {
        let report = FleetReport {
            fastpath: "0.1.0".to_owned(),
            hosts: vec![samples::slow("a")],
        };
        let mut value = serde_json::to_value(&report).unwrap();
        let doctor = &mut value["hosts"][0]["doctor"];
        doctor["findings"][0]["a field of a newer version"] = 1.into();
        // Reports of older versions have no ids.
        for part in ["findings", "remedies"] {
            doctor[part][0].as_object_mut().unwrap().remove("id").expect("an id");
        }
        assert_eq!(read(&value.to_string(), "a.json", "a").unwrap().len(), 1);
        value["hosts"][0]["doctor"]["findings"][0]["severity"] = "odd".into();
        let why = refused(&value);
        assert!(why.contains("hosts[0].doctor.findings[0].severity: "), "{why}");
    }

    #[test]
    fn one_file_may_hold_many_hosts() {
        let text = format!("{}\n{}\n", probe(), probe());
        assert_eq!(read(&text, "fleet.json", "fleet").unwrap().len(), 2);
        let error = read(&format!("{}\n{{}}\n", probe()), "fleet.json", "fleet").unwrap_err();
        assert!(error.contains("fleet.json: value 2: "), "{error}");
    }

    #[test]
    fn an_error_names_the_file_and_the_field() {
        let mut value = probe();
        value["clocks"][1]["path"] = "warp".into();
        let error = refused(&value);
        assert!(
            error.contains("a.json: clocks[1].path: ") && error.contains("`warp`"),
            "{error}"
        );
        value["clocks"][1]["path"] = "vdso".into();
        value["clocks"][1]["ns"] = (-3.5).into();
        assert!(refused(&value).contains("clocks[1].ns: -3.5 nanoseconds"));
        value["clocks"][1]["ns"] = "fast".into();
        assert!(refused(&value).contains("clocks[1].ns: invalid type"));
        let mut value = probe();
        value.as_object_mut().unwrap().remove("host");
        assert!(refused(&value).contains("missing field `host`"));
    }

    #[test]
    fn other_data_is_reported_as_such() {
        for text in ["{}", "[]", "3", "{\"rows\": [], \"calls\": 0}"] {
            let error = read(text, "a.json", "a").unwrap_err();
            assert!(error.contains("neither a probe nor a report"), "{text}: {error}");
        }
        assert!(read("", "a.json", "a").unwrap_err().contains("no host in it"));
        assert!(read("{", "a.json", "a").unwrap_err().contains("not JSON"));
        assert!(
            read(&"[".repeat(100_000), "a.json", "a")
                .unwrap_err()
                .contains("not JSON")
        );
        let newer = read("{\"schema\": 2, \"hosts\": []}", "a.json", "a").unwrap_err();
        assert!(newer.contains("schema 2"), "{newer}");
    }
}
