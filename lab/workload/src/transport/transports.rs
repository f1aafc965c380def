//! The transports. A [`LinkTransport`] connects two processes by a link. The processes perform the same work on all
//! links, so that transports differ only in their links. A plain TCP connection can be the link: each message is one
//! write, and Nagle's algorithm is disabled. For an [`ObjectTransport`], a message is an object in a store, and
//! requesting a message reads that object.
//!
//! A [`RemoteTransport`] controls a transport in another process. The ranks of an MPI job, for instance, must be
//! started by their own launcher. A [`RemoteTransport`] sends tasks and receives results as lines of JSON on a
//! connection. The job exits when the connection ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use fordway_measure::{RowDescription, own_cpu_ns};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result, Store};
use fordway_sys::process_cpu_ns;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    MessageBlockResult, MessageBlockTask, MessageExchangePattern, MessageTransport, TASK_BYTES, message_of,
};
use crate::site::noise;

/// The request for a message, or for a window of messages.
const REQUEST: [u8; 8] = *b"message?";
/// The byte that fills the buffer before a block, so that bytes of an earlier block are not mistaken for new bytes.
const POISON: u8 = 0xa5;

/// A connection to one other process. Messages keep their order, and both sides know the lengths in advance.
pub trait MessageLink {
    /// Sends one message.
    fn send(&mut self, bytes: &[u8]) -> Result<()>;

    /// Waits for a message that fills `buffer`.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends `bytes` as a message `times` times, with all messages in flight at once.
    fn send_window(&mut self, bytes: &[u8], times: usize) -> Result<()>;

    /// Waits for as many messages of `size` bytes as fit into `buffer`, with all receives posted at once.
    fn receive_window(&mut self, buffer: &mut [u8], size: usize) -> Result<()>;

    /// Waits for a message like [`MessageLink::receive`], but without using the processor while waiting. This method is
    /// used between blocks, while another transport is measured.
    fn receive_idly(&mut self, buffer: &mut [u8]) -> Result<()>;
}

/// The requesting side of a link. Dropping the transport tells the peer that there are no more tasks.
pub struct LinkTransport<L: MessageLink> {
    lane: RowDescription,
    link: L,
    content: Vec<u8>,
    buffer: Vec<u8>,
}

impl<L: MessageLink> LinkTransport<L> {
    /// Creates a transport over a link whose peer runs [`follow`].
    pub fn new(lane: RowDescription, link: L) -> Self {
        LinkTransport { lane, link, content: Vec::new(), buffer: Vec::new() }
    }

    fn step(&mut self, task: &MessageBlockTask) -> Result<()> {
        let (size, window_bytes) = (task.size_bytes as usize, task.window_bytes() as usize);
        match task.exchange {
            MessageExchangePattern::PingPong => {
                self.link.send(&self.content[..size])?;
                self.link.receive(&mut self.buffer[..size])
            }
            MessageExchangePattern::Fetch => {
                self.link.send(&REQUEST)?;
                self.link.receive(&mut self.buffer[..size])
            }
            MessageExchangePattern::Stream => {
                self.link.send(&REQUEST)?;
                self.link.receive_window(&mut self.buffer[..window_bytes], size)
            }
        }
    }

    /// Performs the timed exchanges one after the other, and measures the CPU time that this process uses.
    fn timed_steps(&mut self, task: &MessageBlockTask) -> Result<MessageBlockResult> {
        let mut done = MessageBlockResult {
            durations_ns: Vec::with_capacity(task.count as usize),
            ..MessageBlockResult::default()
        };
        let before_ns = own_cpu_ns();
        let started = Instant::now();
        let mut last = started;
        for _ in 0..task.count {
            self.step(task)?;
            let now = Instant::now();
            done.durations_ns.push((now - last).as_nanos() as u64);
            last = now;
        }
        done.elapsed_ns = (last - started).as_nanos() as u64;
        done.client_cpu_ns = own_cpu_ns().saturating_sub(before_ns);
        Ok(done)
    }

