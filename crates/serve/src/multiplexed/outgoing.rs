//! Bodies of answers, read as the client takes them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use crate::answer::Reply;
use crate::content::Pieces;

/// The answer as it is sent; to HEAD only what it says of itself.
pub(super) fn response(response: Response<Reply>, is_head: bool) -> Response<ReplyBody> {
    let (mut parts, reply) = response.into_parts();
    let is_without_body = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if !is_without_body
        && let Some(length) = reply.len()
        && !parts.headers.contains_key(header::CONTENT_LENGTH)
    {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let reply = if is_without_body || is_head { Reply::Nothing } else { reply };
    Response::from_parts(parts, ReplyBody::new(reply))
}

/// A piece, and what comes after it, on their way from a file.
type Reading = Pin<Box<dyn Future<Output = io::Result<(Bytes, Pieces)>> + Send>>;

/// What a client has not taken yet.
pub(crate) enum ReplyBody {
    Content(Pieces),
    Reading(Reading),
    Document(s3s::Body),
    Nothing,
}

impl ReplyBody {
    fn new(reply: Reply) -> Self {
        match reply {
            Reply::Nothing => ReplyBody::Nothing,
            Reply::Content(content) => ReplyBody::Content(Pieces::new(content)),
            Reply::Parts(parts) => ReplyBody::Content(Pieces::Parts(parts)),
            Reply::Document(document) => ReplyBody::Document(document),
        }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match std::mem::replace(self, ReplyBody::Nothing) {
                ReplyBody::Content(pieces) if pieces.len() > 0 => {
                    *self = ReplyBody::Reading(Box::pin(pieces.next()));
                }
                ReplyBody::Reading(mut reading) => {
                    let Poll::Ready(read) = reading.as_mut().poll(context) else {
                        *self = ReplyBody::Reading(reading);
                        return Poll::Pending;
                    };
                    let (piece, rest) = read?;
                    *self = ReplyBody::Content(rest);
                    return Poll::Ready(Ok(Some(piece)));
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
        if let ReplyBody::Document(document) = &mut *self {
            return Pin::new(document).poll_frame(context).map_err(Into::into);
        }
        let piece = ready!(self.poll_piece(context));
        let piece =
            piece.inspect_err(|error| tracing::warn!(%error, "an object could not be read to its end"));
        Poll::Ready(piece.map_err(Into::into).transpose().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Nothing => true,
            ReplyBody::Content(pieces) => pieces.len() == 0,
            ReplyBody::Reading(_) => false,
            ReplyBody::Document(document) => document.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Nothing => SizeHint::with_exact(0),
            ReplyBody::Content(pieces) => SizeHint::with_exact(pieces.len()),
            ReplyBody::Reading(_) => SizeHint::default(),
            ReplyBody::Document(document) => document.size_hint(),
        }
    }
}
