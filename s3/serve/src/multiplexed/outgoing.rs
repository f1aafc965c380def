//! Bodies of answers, read as the client takes them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use super::held::{HeldAnswer, HeldBytes};
use crate::answer::Reply;
use crate::content::Pieces;

/// The answer as it is sent; to HEAD only what it says of itself.
pub(super) fn response(response: Response<Reply>, is_head: bool, held: &HeldBytes) -> Response<ReplyBody> {
    let (mut parts, reply) = response.into_parts();
    let is_without_body = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if !is_without_body
        && let Some(length) = reply.len()
        && !parts.headers.contains_key(header::CONTENT_LENGTH)
    {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let reply = if is_without_body || is_head { Reply::Nothing } else { reply };
    Response::from_parts(parts, ReplyBody { left: Left::of(reply), held: held.answer() })
}

/// A piece, and what comes after it, on their way from a file.
type Reading = Pin<Box<dyn Future<Output = io::Result<(Bytes, Pieces)>> + Send>>;

/// What a client has not taken yet.
pub(crate) struct ReplyBody {
    left: Left,
    held: HeldAnswer,
}

enum Left {
    Content(Pieces),
    Reading(Reading),
    Document(s3s::Body),
    Nothing,
}

impl Left {
    fn of(reply: Reply) -> Self {
        match reply {
            Reply::Nothing => Left::Nothing,
            Reply::Content(content) => Left::Content(Pieces::new(content)),
            Reply::Parts(parts) => Left::Content(Pieces::Parts(parts)),
            Reply::Document(document) => Left::Document(document),
        }
    }
}

impl ReplyBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match std::mem::replace(&mut self.left, Left::Nothing) {
                Left::Content(pieces) if pieces.len() > 0 => {
                    let Poll::Ready(room) = self.held.poll_room(context) else {
                        self.left = Left::Content(pieces);
                        return Poll::Pending;
                    };
                    self.left = Left::Reading(Box::pin(pieces.next(room)));
                }
                Left::Reading(mut reading) => {
                    let Poll::Ready(read) = reading.as_mut().poll(context) else {
                        self.left = Left::Reading(reading);
                        return Poll::Pending;
                    };
                    let (piece, rest) = read?;
                    self.left = Left::Content(rest);
                    return Poll::Ready(Ok(Some(self.held.hold(piece))));
                }
                _ => return Poll::Ready(Ok(None)),
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Left::Document(document) = &mut self.left {
            return Pin::new(document).poll_frame(context).map_err(Into::into);
        }
        let piece = ready!(self.poll_piece(context));
        let piece =
            piece.inspect_err(|error| tracing::warn!(%error, "an object could not be read to its end"));
        Poll::Ready(piece.map_err(Into::into).transpose().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.left {
            Left::Nothing => true,
            Left::Content(pieces) => pieces.len() == 0,
            Left::Reading(_) => false,
            Left::Document(document) => document.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.left {
            Left::Nothing => SizeHint::with_exact(0),
            Left::Content(pieces) => SizeHint::with_exact(pieces.len()),
            Left::Reading(_) => SizeHint::default(),
            Left::Document(document) => document.size_hint(),
        }
    }
}
