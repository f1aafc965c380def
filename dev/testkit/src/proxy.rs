//! An HTTP proxy on real sockets. The proxy forwards requests in absolute form, opens tunnels for `CONNECT`, and
//! records its requests. Only the proxy can resolve the host `127-1-0-7.test`, so a test can check whether the client
//! or the proxy resolves names. The proxy shares no code with the client that it tests.
//!
//! This file also contains the socket code of every test server. Each connection has its own thread. Dropping the
//! server ends all threads.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Deviations of the proxy from its normal behaviour.
#[derive(Clone, Debug, Default)]
pub struct ProxyBehaviour {
    /// The value of `Proxy-Authorization` that the proxy requires. The proxy responds with status 407 to all other
    /// requests.
    pub login: Option<String>,
    /// The status of the proxy's refusal of every request.
    pub refuses: Option<u16>,
    /// Whether the proxy sends nothing until the client disconnects.
    pub is_mute: bool,
}

/// The proxy. It listens on a free port of 127.0.0.1. Dropping this value stops the proxy.
#[derive(Debug)]
pub struct ProxyServer {
    shared: Arc<ProxyState>,
    acceptor: ConnectionAcceptor,
}

#[derive(Debug)]
struct ProxyState {
    rules: ProxyBehaviour,
    heads: Mutex<Vec<String>>,
}

impl ProxyServer {
    /// Starts a proxy. Panics if no port is free.
    pub fn start(rules: ProxyBehaviour) -> Self {
        let shared = Arc::new(ProxyState { rules, heads: Mutex::default() });
        let serve = {
            let shared = Arc::clone(&shared);
            move |client: &TcpStream, _, open: &OpenSockets| drop(shared.serve(client, open))
        };
        ProxyServer { shared, acceptor: ConnectionAcceptor::start(Ipv4Addr::LOCALHOST, serve) }
    }

    /// Returns the address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the heads of all requests so far, in the order of arrival, without the empty line.
    pub fn heads(&self) -> Vec<String> {
        lock(&self.shared.heads).clone()
    }
}

impl ProxyState {
    fn serve(&self, client: &TcpStream, open: &OpenSockets) -> io::Result<()> {
        let mut reader = BufReader::new(client);
        while let Some(head) = read_head(&mut reader)? {
            lock(&self.heads).push(head.clone());
            if self.rules.is_mute {
                return io::copy(&mut reader, &mut io::sink()).map(drop);
            }
            let said = header(&head, "proxy-authorization");
            let is_stranger = self.rules.login.as_deref().is_some_and(|login| said != Some(login));
            if let Some(status) = is_stranger.then_some(407).or(self.rules.refuses) {
                write!(&mut &*client, "HTTP/1.1 {status} As Told\r\nContent-Length: 2\r\n\r\nno")?;
                continue;
            }
            let mut words = head.split(' ');
            match (words.next(), words.next()) {
                (Some("CONNECT"), Some(place)) => return self.tunnel(client, reader, place, open),
                (Some(method), Some(url)) => self.forward(client, &head, (method, url), open)?,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn connect(place: &str, open: &OpenSockets) -> io::Result<TcpStream> {
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "80"));
        let host = host.strip_suffix(".test").map_or(host.to_owned(), |name| name.replace('-', "."));
        let server = TcpStream::connect(format!("{host}:{port}"))?;
        open.keep(&server);
        Ok(server)
    }

    fn tunnel(
        &self,
        mut client: &TcpStream,
        mut reader: BufReader<&TcpStream>,
        place: &str,
        open: &OpenSockets,
    ) -> io::Result<()> {
        let server = Self::connect(place, open)?;
        // The response to CONNECT has no body, regardless of its headers (RFC 9110 section 9.3.6).
        client.write_all(b"HTTP/1.1 200 Connection established\r\nContent-Length: 7\r\n\r\n")?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = io::copy(&mut reader, &mut &server);
                let _ = server.shutdown(Shutdown::Write);
            });
            let _ = io::copy(&mut &server, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    /// Sends the request to the origin on a separate connection, and passes the response on unchanged.
    fn forward(
        &self,
        mut client: &TcpStream,
        head: &str,
        (method, url): (&str, &str),
        open: &OpenSockets,
    ) -> io::Result<()> {
        let rest = url.strip_prefix("http://").ok_or(io::ErrorKind::InvalidInput)?;
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let mut server = Self::connect(place, open)?;
        let kept = head.split("\r\n").skip(1).filter(|line| !line.to_ascii_lowercase().starts_with("proxy-"));
        let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
        write!(server, "{method} {path} HTTP/1.1\r\n{kept}Via: 1.1 test\r\nConnection: close\r\n\r\n")?;
        io::copy(&mut server, &mut client).map(drop)
    }
}

/// Reads a head, and returns it without its empty line. Returns `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.by_ref().take(64 << 10).read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    head.truncate(head.len() - 4);
    Ok(Some(head))
}

fn header<'h>(head: &'h str, wanted: &str) -> Option<&'h str> {
    let mut lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
    lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
}

/// Accepts connections on a free port. Dropping this value closes the connections, even if threads wait for data on
/// them.
#[derive(Debug)]
pub(crate) struct ConnectionAcceptor {
    open: Arc<OpenSockets>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// The sockets that are closed when the acceptor is dropped.
#[derive(Debug, Default)]
pub(crate) struct OpenSockets {
    sockets: Mutex<Vec<TcpStream>>,
    is_stopping: AtomicBool,
}

impl ConnectionAcceptor {
    /// Calls `serve` for each connection to `address`, and then closes the connection. The arguments of `serve` are the
    /// connection, its number (counted from 0), and the list to which `serve` adds further sockets. Panics if no port
    /// is free.
    pub(crate) fn start(
        address: Ipv4Addr,
        serve: impl Fn(&TcpStream, usize, &OpenSockets) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a free port of a loopback address");
        let address = listener.local_addr().expect("the port that was bound");
        let open = Arc::new(OpenSockets::default());
        let thread = {
            let open = Arc::clone(&open);
            std::thread::spawn(move || open.accept(&listener, &serve))
        };
        ConnectionAcceptor { open, address, thread: Some(thread) }
    }

    /// Returns the address that the acceptor listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.open.sockets).len()
    }
}

impl Drop for ConnectionAcceptor {
    fn drop(&mut self) {
        self.open.is_stopping.store(true, Ordering::Release);
        for socket in lock(&self.open.sockets).iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Connect to wake the thread. If the connection is refused, the thread has already ended.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl OpenSockets {
    /// Serves each connection in a separate thread, and waits for all threads at the end.
    fn accept(&self, listener: &TcpListener, serve: &(impl Fn(&TcpStream, usize, &OpenSockets) + Sync)) {
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                if self.is_stopping.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Some(number) = self.keep(&stream) else { continue };
                scope.spawn(move || {
                    // Disable Nagle's algorithm, which would delay the bytes after a head until the client acknowledges
                    // the head.
                    let _ = stream.set_nodelay(true);
                    serve(&stream, number, self);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        // Drop the duplicates of the sockets, which would keep closed connections open.
        lock(&self.sockets).clear();
    }

    /// Registers a socket that must be closed at the end, and returns its number. Returns `None` if the process has no
    /// free file descriptors.
    pub(crate) fn keep(&self, socket: &TcpStream) -> Option<usize> {
        let mut sockets = lock(&self.sockets);
        sockets.push(socket.try_clone().ok()?);
        if self.is_stopping.load(Ordering::Acquire) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        Some(sockets.len() - 1)
    }
}

/// Locks `mutex`, even if a thread panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
