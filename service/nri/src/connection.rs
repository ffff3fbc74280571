//! A connection to the runtime: calls in both directions over one socket.
//!
//! NRI divides the socket into two connections, by frames of a connection's number, a length, and that many bytes (its
//! pkg/net/multiplex). Each of the two carries messages of ttrpc: a length, a stream's number, a type, flags, and that
//! many bytes. The ttrpc crate serves listening sockets only; there is none here.

use std::io::{self, Read, Write};

use prost::Message;

use crate::messages::{Request, Response, RpcStatus};

/// The connection on which the runtime calls the plugin.
pub(crate) const PLUGIN: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub(crate) const RUNTIME: u32 = 2;

/// Longest message of ttrpc, in bytes (containerd's ttrpc: messageLengthMax).
const LONGEST: usize = 4 << 20;
/// Length of a message's header, in bytes.
const HEADER: usize = 10;
const IS_REQUEST: u8 = 1;
const IS_RESPONSE: u8 = 2;
/// google.rpc.Code: a call that does not exist.
const UNIMPLEMENTED: i32 = 12;

/// A message that has arrived.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrived {
    /// The runtime calls the plugin, on a stream.
    Call(u32, Request),
    /// The runtime answers a call of the plugin.
    Answer(Response),
}

/// A connection to the runtime.
pub(crate) struct Connection<S> {
    socket: S,
    /// Bytes that have arrived on the connections [`PLUGIN`] and [`RUNTIME`] and are not a whole message yet.
    arrived: [Vec<u8>; 2],
}

impl<S: Read + Write> Connection<S> {
    /// Returns a connection over a connected socket.
    pub(crate) fn over(socket: S) -> Connection<S> {
        Connection {
            socket,
            arrived: [Vec::new(), Vec::new()],
        }
    }

    /// Calls the runtime.
    pub(crate) fn call(&mut self, service: &str, method: &str, payload: &impl Message) -> io::Result<()> {
        let request = Request {
            service: service.into(),
            method: method.into(),
            payload: payload.encode_to_vec(),
        };
        // A client's streams have odd numbers; there is one call.
        self.send(RUNTIME, 1, IS_REQUEST, &request.encode_to_vec())
    }

    /// Answers a call of the runtime: with a message, or that there is no such call.
    pub(crate) fn answer(&mut self, stream: u32, answer: Option<Vec<u8>>) -> io::Result<()> {
        let response = match answer {
            Some(payload) => Response { status: None, payload },
            None => Response {
                status: Some(RpcStatus {
                    code: UNIMPLEMENTED,
                    message: "not implemented by fastpath-nri".into(),
                }),
                payload: Vec::new(),
            },
        };
        self.send(PLUGIN, stream, IS_RESPONSE, &response.encode_to_vec())
    }

    /// Header and contents are a frame each: the runtime reads the header through a buffer of 4 KiB, which a longer frame
    /// would not fit.
    fn send(&mut self, connection: u32, stream: u32, kind: u8, message: &[u8]) -> io::Result<()> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend((message.len() as u32).to_be_bytes());
        header.extend(stream.to_be_bytes());
        header.extend([kind, 0]);
        for frame in [&header, message].into_iter().filter(|frame| !frame.is_empty()) {
            let mut bytes = Vec::with_capacity(8 + frame.len());
            bytes.extend(connection.to_be_bytes());
            bytes.extend((frame.len() as u32).to_be_bytes());
            bytes.extend(frame);
            self.socket.write_all(&bytes)?;
        }
        self.socket.flush()
    }

    /// Waits for the next message; `None`: the runtime has closed the connection.
    pub(crate) fn next(&mut self) -> io::Result<Option<Arrived>> {
        loop {
            for bytes in &mut self.arrived {
                if let Some(arrived) = take_message(bytes)? {
                    return Ok(Some(arrived));
                }
            }
            let mut header = [0; 8];
            match self.socket.read_exact(&mut header) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            let [connection, length] = [0, 4].map(|at| number(&header[at..]));
            if length as usize > LONGEST + HEADER {
                return Err(not_nri("a frame that is too long"));
            }
            let mut frame = vec![0; length as usize];
            self.socket.read_exact(&mut frame)?;
            match connection {
                PLUGIN => self.arrived[0].extend(frame),
                RUNTIME => self.arrived[1].extend(frame),
                _ => {}
            }
        }
    }
}

/// Returns the first four bytes as a number; 0 if there are fewer.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
}

fn not_nri(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the runtime sends {what}"))
}

