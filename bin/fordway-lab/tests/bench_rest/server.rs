//! Servers on loopback whose behaviour is known.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The totals over the handlers of all connections.
#[derive(Default)]
pub(crate) struct Seen {
    requests: AtomicU64,
    body_bytes: AtomicU64,
}

/// A connection and its counters.
pub(crate) struct Stream<S = TcpStream> {
    reader: BufReader<S>,
    seen: Arc<Seen>,
}

/// A server with one thread per connection. Dropping the value stops the accepting thread.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(handle: impl Fn(Stream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop, handle) =
            (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)), Arc::new(handle));
        let (of_thread, is_over) = (seen.clone(), stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, handle) = (stream.unwrap(), handle.clone());
                stream.set_nodelay(true).unwrap();
                let stream = Stream { reader: BufReader::new(stream), seen: of_thread.clone() };
                std::thread::spawn(move || handle(stream));
            }
        });
        Server { address, seen, stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the URL for a certificate of `localhost`.
    pub(crate) fn tls_url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }

    pub(crate) fn requests(&self) -> u64 {
        self.seen.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.seen.body_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wake the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Stream {
    /// Completes a TLS handshake after `wait`, responds to one request with `bytes`, and closes the connection.
    pub(crate) fn answer_over_tls(self, config: Arc<ServerConfig>, wait: Duration, bytes: &[u8]) {
        std::thread::sleep(wait);
        let session = ServerConnection::new(config).unwrap();
        let stream = BufReader::new(StreamOwned::new(session, self.reader.into_inner()));
        let mut stream = Stream { reader: stream, seen: self.seen };
        if stream.receive() && stream.send(bytes) {
            stream.reader.get_mut().conn.send_close_notify();
            let _ = stream.reader.get_mut().flush();
        }
    }
}

impl<S: Read + Write> Stream<S> {
    /// Reads the head of a request; returns the length of the body, or `None` at the end of the connection.
    pub(crate) fn receive_head(&mut self) -> Option<u64> {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            match self.reader.read_line(&mut line) {
                Ok(0) | Err(_) => return None,
                Ok(_) if line == "\r\n" => return Some(length),
                Ok(_) => {}
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
    }

    /// Reads a request with its body; returns `false` at the end of the connection.
    pub(crate) fn receive(&mut self) -> bool {
        let Some(length) = self.receive_head() else { return false };
        let read = std::io::copy(&mut self.reader.by_ref().take(length), &mut std::io::sink()).unwrap();
        self.seen.requests.fetch_add(1, Ordering::Relaxed);
        self.seen.body_bytes.fetch_add(read, Ordering::Relaxed);
        read == length
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }
}

/// Returns a response with a body of this many bytes.
pub(crate) fn answer(body_bytes: usize) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nserver: test\r\ncontent-length: {body_bytes}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + body_bytes, b'x');
    answer
}

/// Responds to every request with `bytes`, after a sleep.
pub(crate) fn serve(mut stream: Stream, wait: Duration, bytes: &[u8]) {
    while stream.receive() {
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if !stream.send(bytes) {
            return;
        }
    }
}

/// Responds to `count` requests, and closes the connection after reading one more request.
pub(crate) fn serve_some(mut stream: Stream, count: usize, bytes: &[u8]) {
    for _ in 0..count {
        if !stream.receive() || !stream.send(bytes) {
            return;
        }
    }
    stream.receive();
}

/// Responds to one request and closes the connection.
pub(crate) fn answer_and_close(mut stream: Stream, bytes: &[u8]) {
    if stream.receive() {
        stream.send(bytes);
    }
}
