//! The messages that open a tunnel through a proxy, either by HTTP CONNECT or by SOCKS 5 (RFC 1928). A user name and
//! password are sent if a SOCKS proxy requires them (RFC 1929).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use crate::carrier::TcpOrTlsStream;
use crate::connection::is_stop;
use crate::socket::TcpSocket;

/// The maximum size of the head of a proxy's response. The body of the response is not read.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The maximum number of headers in a proxy's response.
const HEADERS_MAX: usize = 64;

/// Sends `request` and returns the status of the response, within `limit` in total. After a 2xx status the carrier is
/// connected to the origin. Errors: `Unavailable`, `Timeout`, `BadResponse`.
pub(super) fn open(carrier: &mut TcpOrTlsStream, request: &str, limit: Duration) -> Result<u16> {
    let deadline = Instant::now() + limit;
    let sent = carrier.write_all(request.as_bytes()).and_then(|()| carrier.flush());
    sent.map_err(|error| cut(&error, limit))?;
    let (mut answer, mut filled) = (vec![0; 1024], 0);
    loop {
        if filled == answer.len() {
            if filled >= HEAD_BYTES_MAX {
                return Err(bad("the head of its response is over 32 KiB"));
            }
            answer.resize(2 * filled, 0);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(cut(&io::ErrorKind::TimedOut.into(), limit));
        }
        carrier.tcp_mut().set_read_timeout(left).map_err(|error| cut(&error, limit))?;
        let got = match carrier.peek(&mut answer[filled..]) {
            Ok(0) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "it closed the connection without a response",
                ));
            }
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cut(&error, limit)),
        };
        let parsed = parse(&answer[..filled + got])?;
        // The bytes after the head are from the origin: over HTTP/2, a server may send first.
        let of_head = parsed.map_or(got, |(_, length)| length - filled);
        carrier.consume(of_head).map_err(|error| cut(&error, limit))?;
        filled += of_head;
        if let Some((status, _)) = parsed {
            carrier.tcp_mut().set_read_timeout(limit).map_err(|error| cut(&error, limit))?;
            return Ok(status);
        }
    }
}

/// Returns the status and length of the final head at the start of `received`; `None` if this head is incomplete.
/// Errors: `BadResponse`.
fn parse(mut received: &[u8]) -> Result<Option<(u16, usize)>> {
    let mut passed = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        match head.parse(received) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(bad("its response is not HTTP/1.1; is that the address of an HTTP proxy?")),
            Ok(httparse::Status::Complete(length)) => {
                let status = head.code.unwrap_or_default();
                passed += length;
                if status >= 200 {
                    return Ok(Some((status, passed)));
                }
                received = &received[length..];
            }
        }
    }
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::BadResponse, why)
}

pub(super) fn cut(error: &io::Error, limit: Duration) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::new(ErrorKind::Timeout, format!("it did not respond within {limit:?}"))
        }
        _ if is_stop(error) => Error::new(ErrorKind::Interrupted, "a signal interrupted the wait"),
        _ => Error::new(ErrorKind::Unavailable, format!("the connection to it was closed ({error})")),
    }
}

const VERSION: u8 = 5;
/// The version number of the messages that carry a user name and password (RFC 1929).
const LOGIN_VERSION: u8 = 1;
const NO_LOGIN: u8 = 0;
const BY_PASSWORD: u8 = 2;
/// The proxy's response if it accepts none of the offered authentication methods.
const NO_ACCEPTABLE_METHODS: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The destination of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TunnelDestination {
    /// The proxy resolves the name.
    Name(String, u16),
    Address(SocketAddr),
}

/// The SOCKS handshake, independent of a socket. The handshake decides which message to send next, and how many bytes
/// must arrive first.
#[derive(Debug)]
pub(super) struct SocksHandshake {
    login: Option<(String, String)>,
    place: TunnelDestination,
    state: SocksHandshakeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocksHandshakeState {
    Greeted,
    LoggedIn,
    Asked,
}

/// The next step of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SocksHandshakeStep {
    /// Receive a message of at least this many bytes.
    Hear(usize),
    /// The message was valid. Send these bytes next.
    Say(Vec<u8>),
    /// The tunnel is open.
    Open,
}

