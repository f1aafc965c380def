//! One request of HTTP/2 under way, and its answer.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use fordway_store::Error;
use fordway_wire::range::digits;
use h2::RecvStream;
use h2::client::ResponseFuture;

use super::batch::Batch;
use super::content::{Content, Headers};
use super::line::{End, is_cheap};
use super::request::Request;
use super::sink::Sink;
use super::version::FileVersion;

/// Less than this is let come when nobody wants it any more.
const LET_COME_BYTES: u64 = 256 << 10;

/// A request under way.
pub(super) struct Stream {
    pub(super) request: Request,
    pub(super) state: State,
    /// When something came on it last.
    pub(super) moved: Instant,
    news: Arc<News>,
}

/// Whether something may have happened on a stream since it was looked at: there may be hundreds.
struct News(AtomicBool);

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) enum State {
    /// Its head, as HTTP/1.1 has it.
    Unsent(Vec<u8>),
    Waiting(ResponseFuture),
    /// With the bytes of the body that are to come, if that is known.
    Receiving(RecvStream, Content, Option<u64>),
}

/// What became of a stream.
pub(super) enum Step {
    GoesOn,
    Done,
    Ended(End),
}

impl Stream {
    /// A request whose head is this, as HTTP/1.1 has it.
    pub(super) fn new(request: Request, head: Vec<u8>) -> Self {
        let news = Arc::new(News(AtomicBool::new(true)));
        Stream { request, state: State::Unsent(head), moved: Instant::now(), news }
    }

    /// Goes on until its answer has ended, or nothing more has come. Errors: what ended the stream.
    pub(super) fn step<S: Sink>(
        &mut self,
        batch: Option<&mut Batch<S>>,
        version: &FileVersion,
    ) -> Result<Step, h2::Error> {
        let Some(batch) = batch else { return Ok(Step::Ended(End::Unneeded)) };
        match &self.state {
            State::Receiving(..) => {}
            _ if batch.has_ended() => return Ok(Step::Ended(End::Unneeded)),
            State::Unsent(_) => return Ok(Step::GoesOn),
            State::Waiting(_) => {}
        }
        if !self.news.0.swap(false, Ordering::Relaxed) && !batch.has_ended() {
            return Ok(Step::GoesOn);
        }
        let waker = Waker::from(self.news.clone());
        let mut context = Context::from_waker(&waker);
        if let State::Waiting(response) = &mut self.state {
            let Poll::Ready(answer) = Pin::new(response).poll(&mut context) else { return Ok(Step::GoesOn) };
            if let Err(error) = self.begin(answer?, version) {
                return Ok(Step::Ended(End::Failed(error)));
            }
        }
        self.receive(batch, version, &mut context)
    }

    /// Takes the head of the answer. Errors: as of [`Content::new`].
    fn begin(&mut self, answer: http::Response<RecvStream>, version: &FileVersion) -> Result<(), Error> {
        self.moved = Instant::now();
        self.request.waited = Some(self.request.sent.elapsed());
        let (head, body) = answer.into_parts();
        let texts =
            head.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let headers = Headers::of(texts);
        let stated = head.headers.get("content-length").and_then(|value| value.to_str().ok());
        let length = stated.and_then(digits);
        let content = Content::new((head.status.as_u16(), &headers), length, &self.request, version)?;
        self.state = State::Receiving(body, content, length);
        Ok(())
    }

    /// Takes what has come of the body.
    fn receive<S: Sink>(
        &mut self,
        batch: &mut Batch<S>,
        version: &FileVersion,
        context: &mut Context<'_>,
    ) -> Result<Step, h2::Error> {
        let State::Receiving(body, content, left) = &mut self.state else { return Ok(Step::GoesOn) };
        loop {
            if content.is_whole() && self.request.spans.len() > 1 && !is_cheap(version, batch) {
                return Ok(Step::Ended(End::Whole));
            }
            let is_long = left.unwrap_or(content.data_left()) > LET_COME_BYTES;
            if (batch.has_ended() && is_long) || content.is_enough() {
                return Ok(if content.is_enough() { Step::Done } else { Step::Ended(End::Unneeded) });
            }
            let Poll::Ready(piece) = body.poll_data(context) else { return Ok(Step::GoesOn) };
            let Some(piece) = piece else {
                return Ok(content
                    .check_end()
                    .map_or_else(|error| Step::Ended(End::Failed(error)), |()| Step::Done));
            };
            let piece = piece?;
            self.moved = Instant::now();
            body.flow_control().release_capacity(piece.len())?;
            *left = left.map(|left| left.saturating_sub(piece.len() as u64));
            if let Err(error) = put(content, &piece, (&self.request, batch, version)) {
                batch.refute(&error);
                return Ok(Step::Ended(End::Failed(error)));
            }
        }
    }
}

/// Puts all of a piece where it belongs.
fn put<S: Sink>(
    content: &mut Content,
    mut piece: &[u8],
    (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
) -> Result<(), Error> {
    while !piece.is_empty() {
        let taken = content.take(piece, (request, batch, version))?;
        piece = &piece[taken..];
    }
    Ok(())
}
