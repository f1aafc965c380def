//! One HTTP/1.1 response that is being received: its framing, and how its bytes get directly to their destination.
//!
//! One call can receive several parts. The parts' contents go straight into the caller's memory, and the heads between
//! the contents go into the connection's buffer. The call's forecast assumes that each head is as long as the previous
//! head. The received bytes are then checked against this forecast.

use std::io;
use std::ops::Range;

use fordway_store::Error;

use super::batch::{ByteRunKind, FragmentBatch, FragmentPosition};
use super::content::{ContentHeaders, RangeResponseBody};
use super::request::RangeRequest;
use super::sink::FragmentSink;
use super::source::FileVersion;
use crate::connection::{BufferedConnection, ReceiveTarget};
use crate::response::{BodyFraming, ResponseHead, short_body};

/// The minimum number of content bytes that are received directly into their destination.
const DIRECT_BYTES: u64 = 8 * 1024;
/// If a call could receive fewer bytes than this directly into their destination, the call receives up to this many
/// bytes into the buffer instead.
const STAGING_BYTES: usize = 64 * 1024;
/// The number of wrong forecasts after which no more forecasts are made for a response.
const SURPRISES_MAX: usize = 2;
/// The minimum number of unwanted bytes that are discarded in the kernel.
const DISCARD_BYTES: u64 = 16 * 1024;

/// A response whose head has been received.
pub(super) struct RangeResponse {
    framing: BodyFraming,
    pub(super) content: RangeResponseBody,
    /// The number of wrong forecasts.
    surprises: usize,
    /// Whether the connection accepts further requests after this response.
    pub(super) keeps_alive: bool,
}

impl RangeResponse {
    /// Creates a response from a received head. Errors: `PreconditionFailed` for a different version; `BadResponse` for
    /// ranges that were not requested.
    pub(super) fn new(
        head: &ResponseHead,
        connection: &BufferedConnection,
        request: &RangeRequest,
        version: &FileVersion,
    ) -> Result<Self, Error> {
        let framing = BodyFraming::of(head, connection, "GET")?;
        let keeps_alive = head.may_keep_alive(connection, &framing);
        let headers = ContentHeaders::of(head.headers(connection));
        let content =
            RangeResponseBody::new((head.status, &headers), framing.known_left(), request, version)?;
        Ok(RangeResponse { framing, content, surprises: 0, keeps_alive })
    }

    /// Returns whether receiving the rest of the response costs more than a new connection.
    pub(super) fn is_long(&self) -> bool {
        self.framing.known_left().unwrap_or(self.content.data_left()) > 256 << 10
    }

    /// Returns the number of body bytes that are known to be outstanding.
    pub(super) fn bytes_left(&self) -> u64 {
        self.framing.known_left().unwrap_or(0)
    }

