//! Bodies of requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::server::RequestStream;
use h3_quinn::RecvStream;
use http::{Method, Request, header};
use http_body::{Body, Frame, SizeHint};

use crate::answer::Limits;
use crate::http1::STALLED;
use crate::multiplexed::gathered;
use crate::patience::Patience;

/// The body of `request` as the S3 layer takes it, and what is known of its length.
pub(super) fn of(
    request: &Request<()>,
    stream: RequestStream<RecvStream, Bytes>,
    limits: &Limits,
) -> (s3s::Body, SizeHint) {
    let stated = request.headers().get(header::CONTENT_LENGTH);
    let length: Option<u64> = stated.and_then(|length| length.to_str().ok()?.parse().ok());
    let has_none = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    if length == Some(0) || (length.is_none() && has_none) {
        return (s3s::Body::empty(), SizeHint::with_exact(0));
    }
    let received =
        Received { stream, left: length, patience: Patience::default(), stall_timeout: limits.stall_timeout };
    let length = received.size_hint();
    (gathered(received, limits.body_bytes_max), length)
}

struct Received {
    stream: RequestStream<RecvStream, Bytes>,
    /// Bytes to come, where that is known.
    left: Option<u64>,
    patience: Patience,
    stall_timeout: Duration,
}

impl Received {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let received = self.stream.poll_recv_data(context);
        let received = received.map_ok(|data| data.map(|mut data| data.copy_to_bytes(data.remaining())));
        let Poll::Ready(received) = received else {
            ready!(self.patience.poll_over(context, self.stall_timeout));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, STALLED)));
        };
        self.patience.end();
        let data = received.map_err(io::Error::other)?;
        let count = data.as_ref().map_or(0, |data| data.len() as u64);
        match &mut self.left {
            // A length that was stated binds (RFC 9114 section 4.1.2).
            Some(left) if count > *left || (data.is_none() && *left > 0) => {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Some(left) => *left -= count,
            None => {}
        }
        Poll::Ready(Ok(data))
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.poll_data(context).map(|data| data.map(|data| data.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}
