//! Families of metrics, and the two texts in which Prometheus reads them.
//!
//! No crate writes both (`prometheus-client` writes OpenMetrics, `prometheus` the older text), and both are needed:
//! node_exporter reads only the older one. OpenMetrics differs from it in the place of a counter's `_total`, in infos,
//! units and the end.

use std::fmt::Write;

/// Text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's own, 0.0.4.
    Prometheus,
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the format that a client's `Accept` asks for: OpenMetrics if it is named and not refused.
    pub fn accepted(accept: &str) -> Format {
        let is_wanted = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next() == Some("application/openmetrics-text");
            let refused = parts.any(|part| {
                part.strip_prefix("q=")
                    .and_then(|q| q.parse::<f32>().ok())
                    .is_some_and(|q| q <= 0.0)
            });
            named && !refused
        };
        if accept.split(',').any(is_wanted) {
            Format::OpenMetrics
        } else {
            Format::Prometheus
        }
    }
}

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gauge,
    /// Its name is without `_total`.
    Counter,
    /// Its name is without `_info`.
    Info,
    Histogram,
}

/// Metrics of one name.
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    lines: String,
}

impl Family {
    fn new(name: &'static str, kind: Kind, help: &'static str) -> Family {
        let lines = String::new();
        Family {
            name,
            help,
            kind,
            lines,
        }
    }

    pub fn gauge(name: &'static str, help: &'static str) -> Family {
        Family::new(name, Kind::Gauge, help)
    }

    pub fn counter(name: &'static str, help: &'static str) -> Family {
        Family::new(name, Kind::Counter, help)
    }

    pub fn info(name: &'static str, help: &'static str) -> Family {
        Family::new(name, Kind::Info, help)
    }

    pub fn histogram(name: &'static str, help: &'static str) -> Family {
        Family::new(name, Kind::Histogram, help)
    }

    /// Returns it with its only value, if that is known.
    pub fn with(mut self, value: impl Into<Option<f64>>) -> Family {
        if let Some(value) = value.into() {
            self.add(&[], value);
        }
        self
    }

    /// Adds a value with these labels.
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.line(suffix, labels, value);
    }

    /// Adds a histogram with these labels: bounds, each with the number of values at or below it; sum and number of
    /// all.
    pub fn add_histogram(&mut self, labels: &[(&str, &str)], buckets: &[(f64, u64)], sum: f64, count: u64) {
        for (bound, below) in buckets {
            let bound = bound.to_string();
            self.line("_bucket", &[labels, &[("le", &bound)]].concat(), *below as f64);
        }
        self.line("_bucket", &[labels, &[("le", "+Inf")]].concat(), count as f64);
        self.line("_sum", labels, sum);
        self.line("_count", labels, count as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.lines, "{}{suffix}{labels} {value}", self.name);
    }

    fn text(&self, format: Format, text: &mut String) {
        if self.lines.is_empty() {
            return;
        }
        let (suffix, kind) = match (self.kind, format) {
            (Kind::Gauge, _) => ("", "gauge"),
            (Kind::Histogram, _) => ("", "histogram"),
            (Kind::Counter, Format::OpenMetrics) => ("", "counter"),
            (Kind::Counter, Format::Prometheus) => ("_total", "counter"),
            (Kind::Info, Format::OpenMetrics) => ("", "info"),
            (Kind::Info, Format::Prometheus) => ("_info", "gauge"),
        };
        let name = self.name;
        let _ = writeln!(text, "# HELP {name}{suffix} {}", escaped(self.help));
        let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        if format == Format::OpenMetrics && name.ends_with("_seconds") {
            let _ = writeln!(text, "# UNIT {name} seconds");
        }
        text.push_str(&self.lines);
    }
}

/// Returns the whole text.
pub fn text(families: &[Family], format: Format) -> String {
    let mut text = String::new();
    families.iter().for_each(|family| family.text(format, &mut text));
    if format == Format::OpenMetrics {
        text += "# EOF\n";
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let mut info = Family::info("a_build", "Which.");
        info.add(&[("version", "1\"\\\n")], 1.0);
        let mut histogram = Family::histogram("a_seconds", "Costs.");
        histogram.add_histogram(&[("clock", "TAI")], &[(2e-8, 1), (5e-8, 3)], 1.5e-7, 4);
        vec![
            Family::counter("a_looks", "Looks.").with(3.0),
            info,
            histogram,
            Family::gauge("none", "Never seen."),
        ]
    }

    #[test]
    fn both_formats_have_the_same_values() {
        let old = text(&families(), Format::Prometheus);
        let new = text(&families(), Format::OpenMetrics);
        for line in [
            "a_looks_total 3",
            "a_build_info{version=\"1\\\"\\\\\\n\"} 1",
            "a_seconds_bucket{clock=\"TAI\",le=\"0.00000002\"} 1",
            "a_seconds_bucket{clock=\"TAI\",le=\"+Inf\"} 4",
            "a_seconds_count{clock=\"TAI\"} 4",
        ] {
            assert!(old.contains(line) && new.contains(line), "{line}: {old}{new}");
        }
        assert!(old.contains("# TYPE a_looks_total counter") && old.contains("# TYPE a_build_info gauge"));
        assert!(new.contains("# TYPE a_looks counter") && new.contains("# TYPE a_build info"));
        assert!(new.contains("# UNIT a_seconds seconds") && new.ends_with("# EOF\n"));
        assert!(!old.contains("EOF") && !old.contains("UNIT") && !old.contains("none"));
    }

    #[test]
    fn openmetrics_is_sent_if_the_client_accepts_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for accept in ["", "*/*", "text/plain", "application/openmetrics-text;q=0"] {
            assert_eq!(Format::accepted(accept), Format::Prometheus, "{accept}");
        }
    }
}
