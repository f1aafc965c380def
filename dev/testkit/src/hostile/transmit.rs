//! How an answer is sent.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::answer::Answer;
use super::script::Lie;

/// What becomes of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It serves the next request.
    GoOn,
    /// It closes.
    Close,
    /// It is closed already.
    Gone,
}

/// Where a body ends before its end, and how.
#[derive(Clone, Copy)]
enum Cut {
    Reset(usize),
    Close(usize),
    Stall(usize),
}

pub(super) fn send(mut stream: &TcpStream, answer: &Answer, lies: &[Lie]) -> io::Result<After> {
    if lies.contains(&Lie::Mute) {
        while stream.read(&mut [0; 512]).is_ok_and(|len| len > 0) {}
        return Ok(After::Gone);
    }
    let head = head(answer, lies);
    match lies.iter().find_map(|lie| if let Lie::SlowHead(pause) = lie { Some(*pause) } else { None }) {
        Some(pause) => dribble(stream, head.as_bytes(), pause)?,
        None => stream.write_all(head.as_bytes())?,
    }
    let body = if answer.is_head_only { Vec::new() } else { framed(&answer.body, lies) };
    let cut = lies.iter().find_map(|lie| match lie {
        Lie::ResetAt(at) => Some(Cut::Reset(*at)),
        Lie::CloseAt(at) => Some(Cut::Close(*at)),
        Lie::StallAt(at) => Some(Cut::Stall(*at)),
        _ => None,
    });
    if let Some(cut) = cut {
        return send_part(stream, &body, cut);
    }
    match lies.iter().find_map(|lie| if let Lie::Slow(rate) = lie { Some(*rate) } else { None }) {
        Some(rate) => trickle(stream, &body, rate)?,
        None => stream.write_all(&body)?,
    }
    let closes =
        [Lie::ClosesAfter, Lie::UntilClose, Lie::DropsPipelined].iter().any(|lie| lies.contains(lie));
    Ok(if closes { After::Close } else { After::GoOn })
}

fn send_part(mut stream: &TcpStream, body: &[u8], cut: Cut) -> io::Result<After> {
    let (Cut::Reset(at) | Cut::Close(at) | Cut::Stall(at)) = cut;
    stream.write_all(&body[..at.min(body.len())])?;
    match cut {
        Cut::Reset(_) => {
            // A reset overtakes what the client has not read yet. With a moment's time it has, and the cut
            // is where the test wants it.
            std::thread::sleep(Duration::from_millis(20));
            // To be connected to nothing ends the connection by a reset, no matter who else holds it.
            rustix::net::connect_unspec(stream)?;
            Ok(After::Gone)
        }
        Cut::Close(_) => Ok(After::Close),
        Cut::Stall(_) => {
            while stream.read(&mut [0; 512]).is_ok_and(|len| len > 0) {}
            Ok(After::Gone)
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

fn head(answer: &Answer, lies: &[Lie]) -> String {
    let end_of_line = if lies.contains(&Lie::BareLineFeeds) { "\n" } else { "\r\n" };
    let mut head = format!("HTTP/1.1 {} {}{end_of_line}", answer.status, reason(answer.status));
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}{end_of_line}");
    }
    if lies.iter().any(|lie| matches!(lie, Lie::Chunked(_))) {
        head += &format!("Transfer-Encoding: chunked{end_of_line}");
    } else if !lies.contains(&Lie::UntilClose) {
        let off =
            lies.iter().find_map(|lie| if let Lie::ContentLengthOff(by) = lie { Some(*by) } else { None });
        let length = (answer.body.len() as u64).saturating_add_signed(off.unwrap_or(0));
        head += &format!("Content-Length: {length}{end_of_line}");
    }
    if lies.contains(&Lie::ClosesAfter) || lies.contains(&Lie::UntilClose) {
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

/// The body with its chunks, if it has any.
fn framed(body: &[u8], lies: &[Lie]) -> Vec<u8> {
    let size = lies.iter().find_map(|lie| if let Lie::Chunked(size) = lie { Some(*size) } else { None });
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