impl SocksHandshake {
    /// Creates the handshake. Errors: `InvalidArgument` for a host name, user name or password that does not fit into a
    /// message.
    pub(super) fn new(login: Option<(String, String)>, place: TunnelDestination) -> Result<Self> {
        let fits = |text: &String| (1..=255).contains(&text.len());
        let unfit = |what| {
            Error::new(ErrorKind::InvalidArgument, format!("{what} must have 1 to 255 bytes for SOCKS"))
        };
        if !login.iter().all(|(user, password)| fits(user) && fits(password)) {
            return Err(unfit("each of the proxy's user and password"));
        }
        if matches!(&place, TunnelDestination::Name(name, _) if !fits(name)) {
            return Err(unfit("a host name"));
        }
        Ok(SocksHandshake { login, place, state: SocksHandshakeState::Greeted })
    }

    /// Returns the first message.
    pub(super) fn greeting(&self) -> Vec<u8> {
        match &self.login {
            None => vec![VERSION, 1, NO_LOGIN],
            Some(_) => vec![VERSION, 2, NO_LOGIN, BY_PASSWORD],
        }
    }

    /// Processes a message, or the part of the message that has been received. Errors: `AccessDenied` if the proxy
    /// refuses; `Unavailable` if it cannot connect; `BadResponse` for an invalid message.
    pub(super) fn hear(&mut self, heard: &[u8]) -> Result<SocksHandshakeStep> {
        match self.state {
            SocksHandshakeState::Greeted => self.choose(heard),
            SocksHandshakeState::LoggedIn => self.admitted(heard),
            SocksHandshakeState::Asked => answered(heard),
        }
    }

    fn choose(&mut self, heard: &[u8]) -> Result<SocksHandshakeStep> {
        let &[version, way] = heard else { return Ok(SocksHandshakeStep::Hear(2)) };
        match (version, way, &self.login) {
            (VERSION, NO_LOGIN, _) => Ok(self.ask()),
            (VERSION, BY_PASSWORD, Some((user, password))) => {
                let mut said = vec![LOGIN_VERSION];
                for text in [user, password] {
                    push_counted(&mut said, text);
                }
                self.state = SocksHandshakeState::LoggedIn;
                Ok(SocksHandshakeStep::Say(said))
            }
            (VERSION, NO_ACCEPTABLE_METHODS, login) => Err(wants_login(login.is_some())),
            (VERSION, _, _) => Err(bad_socks("it chose an authentication method that was not offered")),
            _ => Err(bad_socks("its response is not SOCKS 5; is that the address of a SOCKS proxy?")),
        }
    }

    fn admitted(&mut self, heard: &[u8]) -> Result<SocksHandshakeStep> {
        match heard {
            [LOGIN_VERSION, 0] => Ok(self.ask()),
            [LOGIN_VERSION, _] => Err(wants_login(true)),
            [_, _] => Err(bad_socks("its response to user and password is malformed")),
            _ => Ok(SocksHandshakeStep::Hear(2)),
        }
    }

    fn ask(&mut self) -> SocksHandshakeStep {
        let mut said = vec![VERSION, CONNECT, 0];
        let port = match &self.place {
            TunnelDestination::Name(name, port) => {
                said.push(NAME);
                push_counted(&mut said, name);
                *port
            }
            TunnelDestination::Address(address) => {
                match address.ip() {
                    IpAddr::V4(ip) => said.extend([IPV4].into_iter().chain(ip.octets())),
                    IpAddr::V6(ip) => said.extend([IPV6].into_iter().chain(ip.octets())),
                }
                address.port()
            }
        };
        said.extend(port.to_be_bytes());
        self.state = SocksHandshakeState::Asked;
        SocksHandshakeStep::Say(said)
    }
}

/// Appends the length of a string, up to 255 bytes, and then the string.
fn push_counted(said: &mut Vec<u8>, text: &str) {
    said.extend(u8::try_from(text.len()));
    said.extend(text.bytes());
}

/// Processes the response to the request; the fifth byte of the response is needed to determine its length.
fn answered(heard: &[u8]) -> Result<SocksHandshakeStep> {
    let &[version, reply, _, kind, first, ..] = heard else { return Ok(SocksHandshakeStep::Hear(5)) };
    if version != VERSION {
        return Err(bad_socks("its response is not SOCKS 5"));
    }
    if reply != 0 {
        return Err(refusal(reply));
    }
    // The response consists of four bytes, the proxy's own address (which is not needed), and two bytes for its port.
    let length = match kind {
        IPV4 => 4 + 4 + 2,
        IPV6 => 4 + 16 + 2,
        NAME => 4 + 1 + usize::from(first) + 2,
        _ => return Err(bad_socks("its response has an address of an unknown kind")),
    };
    Ok(if heard.len() < length { SocksHandshakeStep::Hear(length) } else { SocksHandshakeStep::Open })
}

