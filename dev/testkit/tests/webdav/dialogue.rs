//! A server for tests. A function that the test passes determines the responses. The server uses the HTTP version of
//! the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fordway_http::HttpVersion;
use tokio::sync::Notify;

use crate::{quic, streams};

/// A request as received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    pub(crate) body_bytes: usize,
}

impl Request {
    /// Returns the value of a header, whose name must be in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(has, _)| has == name).map(|(_, value)| value.as_str())
    }

    /// Converts the head of an HTTP/2 or HTTP/3 request whose body has not been received yet.
    pub(super) fn of<T>(head: &http::Request<T>) -> Self {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers().iter();
        let headers = headers.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        let target = head.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Request { method: head.method().to_string(), target, headers, body_bytes: 0 }
    }

    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut lines = std::iter::from_fn(|| {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
        });
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        let headers = headers.collect();
        Some(Request { method: words.next()?, target: words.next()?, headers, body_bytes: 0 })
    }
}

/// The function that returns the bytes of the response to a request. If the function returns no bytes, the server
/// closes the connection, or resets the stream over HTTP/2 and 3.
type Say = dyn Fn(&Request, usize) -> Vec<u8> + Send + Sync;

/// The server, which is stopped when this value is dropped.
pub(crate) struct Dialogue {
    scheme: &'static str,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    /// Stops a server that uses UDP.
    stop: Arc<Notify>,
    acceptor: Option<JoinHandle<()>>,
}

pub(super) struct Shared {
    say: Box<Say>,
    requests: Mutex<Vec<Request>>,
    open: Mutex<Vec<TcpStream>>,
    is_stopping: AtomicBool,
    /// The number of connections that the client has closed.
    closed: Mutex<usize>,
}

impl Dialogue {
    /// Starts a server that responds with the result of `say`, whose arguments are the request and its number. A
    /// request with `Expect` receives its response before its body arrives, unless the response begins with status 100.
    pub(crate) fn start(say: impl Fn(&Request, usize) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start_wanting(false, say)
    }

    /// Like [`Dialogue::start`]. Over HTTP/3, the server requires client certificates if `certificate` is set.
    pub(crate) fn start_wanting(
        certificate: bool,
        say: impl Fn(&Request, usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            say: Box::new(say),
            requests: Mutex::default(),
            open: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            closed: Mutex::default(),
        });
        let (for_acceptor, version, stop) = (shared.clone(), crate::version(), Arc::default());
        if version == HttpVersion::Http3 {
            let (address, acceptor) = quic::start(for_acceptor, Arc::clone(&stop), certificate);
            return Dialogue { scheme: "https", address, shared, stop, acceptor: Some(acceptor) };
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming() {
                    if for_acceptor.is_stopping.load(Ordering::Acquire) {
                        return;
                    }
                    let stream = stream.unwrap();
                    for_acceptor.open.lock().unwrap().push(stream.try_clone().unwrap());
                    let shared = &for_acceptor;
                    scope.spawn(move || {
                        match version {
                            HttpVersion::Http1 => serve(&stream, shared),
                            _ => streams::serve(&stream, shared),
                        }
                        shared.has_closed();
                        let _ = stream.shutdown(Shutdown::Both);
                    });
                }
            });
        });
        Dialogue { scheme: "http", address, shared, stop, acceptor: Some(acceptor) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}/{path}", self.scheme, self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the methods of all requests, in order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.method).collect()
    }

    /// Waits until the client has closed this many connections.
    pub(crate) fn wait_for_closed(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while *self.shared.closed.lock().unwrap() < count {
            assert!(Instant::now() < deadline, "the client keeps its connections");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.stop.notify_one();
        for stream in self.shared.open.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if self.scheme == "http" {
            let _ = TcpStream::connect(self.address);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some(mut request) = Request::read(&mut reader) {
        let asks_first = request.header("expect").is_some();
        let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0_u64);
        let mut take_body = |request: &mut Request| {
            let mut body = Vec::new();
            let _ = (&mut reader).take(length).read_to_end(&mut body);
            request.body_bytes = body.len();
        };
        if !asks_first {
            take_body(&mut request);
        }
        let mut said = shared.say(&request);
        if asks_first && said.starts_with(b"HTTP/1.1 100") {
            let rest = said.split_off(said.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4);
            let _ = (&*stream).write_all(&said);
            take_body(&mut request);
            said = rest;
        }
        shared.heard(request);
        if said.is_empty() || (&*stream).write_all(&said).is_err() {
            break;
        }
    }
}

impl Shared {
    /// Returns the response to a request.
    pub(super) fn say(&self, request: &Request) -> Vec<u8> {
        let number = self.requests.lock().unwrap().len();
        (self.say)(request, number)
    }

    /// Records that a client has closed its connection.
    pub(super) fn has_closed(&self) {
        *self.closed.lock().unwrap() += 1;
    }

    /// Records a request.
    pub(super) fn heard(&self, request: Request) {
        self.requests.lock().unwrap().push(request);
    }
}

/// Returns a response with a body of known length.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Told\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns a multistatus response.
pub(crate) fn multistatus(responses: &str) -> Vec<u8> {
    answer(
        207,
        "",
        &format!("<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\">{responses}</D:multistatus>"),
    )
}

/// Returns a multistatus entry for a file.
pub(crate) fn file(href: &str, bytes: usize) -> String {
    format!(
        "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>{bytes}\
         </D:getcontentlength></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
    )
}

/// Returns a multistatus entry for a collection.
pub(crate) fn collection(href: &str) -> String {
    format!(
        "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype>\
         </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
    )
}

/// Returns a multistatus entry for a resource that failed.
pub(crate) fn failed(href: &str, status: u16) -> String {
    format!("<D:response><D:href>{href}</D:href><D:status>HTTP/1.1 {status} Told</D:status></D:response>")
}
