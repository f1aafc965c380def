//! Requests whose body is made while it is sent.

use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

use super::client::closed;
use super::connection::{Connection, FirstWord, io_error};
use super::{Exchange, Failure, HttpClient, Response};

/// How long a server may take to say that it wants a body. Some never say it.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// Takes the pieces of a body.
pub(super) type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// How the body of a request is sent.
pub(super) struct Streamed<'a> {
    /// Its bytes, where they are known; else it goes in chunks.
    pub(super) size_bytes: Option<u64>,
    /// Whether the server is asked first (`Expect: 100-continue`, RFC 9110 section 10.1.1), as the head
    /// says. A body that is refused, or wanted elsewhere, is then not sent without effect.
    pub(super) asks_first: bool,
    /// Makes the body, from its first byte.
    pub(super) produce: &'a mut dyn FnMut(&mut Sink<'_>) -> Result<()>,
}

impl HttpClient {
    /// Sends a request with a body that is made meanwhile, in pieces, and receives the head of the answer.
    /// The body of `exchange` is not looked at. Errors: from `produce`, which closes the connection;
    /// `IncompleteBody` where it makes more or less than was said; as [`HttpClient::send`].
    pub(super) fn send_streamed(
        &self,
        exchange: &Exchange,
        streamed: &mut Streamed<'_>,
    ) -> Result<Response, Failure> {
        let unsent = |error| Failure { error, may_have_acted: false };
        let pooled = self.pooled_connection(exchange.origin);
        let mut connection = match pooled.and_then(|mut pooled| pooled.is_quiet().then_some(pooled)) {
            Some(connection) => connection,
            None => self.connect(exchange.origin).map_err(unsent)?,
        };
        let acted = |error| Failure { error, may_have_acted: true };
        connection.request_head.clear();
        connection.push_head(exchange.write_head);
        connection
            .send(&[])
            .map_err(|error| unsent(io_error(error, "sending the request", "the server stopped reading")))?;
        if streamed.asks_first
            && let FirstWord::Answer(head) = connection.first_word(LEAVE_WAIT).map_err(unsent)?
        {
            return self.answered(head, connection, exchange).map(Response::into_last).map_err(unsent);
        }
        match send_body(&mut connection, streamed) {
            Ok(()) => {}
            Err(Broken::Produce(error)) => return Err(acted(error)),
            Err(Broken::Send(error)) => {
                let early = self.early_answer(connection, exchange, error).map_err(acted)?;
                return early.map(Response::into_last).ok_or_else(|| acted(closed()));
            }
        }
        let head = connection.receive_head().map_err(acted)?.ok_or_else(|| acted(closed()))?;
        self.answered(head, connection, exchange).map_err(acted)
    }
}

/// Why a body was not all sent.
enum Broken {
    Produce(Error),
    Send(std::io::Error),
}

fn send_body(connection: &mut Connection, streamed: &mut Streamed<'_>) -> Result<(), Broken> {
    let (mut sent_bytes, mut failed) = (0_u64, None);
    let (size_bytes, mut line) = (streamed.size_bytes, String::new());
    let mut between = "";
    let made = (streamed.produce)(&mut |piece| {
        if piece.is_empty() {
            return Ok(());
        }
        sent_bytes += piece.len() as u64;
        if size_bytes.is_some_and(|size| sent_bytes > size) {
            return Err(Error::new(ErrorKind::IncompleteBody, "the source grew while it was sent"));
        }
        line.clear();
        if size_bytes.is_none() {
            // A chunk (RFC 9112 section 7.1), behind the end of the one before.
            line = format!("{between}{:x}\r\n", piece.len());
            between = "\r\n";
        }
        connection.send_piece(line.as_bytes(), piece).map_err(|error| {
            failed = Some(error);
            Error::from(ErrorKind::Unavailable)
        })
    });
    match (failed, made) {
        (Some(error), _) => return Err(Broken::Send(error)),
        (None, Err(error)) => return Err(Broken::Produce(error)),
        (None, Ok(())) => {}
    }
    match size_bytes {
        None => connection.send_piece(between.as_bytes(), b"0\r\n\r\n").map_err(Broken::Send),
        Some(size) if sent_bytes == size => Ok(()),
        Some(size) => {
            let detail = format!("the source ended after {sent_bytes} of {size} bytes");
            Err(Broken::Produce(Error::new(ErrorKind::IncompleteBody, detail)))
        }
    }
}