    /// Processes the bytes that have arrived. Returns `false` if more bytes are needed but the socket has no data.
    /// Errors: `BadResponse`, `PreconditionFailed`, `Unavailable`, and socket errors.
    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        connection: &mut BufferedConnection,
        (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
    ) -> io::Result<bool> {
        loop {
            let run = match self.framing.run(connection, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                run => run?,
            };
            if run == 0 {
                return self.content.check_end().map(|()| true).map_err(io::Error::other);
            }
            if connection.has_nothing_left() {
                match self.receive(connection, (request, batch, version), run) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    received => received?,
                }
                continue;
            }
            let waiting = connection.waiting();
            let bytes = &waiting[..waiting.len().min(usize::try_from(run).unwrap_or(usize::MAX))];
            let taken = self.content.take(bytes, (request, batch, version)).map_err(io::Error::other)?;
            connection.consume(taken);
            self.framing.passed(taken as u64);
            if self.content.is_enough() {
                // Receiving the rest of the document costs more than a new connection.
                (self.framing, self.keeps_alive) = (BodyFraming::Empty, false);
            }
        }
    }

    /// Receives the next bytes into their destination, discards them, or receives them into the buffer for inspection.
    fn receive<S: FragmentSink>(
        &mut self,
        connection: &mut BufferedConnection,
        (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
        run: u64,
    ) -> io::Result<()> {
        let data = run.min(self.content.data_left());
        let here = if data > 0 { batch.look(self.content.at) } else { ByteRunKind::Unwanted(0) };
        let got = match here {
            ByteRunKind::Wanted(_) => self.receive_wanted(connection, (request, batch, version), run)?,
            ByteRunKind::Unwanted(len) if len.min(data) >= DISCARD_BYTES => {
                let got = connection.discard_next(usize::try_from(len.min(data)).unwrap_or(usize::MAX))?;
                self.framing.passed(got as u64);
                self.content.passed(got as u64);
                got
            }
            ByteRunKind::Unwanted(_) => connection.receive_next(STAGING_BYTES)?,
        };
        match (got, &self.framing) {
            (1.., _) => Ok(()),
            (0, BodyFraming::UntilClose) => {
                self.framing = BodyFraming::Empty;
                Ok(())
            }
            (0, framing) => Err(io::Error::other(short_body(framing.known_left().unwrap_or(1)))),
        }
    }

    /// Receives the next bytes if they are wanted content.
    fn receive_wanted<S: FragmentSink>(
        &mut self,
        connection: &mut BufferedConnection,
        (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
        run: u64,
    ) -> io::Result<usize> {
        let foresees = self.surprises < SURPRISES_MAX && connection.reads_far_ahead();
        let mut ahead = ReceiveForecast::of(&self.content, run, foresees, (request, &*batch));
        if ahead.first_bytes() < DIRECT_BYTES && ahead.bytes < STAGING_BYTES as u64 {
            return connection.receive_next(STAGING_BYTES);
        }
        let got = ahead.receive(connection, batch)?;
        let settled = ahead.settle(got, connection, &mut self.content, (request, batch, version))?;
        self.framing.passed(settled.body_bytes);
        self.surprises += usize::from(settled.is_surprise);
        Ok(got)
    }
}

/// The maximum number of bytes forecast after the first part: larger calls are not cheaper per byte.
const AHEAD_BYTES: u64 = 1 << 20;
/// The maximum number of parts in a forecast. Each head takes up one of the 1,024 buffers that the kernel accepts in a
/// call.
const PARTS_MAX: usize = 64;
/// The maximum number of destinations in a forecast, each of which also takes up one of the kernel's 1,024 buffers.
const PLACES_MAX: usize = 256;
/// The number of bytes received beyond the forecast; enough for the next part's head.
const BEHIND_BYTES: usize = 1024;

/// A forecast of the next bytes that arrive on a connection.
pub(super) struct ReceiveForecast {
    pieces: Vec<ReceiveForecastSegment>,
    /// The destinations of the content, in the order of `pieces`.
    places: Vec<(FragmentPosition, usize)>,
    /// The number of content bytes.
    pub(super) bytes: u64,
}

#[derive(Clone, Copy)]
enum ReceiveForecastSegment {
    /// The offset of content in the file, and its length.
    Content(u64, usize),
    /// The number of bytes between the contents of two parts.
    Between(usize),
    /// The number of bytes after the forecast.
    Behind(usize),
}

/// The result of receiving bytes according to a forecast.
pub(super) struct ForecastOutcome {
    /// The number of body bytes that were processed.
    pub(super) body_bytes: u64,
    /// Whether the forecast was wrong, which costs a copy.
    pub(super) is_surprise: bool,
}

impl ReceiveForecastSegment {
    fn len(self) -> usize {
        let (ReceiveForecastSegment::Content(_, len)
        | ReceiveForecastSegment::Between(len)
        | ReceiveForecastSegment::Behind(len)) = self;
        len
    }
}

impl ReceiveForecast {
    /// Forecasts the next `run` bytes of a body, which begin with wanted content. Includes further parts only if
    /// `foresees` is set.
    pub(super) fn of<S: FragmentSink>(
        content: &RangeResponseBody,
        run: u64,
        foresees: bool,
        (request, batch): (&RangeRequest, &FragmentBatch<S>),
    ) -> Self {
        let mut ahead = ReceiveForecast { pieces: Vec::new(), places: Vec::new(), bytes: 0 };
        let first_bytes = content.data_left().min(run);
        let mut left = run - first_bytes;
        let mut is_all = ahead.push(content.at..content.at.saturating_add(first_bytes), batch);
        let most = ahead.bytes + AHEAD_BYTES;
        for count in (0..PARTS_MAX).take_while(|_| foresees) {
            let room = most - ahead.bytes;
            let Some((between, part)) = content.part_ahead(count, request) else { break };
            let after = left.checked_sub(between as u64 + (part.end - part.start));
            let Some(after) = after.filter(|_| is_all && room > 0) else { break };
            ahead.pieces.push(ReceiveForecastSegment::Between(between));
            is_all = ahead.push(part.start..part.end.min(part.start + room), batch);
            left = after;
        }
        ahead.pieces.push(ReceiveForecastSegment::Behind(BEHIND_BYTES));
        ahead
    }

    /// Returns the number of content bytes up to the next part's head, or up to the point where the content's
    /// destination changes.
    pub(super) fn first_bytes(&self) -> u64 {
        self.places.first().map_or(0, |(_, len)| *len as u64)
    }

    /// Adds the leading run of wanted bytes in `content`, up to the limits of [`FragmentBatch::places`]. Returns
    /// whether all of `content` was added.
    fn push<S: FragmentSink>(&mut self, content: Range<u64>, batch: &FragmentBatch<S>) -> bool {
        let (known, mut at) = (self.places.len(), content.start);
        let is_all = batch.places(content, &mut self.places, PLACES_MAX);
        for (_, len) in &self.places[known..] {
            self.pieces.push(ReceiveForecastSegment::Content(at, *len));
            at += *len as u64;
            self.bytes += *len as u64;
        }
        is_all
    }

    /// Receives the forecast bytes with one call; returns the number of bytes, or 0 at the end of the stream.
    pub(super) fn receive<S: FragmentSink>(
        &mut self,
        connection: &mut BufferedConnection,
        batch: &mut FragmentBatch<S>,
    ) -> io::Result<usize> {
        let mut slices = batch.slices(&self.places).into_iter();
        let next = |piece: &ReceiveForecastSegment| match piece {
            ReceiveForecastSegment::Content(..) => slices.next().map(ReceiveTarget::Place),
            ReceiveForecastSegment::Between(len) | ReceiveForecastSegment::Behind(len) => {
                Some(ReceiveTarget::Aside(*len))
            }
        };
        let nexts: Vec<_> = self.pieces.iter().map_while(next).collect();
        self.pieces.truncate(nexts.len());
        connection.read_ahead(nexts)
    }

    /// Processes the `got` received bytes as far as they match the forecast, and puts the remaining bytes back into the
    /// connection's buffer. Errors: as for [`RangeResponseBody::take`].
    pub(super) fn settle<S: FragmentSink>(
        &self,
        got: usize,
        connection: &mut BufferedConnection,
        content: &mut RangeResponseBody,
        (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
    ) -> io::Result<ForecastOutcome> {
        let (mut left, mut aside) = (got, 0);
        for (index, piece) in self.pieces.iter().enumerate() {
            let count = piece.len().min(left);
            let done = match *piece {
                ReceiveForecastSegment::Content(at, _) => content.take_placed(at, count, batch),
                ReceiveForecastSegment::Between(len) if count == len => {
                    let text = connection.text(aside..aside + len);
                    take_between(text, content, (request, batch, version))?
                }
                ReceiveForecastSegment::Between(_) | ReceiveForecastSegment::Behind(_) => 0,
            };
            left -= done;
            if done < count {
                // A partly received piece and bytes past the forecast do not count as a wrong forecast.
                let is_surprise = count == piece.len() && !matches!(piece, ReceiveForecastSegment::Behind(_));
                // Bytes after a wrong forecast have been put in the wrong places. Put them back in the order in which
                // they arrived; they are then read as usual.
                let rest = self.rest((index, done), left, (connection, aside), batch);
                connection.put_back(&rest);
                return Ok(ForecastOutcome { body_bytes: (got - left) as u64, is_surprise });
            }
            aside += if matches!(piece, ReceiveForecastSegment::Between(_)) { count } else { 0 };
        }
        Ok(ForecastOutcome { body_bytes: got as u64, is_surprise: false })
    }

    /// Returns the last `left` received bytes, starting at byte `done` of piece `index`, in the order in which they
    /// arrived. In the buffer, the bytes of these pieces begin at `aside`.
    fn rest<S: FragmentSink>(
        &self,
        (index, mut done): (usize, usize),
        left: usize,
        (connection, mut aside): (&BufferedConnection, usize),
        batch: &mut FragmentBatch<S>,
    ) -> Vec<u8> {
        let mut rest = Vec::with_capacity(left);
        let is_content =
            |piece: &&ReceiveForecastSegment| matches!(piece, ReceiveForecastSegment::Content(..));
        let mut places = self.places[self.pieces[..index].iter().filter(is_content).count()..].iter();
        for piece in &self.pieces[index..] {
            let count = piece.len().min(left - rest.len() + done);
            match (piece, places.as_slice().first()) {
                (ReceiveForecastSegment::Content(..), Some((place, _))) => {
                    rest.extend_from_slice(&batch.slice(*place, count)[done..]);
                    places.next();
                }
                _ => {
                    rest.extend_from_slice(&connection.text(aside..aside + count)[done..]);
                    aside += count;
                }
            }
            done = 0;
        }
        rest
    }
}

/// Processes the bytes between the contents of two parts; returns the number of these bytes.
fn take_between<S: FragmentSink>(
    text: &[u8],
    content: &mut RangeResponseBody,
    (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
) -> io::Result<usize> {
    let mut done = 0;
    while done < text.len() && content.data_left() == 0 {
        done += content.take(&text[done..], (request, batch, version)).map_err(io::Error::other)?;
    }
    Ok(done)
}
