//! The network: round trip, segment size, bandwidth; of the loopback interface unless there is a peer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fordway_http::{Exchange, HttpClient, Origin, Replay, Timeouts, TlsRoots, Version};
use fordway_measure::{bytes_text, median};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::tcp_info;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

use super::Quantity;
use fordway_command::file_error;

/// Connections whose round trip is asked for.
const CONNECTIONS: usize = 11;
/// The most that is moved, and for how long.
const BYTES_MAX: u64 = 1 << 30;
const TIME_MAX: Duration = Duration::from_secs(5);
const PIECE_BYTES: usize = 1 << 20;
/// Less says more of the start of a connection than of its bandwidth.
const BYTES_MIN: u64 = 1 << 20;

/// Errors: `Unavailable` if nobody is at `peer`; `InvalidArgument` if it is no place.
pub(super) fn probe(peer: Option<&str>) -> Result<Vec<Quantity>> {
    let Some(peer) = peer else { return loopback() };
    if !peer.contains("://") {
        let mut quantities = connection(peer, peer)?;
        let why = "a place without a URL serves nothing to fetch; name an object with --peer http://...";
        quantities.push(Quantity::unknown("eBW", "MB/s", why));
        return Ok(quantities);
    }
    let (origin, path) = Origin::parse(peer)?;
    let mut quantities = connection(&format!("{}:{}", origin.host, origin.port), &origin.to_string())?;
    quantities.push(download(&origin, &path)?);
    Ok(quantities)
}

fn unreachable(peer: &str, error: std::io::Error) -> Error {
    let why = format!("no connection to {peer}; check the host and that the port is open");
    Error::new(ErrorKind::Unavailable, why).caused_by(error)
}

/// What the kernel knows of connections to `place` (host and port).
fn connection(place: &str, peer: &str) -> Result<Vec<Quantity>> {
    let (mut rtts_us, mut mss, mut mtu) = (Vec::new(), None, None);
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(place).map_err(|error| unreachable(peer, error))?;
        let info = tcp_info(&stream).map_err(|errno| unreachable(peer, errno.into()))?;
        rtts_us.push(f64::from(info.rtt_us));
        mss = Some(info.mss_bytes);
        let is_v4 = stream.peer_addr().is_ok_and(|address| address.is_ipv4());
        mtu = if is_v4 { ip_mtu(&stream).ok() } else { ipv6_mtu(&stream).ok() };
    }
    let rtt = median(&rtts_us).unwrap_or_default();
    let how = format!("TCP_INFO after the handshake, median of {CONNECTIONS} connections to {peer}");
    let size = |name, value: Option<u32>, how: &str| match value {
        Some(bytes) => Quantity::new(name, f64::from(bytes), "B", format!("{how}, to {peer}")),
        None => Quantity::unknown(name, "B", "the kernel does not tell"),
    };
    Ok(vec![
        Quantity::new("rtt", rtt, "us", how),
        size("mtu", mtu, "IP_MTU, the path's as far as the kernel knows it"),
        size("mss", mss, "TCP_INFO after the handshake"),
    ])
}

/// How fast one connection brings an object.
fn download(origin: &Origin, path: &str) -> Result<Quantity> {
    let client = HttpClient::new(Version::Http1, Timeouts::default(), TlsRoots::System);
    let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", origin.authority());
    let write_head = |out: &mut Vec<u8>| out.extend_from_slice(head.as_bytes());
    let exchange =
        Exchange { origin, method: "GET", write_head: &write_head, body: &[], replay: Replay::Safe };
    let mut response = client.send(&exchange).map_err(|failure| failure.error)?;
    let unknown = |why: String| Ok(Quantity::unknown("eBW", "MB/s", why));
    if response.status() != 200 {
        return unknown(format!("{origin}{path} was answered with status {}", response.status()));
    }
    let Some(length) = response.body_bytes().filter(|length| *length >= BYTES_MIN) else {
        return unknown(format!("{origin}{path} is no object of a known size of at least 1 MiB"));
    };
    let (since, mut done, mut piece) = (Instant::now(), 0, vec![0; PIECE_BYTES]);
    while done < length.min(BYTES_MAX) && since.elapsed() < TIME_MAX {
        let wanted = (length - done).min(PIECE_BYTES as u64) as usize;
        response.read_into(&mut piece[..wanted])?;
        done += wanted as u64;
    }
    let how = format!("{} of {origin}{path} on one connection, after its head", bytes_text(done));
    Ok(Quantity::new("eBW", done as f64 / since.elapsed().as_micros() as f64, "MB/s", how))
}

/// Round trip and bandwidth of the loopback interface.
fn loopback() -> Result<Vec<Quantity>> {
    let failed = |error| file_error("measuring", "the loopback interface", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    // Connections wait in the listener's queue, which is long enough: nobody needs to take them.
    let mut quantities = connection(&address.to_string(), "127.0.0.1")?;
    for _ in 0..CONNECTIONS {
        listener.accept().map_err(failed)?;
    }
    let (done, elapsed) = std::thread::scope(|scope| -> std::io::Result<(u64, Duration)> {
        let sender = scope.spawn(|| send(TcpStream::connect(address)?));
        let (mut stream, _) = listener.accept()?;
        let (since, mut done, mut piece) = (Instant::now(), 0, vec![0; PIECE_BYTES]);
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                count => done += count as u64,
            }
        }
        let elapsed = since.elapsed();
        sender.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?;
        Ok((done, elapsed))
    })
    .map_err(failed)?;
    let how = format!("{} over one connection on 127.0.0.1, thread to thread", bytes_text(done));
    quantities.push(Quantity::new("eBW", done as f64 / elapsed.as_micros() as f64, "MB/s", how));
    Ok(quantities)
}

fn send(mut stream: TcpStream) -> std::io::Result<()> {
    let (since, mut left, piece) = (Instant::now(), BYTES_MAX, vec![1; PIECE_BYTES]);
    while left > 0 && since.elapsed() < TIME_MAX {
        stream.write_all(&piece)?;
        left -= PIECE_BYTES as u64;
    }
    Ok(())
}