    fn is_right(&self, task: &MessageBlockTask) -> bool {
        let (size, window_bytes) = (task.size_bytes as usize, task.window_bytes() as usize);
        self.buffer[..window_bytes].chunks_exact(size).all(|message| *message == self.content[..size])
    }
}

impl<L: MessageLink> Drop for LinkTransport<L> {
    fn drop(&mut self) {
        // Ignore the error: a peer that has already ended needs no message.
        let _ = self.link.send(&[0; TASK_BYTES]);
    }
}

impl<L: MessageLink> MessageTransport for LinkTransport<L> {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn can(&self, _: MessageExchangePattern) -> bool {
        true
    }

    fn carry_out(&mut self, task: &MessageBlockTask) -> Result<MessageBlockResult> {
        let window_bytes = task.window_bytes() as usize;
        make_content(&mut self.content, task.size_bytes as usize);
        self.buffer.resize(self.buffer.len().max(window_bytes), 0);
        self.link.send(&task.to_bytes())?;
        for _ in 0..task.warm_up {
            self.step(task)?;
        }
        self.buffer[..window_bytes].fill(POISON);
        // This exchange ensures that each side starts to count CPU time only when both sides have finished the warm-up.
        let mut word = [0; 8];
        self.link.send(&REQUEST)?;
        self.link.receive(&mut word)?;
        let mut done = self.timed_steps(task)?;
        self.link.receive(&mut word)?;
        done.server_cpu_ns = Some(u64::from_le_bytes(word));
        done.is_right = self.is_right(task);
        if task.exchange == MessageExchangePattern::PingPong {
            done.durations_ns.iter_mut().for_each(|ns| *ns /= 2);
        }
        Ok(done)
    }
}

/// Runs the responding side of a link: executes the tasks that the peer's [`LinkTransport`] sends, until there are no
/// more tasks.
pub fn follow(link: &mut dyn MessageLink) -> Result<()> {
    let (mut content, mut buffer) = (Vec::new(), Vec::new());
    loop {
        let mut task = [0; TASK_BYTES];
        link.receive_idly(&mut task)?;
        let Some(task) = MessageBlockTask::from_bytes(&task) else { return Ok(()) };
        let size = task.size_bytes as usize;
        make_content(&mut content, size);
        buffer.resize(buffer.len().max(size), 0);
        let answer = |link: &mut dyn MessageLink, buffer: &mut [u8]| match task.exchange {
            MessageExchangePattern::PingPong => {
                link.receive(&mut buffer[..size])?;
                link.send(&content[..size])
            }
            MessageExchangePattern::Fetch => {
                link.receive(&mut [0; REQUEST.len()])?;
                link.send(&content[..size])
            }
            MessageExchangePattern::Stream => {
                link.receive(&mut [0; REQUEST.len()])?;
                link.send_window(&content[..size], task.window as usize)
            }
        };
        (0..task.warm_up).try_for_each(|_| answer(link, &mut buffer))?;
        // The peer starts its clock when the response below arrives, so both sides have finished the warm-up before
        // either side starts to measure CPU time.
        link.receive(&mut [0; REQUEST.len()])?;
        let before_ns = own_cpu_ns();
        link.send(&[0; 8])?;
        (0..task.count).try_for_each(|_| answer(link, &mut buffer))?;
        link.send(&own_cpu_ns().saturating_sub(before_ns).to_le_bytes())?;
    }
}

fn make_content(content: &mut Vec<u8>, size: usize) {
    if content.len() < size {
        *content = noise(size);
    }
}

/// A TCP connection with blocking reads and writes.
pub struct TcpLink(TcpStream);

impl TcpLink {
    /// Connects to the listener at `address`. Errors: `Unavailable`.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        TcpStream::connect(address).and_then(Self::without_delay).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("connecting to {address}")).caused_by(error)
        })
    }

    /// Uses an existing connection. Errors: `Unavailable`.
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

