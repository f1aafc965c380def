//! A file from one place to another in order, in one answer where nothing goes wrong.

use std::io::Read;
use std::ops::Range;
use std::time::SystemTime;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::range::parse_content_range;

use super::RemoteFile;
use super::engine::Source;
use super::open::{DOCUMENT_BYTES_MAX, Failed, ask, is_passing};
use super::version::changed;
use crate::http::Response;
use crate::http::body::short_body;
use crate::http::response::body_error;
use crate::retry::{backoff, retry_after};

/// Received at once, and handed on.
const CHUNK_BYTES: usize = 256 * 1024;

/// Takes bytes in order.
type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

impl RemoteFile {
    /// Hands the bytes of `range` to `sink`, in order and each of them once. An answer that breaks off is
    /// resumed where it ended, of the version that was opened.
    /// Errors: as [`RemoteFile::read_ranges`], and those of `sink`, which end it.
    /// Cost: one request, and one for each time that an answer breaks off. 256 KiB of memory.
    pub fn copy_range(&self, range: Range<u64>, sink: &mut Sink<'_>) -> Result<()> {
        if range.end > self.size_bytes() || range.start > range.end {
            let detail = format!("bytes {range:?} of a file of {} bytes", self.size_bytes());
            return Err(self.named(Error::new(ErrorKind::InvalidRange, detail)));
        }
        copy(&self.source, range, sink).map_err(|error| self.named(error))
    }
}

fn copy(source: &Source, mut left: Range<u64>, sink: &mut Sink<'_>) -> Result<()> {
    let (mut tries, mut buffer) = (0, vec![0; CHUNK_BYTES]);
    while !left.is_empty() {
        let before = left.start;
        let mut from_sink = None;
        let mut deliver = |bytes: &[u8]| sink(bytes).map_err(|error| from_sink = Some(error));
        let failed = match try_copy(source, &mut left, &mut buffer, &mut deliver) {
            Ok(()) => break,
            Err(failed) => failed,
        };
        if let Some(error) = from_sink {
            return Err(error);
        }
        tries = if left.start > before { 1 } else { tries + 1 };
        let is_passing = is_passing(failed.error.kind()) || failed.error.kind() == ErrorKind::IncompleteBody;
        if !is_passing || tries > source.session.options.max_retries {
            return Err(failed.error.after_tries(tries));
        }
        let wait = backoff(tries, failed.retry_after);
        tracing::debug!(tries, ?wait, at = left.start, error = %failed.error, "asking for the rest");
        std::thread::sleep(wait);
    }
    Ok(())
}

/// Asks for what is left, and moves its start behind what was delivered.
fn try_copy(
    source: &Source,
    left: &mut Range<u64>,
    buffer: &mut [u8],
    deliver: &mut dyn FnMut(&[u8]) -> std::result::Result<(), ()>,
) -> std::result::Result<(), Failed> {
    let _permit = source.session.permit(source.target.origin())?;
    let mut answer = request(source, left)?;
    let mut unwanted = unwanted_bytes(source, &mut answer, left)?;
    while !left.is_empty() {
        let wanted = if unwanted > 0 { unwanted } else { left.end - left.start };
        let room = buffer.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let got = answer.read(&mut buffer[..room]).map_err(body_error)?;
        match got {
            0 => return Err(short_body(left.end - left.start).into()),
            _ if unwanted > 0 => unwanted -= got as u64,
            _ => {
                deliver(&buffer[..got]).map_err(|()| Error::from(ErrorKind::Interrupted))?;
                left.start += got as u64;
            }
        }
    }
    Ok(())
}

/// The whole file is asked for without a range: every server knows that.
fn request(source: &Source, left: &Range<u64>) -> Result<Response> {
    let range = format!("bytes={}-{}", left.start, left.end.saturating_sub(1));
    let mut headers = vec![("range", range.as_str())];
    headers.extend(source.version.condition(source.target.pin()));
    if *left == (0..source.version.size_bytes) {
        headers.clear();
    }
    ask(&source.session, &*source.target, &source.traffic, "GET", &headers)
}

/// Holds the head of an answer against the request; returns how many bytes come before those wanted.
fn unwanted_bytes(
    source: &Source,
    answer: &mut Response,
    left: &Range<u64>,
) -> std::result::Result<u64, Failed> {
    let (etag, modified) = (answer.header("etag"), answer.header("last-modified"));
    match answer.status() {
        206 => {
            source.version.check(etag, modified, false)?;
            let stated = answer.header("content-range").and_then(parse_content_range);
            let Some((_, size)) = stated.filter(|(range, _)| range == left) else {
                let detail = "the server answered with other bytes than those asked for";
                return Err(Error::new(ErrorKind::BadResponse, detail).into());
            };
            source.version.check_size(size)?;
            Ok(0)
        }
        200..=299 => {
            source.version.check(etag, modified, left.start > 0)?;
            source.version.check_size(answer.body_bytes())?;
            Ok(left.start)
        }
        412 => Err(changed("the server says so").into()),
        status => {
            let document = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
            let wish = answer.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
            let error = source.target.refusal(status, answer.header("location"), &document);
            Err(Failed { error, retry_after: wish })
        }
    }
}
