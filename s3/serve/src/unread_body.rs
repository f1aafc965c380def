//! Bodies of HTTP/2 requests that are answered before the whole body has arrived.
//!
//! hyper resets the stream of such a request. h2 counts frames that arrive after a reset as errors of the client, and
//! closes the connection after too many errors. The client, however, may have sent these frames before it received the
//! response. Therefore, the rest of a small body is read.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The maximum number of bytes that are read after the response. The stream of a larger body is reset, so that the
/// client stops sending.
const REST_BYTES_MAX: usize = 64 * 1024;
/// The maximum time for the rest of a body.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// A body. If the body is dropped before its end, another task reads the rest.
pub(crate) struct ReadToEndBody(Option<Incoming>);

impl ReadToEndBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        ReadToEndBody(Some(incoming))
    }
}

impl Body for ReadToEndBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            Some(incoming) => Pin::new(incoming).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for ReadToEndBody {
    fn drop(&mut self) {
        let unread = self.0.take().filter(|incoming| !incoming.is_end_stream());
        if let Some(incoming) = unread
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(REST_TIMEOUT, read_rest(incoming)));
        }
    }
}

async fn read_rest(mut incoming: Incoming) {
    let mut left_bytes = REST_BYTES_MAX;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match left_bytes.checked_sub(bytes) {
            Some(left) => left_bytes = left,
            None => return,
        }
    }
}
