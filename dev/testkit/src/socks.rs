//! A SOCKS 5 proxy on real sockets (RFC 1928, RFC 1929). The proxy opens tunnels and records its requests. Its rules
//! can specify deviations from normal behaviour. Only the proxy can resolve the host `127-1-0-7.test`, so a test can
//! check whether the client or the proxy resolves names. The proxy sends its responses one byte at a time.
//!
//! The proxy shares no code with the client that it tests.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use super::proxy::{ConnectionAcceptor, OpenSockets, lock};

/// Deviations of the proxy from its normal behaviour.
#[derive(Clone, Debug, Default)]
pub struct SocksBehaviour {
    /// The user and password that the proxy requires.
    pub login: Option<(&'static str, &'static str)>,
    /// The reply code of the proxy's refusal of every connection.
    pub refuses: Option<u8>,
    /// The only reply that the proxy sends. Afterwards, it sends nothing until the client disconnects.
    pub says: Option<&'static [u8]>,
}

/// The proxy. It listens on a free port of 127.0.0.1. Dropping this value stops the proxy.
#[derive(Debug)]
pub struct SocksServer {
    shared: Arc<SocksState>,
    acceptor: ConnectionAcceptor,
}

#[derive(Debug)]
struct SocksState {
    rules: SocksBehaviour,
    asked: Mutex<Vec<String>>,
}

impl SocksServer {
    /// Starts a proxy. Panics if no port is free.
    pub fn start(rules: SocksBehaviour) -> Self {
        let shared = Arc::new(SocksState { rules, asked: Mutex::default() });
        let serve = {
            let shared = Arc::clone(&shared);
            move |client: &TcpStream, _, open: &OpenSockets| drop(shared.serve(client, open))
        };
        SocksServer { shared, acceptor: ConnectionAcceptor::start(Ipv4Addr::LOCALHOST, serve) }
    }

    /// Returns the address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the requested destinations, in the order of arrival: `127.0.0.1:80`, `[::1]:80` or `name:80`.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.shared.asked).clone()
    }
}

impl SocksState {
    fn serve(&self, mut client: &TcpStream, open: &OpenSockets) -> io::Result<()> {
        let [_, ways] = hear::<2>(client)?;
        let mut offered = vec![0; usize::from(ways)];
        client.read_exact(&mut offered)?;
        if let Some(said) = self.rules.says {
            say(client, said)?;
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        let way = if self.rules.login.is_some() { 2 } else { 0 };
        if !offered.contains(&way) {
            return say(client, &[5, 0xff]);
        }
        say(client, &[5, way])?;
        if let Some((user, password)) = self.rules.login {
            let [_, length] = hear::<2>(client)?;
            let said_user = text(client, length)?;
            let [length] = hear::<1>(client)?;
            let is_known = (said_user.as_str(), text(client, length)?.as_str()) == (user, password);
            say(client, &[1, u8::from(!is_known)])?;
            if !is_known {
                return Ok(());
            }
        }
        self.connect(client, open)
    }

    fn connect(&self, mut client: &TcpStream, open: &OpenSockets) -> io::Result<()> {
        let [_, _, _, kind] = hear::<4>(client)?;
        let host = match kind {
            1 => Ipv4Addr::from(hear::<4>(client)?).to_string(),
            4 => format!("[{}]", Ipv6Addr::from(hear::<16>(client)?)),
            _ => {
                let [length] = hear::<1>(client)?;
                text(client, length)?
            }
        };
        let place = format!("{host}:{}", u16::from_be_bytes(hear::<2>(client)?));
        lock(&self.asked).push(place.clone());
        if let Some(reply) = self.rules.refuses {
            return say(client, &[5, reply, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        let known = host.strip_suffix(".test").map(|name| place.replace(&host, &name.replace('-', ".")));
        let server = TcpStream::connect(known.unwrap_or(place))?;
        open.keep(&server);
        // The bound address in this reply is a name, which is allowed but rare.
        say(client, b"\x05\x00\x00\x03\x04here\x00\x09")?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = io::copy(&mut &*client, &mut &server);
                let _ = server.shutdown(Shutdown::Write);
            });
            let _ = io::copy(&mut &server, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        });
        Ok(())
    }
}

fn hear<const N: usize>(mut client: &TcpStream) -> io::Result<[u8; N]> {
    let mut heard = [0; N];
    client.read_exact(&mut heard)?;
    Ok(heard)
}

fn text(mut client: &TcpStream, length: u8) -> io::Result<String> {
    let mut heard = vec![0; usize::from(length)];
    client.read_exact(&mut heard)?;
    Ok(String::from_utf8_lossy(&heard).into_owned())
}

fn say(mut client: &TcpStream, said: &[u8]) -> io::Result<()> {
    said.chunks(1).try_for_each(|byte| client.write_all(byte))
}
