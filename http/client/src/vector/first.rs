//! Opening a file by what is read of it first: that answer tells size and version too, and its bytes come a round trip
//! earlier than behind a HEAD.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fordway_store::Result;
use fordway_wire::byteranges::{Parts, Step, boundary_of};
use fordway_wire::range::parse_content_range;

use super::open::{self, Described, Failed};
use super::request::{Queue, Request};
use super::session::Permit;
use super::source::{Counts, Source};
use super::{Session, Target, learned};
use crate::connection::Connection;
use crate::{Response, Version};

/// A request that is answered: the head of its answer has arrived, and is still to be taken.
pub struct Begun {
    pub(super) request: Request,
    pub(super) connection: Connection,
    pub(super) permit: Permit,
}

/// What is wanted first of a file that is not open yet.
struct First<'w> {
    /// Spans of it, in order.
    wanted: &'w [Range<u64>],
    begun: Option<Begun>,
}

/// Opens what is at a URL, or where that leads to, by a request for the first of the spans `wanted`. What was begun
/// is `None` where the file had to be opened by a HEAD all the same: by HTTP/2, or because the answer tells no size.
pub(super) fn open_url(
    session: &Arc<Session>,
    url: &str,
    wanted: &[Range<u64>],
) -> Result<(Source, Option<Begun>)> {
    if !First::is_possible(session, wanted) {
        return open::open_url(session, url).map(|source| (source, None));
    }
    let mut first = First { wanted, begun: None };
    let source = open::open_url_by(session, url, &mut |session, target, traffic| {
        first.describe_alone(session, target, traffic)
    })?;
    Ok((source, first.begun))
}

/// The same for what is at this very target.
pub(super) fn open_target(
    session: &Arc<Session>,
    target: Box<dyn Target>,
    wanted: &[Range<u64>],
) -> Result<(Source, Option<Begun>)> {
    if !First::is_possible(session, wanted) {
        return open::open_target(session, target).map(|source| (source, None));
    }
    let mut first = First { wanted, begun: None };
    let source = open::open_target_by(session, target, &mut |session, target, traffic| {
        first.describe_alone(session, target, traffic)
    })?;
    Ok((source, first.begun))
}

impl First<'_> {
    fn is_possible(session: &Session, wanted: &[Range<u64>]) -> bool {
        !wanted.is_empty() && session.options.http == Version::Http1
    }

    fn describe_alone(
        &mut self,
        session: &Session,
        target: &dyn Target,
        traffic: &Counts,
    ) -> Result<Described> {
        open::alone(session, target, &mut |permit| self.describe((session, target, traffic), permit))
    }

    /// Asks for bytes, and takes size and version from the head of the answer, or of its first part.
    fn describe(
        &mut self,
        (session, target, traffic): (&Session, &dyn Target, &Counts),
        permit: &mut Option<Permit>,
    ) -> Result<Described, Failed> {
        let mut queue = Queue::default();
        queue.push(0, self.wanted.iter().cloned());
        let server = learned::about_or_careful(session, target);
        let Some((mut request, list)) = queue.next(&server, session.options.window_bytes) else {
            return open::try_describe(session, target, traffic);
        };
        let asked = Instant::now();
        let list = std::str::from_utf8(list).unwrap_or_default();
        let mut answer = open::ask(session, target, traffic, "GET", &[("range", list)])?;
        let size = match answer.status() {
            200 => answer.body_bytes(),
            206 => size_of_whole(&mut answer)?,
            // What it has against the list, or against ranges, is no news of the file.
            201..=299 | 400 | 413 | 414 | 416 | 431 | 494 | 501 => None,
            _ => return open::not_the_file(answer, target),
        };
        let Some(size) = size else {
            drop(answer);
            return open::try_describe(session, target, traffic);
        };
        let version = open::version_of(&answer, (session, target), Some(size))?;
        request.cut_at(size);
        self.begun = answer.into_unread().zip(permit.take()).map(|(connection, permit)| {
            request.sent = asked.max(connection.made);
            Begun { request, connection, permit }
        });
        Ok(Described::File(version))
    }
}

/// Bytes of the whole file, where a partial answer tells. Errors: from receiving.
fn size_of_whole(answer: &mut Response) -> Result<Option<u64>> {
    if let Some(stated) = answer.header("content-range") {
        return Ok(parse_content_range(stated).and_then(|(_, size)| size));
    }
    let Some(boundary) = answer.header("content-type").and_then(boundary_of) else { return Ok(None) };
    answer.peek(|body| size_in_first_part(&boundary, body)).map(Option::flatten)
}

/// What the first part of a body says of the whole's size, if anything; `None` where more of the body is needed.
fn size_in_first_part(boundary: &str, mut body: &[u8]) -> Option<Option<u64>> {
    let mut parts = Parts::new(boundary);
    while !body.is_empty() {
        match parts.step(body) {
            Ok(Step::Part(_, _, size)) => return Some(size),
            Ok(step) => body = &body[step.len()..],
            Err(_) => return Some(None),
        }
    }
    None
}
