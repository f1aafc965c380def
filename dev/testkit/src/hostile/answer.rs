//! Builds the responses of the server, and sends them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{RecordedRequest, RequestedRange, ResponseFault};

const BOUNDARY: &str = "a-boundary-of-the-hostile-server";

/// A response, independent of how it is sent.
#[derive(Clone, Debug, Default)]
pub(super) struct HostileResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// Whether the head announces a body but none follows.
    pub(super) is_head_only: bool,
    /// Whether the body is a document other than the served file. Such a document is sent without faults.
    pub(super) is_aside: bool,
}

/// Returns the response to `request` for `file`, with every fault in `lies` that affects the content.
pub(super) fn answer(request: &RecordedRequest, file: &[u8], lies: &[ResponseFault]) -> HostileResponse {
    let told = document(request, lies).or_else(|| refusal(request, lies));
    let mut answer = told.unwrap_or_else(|| content(request, file, lies));
    answer.is_head_only = request.method == "HEAD";
    answer
}

/// Returns a document other than the file, if one is requested.
fn document(request: &RecordedRequest, lies: &[ResponseFault]) -> Option<HostileResponse> {
    let documents = lies.iter().filter_map(|lie| match lie {
        ResponseFault::Document(ending, kind, body) => Some((*ending, *kind, body)),
        _ => None,
    });
    let is_asked = |(ending, kind, _): &(&str, &str, &String)| match *ending {
        // If the fault has no suffix, the `Accept` header selects the document instead of the name in the URL.
        "" => request.header("accept").is_some_and(|accept| accept.contains(kind)),
        ending => request.target.ends_with(ending),
    };
    let mut documents = documents.peekable();
    let has_any = documents.peek().is_some();
    match documents.find(is_asked) {
        Some((_, kind, body)) => {
            let headers = vec![("Content-Type", kind.to_owned())];
            Some(HostileResponse {
                status: 200,
                headers,
                body: body.clone().into_bytes(),
                is_aside: true,
                ..HostileResponse::default()
            })
        }
        None if has_any && request.target.ends_with(".meta4") => {
            Some(HostileResponse { status: 404, ..HostileResponse::default() })
        }
        None => None,
    }
}

/// Returns a response that contains no part of the file.
fn refusal(request: &RecordedRequest, lies: &[ResponseFault]) -> Option<HostileResponse> {
    let status = |status| HostileResponse { status, ..HostileResponse::default() };
    let told = lies.iter().find_map(|lie| match lie {
        ResponseFault::Status(code, retry_after) => {
            let headers = retry_after.iter().map(|seconds| ("Retry-After", seconds.to_string())).collect();
            Some(HostileResponse { headers, ..status(*code) })
        }
        ResponseFault::Redirect(code, location) => {
            Some(HostileResponse { headers: vec![("Location", location.clone())], ..status(*code) })
        }
        ResponseFault::RefusesDigests(code) if request.header("want-digest").is_some() => Some(status(*code)),
        ResponseFault::RefusesLists(code) if request.ranges() > 1 => Some(status(*code)),
        ResponseFault::HeadBytesMax(most) if request.head_bytes > *most => Some(status(400)),
        _ => None,
    });
    let is_known = matches!(request.method.as_str(), "GET" | "HEAD");
    told.or_else(|| (!is_known).then(|| status(405)))
}

fn content(request: &RecordedRequest, file: &[u8], lies: &[ResponseFault]) -> HostileResponse {
    let version = lies
        .iter()
        .find_map(|lie| if let ResponseFault::Version(version) = lie { Some(*version) } else { None });
    let changed: Vec<u8>;
    let file = match version {
        Some(version) => {
            changed = file.iter().map(|byte| byte ^ version).collect();
            &changed
        }
        None => file,
    };
    let flipped = lies
        .iter()
        .find_map(|lie| if let ResponseFault::FlippedAt(at) = lie { Some(*at as usize) } else { None });
    let damaged: Vec<u8>;
    let file = match flipped.filter(|at| *at < file.len()) {
        Some(at) => {
            damaged = [&file[..at], &[!file[at]], &file[at + 1..]].concat();
            &damaged
        }
        None => file,
    };
    let etag = format!("\"version-{}\"", version.unwrap_or(0));
    let mut answer = match ranges(request, &etag, lies) {
        Some(asked) => partial(&asked, file, lies),
        None => HostileResponse { status: 200, body: file.to_vec(), ..HostileResponse::default() },
    };
    answer.headers.push(("Accept-Ranges", "bytes".to_owned()));
    if !lies.contains(&ResponseFault::NoETag) {
        answer.headers.push(("ETag", etag));
    }
    for lie in lies {
        match lie {
            ResponseFault::Header(name, value) => answer.headers.push((name, value.clone())),
            ResponseFault::Flipped => answer.body.iter_mut().for_each(|byte| *byte ^= 1),
            ResponseFault::BodyOff(off) => {
                answer.body.resize(answer.body.len().saturating_add_signed(*off as isize), b'?');
            }
            _ => {}
        }
    }
    answer
}

