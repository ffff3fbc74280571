//! `fastpath export` serves correct metrics, also to slow and broken clients.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use crate::common::processes::TIMEOUT;
use crate::common::{Running, fastpath, finish, served_without_vdso, start, wait_until};

const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

struct Exporter {
    running: Running,
    address: SocketAddr,
}

impl Exporter {
    /// Starts an exporter that probes at every scrape, by `fastpath BEFORE`.
    fn start(before: &[&str]) -> Exporter {
        let export = ["export", "--listen", "127.0.0.1:0", "--at-least", "0"];
        let program = [env!("CARGO_BIN_EXE_fastpath")];
        let words = if before.is_empty() {
            export.to_vec()
        } else {
            [before, &program, &export].concat()
        };
        let running = start(fastpath(&words));
        let mut address = None;
        wait_until("the exporter's address", || {
            let said = running.err_so_far();
            let rest = said.split_once("export: http://");
            address = rest.and_then(|(_, rest)| rest.split_once("/metrics\n")?.0.parse().ok());
            address.is_some()
        });
        Exporter {
            running,
            address: address.expect("an address"),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connect");
        stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        stream
    }

    /// Returns the answer to these bytes.
    fn answer(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        answer
    }

    fn end(self) {
        self.running.pid().signal(libc::SIGTERM);
        self.running.finish().expect_success();
    }
}

/// Returns the value of a metric with this name and these labels.
#[track_caller]
fn value(text: &str, metric: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    let value = line.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("{metric}: {text}"))
}

#[test]
fn clients_get_the_text_that_they_accept_and_sigterm_ends_it() {
    let exporter = Exporter::start(&[]);
    let plain = exporter.answer(METRICS);
    assert!(
        plain.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{plain}"
    );
    assert!(
        plain.contains("# TYPE fastpath_clock_gettime_path_seconds histogram"),
        "{plain}"
    );
    let accept = METRICS.replace(
        "Host: x",
        "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1",
    );
    let open = exporter.answer(&accept);
    assert!(
        open.contains("Content-Type: application/openmetrics-text") && open.ends_with("# EOF\n"),
        "{open}"
    );
    exporter.end();
}

#[test]
fn a_lost_path_and_a_restored_one_are_exported() {
    let lost = Exporter::start(&["run", "--without-vdso", "--"]);
    let text = lost.answer(METRICS);
    assert_eq!(
        value(&text, "fastpath_clock_path{clock=\"MONOTONIC\",path=\"syscall\"}"),
        1.0
    );
    assert_eq!(value(&text, "fastpath_clock_slow{clock=\"MONOTONIC\"}"), 1.0);
    lost.end();
    let back = Exporter::start(&["run", "--without-vdso", "--clocks", "all", "--require", "--"]);
    let mut text = String::new();
    // If the publisher gets no CPU for longer than an anchor lasts, the kernel answers.
    wait_until("fastpath's path", || {
        text = back.answer(METRICS);
        value(&text, "fastpath_clock_path{clock=\"MONOTONIC\",path=\"fastpath\"}") == 1.0
    });
    assert!(value(&text, "fastpath_served_processes{state=\"serving\"}") >= 1.0);
    assert!(value(&text, "fastpath_unserved_requests{reason=\"late\"}") >= 0.0);
    assert!(value(&text, "fastpath_publisher_pages{state=\"serving\"}") >= 1.0);
    back.end();
}

/// Returns the names of all metrics, with their labels.
fn series(text: &str) -> BTreeSet<&str> {
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').expect("a value").0).collect()
}

#[test]
fn more_pages_make_no_more_series_and_every_metric_has_the_prefix() {
    let exporter = Exporter::start(&[]);
    let run = || {
        let running = start(served_without_vdso(&["sh", "-c", "echo served; exec sleep 1000"]));
        wait_until("the program", || running.out_so_far().contains("served"));
        running
    };
    let pages = |text: &str| value(text, "fastpath_publisher_pages{state=\"serving\"}");
    let mut programs = vec![run()];
    let mut few = String::new();
    wait_until("a page", || {
        few = exporter.answer(METRICS);
        pages(&few) >= 1.0
    });
    programs.extend((0..4).map(|_| run()));
    let mut many = String::new();
    wait_until("five pages", || {
        many = exporter.answer(METRICS);
        pages(&many) >= 5.0
    });
    assert_eq!(series(&few), series(&many));
    assert!(series(&many).iter().all(|name| name.starts_with("fastpath_")), "{many}");
    exporter.end();
}

