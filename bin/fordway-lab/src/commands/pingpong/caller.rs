//! The side that asks for messages by their size: the load asks ping, ping asks pong.

use std::time::Duration;

use fordway_http::{Exchange, Failure, HttpClient, Origin, Replay, Response, Timeouts, TlsRoots, Version};
use fordway_store::{Error, ErrorKind, Result};

/// What stands for the size in a URL.
const SIZE: &str = "{size}";

/// Asks one server for messages, on connections that are kept or on new ones.
pub(in crate::commands) struct Caller {
    /// Where nothing is kept, nothing can be used again: a client for each policy.
    kept: HttpClient,
    fresh: HttpClient,
    origin: Origin,
    authority: String,
    /// What is before the size in a path, and what is behind it.
    path: (String, String),
}

impl Caller {
    /// `url` has `{size}` where the size goes; without it, `/NAME/SIZE` is appended. An answer may take `timeout`.
    /// Errors: `InvalidArgument` for what is no URL.
    pub(in crate::commands) fn new(url: &str, name: &str, timeout: Duration) -> Result<Self> {
        let url = match url.contains(SIZE) {
            true => url.to_owned(),
            false => format!("{}/{name}/{SIZE}", url.trim_end_matches('/')),
        };
        let start = url.find("://").map_or(0, |at| at + 3);
        let (base, path) = url.split_at(url[start..].find('/').map_or(url.len(), |at| start + at));
        let (origin, _) = Origin::parse(base)?;
        let fits = path.bytes().all(|byte| byte.is_ascii_graphic());
        let Some((before, behind)) = path.split_once(SIZE).filter(|_| fits) else {
            let detail = format!("{url:?} cannot be asked for; write it as http://host:port/path/{{size}}");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        };
        let timeouts = Timeouts { first_byte: timeout, progress: timeout, ..Timeouts::default() };
        let client = || HttpClient::new(Version::Http1, timeouts, TlsRoots::System);
        let authority = origin.authority();
        let path = (before.to_owned(), behind.to_owned());
        Ok(Caller { kept: client(), fresh: client(), origin, authority, path })
    }

    /// Asks for a message of `bytes`. A kept connection that turns out to be closed is a failure too.
    pub(in crate::commands) fn ask(&self, bytes: u64, keep: bool) -> std::result::Result<Response, Failure> {
        let close = if keep { "" } else { "connection: close\r\n" };
        let write_head = |head: &mut Vec<u8>| {
            let (before, behind) = &self.path;
            let text = format!(
                "GET {before}{bytes}{behind} HTTP/1.1\r\nhost: {}\r\nuser-agent: fordway\r\n{close}\r\n",
                self.authority
            );
            head.extend_from_slice(text.as_bytes());
        };
        let exchange = Exchange {
            origin: &self.origin,
            method: "GET",
            write_head: &write_head,
            body: &[],
            replay: Replay::IfUnsent,
        };
        if keep { self.kept.send(&exchange) } else { self.fresh.send(&exchange) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> (String, String) {
        Caller::new(url, "pong", Duration::from_secs(1)).unwrap().path
    }

    #[test]
    fn the_size_goes_where_the_url_says() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(path("http://h:1"), pair("/pong/", ""));
        assert_eq!(path("http://h:1/base/"), pair("/base/pong/", ""));
        assert_eq!(path("http://h/r?bytes={size}&x=1"), pair("/r?bytes=", "&x=1"));
        for bad in ["h:1", "ftp://h", "http://h{size}", "http://h/a b"] {
            let refused = Caller::new(bad, "pong", Duration::from_secs(1)).err().expect(bad);
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
