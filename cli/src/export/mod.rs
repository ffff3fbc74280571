//! `fastpath export`: reports to Prometheus which path every clock takes, and what it costs.

mod look;
mod metrics;
mod pages;
mod server;

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::args;
use crate::exit;
use crate::file;
use crate::output::note;

use look::Looks;
use metrics::{Family, Format};
use server::{Answer, Request};

/// Runs the command; returns its exit status.
pub fn run(options: &args::Export) -> i32 {
    let (outcome, failed) = match &options.textfile {
        Some(path) => {
            let text = metrics::text(&Looks::new().look(), Format::Prometheus);
            let written = file::replace(path, &text).map_err(|error| format!("{}: {error}", path.display()));
            (written, exit::NOT_WRITTEN)
        }
        None => (serve(options), exit::CANNOT_TELL),
    };
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            note(format_args!("export: {why}"));
            failed
        }
    }
}

/// The accumulated looks, and the time and the data of the last one.
struct State {
    looks: Looks,
    last: Option<(Instant, Vec<Family>)>,
}

impl State {
    fn text(&mut self, format: Format, at_least: Duration) -> String {
        if self.last.as_ref().is_none_or(|(when, _)| when.elapsed() >= at_least) {
            self.last = Some((Instant::now(), self.looks.look()));
        }
        self.last
            .as_ref()
            .map(|(_, families)| metrics::text(families, format))
            .unwrap_or_default()
    }
}

fn serve(options: &args::Export) -> Result<(), String> {
    // Before any thread is started, so that threads inherit the blocked signals.
    let ended = ended_by_signal().map_err(|error| format!("signals cannot be waited for: {error}"))?;
    let address = options.listen;
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: another exporter may be running; --listen takes another port")
        }
        io::ErrorKind::PermissionDenied => format!("{address}: {error}; ports below 1024 need CAP_NET_BIND_SERVICE"),
        _ => format!("{address} cannot be listened on: {error}"),
    })?;
    let address = listener.local_addr().unwrap_or(address);
    note(format_args!("export: http://{address}/metrics"));
    let at_least = Duration::from_secs(options.at_least);
    let state = Mutex::new(State {
        looks: Looks::new(),
        last: None,
    });
    let answer = move |request: &Request| answer(&state, at_least, request);
    server::serve(&listener, ended, Arc::new(answer)).map_err(|error| format!("{address}: {error}"))
}

fn answer(state: &Mutex<State>, at_least: Duration, request: &Request) -> Answer {
    let plain = |status, body: &str| Answer {
        status,
        content_type: "text/plain; charset=utf-8",
        body: body.to_owned(),
    };
    match request.path.as_str() {
        "/metrics" => {
            let format = Format::accepted(&request.accept);
            // One look serves all clients that wait for it.
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            Answer {
                status: "200 OK",
                content_type: format.content_type(),
                body: state.text(format, at_least),
            }
        }
        "/" => plain("200 OK", "fastpath export: the metrics are at /metrics\n"),
        "/-/healthy" => plain("200 OK", "healthy\n"),
        _ => plain("404 Not Found", "the metrics are at /metrics\n"),
    }
}

/// Returns a descriptor that becomes readable when a signal asks this process to end.
fn ended_by_signal() -> io::Result<OwnedFd> {
    // SAFETY: all-zero bytes are a valid signal set; the calls write it, block it in this thread, and return a new
    // descriptor.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // A client that disconnects before the answer is written must not end this process.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