#[test]
fn costs_are_counted_in_buckets_that_grow_with_every_look() {
    let exporter = Exporter::start(&[]);
    let count = || {
        value(
            &exporter.answer(METRICS),
            "fastpath_clock_gettime_path_seconds_count{clock=\"TAI\"}",
        )
    };
    let first = count();
    assert!(first > 0.0 && count() == 2.0 * first);
    exporter.end();
}

#[test]
fn silent_clients_do_not_delay_others() {
    let exporter = Exporter::start(&[]);
    let mut slow: Vec<TcpStream> = (0..100).map(|_| exporter.connect()).collect();
    slow.iter_mut().for_each(|stream| {
        let _ = stream.write_all(b"GET /met");
    });
    assert!(
        exporter
            .answer(METRICS)
            .contains("fastpath_clock_gettime_path_seconds_sum")
    );
    // The exporter closes their connections, too.
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    exporter.end();
}

#[test]
fn an_invalid_request_gets_an_error_and_affects_no_other_client() {
    let exporter = Exporter::start(&[]);
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
        ("\u{1}\u{2}\r\n\r\n", "400"),
        (&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(8192)), "431"),
        (&format!("GET / HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(100)), "431"),
        ("GET / HTTP/1.1\r\n\r\n", "200"),
        ("GET /-/healthy HTTP/1.1\r\n\r\n", "200"),
    ] {
        let answer = exporter.answer(request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:.40}: {answer}"
        );
    }
    for _ in 0..20 {
        // Sends a request, and disconnects without waiting for the answer.
        let _ = exporter.connect().write_all(METRICS.as_bytes());
    }
    assert!(exporter.answer(METRICS).starts_with("HTTP/1.1 200"));
    exporter.end();
}

#[test]
fn a_scrape_a_minute_costs_less_than_a_thousandth_of_a_cpu() {
    let exporter = Exporter::start(&[]);
    let spent = || value(&exporter.answer(METRICS), "fastpath_export_cpu_seconds_total");
    let mut before = spent();
    let looks = (0..5).map(|_| {
        let now = spent();
        let look = now - before;
        before = now;
        look
    });
    let cheapest = looks.fold(f64::INFINITY, f64::min);
    assert!(cheapest < 0.060, "{cheapest} s of CPU time for a look");
    exporter.end();
}

#[test]
fn an_address_in_use_is_reported_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let outcome = finish(fastpath(&["export", "--listen", &address])).expect_code(69);
    assert!(
        outcome.err.contains(&address) && outcome.err.contains("in use"),
        "{outcome:#?}"
    );
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:#?}");
    let outcome = finish(fastpath(&["export", "--listen", "203.0.113.1:9812"])).expect_code(69);
    assert!(outcome.err.contains("203.0.113.1:9812"), "{outcome:#?}");
    for address in ["9812", "localhost", "127.0.0.1:99999"] {
        finish(fastpath(&["export", "--listen", address])).expect_code(2);
    }
}

#[test]
fn a_textfile_is_replaced_whole_and_readable_for_node_exporter() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("fastpath.prom");
    let path = file.to_str().expect("UTF-8");
    std::fs::write(&file, "old").expect("write");
    finish(fastpath(&["export", "--textfile", path]))
        .expect_success()
        .expect_output("");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(value(&text, "fastpath_export_looks_total") == 1.0 && !text.contains("# EOF"));
    assert_ne!(
        std::fs::metadata(&file).expect("the file").permissions().mode() & 0o044,
        0
    );
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory").count(), 1);
    let outcome = finish(fastpath(&["export", "--textfile", "/nonexistent/x.prom"])).expect_code(74);
    assert!(outcome.err.contains("/nonexistent/x.prom"), "{outcome:#?}");
}
