//! A file from one place to another in order, in one answer where nothing goes wrong.

use std::io::Read;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fordway_store::{Error, ErrorKind, PageBuffer, Result};
use fordway_wire::range::parse_content_range;

use super::digest::{Running, Stated, WANTED};
use super::open::{DOCUMENT_BYTES_MAX, Failed, ask, is_passing};
use super::redirect::{HOPS_MAX, Moved};
use super::source::{Place, Source};
use super::version::changed;
use super::{Pin, RemoteFile};
use crate::Response;
use crate::body::short_body;
use crate::response::body_error;
use crate::retry::{Retries, retry_after};

/// Received at once, and handed on.
const CHUNK_BYTES: usize = 256 * 1024;

/// Takes bytes in order.
type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Opens all that was received so far, from the first byte on.
type Received<'a> = dyn Fn() -> Result<Box<dyn Read>> + 'a;

impl RemoteFile {
    /// Hands the bytes of `range` to `sink`, in order and each of them once. An answer that breaks off is
    /// resumed where it ended, of the version that was opened.
    /// Errors: as [`RemoteFile::read_ranges`], and errors of `sink`, which end it.
    /// Cost: one request, and one for each time that an answer breaks off. 256 KiB of memory.
    pub fn copy_range(&self, range: Range<u64>, sink: &mut Sink<'_>) -> Result<()> {
        if range.end > self.size_bytes() || range.start > range.end {
            let detail = format!("bytes {range:?} of a file of {} bytes", self.size_bytes());
            return Err(self.named(Error::new(ErrorKind::InvalidRange, detail)));
        }
        copy(&self.source, range, &mut None, sink).map_err(|error| self.named(error))
    }

    /// The same for all from `start` on; at the end, all of the file is checked against the digest that the
    /// server states, if it does. What came before `start` is read back by `received`, which is not called
    /// for a `start` of 0. Returns the name of the digest.
    /// Errors: as [`RemoteFile::copy_range`]; `BadDigest`, after all was handed out.
    pub fn copy_verified(
        &self,
        start: u64,
        received: &Received<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Option<&'static str>> {
        let mut check = Some(Check::default());
        let copied = copy(&self.source, start.min(self.size_bytes())..self.size_bytes(), &mut check, sink);
        let verified = copied.and_then(|()| check.unwrap_or_default().finish(received));
        verified.map_err(|error| self.named(error))
    }
}

/// A digest that the first answer states.
#[derive(Default)]
struct Check {
    was_asked: bool,
    stated: Option<Stated>,
    /// Of all bytes so far, if they came from the first on.
    running: Option<Running>,
}

impl Check {
    fn begin(&mut self, answer: &Response, start: u64) {
        if !std::mem::replace(&mut self.was_asked, true) {
            self.stated = Stated::best(answer.headers(), answer.status() == 200);
            self.running = self.stated.as_ref().filter(|_| start == 0).map(Stated::start);
        }
    }

    fn finish(self, received: &Received<'_>) -> Result<Option<&'static str>> {
        match (&self.stated, self.running) {
            (None, _) => return Ok(None),
            (Some(stated), Some(running)) => stated.check(running)?,
            (Some(stated), None) => stated.check_all(received()?)?,
        }
        Ok(self.stated.map(|stated| stated.name()))
    }
}

fn copy(source: &Source, mut left: Range<u64>, check: &mut Option<Check>, sink: &mut Sink<'_>) -> Result<()> {
    let (mut buffer, mut moves, start) = (PageBuffer::new(CHUNK_BYTES), 0, left.start);
    let mut has_asked_again = false;
    let mut retries = source.place().session.retries();
    while !left.is_empty() {
        let (place, before) = (source.place(), left.start);
        let mut from_sink = None;
        let mut deliver = |bytes: &[u8]| sink(bytes).map_err(|error| from_sink = Some(error));
        let tried = try_copy((source, &place), &mut left, &mut buffer, (check, &retries, &mut deliver));
        if let Some(error) = from_sink {
            return Err(error);
        }
        if left.start > before {
            (moves, has_asked_again) = (0, false);
            retries.brought(left.start - before);
            source.is_begun.store(true, Ordering::Relaxed);
        }
        match tried {
            Ok(None) => {}
            Ok(Some(moved)) if moves < HOPS_MAX => {
                moves += 1;
                source.follow(&place, &moved, left.start > start)?;
            }
            Ok(Some(moved)) => return Err(place.refusal(moved.status, Some(&moved.location), b"")),
            Err(Failed { error, .. }) if !has_asked_again && source.may_be_elsewhere(&place, &error) => {
                has_asked_again = true;
                source.ask_again(&place)?;
            }
            // All is there, and nothing that could be asked for again would make it right.
            Err(Failed { error, .. }) if left.is_empty() => return Err(error),
            Err(Failed { error, retry_after }) => {
                let is_passing = is_passing(error.kind()) || error.kind() == ErrorKind::IncompleteBody;
                std::thread::sleep(retries.after(error, is_passing, retry_after)?);
            }
        }
    }
    Ok(())
}

/// What goes along with the bytes: the digest, the time that is left, and their receiver.
type Along<'a> = (&'a mut Option<Check>, &'a Retries, &'a mut dyn FnMut(&[u8]) -> Result<(), ()>);

