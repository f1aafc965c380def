//! Receiving several parts in one call: each into place, and aside the heads between them, which are most likely as
//! long as the one before. What came is then checked against what was foreseen.

use std::io;
use std::ops::Range;

use super::batch::Batch;
use super::content::Content;
use super::plan::Place;
use super::request::Request;
use super::sink::Sink;
use super::version::FileVersion;
use crate::connection::{Connection, Next};

/// So much is foreseen of the parts behind the first: a call that brings more costs no less for each byte.
const AHEAD_BYTES: u64 = 1 << 20;
/// And this many parts and places: each is an address more for the kernel to look at, which takes 1,024 of them.
const PARTS_MAX: usize = 64;
const PLACES_MAX: usize = 256;
/// Received behind all that is foreseen: the next part's head fits.
const BEHIND_BYTES: usize = 1024;

/// What most likely comes next on a connection.
pub(super) struct Ahead {
    pieces: Vec<Piece>,
    /// Where the content belongs, in the order of `pieces`.
    places: Vec<(Place, usize)>,
    /// Bytes of content.
    pub(super) bytes: u64,
}

#[derive(Clone, Copy)]
enum Piece {
    /// Content from this position of the file on, and its bytes.
    Content(u64, usize),
    /// This many bytes between the contents of two parts.
    Between(usize),
    /// Bytes that may be anything.
    Behind(usize),
}

/// What became of what was received.
pub(super) struct Settled {
    /// Bytes of body that were taken.
    pub(super) body_bytes: u64,
    /// Whether something else came than was foreseen, which costs a copy.
    pub(super) is_surprise: bool,
}

impl Piece {
    fn len(self) -> usize {
        let (Piece::Content(_, len) | Piece::Between(len) | Piece::Behind(len)) = self;
        len
    }
}

impl Ahead {
    /// What the next `run` bytes of a body are, the first of which are wanted content; of its further parts only if
    /// `foresees`.
    pub(super) fn of<S: Sink>(
        content: &Content,
        run: u64,
        foresees: bool,
        (request, batch): (&Request, &Batch<S>),
    ) -> Self {
        let mut ahead = Ahead { pieces: Vec::new(), places: Vec::new(), bytes: 0 };
        let first_bytes = content.data_left().min(run);
        let mut left = run - first_bytes;
        let mut is_all = ahead.push(content.at..content.at.saturating_add(first_bytes), batch);
        let most = ahead.bytes + AHEAD_BYTES;
        for count in (0..PARTS_MAX).take_while(|_| foresees) {
            let room = most - ahead.bytes;
            let Some((between, part)) = content.part_ahead(count, request) else { break };
            let after = left.checked_sub(between as u64 + (part.end - part.start));
            let Some(after) = after.filter(|_| is_all && room > 0) else { break };
            ahead.pieces.push(Piece::Between(between));
            is_all = ahead.push(part.start..part.end.min(part.start + room), batch);
            left = after;
        }
        ahead.pieces.push(Piece::Behind(BEHIND_BYTES));
        ahead
    }

    /// Bytes of content that come first, up to a part's head or to where they belong elsewhere.
    pub(super) fn first_bytes(&self) -> u64 {
        self.places.first().map_or(0, |(_, len)| *len as u64)
    }

    /// Adds what is wanted of `content` from its start on; says whether that is all of it.
    fn push<S: Sink>(&mut self, content: Range<u64>, batch: &Batch<S>) -> bool {
        let (known, mut at) = (self.places.len(), content.start);
        let is_all = batch.places(content, &mut self.places, PLACES_MAX);
        for (_, len) in &self.places[known..] {
            self.pieces.push(Piece::Content(at, *len));
            at += *len as u64;
            self.bytes += *len as u64;
        }
        is_all
    }

    /// Receives by one call what has come of it; returns how many bytes, 0 at the end of the stream.
    pub(super) fn receive<S: Sink>(
        &mut self,
        connection: &mut Connection,
        batch: &mut Batch<S>,
    ) -> io::Result<usize> {
        let mut slices = batch.slices(&self.places).into_iter();
        let next = |piece: &Piece| match piece {
            Piece::Content(..) => slices.next().map(Next::Place),
            Piece::Between(len) | Piece::Behind(len) => Some(Next::Aside(*len)),
        };
        let nexts: Vec<_> = self.pieces.iter().map_while(next).collect();
        self.pieces.truncate(nexts.len());
        connection.read_ahead(nexts)
    }

    /// Takes the `got` bytes that were received as far as they are what was foreseen; the others then wait on the
    /// connection. Errors: as of [`Content::take`].
    pub(super) fn settle<S: Sink>(
        &self,
        got: usize,
        connection: &mut Connection,
        content: &mut Content,
        (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
    ) -> io::Result<Settled> {
        let (mut left, mut aside) = (got, 0);
        for (index, piece) in self.pieces.iter().enumerate() {
            let count = piece.len().min(left);
            let done = match *piece {
                Piece::Content(at, _) => content.take_placed(at, count, batch),
                Piece::Between(len) if count == len => {
                    let text = connection.text(aside..aside + len);
                    take_between(text, content, (request, batch, version))?
                }
                Piece::Between(_) | Piece::Behind(_) => 0,
            };
            left -= done;
            if done < count {
                let is_surprise = count == piece.len() && !matches!(piece, Piece::Behind(_));
                let rest = self.rest((index, done), left, (connection, aside), batch);
                connection.put_back(&rest);
                return Ok(Settled { body_bytes: (got - left) as u64, is_surprise });
            }
            aside += if matches!(piece, Piece::Between(_)) { count } else { 0 };
        }
        Ok(Settled { body_bytes: got as u64, is_surprise: false })
    }

    /// The `left` bytes that came last, from a piece's byte `done` on, in the order in which they came. Of what
    /// was received aside, that piece is at `aside`.
    fn rest<S: Sink>(
        &self,
        (index, mut done): (usize, usize),
        left: usize,
        (connection, mut aside): (&Connection, usize),
        batch: &mut Batch<S>,
    ) -> Vec<u8> {
        let mut rest = Vec::with_capacity(left);
        let is_content = |piece: &&Piece| matches!(piece, Piece::Content(..));
        let mut places = self.places[self.pieces[..index].iter().filter(is_content).count()..].iter();
        for piece in &self.pieces[index..] {
            let count = piece.len().min(left - rest.len() + done);
            match (piece, places.as_slice().first()) {
                (Piece::Content(..), Some((place, _))) => {
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

/// Takes what lies between two contents; returns how many bytes of `text` that is.
fn take_between<S: Sink>(
    text: &[u8],
    content: &mut Content,
    (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
) -> io::Result<usize> {
    let mut done = 0;
    while done < text.len() && content.data_left() == 0 {
        done += content.take(&text[done..], (request, batch, version)).map_err(io::Error::other)?;
    }
    Ok(done)
}
