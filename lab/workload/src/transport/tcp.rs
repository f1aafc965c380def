//! A bare TCP connection as a link: each message one write, without Nagle's delay.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use fordway_store::{Error, ErrorKind, Result};

use super::Link;

/// A connection on which reads and writes block.
pub struct TcpLink(TcpStream);

impl TcpLink {
    /// Connects to the listener at `address`. Errors: `Unavailable`.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        TcpStream::connect(address).and_then(Self::without_delay).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("connecting to {address}")).caused_by(error)
        })
    }

    /// On a connection that is there. Errors: `Unavailable`.
    pub fn new(stream: TcpStream) -> Result<Self> {
        Self::without_delay(stream).map_err(failed("connecting to"))
    }

    fn without_delay(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(TcpLink(stream))
    }
}

fn failed(doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::new(ErrorKind::Unavailable, format!("{doing} the other process")).caused_by(error)
}

impl Link for TcpLink {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(failed("sending to"))
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.0.read_exact(buffer).map_err(failed("receiving from"))
    }

    fn send_window(&mut self, bytes: &[u8], times: usize) -> Result<()> {
        (0..times).try_for_each(|_| self.send(bytes))
    }

    fn receive_window(&mut self, buffer: &mut [u8], _: usize) -> Result<()> {
        self.receive(buffer)
    }

    fn receive_idly(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.receive(buffer)
    }
}