/// Returns the ranges to serve, or `None` for the whole file.
fn ranges(request: &RecordedRequest, etag: &str, lies: &[ResponseFault]) -> Option<Vec<RequestedRange>> {
    let asked = request.asked().filter(|_| request.method == "GET")?;
    let is_pinned_to_another = request.header("if-range").is_some_and(|pinned| pinned != etag);
    let is_whole = lies.iter().any(|lie| match lie {
        ResponseFault::WholeForRange => true,
        ResponseFault::WholeOverRanges(most) => asked.len() > *most,
        _ => false,
    });
    let follows_if_range = !lies.contains(&ResponseFault::IgnoresIfRange);
    let is_changed = is_pinned_to_another && follows_if_range;
    (!is_whole && !is_changed).then_some(asked)
}

/// Returns a 206 response with the satisfiable ranges, or a 416 response if no range is satisfiable.
fn partial(asked: &[RequestedRange], file: &[u8], lies: &[ResponseFault]) -> HostileResponse {
    let size = file.len() as u64;
    let mut parts: Vec<(u64, u64)> = asked.iter().filter_map(|range| range.within(size)).collect();
    let is_multiple = asked.len() > 1;
    if parts.is_empty() {
        return HostileResponse {
            status: 416,
            headers: vec![("Content-Range", format!("bytes */{size}"))],
            ..HostileResponse::default()
        };
    }
    let longest = lies.iter().filter_map(|lie| match lie {
        ResponseFault::RangeBytesMax(most) => Some(*most),
        _ => None,
    });
    for most in longest.filter(|_| !is_multiple) {
        parts[0].1 = parts[0].1.min(parts[0].0 + most);
    }
    let mut is_multipart = is_multiple;
    for lie in lies.iter().filter(|_| is_multiple) {
        match lie {
            ResponseFault::OneSpan => {
                let first = parts.iter().map(|part| part.0).min().unwrap_or(0);
                let last = parts.iter().map(|part| part.1).max().unwrap_or(0);
                (parts, is_multipart) = (vec![(first, last)], false);
            }
            ResponseFault::FirstRangeOnly => {
                parts.truncate(1);
                is_multipart = false;
            }
            ResponseFault::MergedParts(gap) => parts = merged(parts, *gap),
            ResponseFault::ReversedParts => parts.reverse(),
            ResponseFault::MissingPart(number) if *number < parts.len() => {
                parts.remove(*number);
            }
            _ => {}
        }
    }
    if is_multipart { multipart(&parts, file, lies) } else { single(parts[0], file, lies) }
}

