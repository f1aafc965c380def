//! HTTP/3 (RFC 9114): QUIC by quinn, frames by h3, the limits and the content by ourselves.
//!
//! * `listener`: the UDP socket, its certificate, and connections as they come
//! * `body`: bodies of requests
//! * `turns`: answers of one connection, in turn

mod body;
mod listener;
mod turns;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h3::error::Code;
use h3::server::{RequestResolver, RequestStream};
use h3_quinn::{BidiStream, SendStream};
use http::{Request, Response, header};
use http_body::Body as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::Shared;
use crate::caller::Caller;
use crate::gateway::Stopped;
use crate::multiplexed::{self, HeldBytes, ReplyBody};
pub(crate) use listener::Listener;
use turns::Turns;

/// How long a client that was told to go may take to have read its last answer.
const LINGER: Duration = Duration::from_millis(500);

type Connection = h3::server::Connection<h3_quinn::Connection, Bytes>;
type Resolver = RequestResolver<h3_quinn::Connection, Bytes>;

/// Serves one connection until it ends, or until `stopped` and its requests in progress are answered.
pub(crate) async fn serve(connection: listener::Accepted, shared: &Arc<Shared>, stopped: Stopped) {
    if let Err(error) = speak(connection, shared, stopped).await {
        tracing::debug!(%error, "an HTTP/3 connection ended early");
    }
}

async fn speak(accepted: listener::Accepted, shared: &Arc<Shared>, stopped: Stopped) -> io::Result<()> {
    let (caller, header_timeout) = (Caller::Remote(accepted.remote()), shared.limits.header_timeout);
    let quic = timeout(header_timeout, accepted.handshake()).await??;
    let mut connection: Connection = h3::server::builder()
        .max_field_section_size(shared.limits.head_bytes_max as u64)
        .build(h3_quinn::Connection::new(quic))
        .await
        .map_err(io::Error::other)?;
    // Those still there when the connection has ended end with it.
    let mut requests = JoinSet::new();
    let stop = stopped.over();
    take_requests(&mut connection, &mut requests, (shared, &caller), stop).await?;
    // The next one is the first that is not served.
    connection.shutdown(1).await.map_err(io::Error::other)?;
    while !requests.is_empty() {
        tokio::select! {
            _ = requests.join_next() => {}
            next = connection.accept() => drop(next.map_err(io::Error::other)?),
        }
    }
    // What was sent is on its way; clients close when they have all that they asked for.
    let last = async { while let Ok(Some(_)) = connection.accept().await {} };
    let _ = timeout(LINGER, last).await;
    Ok(())
}

/// Starts requests until the client goes, none came for the time that a head may take, or `stop`.
async fn take_requests(
    connection: &mut Connection,
    requests: &mut JoinSet<()>,
    (shared, caller): (&Arc<Shared>, &Caller),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut stop = pin!(stop);
    let (turns, held) = (Arc::new(Turns::new(shared.limits.stall_timeout)), HeldBytes::default());
    loop {
        let next = tokio::select! {
            next = timeout(shared.limits.header_timeout, connection.accept()) => next,
            () = stop.as_mut() => return Ok(()),
        };
        while requests.try_join_next().is_some() {}
        match next {
            Ok(Ok(Some(request))) => {
                let with = (shared.clone(), held.clone());
                requests.spawn(answer(request, with, caller.clone(), turns.clone()));
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) if error.is_h3_no_error() => return Ok(()),
            Ok(Err(error)) => return Err(io::Error::other(error)),
            Err(_) if requests.is_empty() => return Ok(()),
            Err(_) => {}
        }
    }
}

async fn answer(
    request: Resolver,
    (shared, held): (Arc<Shared>, HeldBytes),
    caller: Caller,
    turns: Arc<Turns>,
) {
    if let Err(error) = exchange(request, (&shared, &held), &caller, &turns).await {
        tracing::debug!(%error, "a request over HTTP/3 ended early");
    }
}

async fn exchange(
    resolver: Resolver,
    (shared, held): (&Shared, &HeldBytes),
    caller: &Caller,
    turns: &Turns,
) -> io::Result<()> {
    let limits = &shared.limits;
    let head = timeout(limits.header_timeout, resolver.resolve_request()).await?;
    let (request, stream): (Request<()>, RequestStream<BidiStream<Bytes>, Bytes>) =
        head.map_err(io::Error::other)?;
    let (mut send, receive) = stream.split();
    let (body, length) = body::of(&request, receive, limits);
    let response = multiplexed::exchange((shared, held), caller, request.map(|()| body), length).await;
    let sent = send_answer(&mut send, response, turns).await;
    if sent.is_err() {
        // The client must not take what it has for the whole.
        send.stop_stream(Code::H3_INTERNAL_ERROR);
    }
    sent
}

async fn send_answer(
    send: &mut RequestStream<SendStream<Bytes>, Bytes>,
    response: Response<ReplyBody>,
    turns: &Turns,
) -> io::Result<()> {
    let (mut parts, mut body) = response.into_parts();
    // There is no connection that these could be of (RFC 9114 section 4.2).
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let head = Response::from_parts(parts, ());
    turns.send(send.send_response(head)).await?;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        turns.send(send.send_data(data)).await?;
    }
    turns.send(send.finish()).await
}