impl MessageLink for TcpLink {
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

/// A transport whose messages are objects of `bucket`, named by [`message_of`]; [`ObjectTransport::content`] returns
/// the content of each object.
pub struct ObjectTransport {
    lane: RowDescription,
    store: Arc<dyn Store>,
    bucket: Bucket,
    server_pid: Option<u32>,
    connections: usize,
    /// One buffer for each connection.
    buffers: Vec<Vec<u8>>,
    content: Vec<u8>,
}

impl ObjectTransport {
    /// Creates a transport that reads from `bucket` in `store`. At most `connections` threads read a window of
    /// messages; the store owns the connections.
    pub fn new(
        lane: RowDescription,
        store: Arc<dyn Store>,
        bucket: Bucket,
        server_pid: Option<u32>,
        connections: usize,
    ) -> Self {
        let connections = connections.max(1);
        let buffers = vec![Vec::new(); connections];
        ObjectTransport { lane, store, bucket, server_pid, connections, buffers, content: Vec::new() }
    }

    /// Returns the content of the message of `size_bytes`.
    pub fn content(size_bytes: u64) -> Vec<u8> {
        noise(size_bytes as usize)
    }

    /// Reads `messages` messages, which are shared among as many threads as the window and the connections allow.
    /// Returns the duration of each message if there is one thread, and no durations otherwise.
    fn read(&mut self, key: &Key, messages: usize, window: usize) -> Result<Vec<u64>> {
        let threads = self.connections.min(window).max(1);
        let (store, bucket) = (&*self.store, &self.bucket);
        if threads == 1 {
            return read_some(store, bucket, key, messages, &mut self.buffers[0]);
        }
        let buffers = self.buffers[..threads].iter_mut().enumerate();
        std::thread::scope(|scope| {
            let share = |thread: usize| messages / threads + usize::from(thread < messages % threads);
            let read =
                |(thread, buffer)| scope.spawn(move || read_some(store, bucket, key, share(thread), buffer));
            let readers: Vec<_> = buffers.map(read).collect();
            let ended = readers.into_iter().map(|reader| {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(drop)
            });
            ended.collect::<Result<Vec<()>>>()
        })?;
        Ok(Vec::new())
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.server_pid.and_then(|pid| process_cpu_ns(pid).ok())
    }

    fn is_right(&self, task: &MessageBlockTask) -> bool {
        let threads = match task.exchange {
            MessageExchangePattern::Stream => self.connections.min(task.window as usize),
            _ => 1,
        };
        self.buffers[..threads].iter().all(|buffer| *buffer == self.content[..task.size_bytes as usize])
    }
}

/// Reads `key` `messages` times, one read after the other; returns the duration of each read.
fn read_some(
    store: &dyn Store,
    bucket: &Bucket,
    key: &Key,
    messages: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<u64>> {
    let mut durations_ns = Vec::with_capacity(messages);
    let mut last = Instant::now();
    for _ in 0..messages {
        store.read(bucket, key, &GetOptions::default(), buffer)?;
        let now = Instant::now();
        durations_ns.push((now - last).as_nanos() as u64);
        last = now;
    }
    Ok(durations_ns)
}

impl MessageTransport for ObjectTransport {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn can(&self, exchange: MessageExchangePattern) -> bool {
        exchange != MessageExchangePattern::PingPong
    }

    fn carry_out(&mut self, task: &MessageBlockTask) -> Result<MessageBlockResult> {
        let key = message_of(task.size_bytes)?;
        if self.content.len() < task.size_bytes as usize {
            self.content = ObjectTransport::content(task.size_bytes);
        }
        let window = task.window as usize;
        self.read(&key, (task.warm_up * task.window) as usize, window)?;
        self.buffers.iter_mut().for_each(|buffer| buffer.fill(POISON));
        let (server_before, own_before) = (self.server_cpu_ns(), own_cpu_ns());
        let started = Instant::now();
        let durations_ns = self.read(&key, (task.count * task.window) as usize, window)?;
        let elapsed_ns = started.elapsed().as_nanos() as u64;
        let (own_after, server_after) = (own_cpu_ns(), self.server_cpu_ns());
        Ok(MessageBlockResult {
            durations_ns: if task.exchange == MessageExchangePattern::Stream {
                Vec::new()
            } else {
                durations_ns
            },
            elapsed_ns,
            client_cpu_ns: own_after.saturating_sub(own_before),
            server_cpu_ns: server_before
                .zip(server_after)
                .map(|(before, after)| after.saturating_sub(before)),
            is_right: self.is_right(task),
        })
    }
}

/// The first message of a job, which describes the job. The job sends this message when the job is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpiJobHello {
    /// The implementation of MPI that carries the messages, with its version.
    pub implementation: String,
    /// The two processes: the requesting side, and the responding side.
    pub sides: [MpiJobProcess; 2],
}

/// One process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpiJobProcess {
    /// The process ID on the process's own machine.
    pub pid: u32,
    /// The number of processors that the process may use.
    pub processors: u32,
}