fn refusal(reply: u8) -> Error {
    let (kind, why) = match reply {
        2 => (
            ErrorKind::AccessDenied,
            "its rules do not allow it; add the host to no_proxy to bypass the proxy",
        ),
        3 => (ErrorKind::Unavailable, "the network is unreachable"),
        4 => (ErrorKind::Unavailable, "the host is unreachable or unknown"),
        5 => (ErrorKind::Unavailable, "the connection was refused"),
        6 => (ErrorKind::Unavailable, "the time to live of the packets has expired"),
        7 => (ErrorKind::BadResponse, "it does not make connections"),
        8 => (
            ErrorKind::BadResponse,
            "it does not support addresses of this kind; try socks5h:// instead of socks5://, or the other way round",
        ),
        _ => (ErrorKind::Unavailable, "it failed"),
    };
    Error::new(kind, format!("{why} (SOCKS reply {reply})"))
}

fn wants_login(has_said: bool) -> Error {
    let why = if has_said { "a different user and password from those" } else { "a user and password" };
    Error::new(
        ErrorKind::AccessDenied,
        format!("it requires {why} in its URL: socks5://USER:PASSWORD@HOST:PORT"),
    )
}

/// Runs the handshake, within `limit` in total. Afterwards, `socket` is connected to the destination. Errors: the
/// errors of [`SocksHandshake::hear`]; `Unavailable`, `Timeout`.
pub(super) fn open_socks(
    socket: &mut TcpSocket,
    mut conversation: SocksHandshake,
    limit: Duration,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    let failed = |error: io::Error| cut(&error, limit);
    socket.write_all(&conversation.greeting()).map_err(failed)?;
    let (mut heard, mut step) = (Vec::new(), SocksHandshakeStep::Hear(1));
    loop {
        match step {
            SocksHandshakeStep::Hear(length) => hear(socket, &mut heard, (length, deadline, limit))?,
            SocksHandshakeStep::Say(said) => {
                heard.clear();
                socket.write_all(&said).map_err(failed)?;
            }
            SocksHandshakeStep::Open => return socket.set_read_timeout(limit).map_err(failed),
        }
        step = conversation.hear(&heard)?;
    }
}

/// Receives until `heard` has exactly `length` bytes: later bytes belong to the origin.
fn hear(
    socket: &mut TcpSocket,
    heard: &mut Vec<u8>,
    (length, deadline, limit): (usize, Instant, Duration),
) -> Result<()> {
    let failed = |error: io::Error| cut(&error, limit);
    while heard.len() < length {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        socket.set_read_timeout(left).map_err(failed)?;
        let before = heard.len();
        heard.resize(length, 0);
        let got = socket.read(&mut heard[before..]);
        heard.truncate(before + got.as_ref().map_or(0, |got| *got));
        match got {
            Ok(0) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "it closed the connection without a response",
                ));
            }
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(())
}

