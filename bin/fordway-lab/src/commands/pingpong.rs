//! `pingpong`: one end of a ping-pong, or one end of the tunnel between `ping` and `pong`. `pong` responds from memory;
//! `ping` responds with the content that it gets from `pong`. A [`PongHttpClient`] requests messages of given sizes.
//! The load generator sends its requests to `ping` with such a client, and `ping` sends its requests to `pong` with
//! another client.

use std::fmt;
use std::time::Duration;

use fordway_command::program::stop_when_asked;
use fordway_command::{CommandContext, CommandExit};
use fordway_http::{
    ExchangeFailure, HttpClient, HttpExchangeRequest, HttpResponse, HttpVersion, Origin, ReplayPolicy,
    Timeouts, TlsRoots,
};
use fordway_load::pingpong::{
    PingpongPayload, PingpongRequest, PingpongResponder, PingpongResponse, PingpongServer,
};
use fordway_netlab::tunnel::TunnelEnd;
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{ListenArgs, PingArgs, PingpongArgs, PingpongSubcommand, PongArgs, TunnelArgs};

pub(super) fn run(args: &PingpongArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        PingpongSubcommand::Pong(args) => serve(&args.end, MemoryPongResponder::new(args)?, context),
        PingpongSubcommand::Ping(args) => serve(&args.end, PongRelayResponder::new(args)?, context),
        PingpongSubcommand::Tunnel(args) => tunnel(args, context),
    }
}

/// Serves until a signal arrives or, with `--until-eof`, until standard input ends.
fn serve(args: &ListenArgs, player: impl PingpongResponder, context: &CommandContext) -> Result<CommandExit> {
    let server = PingpongServer::bind(&args.listen)?;
    let ready = PongReadyMessage { endpoint: format!("http://{}", server.address()) };
    server.start(player, usize::from(args.workers))?;
    context.output.record(&ready)?;
    context.output.flush()?;
    let (stop, stopped) = std::sync::mpsc::channel();
    // Ignore the error of a second call: the receiver no longer exists, so the call cannot send.
    let stop = move || _ = stop.send(());
    stop_when_asked(stop, &context.interrupt, args.until_eof)?;
    // The wait also ends if all senders have been dropped.
    let _ = stopped.recv();
    Ok(CommandExit::Ok)
}

fn tunnel(args: &TunnelArgs, context: &CommandContext) -> Result<CommandExit> {
    let tunnel = TunnelEnd::new(&args.device, &args.listen, &args.peer)?;
    std::thread::spawn(move || {
        if let Err(error) = tunnel.run() {
            tracing::error!(%error, "the tunnel has ended");
        }
    });
    let (stop, stopped) = std::sync::mpsc::channel();
    stop_when_asked(move || _ = stop.send(()), &context.interrupt, false)?;
    let _ = stopped.recv();
    Ok(CommandExit::Ok)
}

/// The record that is printed when connections are accepted.
#[derive(Serialize)]
struct PongReadyMessage {
    endpoint: String,
}

impl fmt::Display for PongReadyMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fordway: listening on {}", self.endpoint)
    }
}

/// The size of the largest message, in bytes. Each connection holds a message in memory.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// Requests each message from `pong`, with retries.
struct PongRelayResponder {
    caller: PongHttpClient,
    retries: u32,
}

impl PongRelayResponder {
    fn new(args: &PingArgs) -> Result<Self> {
        Ok(PongRelayResponder {
            caller: PongHttpClient::new(&args.pong, "pong", args.timeout)?,
            retries: args.retries,
        })
    }

    /// Reads a whole message from `pong` into `room`, in one attempt. Errors: a description of the failure.
    fn ask(&self, wanted: &PingpongRequest, room: &mut Vec<u8>) -> Result<()> {
        let mut response =
            self.caller.ask(wanted.bytes, wanted.keep_alive).map_err(|failure| failure.error)?;
        let status = response.status();
        if status != 200 {
            return Err(Error::new(ErrorKind::BadResponse, format!("pong responds with status {status}")));
        }
        if wanted.bytes > MESSAGE_BYTES_MAX {
            return Err(Error::new(ErrorKind::EntityTooLarge, "a message has at most 1 GiB"));
        }
        let wanted_bytes = wanted.bytes as usize;
        if response.body_bytes() == Some(wanted.bytes) {
            room.resize(wanted_bytes, 0);
            return response.read_into(room);
        }
        *room = response.read_rest(wanted_bytes)?;
        match room.len() == wanted_bytes {
            true => Ok(()),
            false => {
                let detail = format!("pong responds with {} bytes, not {wanted_bytes}", room.len());
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }
}

impl PingpongResponder for PongRelayResponder {
    fn play<'b>(&self, wanted: &PingpongRequest, room: &'b mut Vec<u8>) -> PingpongResponse<'b> {
        let mut retries = 0;
        loop {
            match self.ask(wanted, room) {
                Ok(()) => {
                    return PingpongResponse { status: 200, content: PingpongPayload::Bytes(room), retries };
                }
                Err(_) if retries < self.retries => retries += 1,
                Err(error) => {
                    *room = format!("ping received no response from pong: {error}\n").into_bytes();
                    return PingpongResponse { status: 502, content: PingpongPayload::Bytes(room), retries };
                }
            }
        }
    }
}

