//! Ping: answers with what pong answers.

use fordway_load::pingpong::{Content, Played, Player, Wanted};
use fordway_store::{Error, ErrorKind, Result};

use super::caller::Caller;
use crate::args::PingArgs;

/// The largest message, which is held in memory by each connection.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// Asks pong for each message, as often as it must.
pub(super) struct Asker {
    caller: Caller,
    retries: u32,
}

impl Asker {
    pub(super) fn new(args: &PingArgs) -> Result<Self> {
        Ok(Asker { caller: Caller::new(&args.pong, "pong", args.timeout)?, retries: args.retries })
    }

    /// A message of pong's, whole, in `room`. Errors: what went wrong, after one try.
    fn ask(&self, wanted: &Wanted, room: &mut Vec<u8>) -> Result<()> {
        let mut response =
            self.caller.ask(wanted.bytes, wanted.keep_alive).map_err(|failure| failure.error)?;
        let status = response.status();
        if status != 200 {
            return Err(Error::new(ErrorKind::BadResponse, format!("pong answers with status {status}")));
        }
        if wanted.bytes > MESSAGE_BYTES_MAX {
            return Err(Error::new(ErrorKind::EntityTooLarge, "a message has at most 1 GiB"));
        }
        let wanted_bytes = wanted.bytes as usize;
        if response.body_bytes() == Some(wanted.bytes) {
            room.resize(wanted_bytes, 0);
            return response.read_into(room);
        }
        *room = response.read_rest(wanted_bytes)?;
        match room.len() == wanted_bytes {
            true => Ok(()),
            false => {
                let detail = format!("pong answers with {} bytes, not {wanted_bytes}", room.len());
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }
}

impl Player for Asker {
    fn play<'b>(&self, wanted: &Wanted, room: &'b mut Vec<u8>) -> Played<'b> {
        let mut retries = 0;
        loop {
            match self.ask(wanted, room) {
                Ok(()) => return Played { status: 200, content: Content::Bytes(room), retries },
                Err(_) if retries < self.retries => retries += 1,
                Err(error) => {
                    *room = format!("ping has nothing from pong: {error}\n").into_bytes();
                    return Played { status: 502, content: Content::Bytes(room), retries };
                }
            }
        }
    }
}
