//! A server on the loopback interface that follows a script and records the requests. The script need not obey the
//! protocol.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::Timeouts;
use fordway_store::{Bucket, Key};

/// A step of the server on a connection. After the last step, the server closes the connection.
pub(crate) enum Step {
    /// Receives a whole request.
    Request,
    /// Receives the head of a request, and does not read the body.
    Head,
    Send(Vec<u8>),
    /// Sends one byte at a time, with a pause before each byte.
    Drip(Vec<u8>, Duration),
    Pause(Duration),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The number of the connection on which the request arrived, counted from 0.
    pub(crate) connection: usize,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    thread: JoinHandle<Vec<Seen>>,
}

impl Server {
    /// Serves one script per connection, one connection after another.
    pub(crate) fn start(scripts: Vec<Vec<Step>>) -> Self {
        Self::listening(TcpListener::bind("127.0.0.1:0").unwrap(), scripts)
    }

    /// Serves one script per connection to `listener`.
    pub(crate) fn listening(listener: TcpListener, scripts: Vec<Vec<Step>>) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        Server { url, thread: std::thread::spawn(move || serve(&listener, scripts)) }
    }

    /// Serves one connection, and responds to each request with the next of `answers`.
    pub(crate) fn answering(answers: Vec<Vec<u8>>) -> Self {
        Self::start(vec![
            answers.into_iter().flat_map(|answer| [Step::Request, Step::Send(answer)]).collect(),
        ])
    }

    /// Returns a store that uses this server.
    pub(crate) fn store(&self, change: impl FnOnce(&mut S3Config)) -> S3Store {
        let keys = S3Credentials::keys("AK", "SK", "a test");
        let mut config = S3Config::new(&self.url, "us-east-1", keys);
        // The timeouts are long enough even for a busy machine, on which the server's thread may have to wait for a
        // processor.
        let long = Duration::from_secs(20);
        config.timeouts = Timeouts { connect: long, first_byte: long, progress: long, idle: long };
        config.max_retries = 2;
        change(&mut config);
        S3Store::new(config).unwrap()
    }

    /// Waits for the server to finish, and returns the requests that it received.
    pub(crate) fn seen(self) -> Vec<Seen> {
        self.thread.join().unwrap()
    }
}

fn serve(listener: &TcpListener, scripts: Vec<Vec<Step>>) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (connection, script) in scripts.into_iter().enumerate() {
        let Some(mut stream) = accept(listener) else { break };
        for step in script {
            if !act(&mut stream, step, connection, &mut seen) {
                break;
            }
        }
    }
    seen
}

/// Waits up to 5 s for a connection, so that a client that opens fewer connections than scripted does not block the
/// test.
fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            return Some(stream);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Performs one step. Returns whether the client is still connected.
fn act(stream: &mut TcpStream, step: Step, connection: usize, seen: &mut Vec<Seen>) -> bool {
    match step {
        Step::Request | Step::Head => {
            let Some(head) = read_head(stream) else { return false };
            let mut request = Seen { connection, head, body: Vec::new() };
            let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
            if matches!(step, Step::Request) {
                request.body = vec![0; length];
                stream.read_exact(&mut request.body).unwrap();
            }
            seen.push(request);
            true
        }
        Step::Send(bytes) => stream.write_all(&bytes).is_ok(),
        Step::Drip(bytes, wait) => bytes.iter().all(|byte| {
            std::thread::sleep(wait);
            stream.write_all(&[*byte]).is_ok()
        }),
        Step::Pause(wait) => {
            std::thread::sleep(wait);
            true
        }
    }
}

pub(crate) fn read_head(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Returns a response with a content length. Each of `headers` ends with a line break.
pub(crate) fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes =
        format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n{headers}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn object(body: impl AsRef<[u8]>) -> Vec<u8> {
    answer(200, "etag: \"t\"\r\nlast-modified: Fri, 24 May 2013 00:00:00 GMT\r\n", body)
}

pub(crate) fn error(status: u16, code: &str, more: &str) -> Vec<u8> {
    let body = format!("<Error><Code>{code}</Code><Message>it says so.</Message>{more}</Error>");
    answer(status, "content-type: application/xml\r\n", body)
}

pub(crate) fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}
