//! Tests of WebDAV against real servers, and against a scripted server.

mod apache;
mod dialogue;
mod http3;
mod lies;
mod nginx;
mod quic;
mod streams;
mod third_party;
mod uploads;
mod xrootd;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use fordway_http::vector::{HttpSession, RemoteFile, SessionOptions};
use fordway_http::webdav::{DavUploadOptions, WebDavClient};
use fordway_http::{HttpVersion, TlsRoots};
use fordway_store::{ErrorKind, Result};

thread_local! {
    /// The HTTP version of the clients and scripted servers in this thread, which runs one test.
    static VERSION: Cell<HttpVersion> = const { Cell::new(HttpVersion::Http1) };
}

fn version() -> HttpVersion {
    VERSION.get()
}

/// Runs a test over HTTP/1.1 and HTTP/2, which third-party servers also support.
fn over_tcp(test: impl Fn()) {
    over([HttpVersion::Http1, HttpVersion::Http2], test);
}

/// Runs a test over HTTP/3.
fn over_http3(test: impl Fn()) {
    over([HttpVersion::Http3], test);
}

/// Runs a test over all HTTP versions, which the scripted server supports.
fn over_each_version(test: impl Fn()) {
    over([HttpVersion::Http1, HttpVersion::Http2, HttpVersion::Http3], test);
}

fn over(versions: impl IntoIterator<Item = HttpVersion>, test: impl Fn()) {
    for version in versions {
        VERSION.set(version);
        test();
    }
}

/// Returns content in which no two pieces are alike.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(4) as u32)
        .flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes())
        .take(bytes)
        .collect()
}

/// Returns a client that retries at most twice, with `change` applied to its options.
fn client(change: impl FnOnce(&mut SessionOptions)) -> WebDavClient {
    let mut options = SessionOptions { http: version(), max_retries: 2, ..SessionOptions::default() };
    options.timeouts.first_byte = Duration::from_secs(30);
    if version() == HttpVersion::Http3 {
        options.tls_roots = TlsRoots::File(quic::certificate());
    }
    change(&mut options);
    WebDavClient::new(Arc::new(HttpSession::new(options)))
}

/// Writes `body`, in chunks if the head does not declare its size.
fn put(dav: &WebDavClient, url: &str, body: &[u8], says_size: bool) -> Result<()> {
    let upload = DavUploadOptions {
        size_bytes: says_size.then_some(body.len() as u64),
        ..DavUploadOptions::default()
    };
    dav.put(url, &upload, &mut |sink| body.chunks(100_000).try_for_each(&mut *sink))
}

fn get(dav: &WebDavClient, url: &str) -> Result<Vec<u8>> {
    let (file, mut body) = (RemoteFile::open(dav.session(), url)?, Vec::new());
    file.copy_range(0..file.size_bytes(), &mut |bytes| {
        body.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(body)
}

/// Returns the error kind of a result; panics if the result is a success.
#[track_caller]
fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// Returns the names below a collection. Names of collections end in a slash.
fn below(dav: &WebDavClient, url: &str) -> Vec<String> {
    let found = dav.walk(url).map(|found| {
        let found = found.unwrap();
        found.relative + if found.is_collection { "/" } else { "" }
    });
    found.collect()
}
