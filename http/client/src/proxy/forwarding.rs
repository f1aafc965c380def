//! Requests to a proxy that forwards them, for origins without TLS.

use fordway_store::{Error, ErrorKind};

use crate::Origin;

/// Rewrites requests for a proxy that forwards them.
pub(crate) struct Forwarding {
    /// Scheme, host and port, which go before the path.
    target: String,
    /// A header line, or nothing.
    login: String,
    proxy: String,
}

impl Forwarding {
    /// By the proxy of this name to `origin`, with a line that logs in, or none.
    pub(super) fn new(origin: &Origin, login: String, proxy: String) -> Self {
        Forwarding { target: origin.to_string(), login, proxy }
    }

    /// Turns the request whose head begins at `start` into one in absolute form (RFC 9112 section 3.2.2).
    pub(crate) fn rewrite(&self, heads: &mut Vec<u8>, start: usize) {
        let position =
            |heads: &[u8], byte| heads[start..].iter().position(|b| *b == byte).map(|at| start + at + 1);
        if let Some(after_line) = position(heads, b'\n') {
            heads.splice(after_line..after_line, self.login.bytes());
        }
        if let Some(path) = position(heads, b' ') {
            heads.splice(path..path, self.target.bytes());
        }
    }

    /// What an answer of status 407 says: it comes from the proxy, whatever was asked.
    pub(crate) fn wants_login(&self) -> Error {
        wants_login(&self.proxy, !self.login.is_empty())
    }
}

/// The proxy wants to know who asks, or does not like the answer.
pub(super) fn wants_login(proxy: &str, has_said: bool) -> Error {
    let why = if has_said { "another user and password than those" } else { "a user and password" };
    let detail =
        format!("the proxy {proxy} wants {why} in its URL: http://USER:PASSWORD@HOST:PORT (HTTP status 407)");
    Error::new(ErrorKind::AccessDenied, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_written_in_absolute_form() {
        let (origin, _) = Origin::parse("http://h:8080").unwrap();
        let forwarding =
            Forwarding::new(&origin, "Proxy-Authorization: Basic bWU6\r\n".to_owned(), String::new());
        let mut heads = b"before".to_vec();
        heads.extend_from_slice(b"GET /a?b HTTP/1.1\r\nHost: h:8080\r\n\r\n");
        forwarding.rewrite(&mut heads, 6);
        let expected =
            "beforeGET http://h:8080/a?b HTTP/1.1\r\nProxy-Authorization: Basic bWU6\r\nHost: h:8080\r\n\r\n";
        assert_eq!(String::from_utf8(heads).unwrap(), expected);
    }
}
