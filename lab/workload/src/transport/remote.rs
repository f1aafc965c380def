//! A transport in another process: one that must be started by a launcher of its own, as the ranks of
//! an MPI job must. Orders go to it and answers come back as lines of JSON on a connection, which
//! ends the job when it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use fordway_measure::Lane;
use fordway_store::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Done, Exchange, Order, Transport};

/// What a job says of itself when it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The implementation of MPI that carries the messages, with its version.
    pub implementation: String,
    /// The two sides: the one that asks, and the one that answers.
    pub sides: [Side; 2],
}

/// One process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Its number, on its machine.
    pub pid: u32,
    /// Processors that it may use.
    pub processors: u32,
}

impl Side {
    /// This process.
    pub fn own() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Side { pid: std::process::id(), processors }
    }

    /// For a link.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.pid) << 32 | u64::from(self.processors)).to_le_bytes()
    }

    /// What [`Side::to_bytes`] wrote.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Side { pid: (word >> 32) as u32, processors: word as u32 }
    }
}

/// An answer, or why there is none.
type Answer = std::result::Result<Done, String>;

/// The lines of a connection.
struct Lines {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Lines {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Lines { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    fn write(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// The next line; `None` at the end.
    fn read<T: DeserializeOwned>(&mut self) -> std::io::Result<Option<T>> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}

fn gone(what: &str) -> Error {
    let why = format!("{what} ended before it had answered; its messages above may say why");
    Error::new(ErrorKind::Unavailable, why)
}

fn another_version(what: &str) -> Error {
    let why = format!(
        "{what} runs a fordway-mpi of another version than this fordway; build both from one source (`make mpi`)"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

/// The side that has orders to give.
pub struct Remote {
    lane: Lane,
    lines: Lines,
}

impl Remote {
    /// Takes the connection of a job that has just connected, and what it says of itself.
    /// Errors: `Unavailable`; `InvalidArgument` where it says something else than this program expects.
    pub fn greet(stream: TcpStream, name: &str) -> Result<(Self, Hello)> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::InvalidData => another_version(name).caused_by(error),
            _ => gone(name).caused_by(error),
        };
        let mut lines = Lines::new(stream).map_err(failed)?;
        let hello: Hello = lines.read().map_err(failed)?.ok_or_else(|| gone(name))?;
        Ok((Remote { lane: Lane { name: name.to_owned(), description: String::new() }, lines }, hello))
    }

    /// Says what it is.
    pub fn described(mut self, description: String) -> Self {
        self.lane.description = description;
        self
    }
}

impl Transport for Remote {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn can(&self, _: Exchange) -> bool {
        true
    }

    fn carry_out(&mut self, order: &Order) -> Result<Done> {
        let name = &self.lane.name;
        let asked = self.lines.write(order).and_then(|()| self.lines.read::<Answer>());
        match asked.map_err(|error| gone(name).caused_by(error))? {
            Some(Ok(done)) => Ok(done),
            Some(Err(why)) => Err(Error::new(ErrorKind::Unavailable, format!("{name}: {why}"))),
            None => Err(gone(name)),
        }
    }
}

/// The side that carries them out: connects to `control`, says `hello`, and does with `transport` what
/// comes until the connection ends. Errors: `Unavailable`.
pub fn answer(control: SocketAddr, hello: &Hello, transport: &mut dyn Transport) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("the connection to {control}, which gives the orders"))
            .caused_by(error)
    };
    let mut lines = TcpStream::connect(control).and_then(Lines::new).map_err(failed)?;
    lines.write(hello).map_err(failed)?;
    while let Some(order) = lines.read::<Order>().map_err(failed)? {
        let answer: Answer = transport.carry_out(&order).map_err(|error| error.to_string());
        lines.write(&answer).map_err(failed)?;
    }
    Ok(())
}