/// Asks for what is left, and moves its start behind what was delivered. Returns where the server sends us.
fn try_copy(
    (source, place): (&Source, &Place),
    left: &mut Range<u64>,
    buffer: &mut [u8],
    (check, retries, deliver): Along<'_>,
) -> Result<Option<Moved>, Failed> {
    let _permit = place.session.permit(place.target.origin())?;
    let wants_digest = check.as_ref().is_some_and(|check| !check.was_asked)
        && place.target.pin() == Pin::IfRange
        && !place.learned().refuses_digests;
    let mut answer = request(source, place, left, wants_digest)?;
    if wants_digest && matches!(answer.status(), 400..) {
        // XRootD without checksums refuses to speak of them; whatever else it is, is found without.
        drop(answer);
        answer = request(source, place, left, false)?;
        if answer.status() < 400 {
            place.learn(|server| server.refuses_digests = true);
        }
    }
    if let Some(moved) = Moved::of(answer.status(), answer.header("location")) {
        let _document = answer.read_rest(DOCUMENT_BYTES_MAX);
        return Ok(Some(moved));
    }
    let mut unwanted = unwanted_bytes(place, &mut answer, left)?;
    // A server without ranges sends more than was asked for, up to the end of the file.
    let is_to_end = answer.status() == 206 || left.end == place.version.size_bytes;
    if let Some(check) = check {
        check.begin(&answer, left.start);
    }
    while !left.is_empty() {
        let wanted = if unwanted > 0 { unwanted } else { left.end - left.start };
        let room = buffer.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let got = answer.read(&mut buffer[..room]).map_err(body_error)?;
        match got {
            0 => return Err(short_body(left.end - left.start).into()),
            _ if unwanted > 0 => unwanted -= got as u64,
            _ => {
                if let Some(running) = check.as_mut().and_then(|check| check.running.as_mut()) {
                    running.update(&buffer[..got]);
                }
                deliver(&buffer[..got]).map_err(|()| Error::from(ErrorKind::Interrupted))?;
                left.start += got as u64;
            }
        }
        retries.check_time().map_err(|error| Failed { error, retry_after: None })?;
    }
    if is_to_end {
        answer.check_end()?;
    }
    Ok(None)
}

/// The whole file is asked for without a range: every server knows that.
fn request(source: &Source, place: &Place, left: &Range<u64>, wants_digest: bool) -> Result<Response> {
    let range = format!("bytes={}-{}", left.start, left.end.saturating_sub(1));
    let mut headers = vec![("range", range.as_str())];
    headers.extend(place.version.condition(place.target.pin()));
    if *left == (0..place.version.size_bytes) {
        headers.clear();
    }
    if wants_digest {
        headers.extend(WANTED);
    }
    ask(&place.session, &*place.target, &source.traffic, "GET", &headers)
}

/// Holds the head of an answer against the request; returns how many bytes come before those wanted.
fn unwanted_bytes(place: &Place, answer: &mut Response, left: &Range<u64>) -> Result<u64, Failed> {
    let (etag, modified) = (answer.header("etag"), answer.header("last-modified"));
    match answer.status() {
        206 => {
            place.version.check(etag, modified, false)?;
            let stated = answer.header("content-range").and_then(parse_content_range);
            let Some((_, size)) = stated.filter(|(range, _)| range == left) else {
                let detail = "the server answered with other bytes than those asked for";
                return Err(Error::new(ErrorKind::BadResponse, detail).into());
            };
            place.version.check_size(size)?;
            match answer.body_bytes() {
                Some(bytes) if bytes != left.end - left.start => {
                    let wanted = left.end - left.start;
                    let detail = format!("the server announced {bytes} bytes for a range of {wanted}");
                    Err(Error::new(ErrorKind::BadResponse, detail).into())
                }
                _ => Ok(0),
            }
        }
        200..=299 => {
            place.version.check(etag, modified, left.start > 0)?;
            place.version.check_size(answer.body_bytes())?;
            Ok(left.start)
        }
        412 => Err(changed("the server says so").into()),
        status => {
            let document = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
            let wish = answer.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
            let error = place.refusal(status, answer.header("location"), &document);
            Err(Failed { error, retry_after: wish })
        }
    }
}
