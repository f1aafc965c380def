//! Tests of uploads: flow control, and responses that arrive before the whole body has been sent.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fordway_http::HttpVersion;
use fordway_http::webdav::{DavUploadOptions, WebDavClient};
use fordway_store::{ErrorKind, Result};
use h2::server::SendResponse;
use h2::{Ping, RecvStream, server};
use tokio::runtime::Builder as Runtime;

use crate::dialogue::{Dialogue, answer};
use crate::{client, kind, over_each_version};

/// What a server does with the body of a request.
#[derive(Clone, Copy)]
enum Upload {
    /// The server responds with this status as soon as it has received the head.
    Refused(u16),
    /// The server reads all of the body, a little at a time, and then responds.
    Read,
    /// The server neither reads the body nor responds.
    Left,
    /// The server reads the body, and then sends only pings.
    Pinged,
}

/// Starts a server for one connection. Returns its URL, the number of body bytes that it has received, and its thread.
fn serve(upload: Upload) -> (String, Arc<AtomicUsize>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let received = Arc::new(AtomicUsize::new(0));
    let counter = received.clone();
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(serve_one(listener.accept().unwrap().0, upload, &counter));
    });
    (url, received, thread)
}

async fn serve_one(socket: TcpStream, upload: Upload, received: &AtomicUsize) {
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::TcpStream::from_std(socket).unwrap();
    let mut connection = server::handshake(socket).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let Some(Ok((asked, respond))) = connection.accept().await else { return };
    let handled = async {
        handle(asked.into_body(), respond, upload, received).await;
        while matches!(upload, Upload::Pinged) && pings.ping(Ping::opaque()).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = connection.accept() => {}
        () = handled => {}
    }
}

async fn handle(
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    upload: Upload,
    received: &AtomicUsize,
) {
    let head = |status: u16| http::Response::builder().status(status).body(()).unwrap();
    match upload {
        Upload::Refused(status) => drop(respond.send_response(head(status), true).unwrap()),
        Upload::Left => {}
        Upload::Read | Upload::Pinged => {
            while let Some(Ok(piece)) = body.data().await {
                received.fetch_add(piece.len(), Ordering::Relaxed);
                body.flow_control().release_capacity(piece.len()).unwrap();
            }
        }
    }
    if matches!(upload, Upload::Read) {
        respond.send_response(head(201), true).unwrap();
    }
    std::mem::forget((body, respond));
}

const PIECE_BYTES: usize = 100_000;

/// Uploads `pieces` pieces. Returns the result, and the number of pieces that were produced.
fn put(dav: &WebDavClient, url: &str, pieces: usize) -> (Result<()>, usize) {
    let upload =
        DavUploadOptions { size_bytes: Some((pieces * PIECE_BYTES) as u64), ..DavUploadOptions::default() };
    let mut produced = 0;
    let done = dav.put(url, &upload, &mut |sink| {
        (0..pieces).try_for_each(|_| {
            produced += 1;
            sink(&[7; PIECE_BYTES])
        })
    });
    (done, produced)
}

fn http2(limit: Duration) -> WebDavClient {
    client(|options| {
        (options.http, options.max_retries) = (HttpVersion::Http2, 0);
        (options.timeouts.first_byte, options.timeouts.progress) = (limit, limit);
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_body_is_sent_through_a_small_window() {
    let (url, received, server) = serve(Upload::Read);
    let dav = http2(LONG);
    put(&dav, &url, 50).0.unwrap();
    assert_eq!(received.load(Ordering::Relaxed), 50 * PIECE_BYTES);
    drop(dav);
    server.join().unwrap();
}

#[test]
fn a_refused_body_is_not_sent() {
    for (status, kind) in [(403, ErrorKind::AccessDenied), (507, ErrorKind::NoSpace)] {
        let (url, _, server) = serve(Upload::Refused(status));
        let dav = http2(LONG);
        let (done, produced) = put(&dav, &url, 10_000);
        assert_eq!(done.unwrap_err().kind(), kind, "{status}");
        assert!(produced < 20, "{produced} pieces");
        drop(dav);
        server.join().unwrap();
    }
}

#[test]
fn a_success_before_the_whole_body_is_an_error() {
    let (url, _, server) = serve(Upload::Refused(201));
    let dav = http2(LONG);
    let error = put(&dav, &url, 10_000).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.detail().contains("before it had received the content"), "{error}");
    drop(dav);
    server.join().unwrap();
}

#[test]
fn a_server_that_stops_reading_is_not_waited_for_forever() {
    let (url, _, server) = serve(Upload::Left);
    let (dav, begun) = (http2(Duration::from_millis(300)), Instant::now());
    assert_eq!(kind(put(&dav, &url, 100).0), ErrorKind::Timeout);
    assert!(begun.elapsed() < LONG);
    drop(dav);
    server.join().unwrap();
}

#[test]
fn pings_do_not_stand_for_a_response() {
    let (url, _, server) = serve(Upload::Pinged);
    let (dav, begun) = (http2(Duration::from_millis(300)), Instant::now());
    assert_eq!(kind(dav.stat(&url)), ErrorKind::Timeout);
    assert!(begun.elapsed() < LONG);
    drop(dav);
    server.join().unwrap();
}

/// If a server responds before it has received the body, the client produces no more of the body than fits into the
/// server's window.
#[test]
fn a_refusal_ends_an_upload_over_each_version() {
    over_each_version(|| {
        let server = Dialogue::start(|_, _| answer(403, "", ""));
        let (done, produced) = put(&client(|_| {}), &server.url("f"), 100_000);
        assert_eq!(kind(done), ErrorKind::AccessDenied);
        assert!(produced < 100, "{produced} pieces");
        let liar = Dialogue::start(|_, _| answer(201, "", ""));
        let (done, produced) = put(&client(|_| {}), &liar.url("f"), 100_000);
        assert_eq!(kind(done), ErrorKind::BadResponse);
        assert!(produced < 100, "{produced} pieces");
    });
}

/// A server that stops after `100 Continue` closes the connection without a response, and the upload is repeated.
#[test]
fn an_upload_is_repeated_if_the_server_closes_after_its_interim_response() {
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
    let (first, always) = (go_on.clone(), go_on.clone());
    let server = Dialogue::start(move |_, number| {
        if number == 0 { first.clone() } else { [go_on.clone(), answer(201, "", "")].concat() }
    });
    put(&client(|_| {}), &server.url("f"), 20).0.unwrap();
    let received: Vec<_> = server.requests().iter().map(|request| request.body_bytes).collect();
    assert_eq!(received, [20 * PIECE_BYTES; 2]);
    let server = Dialogue::start(move |_, _| always.clone());
    let error = put(&client(|_| {}), &server.url("f"), 20).0.unwrap_err();
    assert_eq!((error.kind(), error.tries()), (ErrorKind::Unavailable, 3), "{error}");
    assert!(error.detail().contains("closed the connection without a response"), "{error}");
}
