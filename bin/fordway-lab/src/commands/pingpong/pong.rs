//! Pong: answers out of memory.

use std::time::Duration;

use fordway_load::pingpong::{Content, Played, Player, Wanted};
use fordway_store::{Error, ErrorKind, Result};

use crate::args::PongArgs;

/// Answers with any number of bytes, perhaps after a delay.
pub(super) struct Memory {
    delay: Duration,
    /// The smallest answer that waits.
    from_bytes: u64,
}

impl Memory {
    pub(super) fn new(args: &PongArgs) -> Result<Self> {
        let from_bytes = match args.delay_from_windows {
            Some(windows) => windows.saturating_mul(first_window_bytes()?),
            None => args.delay_from,
        };
        Ok(Memory { delay: args.delay.unwrap_or_default(), from_bytes })
    }
}

/// The receive window that TCP begins with, in this network.
fn first_window_bytes() -> Result<u64> {
    let path = "/proc/sys/net/ipv4/tcp_rmem";
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(ErrorKind::NotImplemented, format!("reading {path}")).caused_by(error))?;
    let window = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    window.ok_or_else(|| Error::new(ErrorKind::NotImplemented, format!("{path} says {text:?}")))
}

impl Player for Memory {
    fn play<'b>(&self, wanted: &Wanted, _room: &'b mut Vec<u8>) -> Played<'b> {
        if !self.delay.is_zero() && wanted.bytes >= self.from_bytes {
            std::thread::sleep(self.delay);
        }
        Played { status: 200, content: Content::Any(wanted.bytes), retries: 0 }
    }
}
