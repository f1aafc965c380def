//! Measures the transfer of bytes between processes over every available transport: MPI, plain TCP, HTTP and our lanes.
//!
//! The transports have three exchanges in common. [`MessageExchangePattern::Fetch`] sends a small request and measures
//! the time until the whole response is received, as for a GET. [`MessageExchangePattern::Stream`] has several fetches
//! in flight. [`MessageExchangePattern::PingPong`] measures half a round trip, as MPI benchmarks do, on transports that
//! support this exchange.
//!
//! A [`MessageTransport`] carries out one [`MessageBlockTask`] at a time. There are three implementations:
//! [`LinkTransport`], for two processes with a [`MessageLink`] between them; [`ObjectTransport`], for objects in a
//! [`fordway_store::Store`]; and [`RemoteTransport`], for a transport in another process. This module also defines the
//! message sizes, and the options that all programs with transports share.

mod drive;
mod transports;

pub use drive::{TransportPlan, TransportProgress, TransportResults, describe, run};
pub use transports::{
    LinkTransport, MessageLink, MpiJobHello, MpiJobProcess, ObjectTransport, RemoteTransport, TcpLink,
    answer, follow,
};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use fordway_measure::{RowDescription, bytes_text};
use fordway_store::{Error, ErrorKind, Key, Result};
use fordway_wire::size_text::parse_bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::options::OutputFileArgs;

/// A way to receive bytes from another process, or from a store.
pub trait MessageTransport {
    /// Returns the transport's name and description.
    fn lane(&self) -> &RowDescription;

    /// Returns whether the transport supports this exchange.
    fn can(&self, exchange: MessageExchangePattern) -> bool;

    /// Performs one block of messages. Errors: only errors that end the run.
    fn carry_out(&mut self, task: &MessageBlockTask) -> Result<MessageBlockResult>;
}

/// How messages are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageExchangePattern {
    /// Request a message, and wait until the whole message has been received.
    Fetch,
    /// Request several messages at once, and wait until all messages have been received.
    Stream,
    /// Send a message, and wait for a response of equal size; half of the round-trip time counts.
    PingPong,
}

impl MessageExchangePattern {
    /// All exchanges, in the order in which they run.
    pub const ALL: [MessageExchangePattern; 3] =
        [MessageExchangePattern::Fetch, MessageExchangePattern::Stream, MessageExchangePattern::PingPong];

    /// Returns the first word in the names of the exchange's phases.
    pub const fn name(self) -> &'static str {
        match self {
            MessageExchangePattern::Fetch => "latency",
            MessageExchangePattern::Stream => "bandwidth",
            MessageExchangePattern::PingPong => "half-round-trip",
        }
    }

    /// Returns the ratio of an exchange's time to its recorded duration: 2 for a ping-pong, because only half of its
    /// time is recorded.
    const fn trips(self) -> u64 {
        match self {
            MessageExchangePattern::PingPong => 2,
            MessageExchangePattern::Fetch | MessageExchangePattern::Stream => 1,
        }
    }

    fn code(self) -> u64 {
        MessageExchangePattern::ALL.iter().position(|other| *other == self).unwrap_or_default() as u64
    }
}

/// One block of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageBlockTask {
    /// The kind of exchange.
    pub exchange: MessageExchangePattern,
    /// The size of each message in bytes, at least 1.
    pub size_bytes: u64,
    /// The number of messages in flight at once; always 1 except for [`MessageExchangePattern::Stream`].
    pub window: u64,
    /// The number of timed exchanges.
    pub count: u64,
    /// The number of untimed exchanges, which precede the timed exchanges.
    pub warm_up: u64,
}

/// The encoded size of a task, as sent over a link.
const TASK_BYTES: usize = 40;

impl MessageBlockTask {
    /// Returns the number of bytes in flight at once.
    pub fn window_bytes(&self) -> u64 {
        self.size_bytes * self.window
    }