/// Removes the first whole message of ttrpc from the bytes. Skips messages of other types.
fn take_message(bytes: &mut Vec<u8>) -> io::Result<Option<Arrived>> {
    while bytes.len() >= HEADER {
        let length = number(bytes) as usize;
        if length > LONGEST {
            return Err(not_nri("a message that is too long"));
        }
        if bytes.len() < HEADER + length {
            break;
        }
        let message: Vec<u8> = bytes.drain(..HEADER + length).collect();
        let (header, message) = message.split_at(HEADER);
        let broken = |error: prost::DecodeError| not_nri(&format!("a message that cannot be read: {error}"));
        match header[8] {
            IS_REQUEST => {
                let request = Request::decode(message).map_err(broken)?;
                return Ok(Some(Arrived::Call(number(&header[4..]), request)));
            }
            IS_RESPONSE => return Ok(Some(Arrived::Answer(Response::decode(message).map_err(broken)?))),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::annotation::{CLOCKS, METHOD, wish};
    use crate::messages::{
        ConfigureRequest, Container, CreateContainerRequest, PodSandbox, StateChangeEvent, SynchronizeRequest,
    };
    use crate::options::{Method, PluginOptions};
    use crate::preload::adjustment;

    /// What arrives, and what was sent.
    struct Both(Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Both {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn receives(bytes: Vec<u8>) -> Connection<Both> {
        Connection::over(Both(Cursor::new(bytes), Vec::new()))
    }

    #[test]
    fn whatever_a_runtime_sends_it_is_a_call_or_refused() {
        let pod = PodSandbox {
            annotations: [(CLOCKS, "all"), (METHOD, "preload")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            ..PodSandbox::default()
        };
        let configuration = ConfigureRequest {
            config: "method = \"preload\"".into(),
            ..ConfigureRequest::default()
        };
        let creation = CreateContainerRequest {
            pod: Some(pod),
            container: Some(Container::default()),
        };
        let seeds = [configuration.encode_to_vec(), creation.encode_to_vec()].map(|payload| {
            let request = Request { payload, ..call().0 };
            frame(PLUGIN, &message(&request))
        });
        let options = PluginOptions {
            socket: "/run/fastpath/fastpathd.sock".into(),
            library: None,
            method: Method::Attach,
        };
        let (mut calls, mut refused) = (0, 0);
        crate::mutations::feed(&seeds, std::time::Duration::from_secs(5), 2, |bytes| {
            let mut connection = receives(bytes.to_vec());
            loop {
                match connection.next() {
                    Ok(None) => break,
                    Ok(Some(Arrived::Answer(_))) => {}
                    Ok(Some(Arrived::Call(_, call))) => {
                        calls += 1;
                        let payload = &call.payload[..];
                        let _ = ConfigureRequest::decode(payload).map(|request| options.changed_by(&request.config));
                        let _ = SynchronizeRequest::decode(payload);
                        let _ = StateChangeEvent::decode(payload).map(|change| change.event());
                        if let Ok(request) = CreateContainerRequest::decode(payload)
                            && let (Some(pod), Some(container)) = (request.pod, request.container)
                            && let Ok(Some(wish)) = wish(&pod.annotations, &container.name, Method::Preload)
                        {
                            let _ = adjustment(&container, wish.clocks, &options);
                        }
                    }
                    Err(_) => {
                        refused += 1;
                        break;
                    }
                }
            }
        });
        assert!(calls > 0 && refused > 0, "{calls} calls, {refused} refused");
    }

    fn frame(connection: u32, contents: &[u8]) -> Vec<u8> {
        [
            &connection.to_be_bytes()[..],
            &(contents.len() as u32).to_be_bytes(),
            contents,
        ]
        .concat()
    }

    fn call() -> (Request, Vec<u8>) {
        let request = Request {
            service: "s".into(),
            method: "m".into(),
            payload: vec![7; 3],
        };
        let bytes = message(&request);
        (request, bytes)
    }

    fn message(request: &Request) -> Vec<u8> {
        let bytes = request.encode_to_vec();
        let header = [
            &(bytes.len() as u32).to_be_bytes()[..],
            &9u32.to_be_bytes(),
            &[IS_REQUEST, 0],
        ]
        .concat();
        [header, bytes].concat()
    }

    #[test]
    fn a_call_arrives_however_it_is_divided_into_frames() {
        let (request, bytes) = call();
        for at in 0..=bytes.len() {
            let (first, second) = bytes.split_at(at);
            let mut connection = receives([frame(PLUGIN, first), frame(3, b"other"), frame(PLUGIN, second)].concat());
            assert_eq!(connection.next().unwrap(), Some(Arrived::Call(9, request.clone())));
            assert_eq!(connection.next().unwrap(), None);
        }
    }

    #[test]
    fn what_is_sent_is_what_the_other_end_receives() {
        let mut connection = receives(Vec::new());
        connection.call("service", "method", &RpcStatus::default()).unwrap();
        connection.answer(5, Some(vec![1, 2])).unwrap();
        connection.answer(7, None).unwrap();
        let mut other = receives(connection.socket.1);
        let mut messages = Vec::new();
        while let Some(message) = other.next().unwrap() {
            messages.push(message);
        }
        let [Arrived::Call(1, call), Arrived::Answer(first), Arrived::Answer(second)] = &messages[..] else {
            panic!("{messages:?}");
        };
        assert_eq!((&call.service[..], &call.method[..]), ("service", "method"));
        assert_eq!((&first.payload[..], &first.status), (&[1, 2][..], &None));
        assert_eq!(second.status.as_ref().map(|status| status.code), Some(UNIMPLEMENTED));
    }

    #[test]
    fn lengths_that_no_runtime_sends_end_the_connection() {
        let huge = [1u32.to_be_bytes(), u32::MAX.to_be_bytes()].concat();
        assert!(receives(huge).next().is_err());
        let message = [u32::MAX.to_be_bytes(), [0; 4], [1, 0, 0, 0]].concat();
        assert!(receives(frame(PLUGIN, &message)).next().is_err());
        let no_message = [&4u32.to_be_bytes()[..], &[0; 4], &[1, 0], &[0xff; 4]].concat();
        assert!(receives(frame(PLUGIN, &no_message)).next().is_err());
    }
}
