//! The part of HTTP that Prometheus uses, with a time limit for each client.
//!
//! One thread for each connection, and few of them: when all are in use, a new connection ends the oldest, so slow
//! clients only delay each other. A thread has a deadline for all its work.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Limit of connections: a few Prometheus servers, and a user.
const CONNECTIONS: usize = 16;
/// Time for a client to send its request, and again to receive the answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Size limit of a request line and headers. Prometheus's have some 300 bytes.
const HEAD_BYTES: usize = 8192;
const HEADERS: usize = 64;

/// An answer.
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: String,
}

/// A request: path without query, and the `Accept` header.
pub struct Request {
    pub path: String,
    pub accept: String,
}

type Answers = dyn Fn(&Request) -> Answer + Send + Sync;

/// Serves until `until` (a descriptor) becomes readable.
pub fn serve(listener: &TcpListener, until: impl AsRawFd, answer: Arc<Answers>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let open: Arc<Mutex<VecDeque<(u64, TcpStream)>>> = Arc::default();
    let mut number = 0;
    loop {
        let poll = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [poll(listener.as_raw_fd()), poll(until.as_raw_fd())];
        // SAFETY: the array has two pollfds, and the count is 2.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[1].revents != 0 {
            return Ok(());
        }
        let Ok((stream, _)) = listener.accept() else {
            if fds[0].revents != 0 {
                // For example, out of descriptors: the connection stays in the queue, and the listener readable.
                std::thread::sleep(Duration::from_millis(10));
            }
            continue;
        };
        let Ok(handle) = stream.try_clone() else { continue };
        number += 1;
        let mine = number;
        let mut streams = open.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= CONNECTIONS
            && let Some((_, oldest)) = streams.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        streams.push_back((mine, handle));
        drop(streams);
        let (open, answer) = (open.clone(), answer.clone());
        let attend = move || {
            let _ = talk(stream, &*answer);
            let mut streams = open.lock().unwrap_or_else(PoisonError::into_inner);
            streams.retain(|(number, _)| *number != mine);
        };
        // If no thread can be started, the connection is closed.
        let _ = std::thread::Builder::new().stack_size(512 * 1024).spawn(attend);
    }
}

fn talk(mut stream: TcpStream, answer: &Answers) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    stream.set_nonblocking(false)?;
    let asked = read_head(&mut stream, deadline)?;
    let answer = match &asked {
        Ok(asked) => answer(asked),
        Err(status) => Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{status}\n"),
        },
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.content_type,
        answer.body.len()
    );
    // A look may have taken a while; the client's time starts again.
    let deadline = Instant::now() + DEADLINE;
    let mut left: &[u8] = &[head.as_bytes(), answer.body.as_bytes()].concat();
    while !left.is_empty() {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        match stream.write(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => left = &left[written..],
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

/// Returns the request, or the status that answers an invalid one.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Request, &'static str>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&chunk[..count]),
        }
        match parse(&head) {
            Some(outcome) => return Ok(outcome),
            None if head.len() >= HEAD_BYTES => return Ok(Err("431 Request Header Fields Too Large")),
            None => {}
        }
    }
}

/// Parses a head; `None` if it is incomplete.
fn parse(head: &[u8]) -> Option<Result<Request, &'static str>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Err(httparse::Error::TooManyHeaders) => return Some(Err("431 Request Header Fields Too Large")),
        Err(_) => return Some(Err("400 Bad Request")),
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
    }
    if request.method != Some("GET") {
        return Some(Err("405 Method Not Allowed"));
    }
    let accept = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept: Vec<_> = accept.map(|header| String::from_utf8_lossy(header.value)).collect();
    let target = request.path.unwrap_or("/");
    Some(Ok(Request {
        path: target.split('?').next().unwrap_or(target).to_owned(),
        accept: accept.join(","),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_client_sends_it_is_a_request_or_refused() {
        let seed = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n".to_vec();
        let (mut asked, mut refused) = (0, 0);
        crate::mutations::feed(&[seed], Duration::from_secs(5), 2, |bytes| match parse(bytes) {
            Some(Ok(request)) => {
                asked += 1;
                assert!(!request.path.contains('?'));
            }
            Some(Err(status)) => {
                refused += 1;
                assert!(status.starts_with('4'));
            }
            None => {}
        });
        assert!(asked > 0 && refused > 0, "{asked} asked, {refused} refused");
    }

    #[test]
    fn a_request_has_a_path_and_an_accept_header() {
        let request = parse(b"GET /metrics?x=1 HTTP/1.1\r\nACCEPT: a\r\naccept: b\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!((request.path.as_str(), request.accept.as_str()), ("/metrics", "a,b"));
        assert!(parse(b"GET / HTTP/1.1\r\nHost").is_none());
        assert_eq!(
            parse(b"POST / HTTP/1.1\r\n\r\n").unwrap().err(),
            Some("405 Method Not Allowed")
        );
        assert_eq!(parse(b"\x00\x01\r\n\r\n").unwrap().err(), Some("400 Bad Request"));
    }
}