    /// Encodes the task, to be sent to the peer of a link.
    fn to_bytes(self) -> [u8; TASK_BYTES] {
        let words = [self.exchange.code(), self.size_bytes, self.window, self.count, self.warm_up];
        let mut bytes = [0; TASK_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes the output of [`MessageBlockTask::to_bytes`]; `None` means that there are no more tasks.
    fn from_bytes(bytes: &[u8; TASK_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let exchange = *MessageExchangePattern::ALL.get(usize::try_from(word(0)).ok()?)?;
        let task = MessageBlockTask {
            exchange,
            size_bytes: word(1),
            window: word(2),
            count: word(3),
            warm_up: word(4),
        };
        (task.size_bytes > 0).then_some(task)
    }
}

/// The result of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageBlockResult {
    /// The duration of each exchange: a message, a window of messages, or half a round trip.
    pub durations_ns: Vec<u64>,
    /// The time from the start of the first exchange to the end of the last.
    pub elapsed_ns: u64,
    /// CPU time of the requesting side.
    pub client_cpu_ns: u64,
    /// CPU time of the responding side; `None` if this time is not known.
    pub server_cpu_ns: Option<u64>,
    /// Whether the last received bytes are correct.
    pub is_right: bool,
}

/// The maximum size of a message. MPI's counts are signed 32-bit integers, so messages must be smaller than 2 GiB.
const MAX_BYTES: u64 = 1 << 30;
/// The maximum number of sizes in a run. Each size results in two or three phases, and a run has at most 255 phases.
const MAX_SIZES: usize = 80;

/// The sizes to measure: a series between two sizes, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageSizeSelection {
    /// The sizes from the first to the last size. Each size is the previous size times the factor, which is the
    /// argument of [`MessageSizeSelection::all`].
    Grid(u64, u64),
    /// Exactly these sizes.
    List(Vec<u64>),
}

impl MessageSizeSelection {
    /// Returns the sizes in bytes, in ascending order. A range of sizes includes its upper bound, even if the upper
    /// bound is not the previous size times the factor. Errors: `InvalidArgument` if there are too many sizes.
    pub fn all(&self, factor: u64) -> Result<Vec<u64>> {
        let mut sizes = match self {
            MessageSizeSelection::List(sizes) => sizes.clone(),
            MessageSizeSelection::Grid(first, last) => grid(*first, *last, factor.max(2)),
        };
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() > MAX_SIZES {
            let why = format!("{} sizes are more than {MAX_SIZES}; name fewer", sizes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(sizes)
    }
}

fn grid(first: u64, last: u64, factor: u64) -> Vec<u64> {
    let next = |size: &u64| size.checked_mul(factor);
    let below = std::iter::successors(Some(first), next).take_while(|size| *size < last);
    below.chain([last]).collect()
}

impl FromStr for MessageSizeSelection {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let size = |text: &str| match parse_bytes(text)? {
            size @ 1..=MAX_BYTES => Ok(size),
            size => {
                Err(format!("a message of {size} bytes is not possible; name 1 to {}", bytes_text(MAX_BYTES)))
            }
        };
        let Some((first, last)) = text.split_once("..") else {
            return text
                .split(',')
                .map(size)
                .collect::<std::result::Result<_, _>>()
                .map(MessageSizeSelection::List);
        };
        match (size(first)?, size(last)?) {
            (first, last) if first <= last => Ok(MessageSizeSelection::Grid(first, last)),
            _ => Err(format!("{text:?} goes down; name the smaller size first")),
        }
    }
}

impl fmt::Display for MessageSizeSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageSizeSelection::Grid(first, last) => write!(f, "{first}..{last}"),
            MessageSizeSelection::List(sizes) => {
                f.write_str(&sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Returns the key of the object that serves as the message of this size.
pub fn message_of(size_bytes: u64) -> Result<Key> {
    Key::new(format!("message-{size_bytes}"))
}

/// The sizes of messages and the number of rounds.
#[derive(Clone, Debug, Args)]
pub struct TransportMessageArgs {
    /// Sizes of the messages: FIRST..LAST, or a list, from 1 B to 1 GiB
    #[arg(long = "size", value_name = "SIZES", default_value = "1..128MiB")]
    pub sizes: MessageSizeSelection,
    /// Factor between successive sizes of FIRST..LAST
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,
    /// Number of repetitions of each size, with the transports in turn; intervals need at least five repetitions
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Maximum number of messages of one turn
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub messages: u64,
    /// Maximum number of bytes of one turn, unless a single message is larger
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_bytes)]
    pub block_bytes: u64,
    /// Maximum number of messages in flight for bandwidth, limited to 16 MiB in total
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub window: u64,
    /// Seed for the order in which the transports take turns
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The run file to write.
    #[command(flatten)]
    pub output: OutputFileArgs,
}

impl TransportMessageArgs {
    /// Returns the plan for these options. Errors: `InvalidArgument` for too many sizes.
    pub fn plan(&self) -> Result<TransportPlan> {
        Ok(TransportPlan {
            sizes: self.sizes.all(self.factor)?,
            rounds: self.rounds,
            messages: self.messages,
            block_bytes: self.block_bytes,
            window: self.window,
            seed: self.seed,
        })
    }

    /// Returns the directory to which the run is written.
    pub fn path(&self) -> PathBuf {
        self.output.path("transport")
    }

    /// Returns the chosen options, for the run file.
    pub fn parameters(&self) -> Map<String, Value> {
        let parameters = json!({
            "sizes": self.sizes.to_string(),
            "factor": self.factor,
            "rounds": self.rounds,
            "messages_max": self.messages,
            "block_bytes_max": self.block_bytes,
            "window_max": self.window,
            "seed": self.seed,
        });
        parameters.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cross_a_link() {
        for exchange in MessageExchangePattern::ALL {
            let task = MessageBlockTask { exchange, size_bytes: 1 << 40, window: 64, count: 7, warm_up: 0 };
            assert_eq!(MessageBlockTask::from_bytes(&task.to_bytes()), Some(task));
        }
        assert_eq!(MessageBlockTask::from_bytes(&[0; TASK_BYTES]), None);
        assert_eq!(MessageBlockTask::from_bytes(&[0xff; TASK_BYTES]), None);
    }

    fn sizes(text: &str, factor: u64) -> Vec<u64> {
        text.parse::<MessageSizeSelection>().unwrap().all(factor).unwrap()
    }

    #[test]
    fn grids_hold_both_ends() {
        assert_eq!(sizes("1..16", 2), [1, 2, 4, 8, 16]);
        assert_eq!(sizes("1..128", 4), [1, 4, 16, 64, 128]);
        assert_eq!(sizes("4KiB..4KiB", 4), [4096]);
        assert_eq!(sizes("1MiB,1,4KiB,1", 2), [1, 4096, 1 << 20]);
        assert_eq!("1..16".parse::<MessageSizeSelection>().unwrap().to_string(), "1..16");
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for (text, why) in [
            ("0..4", "0 bytes is not possible"),
            ("2GiB", "not possible"),
            ("8..4", "goes down"),
            ("", "not a size"),
            ("1..", "not a size"),
        ] {
            let error = text.parse::<MessageSizeSelection>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = MessageSizeSelection::List((1..=100).collect()).all(2).expect_err("a hundred sizes");
        assert!(many.to_string().contains("name fewer"), "{many}");
    }
}
