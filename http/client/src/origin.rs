//! Where a connection goes: scheme, host and port.

use std::fmt;

use fordway_store::{Error, ErrorKind, Result};

/// Scheme, host and port: connections to the same origin are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// A name or an address, without the brackets of IPv6.
    pub host: String,
    /// 1 to 65,535.
    pub port: u16,
}

impl Origin {
    /// Splits `http(s)://host[:port][/path]` into origin and path (empty, or starting with `/` and
    /// not ending with it). Errors: `InvalidArgument`.
    pub fn parse(url: &str) -> Result<(Self, String)> {
        let refused = |why: &str| {
            let detail = format!("the endpoint {url:?} {why}; write it as http(s)://host[:port]");
            Error::new(ErrorKind::InvalidArgument, detail)
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("has no scheme"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(refused("is neither http nor https")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains(['@', '?', '#']) || path.contains(['?', '#']) {
            return Err(refused("has a user, query or fragment"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| refused("has no valid host and port"))?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._:%".contains(&b);
        if host.is_empty() || !host.bytes().all(legal) {
            return Err(refused("has no valid host"));
        }
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        let host = host.to_ascii_lowercase();
        Ok((Origin { tls, host, port }, path.trim_end_matches('/').to_owned()))
    }

    /// The same scheme and port at `label.host`.
    pub fn subdomain(&self, label: &str) -> Self {
        Origin { host: format!("{label}.{}", self.host), ..self.clone() }
    }

    /// The value of the `Host` header; the port is left out where the scheme implies it.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Whether the host is an address or the local one: what has no subdomains.
    pub fn is_numeric_or_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        None => None,
        Some(port) => port.parse().ok().filter(|port| *port != 0).map(|port| (host, Some(port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> Option<(String, String)> {
        Origin::parse(url).ok().map(|(origin, path)| (origin.to_string(), path))
    }

    #[test]
    fn parses_what_people_write() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(shown("http://127.0.0.1:9000/"), pair("http://127.0.0.1:9000", ""));
        assert_eq!(shown("HTTPS://S3.Example.org"), pair("https://s3.example.org", ""));
        assert_eq!(shown("http://[::1]:9000/base/"), pair("http://[::1]:9000", "/base"));
        assert_eq!(shown("https://h:443"), pair("https://h", ""));
        for bad in ["", "host", "ftp://h", "http://", "http://h:x", "http://h:0", "http://a@h", "http://h h"]
        {
            assert_eq!(Origin::parse(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