/// Joins parts that are adjacent, overlap or are at most `gap` apart.
fn merged(mut parts: Vec<(u64, u64)>, gap: u64) -> Vec<(u64, u64)> {
    parts.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in parts {
        match merged.last_mut() {
            Some(last) if start <= last.1 + gap => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Returns the bytes sent for a part.
fn bytes_of(file: &[u8], (start, end): (u64, u64), lies: &[ResponseFault]) -> Vec<u8> {
    let mut bytes = file[start as usize..end as usize].to_vec();
    let off = lies
        .iter()
        .find_map(|lie| if let ResponseFault::PartBytesOff(off) = lie { Some(*off) } else { None });
    bytes.resize(bytes.len().saturating_add_signed(off.unwrap_or(0) as isize), b'?');
    bytes
}

fn single(part: (u64, u64), file: &[u8], lies: &[ResponseFault]) -> HostileResponse {
    let headers = content_range(part, file.len() as u64, lies).map(|value| ("Content-Range", value));
    HostileResponse {
        status: 206,
        headers: headers.into_iter().collect(),
        body: bytes_of(file, part, lies),
        ..HostileResponse::default()
    }
}

fn multipart(parts: &[(u64, u64)], file: &[u8], lies: &[ResponseFault]) -> HostileResponse {
    let chosen = lies.iter().find_map(|lie| match lie {
        ResponseFault::Boundary(boundary, is_quoted) => Some((*boundary, *is_quoted)),
        _ => None,
    });
    let (boundary, is_quoted) = chosen.unwrap_or((BOUNDARY, false));
    let end_of_line = if lies.contains(&ResponseFault::BareLineFeeds) { "\n" } else { "\r\n" };
    let mut body = Vec::new();
    let uneven = lies
        .iter()
        .find_map(|lie| if let ResponseFault::UnevenHeads(shift) = lie { Some(*shift) } else { None });
    let has_preamble = lies.contains(&ResponseFault::Preamble);
    if has_preamble {
        body.extend(format!("What follows has several parts.{end_of_line}--{end_of_line}").bytes());
    }
    for (number, part) in parts.iter().enumerate() {
        let before = if number == 0 && !has_preamble { "" } else { end_of_line };
        body.extend(format!("{before}--{boundary}{end_of_line}").bytes());
        body.extend(format!("Content-Type: application/octet-stream{end_of_line}").bytes());
        if let Some(shift) = uneven {
            body.extend(format!("X-Filler: {}{end_of_line}", "-".repeat((number + shift) % 2 * 24)).bytes());
        }
        if let Some(range) = content_range(*part, file.len() as u64, lies) {
            body.extend(format!("Content-Range: {range}{end_of_line}").bytes());
        }
        body.extend(end_of_line.bytes());
        body.extend(bytes_of(file, *part, lies));
    }
    if !lies.contains(&ResponseFault::NoFinalBoundary) {
        body.extend(format!("{end_of_line}--{boundary}--{end_of_line}").bytes());
    }
    if has_preamble {
        body.extend(format!("That was all.{end_of_line}").bytes());
    }
    let quote = if is_quoted { "\"" } else { "" };
    let kind = format!("multipart/byteranges; boundary={quote}{boundary}{quote}");
    HostileResponse { status: 206, headers: vec![("Content-Type", kind)], body, ..HostileResponse::default() }
}

/// Returns the `Content-Range` of a part, or `None` if the header must be omitted.
fn content_range((start, end): (u64, u64), size: u64, lies: &[ResponseFault]) -> Option<String> {
    let (mut moved, mut said_size) = (0, size);
    for lie in lies {
        match lie {
            ResponseFault::NoContentRange => return None,
            ResponseFault::ContentRangeMoved(by) => moved = *by,
            ResponseFault::ContentRangeSize(size) => said_size = *size,
            _ => {}
        }
    }
    let (first, last) = (start.saturating_add_signed(moved), (end - 1).saturating_add_signed(moved));
    Some(format!("bytes {first}-{last}/{said_size}"))
}

/// The state of the connection after the response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionDisposition {
    /// The connection stays open for the next request.
    GoOn,
    /// The server closes the connection.
    Close,
    /// The connection is already closed.
    Gone,
}

/// How and where a body is truncated.
#[derive(Clone, Copy)]
enum BodyTruncation {
    Reset(usize),
    Close(usize),
    Stall(usize),
}

pub(super) fn send(
    mut stream: &TcpStream,
    answer: &HostileResponse,
    lies: &[ResponseFault],
) -> io::Result<ConnectionDisposition> {
    if lies.contains(&ResponseFault::Mute) {
        while stream.read(&mut [0; 512]).is_ok_and(|len| len > 0) {}
        return Ok(ConnectionDisposition::Gone);
    }
    let head = head(answer, lies);
    match lies
        .iter()
        .find_map(|lie| if let ResponseFault::SlowHead(pause) = lie { Some(*pause) } else { None })
    {
        Some(pause) => dribble(stream, head.as_bytes(), pause)?,
        None => stream.write_all(head.as_bytes())?,
    }
    let body = if answer.is_head_only { Vec::new() } else { framed(&answer.body, lies) };
    let cut = lies.iter().find_map(|lie| match lie {
        ResponseFault::ResetAt(at) => Some(BodyTruncation::Reset(*at)),
        ResponseFault::CloseAt(at) => Some(BodyTruncation::Close(*at)),
        ResponseFault::StallAt(at) => Some(BodyTruncation::Stall(*at)),
        _ => None,
    });
    if let Some(cut) = cut {
        return send_part(stream, &body, cut);
    }
    match lies.iter().find_map(|lie| if let ResponseFault::Slow(rate) = lie { Some(*rate) } else { None }) {
        Some(rate) => trickle(stream, &body, rate)?,
        None => stream.write_all(&body)?,
    }
    let closes = [ResponseFault::ClosesAfter, ResponseFault::UntilClose, ResponseFault::DropsPipelined]
        .iter()
        .any(|lie| lies.contains(lie));
    Ok(if closes { ConnectionDisposition::Close } else { ConnectionDisposition::GoOn })
}

fn send_part(mut stream: &TcpStream, body: &[u8], cut: BodyTruncation) -> io::Result<ConnectionDisposition> {
    let (BodyTruncation::Reset(at) | BodyTruncation::Close(at) | BodyTruncation::Stall(at)) = cut;
    stream.write_all(&body[..at.min(body.len())])?;
    match cut {
        BodyTruncation::Reset(_) => {
            // A reset discards bytes that the client has not read yet. Wait until the client has read everything, so
            // that the body is truncated at the intended position.
            std::thread::sleep(Duration::from_millis(20));
            // Connecting to an unspecified address resets the connection, even if the socket has other owners.
            rustix::net::connect_unspec(stream)?;
            Ok(ConnectionDisposition::Gone)
        }
        BodyTruncation::Close(_) => Ok(ConnectionDisposition::Close),
        BodyTruncation::Stall(_) => {
            while stream.read(&mut [0; 512]).is_ok_and(|len| len > 0) {}
            Ok(ConnectionDisposition::Gone)
        }
    }
}

fn trickle(mut stream: &TcpStream, body: &[u8], bytes_per_s: u64) -> io::Result<()> {
    const PER_S: u64 = 50;
    for piece in body.chunks(usize::try_from(bytes_per_s / PER_S).unwrap_or(1).max(1)) {
        std::thread::sleep(Duration::from_millis(1_000 / PER_S));
        stream.write_all(piece)?;
    }
    Ok(())
}

fn dribble(mut stream: &TcpStream, head: &[u8], pause: Duration) -> io::Result<()> {
    for byte in head {
        std::thread::sleep(pause);
        stream.write_all(std::slice::from_ref(byte))?;
    }
    Ok(())
}

fn head(answer: &HostileResponse, lies: &[ResponseFault]) -> String {
    let end_of_line = if lies.contains(&ResponseFault::BareLineFeeds) { "\n" } else { "\r\n" };
    let mut head = format!("HTTP/1.1 {} {}{end_of_line}", answer.status, reason(answer.status));
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}{end_of_line}");
    }
    if lies.iter().any(|lie| matches!(lie, ResponseFault::Chunked(_))) {
        head += &format!("Transfer-Encoding: chunked{end_of_line}");
    } else if !lies.contains(&ResponseFault::UntilClose) {
        let off = lies
            .iter()
            .find_map(|lie| if let ResponseFault::ContentLengthOff(by) = lie { Some(*by) } else { None });
        let length = (answer.body.len() as u64).saturating_add_signed(off.unwrap_or(0));
        head += &format!("Content-Length: {length}{end_of_line}");
    }
    if lies.contains(&ResponseFault::ClosesAfter) || lies.contains(&ResponseFault::UntilClose) {
        head += &format!("Connection: close{end_of_line}");
    }
    head + end_of_line
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        302 => "Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        503 => "Service Unavailable",
        _ => "As Told",
    }
}

/// Returns the body, divided into chunks if `lies` contains [`ResponseFault::Chunked`].
fn framed(body: &[u8], lies: &[ResponseFault]) -> Vec<u8> {
    let size =
        lies.iter().find_map(|lie| if let ResponseFault::Chunked(size) = lie { Some(*size) } else { None });
    let Some(size) = size else { return body.to_vec() };
    let mut framed = Vec::new();
    for chunk in body.chunks(size.max(1)) {
        framed.extend(format!("{:x}\r\n", chunk.len()).bytes());
        framed.extend(chunk);
        framed.extend(b"\r\n");
    }
    framed.extend(b"0\r\n\r\n");
    framed
}