fn bad_socks(why: &str) -> Error {
    Error::new(ErrorKind::BadResponse, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_head_counts() {
        let answer =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Connection established\r\nVia: p\r\n\r\nmore";
        assert_eq!(parse(answer).unwrap(), Some((200, answer.len() - 4)));
        for end in 0..answer.len() - 4 {
            assert_eq!(parse(&answer[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(
            parse(b"HTTP/1.1 407 No\r\nContent-Length: 9\r\n\r\n").unwrap().map(|found| found.0),
            Some(407)
        );
        assert_eq!(parse(b"SSH-2.0-OpenSSH\r\n").unwrap_err().kind(), ErrorKind::BadResponse);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((status, length))) = parse(&bytes) {
                prop_assert!(status >= 200 && length <= bytes.len());
            }
        }

        #[test]
        fn any_status_is_found(status in 200_u16..1000, reason in "[ -~]{0,30}", value in "[ -~]{0,30}") {
            let answer = format!("HTTP/1.1 {status} {reason}\r\nX: {value}\r\n\r\n");
            prop_assert_eq!(parse(answer.as_bytes()).unwrap(), Some((status, answer.len())));
        }
    }

    fn login() -> Option<(String, String)> {
        Some(("me".to_owned(), "secret".to_owned()))
    }

    fn name() -> TunnelDestination {
        TunnelDestination::Name("h".to_owned(), 443)
    }

    #[test]
    fn a_conversation_as_in_the_standard() {
        let mut talk = SocksHandshake::new(login(), name()).unwrap();
        assert_eq!(talk.greeting(), [5, 2, 0, 2]);
        assert_eq!(talk.hear(&[5]).unwrap(), SocksHandshakeStep::Hear(2));
        assert_eq!(talk.hear(&[5, 2]).unwrap(), SocksHandshakeStep::Say(b"\x01\x02me\x06secret".to_vec()));
        assert_eq!(talk.hear(&[]).unwrap(), SocksHandshakeStep::Hear(2));
        assert_eq!(
            talk.hear(&[1, 0]).unwrap(),
            SocksHandshakeStep::Say(b"\x05\x01\x00\x03\x01h\x01\xbb".to_vec())
        );
        assert_eq!(talk.hear(&[5, 0, 0, 1]).unwrap(), SocksHandshakeStep::Hear(5));
        assert_eq!(talk.hear(&[5, 0, 0, 1, 127]).unwrap(), SocksHandshakeStep::Hear(10));
        assert_eq!(talk.hear(&[5, 0, 0, 3, 9]).unwrap(), SocksHandshakeStep::Hear(16));
        assert_eq!(talk.hear(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 9]).unwrap(), SocksHandshakeStep::Open);
    }

    #[test]
    fn addresses_go_as_they_are() {
        for (address, said) in [
            ("127.0.0.1:80", &[5, 1, 0, 1, 127, 0, 0, 1, 0, 80][..]),
            ("[::1]:80", &[5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80]),
        ] {
            let mut talk =
                SocksHandshake::new(None, TunnelDestination::Address(address.parse().unwrap())).unwrap();
            assert_eq!(talk.greeting(), [5, 1, 0]);
            assert_eq!(talk.hear(&[5, 0]).unwrap(), SocksHandshakeStep::Say(said.to_vec()));
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        let heard = |login, answers: &[&[u8]]| {
            let mut talk = SocksHandshake::new(login, name()).unwrap();
            answers.iter().map(|answer| talk.hear(answer)).find_map(Result::err).expect("an error")
        };
        for (error, kind, why) in [
            (heard(None, &[&[5, 0xff]]), ErrorKind::AccessDenied, "requires a user and password"),
            (heard(login(), &[&[5, 0xff]]), ErrorKind::AccessDenied, "requires a different user"),
            (heard(login(), &[&[5, 2], &[1, 1]]), ErrorKind::AccessDenied, "requires a different user"),
            (heard(login(), &[&[5, 2], &[5, 0]]), ErrorKind::BadResponse, "is malformed"),
            (heard(None, &[&[5, 2]]), ErrorKind::BadResponse, "not offered"),
            (heard(None, &[b"HT"]), ErrorKind::BadResponse, "not SOCKS 5"),
            (heard(None, &[&[5, 0], &[5, 2, 0, 1, 0]]), ErrorKind::AccessDenied, "no_proxy"),
            (heard(None, &[&[5, 0], &[5, 5, 0, 1, 0]]), ErrorKind::Unavailable, "reply 5"),
            (heard(None, &[&[5, 0], &[5, 0, 0, 7, 0]]), ErrorKind::BadResponse, "an unknown kind"),
        ] {
            assert!(error.kind() == kind && error.detail().contains(why), "{error}");
        }
        for (login, place) in [
            (Some((String::new(), "p".to_owned())), name()),
            (None, TunnelDestination::Name("h".repeat(256), 1)),
        ] {
            assert_eq!(SocksHandshake::new(login, place).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    proptest! {
        /// For any received bytes, in pieces of any size, the handshake ends or fails, and never requests a message
        /// that is longer than the longest valid message.
        #[test]
        fn whatever_comes_ends(bytes in prop::collection::vec(any::<u8>(), 0..600), has_login: bool, is_likely: bool) {
            let mut bytes = bytes;
            if is_likely {
                bytes.splice(..0, [5, if has_login { 2 } else { 0 }]);
                bytes.splice(2..2, [1, 0, 5, 0, 0].into_iter().skip(if has_login { 0 } else { 2 }));
            }
            let mut talk = SocksHandshake::new(has_login.then(login).flatten(), name()).unwrap();
            let (mut from, mut to) = (0, 0);
            let mut steps = 0;
            loop {
                steps += 1;
                prop_assert!(steps < 12);
                match talk.hear(&bytes[from..to]) {
                    Ok(SocksHandshakeStep::Hear(more)) => {
                        prop_assert!(more > to - from && more <= 4 + 1 + 255 + 2);
                        to = from + more;
                        if to > bytes.len() {
                            break;
                        }
                    }
                    Ok(SocksHandshakeStep::Say(said)) => {
                        prop_assert!(!said.is_empty());
                        from = to;
                    }
                    Ok(SocksHandshakeStep::Open) | Err(_) => break,
                }
            }
        }
    }
}
