//! The server of [`super::dialogue`] over HTTP/2. The responses of the dialogue are in HTTP/1.1 form, and are
//! translated to HTTP/2.

use std::future::pending;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, server};
use tokio::runtime::Builder as Runtime;
use tokio::task::LocalSet;

use super::dialogue::{Request, Shared};

/// A body of at least this size is received only if the response begins with status 100, as over HTTP/1.1 after
/// `Expect`.
pub(super) const LARGE_BYTES: u64 = 64 << 10;

/// Responds to the requests of a connection until either side ends it.
pub(super) fn serve(stream: &TcpStream, shared: &Arc<Shared>) {
    let Ok(runtime) = Runtime::new_current_thread().enable_io().build() else { return };
    let answering = async {
        let socket = stream.try_clone()?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::TcpStream::from_std(socket)?;
        let mut connection = server::handshake(socket).await.map_err(io::Error::other)?;
        while let Some(asked) = connection.accept().await {
            let (asked, respond) = asked.map_err(io::Error::other)?;
            tokio::task::spawn_local(answer(asked, respond, shared.clone()));
        }
        Ok::<(), io::Error>(())
    };
    let _ = LocalSet::new().block_on(&runtime, answering);
}

async fn answer(asked: http::Request<RecvStream>, mut respond: SendResponse<Bytes>, shared: Arc<Shared>) {
    let mut request = Request::of(&asked);
    let mut body = asked.into_body();
    let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    let asks_first = request.header("expect").is_some();
    if !asks_first && length < LARGE_BYTES {
        take(&mut body, &mut request).await;
    }
    let mut said = shared.say(&request);
    if said.starts_with(b"HTTP/1.1 100") {
        said.drain(..end_of_head(&said));
        if asks_first {
            let go_on = http::Response::builder().status(100).body(()).unwrap();
            respond.send_informational(go_on).unwrap();
        }
        take(&mut body, &mut request).await;
    }
    shared.heard(request);
    if said.is_empty() {
        return respond.send_reset(h2::Reason::INTERNAL_ERROR);
    }
    let (response, content, is_complete) = translated(&said);
    let mut sending = respond.send_response(response, false).unwrap();
    if sending.send_data(content.into(), is_complete).is_err() || !is_complete {
        pending::<()>().await;
    }
}

async fn take(body: &mut RecvStream, request: &mut Request) {
    while let Some(Ok(piece)) = body.data().await {
        request.body_bytes += piece.len();
        let _ = body.flow_control().release_capacity(piece.len());
    }
}

/// Parses a response in HTTP/1.1. Returns the response, its content, and whether the content is complete.
pub(super) fn translated(said: &[u8]) -> (http::Response<()>, Vec<u8>, bool) {
    let (head, mut rest) = said.split_at(end_of_head(said));
    let head = std::str::from_utf8(head).unwrap();
    let mut response = http::Response::builder().status(&head[9..12]);
    let mut is_chunked = false;
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
        match name.eq_ignore_ascii_case("transfer-encoding") {
            true => is_chunked = true,
            false => response = response.header(name, value),
        }
    }
    let response = response.body(()).unwrap();
    if !is_chunked {
        return (response, rest.to_vec(), true);
    }
    let mut content = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let size = std::str::from_utf8(&rest[..end]).unwrap().trim();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (response, content, true);
        }
        content.extend_from_slice(&rest[end + 1..][..size]);
        rest = &rest[end + 1 + size + 2..];
    }
    (response, content, false)
}

pub(super) fn end_of_head(said: &[u8]) -> usize {
    said.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4
}