impl MpiJobProcess {
    /// Describes this process.
    pub fn own() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        MpiJobProcess { pid: std::process::id(), processors }
    }

    /// Encodes the description, to be sent over a link.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.pid) << 32 | u64::from(self.processors)).to_le_bytes()
    }

    /// Decodes the output of [`MpiJobProcess::to_bytes`].
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let word = u64::from_le_bytes(bytes);
        MpiJobProcess { pid: (word >> 32) as u32, processors: word as u32 }
    }
}

/// The response to a task: the task's result, or the error message if the task failed.
type TaskResponse = std::result::Result<MessageBlockResult, String>;

/// A connection that carries lines of JSON.
struct JsonLineConnection {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl JsonLineConnection {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(JsonLineConnection { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    fn write(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// Reads the next line; returns `None` at the end of the connection.
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
        "the fordway-mpi that {what} runs and this fordway have different versions; build both from one source (`make mpi`)"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

/// The controlling side of a remote transport: sends the tasks.
pub struct RemoteTransport {
    lane: RowDescription,
    lines: JsonLineConnection,
}

impl RemoteTransport {
    /// Creates a transport from the connection of a job, and reads the job's hello message. Errors: `Unavailable`;
    /// `InvalidArgument` for an unexpected message.
    pub fn greet(stream: TcpStream, name: &str) -> Result<(Self, MpiJobHello)> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::InvalidData => another_version(name).caused_by(error),
            _ => gone(name).caused_by(error),
        };
        let mut lines = JsonLineConnection::new(stream).map_err(failed)?;
        let hello: MpiJobHello = lines.read().map_err(failed)?.ok_or_else(|| gone(name))?;
        Ok((
            RemoteTransport {
                lane: RowDescription { name: name.to_owned(), description: String::new() },
                lines,
            },
            hello,
        ))
    }

    /// Sets the description of the lane.
    pub fn described(mut self, description: String) -> Self {
        self.lane.description = description;
        self
    }
}

impl MessageTransport for RemoteTransport {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn can(&self, _: MessageExchangePattern) -> bool {
        true
    }

    fn carry_out(&mut self, task: &MessageBlockTask) -> Result<MessageBlockResult> {
        let name = &self.lane.name;
        let asked = self.lines.write(task).and_then(|()| self.lines.read::<TaskResponse>());
        match asked.map_err(|error| gone(name).caused_by(error))? {
            Some(Ok(done)) => Ok(done),
            Some(Err(why)) => Err(Error::new(ErrorKind::Unavailable, format!("{name}: {why}"))),
            None => Err(gone(name)),
        }
    }
}

/// Runs the side of a remote transport that executes tasks: connects to `control`, sends `hello`, and executes tasks
/// with `transport` until the connection ends. Errors: `Unavailable`.
pub fn answer(control: SocketAddr, hello: &MpiJobHello, transport: &mut dyn MessageTransport) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("the connection to {control}, which gives the tasks"))
            .caused_by(error)
    };
    let mut lines = TcpStream::connect(control).and_then(JsonLineConnection::new).map_err(failed)?;
    lines.write(hello).map_err(failed)?;
    while let Some(task) = lines.read::<MessageBlockTask>().map_err(failed)? {
        let answer: TaskResponse = transport.carry_out(&task).map_err(|error| error.to_string());
        lines.write(&answer).map_err(failed)?;
    }
    Ok(())
}