/// Responds with any number of bytes, optionally after a delay.
struct MemoryPongResponder {
    delay: Duration,
    /// The minimum size of a delayed response, in bytes.
    from_bytes: u64,
}

impl MemoryPongResponder {
    fn new(args: &PongArgs) -> Result<Self> {
        let from_bytes = match args.delay_from_windows {
            Some(windows) => windows.saturating_mul(first_window_bytes()?),
            None => args.delay_from,
        };
        Ok(MemoryPongResponder { delay: args.delay.unwrap_or_default(), from_bytes })
    }
}

/// Returns TCP's initial receive window in this network, in bytes.
fn first_window_bytes() -> Result<u64> {
    let path = "/proc/sys/net/ipv4/tcp_rmem";
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(ErrorKind::NotImplemented, format!("reading {path}")).caused_by(error))?;
    let window = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    window.ok_or_else(|| Error::new(ErrorKind::NotImplemented, format!("{path} contains {text:?}")))
}

impl PingpongResponder for MemoryPongResponder {
    fn play<'b>(&self, wanted: &PingpongRequest, _room: &'b mut Vec<u8>) -> PingpongResponse<'b> {
        if !self.delay.is_zero() && wanted.bytes >= self.from_bytes {
            std::thread::sleep(self.delay);
        }
        PingpongResponse { status: 200, content: PingpongPayload::Any(wanted.bytes), retries: 0 }
    }
}

/// The placeholder for the size in a URL.
const SIZE: &str = "{size}";

/// Requests messages from one server, over persistent or new connections.
pub(super) struct PongHttpClient {
    /// There is one client per policy, because a client for new connections must never reuse a connection.
    kept: HttpClient,
    fresh: HttpClient,
    origin: Origin,
    authority: String,
    /// The part of the path before the size, and the part after it.
    path: (String, String),
}

impl PongHttpClient {
    /// Creates a client for `url`. Requests replace `{size}` in `url` by the size; if `url` does not contain `{size}`,
    /// `/NAME/SIZE` is appended. `timeout` is the time limit for a response. Errors: `InvalidArgument` for an invalid
    /// URL.
    pub(super) fn new(url: &str, name: &str, timeout: Duration) -> Result<Self> {
        let url = match url.contains(SIZE) {
            true => url.to_owned(),
            false => format!("{}/{name}/{SIZE}", url.trim_end_matches('/')),
        };
        let start = url.find("://").map_or(0, |at| at + 3);
        let (base, path) = url.split_at(url[start..].find('/').map_or(url.len(), |at| start + at));
        let (origin, _) = Origin::parse(base)?;
        let fits = path.bytes().all(|byte| byte.is_ascii_graphic());
        let Some((before, behind)) = path.split_once(SIZE).filter(|_| fits) else {
            let detail = format!("{url:?} is not a usable URL; write it as http://host:port/path/{{size}}");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        };
        let timeouts = Timeouts { first_byte: timeout, progress: timeout, ..Timeouts::default() };
        let client = || HttpClient::new(HttpVersion::Http1, timeouts, TlsRoots::System);
        let authority = origin.authority();
        let path = (before.to_owned(), behind.to_owned());
        Ok(PongHttpClient { kept: client(), fresh: client(), origin, authority, path })
    }

    /// Requests a message of `bytes` bytes. The request is not sent again if the server closes a persistent connection
    /// during the request. Such a request counts as a failure.
    pub(super) fn ask(&self, bytes: u64, keep: bool) -> std::result::Result<HttpResponse, ExchangeFailure> {
        let close = if keep { "" } else { "connection: close\r\n" };
        let write_head = |head: &mut Vec<u8>| {
            let (before, behind) = &self.path;
            let text = format!(
                "GET {before}{bytes}{behind} HTTP/1.1\r\nhost: {}\r\nuser-agent: fordway\r\n{close}\r\n",
                self.authority
            );
            head.extend_from_slice(text.as_bytes());
        };
        let exchange = HttpExchangeRequest {
            origin: &self.origin,
            method: "GET",
            write_head: &write_head,
            body: &[],
            replay: ReplayPolicy::IfUnsent,
        };
        if keep { self.kept.send(&exchange) } else { self.fresh.send(&exchange) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> (String, String) {
        PongHttpClient::new(url, "pong", Duration::from_secs(1)).unwrap().path
    }

    #[test]
    fn the_size_goes_where_the_url_says() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(path("http://h:1"), pair("/pong/", ""));
        assert_eq!(path("http://h:1/base/"), pair("/base/pong/", ""));
        assert_eq!(path("http://h/r?bytes={size}&x=1"), pair("/r?bytes=", "&x=1"));
        for bad in ["h:1", "ftp://h", "http://h{size}", "http://h/a b"] {
            let refused = PongHttpClient::new(bad, "pong", Duration::from_secs(1)).err().expect(bad);
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
