//! A server of one file, by HTTP/1.1 or HTTP/2, that does exactly what it is told to, right or wrong.
//!
//! Without a [`Script`] it is a correct origin: GET and HEAD, one range or many, `If-Range`, keep-alive and
//! pipelining. A script adds [`Lie`]s, to every answer or to some; they combine as far as that makes sense.
//! What a client asked for is kept, so that a test can say how often it tried and how.
//!
//! It shares no code with the client that it tests.

mod answer;
mod request;
mod script;
mod streams;
mod transmit;

use std::io::{BufReader, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

pub use request::Request;
pub use script::{Lie, Script};

use crate::acceptor::{Acceptor, lock};
use streams::Certificate;
use transmit::After;

/// The server. It listens on a free port of a loopback address that no other server of this process has: what a
/// client has learned of one is never taken for knowledge of another that got its port. It is gone when this is
/// dropped.
#[derive(Debug)]
pub struct HostileServer {
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

#[derive(Debug)]
struct Shared {
    file: Vec<u8>,
    protocol: Protocol,
    script: Mutex<Script>,
    requests: Mutex<Vec<Request>>,
}

/// What is spoken.
#[derive(Debug)]
enum Protocol {
    Http1,
    Http2,
    /// Through TLS, in whose handshake nothing else can be agreed on.
    SecureHttp2(Certificate),
}

impl HostileServer {
    /// Serves `file` at any path. Panics if there is no port, as everything here does when a test cannot go on.
    pub fn start(file: impl Into<Vec<u8>>, script: Script) -> Self {
        Self::speaking(|_| Protocol::Http1, file.into(), script)
    }

    /// The same by HTTP/2, for clients that know it beforehand.
    pub fn start_http2(file: impl Into<Vec<u8>>, script: Script) -> Self {
        Self::speaking(|_| Protocol::Http2, file.into(), script)
    }

    /// The same through TLS. It takes nothing else.
    pub fn start_secure_http2(file: impl Into<Vec<u8>>, script: Script) -> Self {
        Self::speaking(|own| Protocol::SecureHttp2(Certificate::new(own)), file.into(), script)
    }

    /// Its certificate, as PEM, where it has one.
    pub fn certificate(&self) -> Option<&str> {
        if let Protocol::SecureHttp2(certificate) = &self.shared.protocol {
            Some(&certificate.pem)
        } else {
            None
        }
    }

    fn speaking(protocol: impl FnOnce(Ipv4Addr) -> Protocol, file: Vec<u8>, script: Script) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let [_, first, second, third] = STARTED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let own = Ipv4Addr::new(127, 1 + first, second, third);
        let shared = Arc::new(Shared {
            file,
            protocol: protocol(own),
            script: Mutex::new(script),
            requests: Mutex::default(),
        });
        let serve = {
            let shared = Arc::clone(&shared);
            move |stream: &TcpStream, number, _: &_| match &shared.protocol {
                Protocol::Http1 => serve(stream, number, &shared),
                Protocol::Http2 => streams::serve(stream, number, &shared, None),
                Protocol::SecureHttp2(own) => streams::serve(stream, number, &shared, Some(own)),
            }
        };
        HostileServer { shared, acceptor: Acceptor::start(own, serve) }
    }

    /// The file's URL.
    pub fn url(&self) -> String {
        let scheme = if self.certificate().is_some() { "https" } else { "http" };
        format!("{scheme}://{}/file", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Goes by another script from the next request on. Requests and connections are counted on.
    pub fn follow(&self, script: Script) {
        *lock(&self.shared.script) = script;
    }

    /// What was asked so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.acceptor.connections()
    }
}

impl Shared {
    /// Keeps a request, and says what to do to its answer.
    fn lies_for(&self, request: &Request) -> Vec<Lie> {
        let mut requests = lock(&self.requests);
        requests.push(request.clone());
        lock(&self.script).lies(requests.len() - 1, request.connection, &request.method)
    }
}

/// Answers the requests of a connection until one side has enough.
fn serve(stream: &TcpStream, connection: usize, shared: &Shared) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(mut request)) = Request::read(&mut reader) {
        request.connection = connection;
        let lies = shared.lies_for(&request);
        let is_left = lies.contains(&Lie::LeavesPipelined) && has_more(&reader);
        let answer = answer::answer(&request, &shared.file, &lies);
        let is_last = request.header("connection") == Some("close");
        let lies = if answer.is_aside { &[][..] } else { &lies };
        match transmit::send(stream, &answer, lies) {
            Ok(After::GoOn) if is_left => {
                drain(&mut reader);
                break;
            }
            Ok(After::GoOn) if !is_last => {}
            Ok(After::GoOn | After::Close) => {
                // To close over requests that nobody read would be a reset, and the answer might be lost.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&mut reader);
                break;
            }
            Ok(After::Gone) | Err(_) => break,
        }
    }
}

/// Whether something has come that was not read yet.
fn has_more(reader: &BufReader<&TcpStream>) -> bool {
    let stream = reader.get_ref();
    let waits = || {
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        peeked
    };
    !reader.buffer().is_empty() || waits().is_ok_and(|len| len > 0)
}

/// Takes whatever comes without looking at it, until the client closes.
fn drain(reader: &mut impl Read) {
    let mut ignored = [0; 4096];
    while reader.read(&mut ignored).is_ok_and(|len| len > 0) {}
}
