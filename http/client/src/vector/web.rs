//! A file on a web server, as a target of range requests.

use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::{s3_error, uri};

use super::{RemoteResource, SessionOptions, VersionPrecondition};
use crate::{Origin, USER_AGENT};

/// The lane's name in messages.
const LANE: &str = "http";

/// A file at an `http(s)://` URL.
#[derive(Clone)]
pub struct WebFileResource {
    origin: Origin,
    authority: String,
    /// The path and query, percent-encoded.
    path: String,
    shown: String,
    /// The value of the `Authorization` header.
    authorization: Option<String>,
    /// The headers that the caller adds to every request.
    headers: Arc<[(String, String)]>,
    /// Whether there may be credentials that are not sent because the server does not use TLS.
    is_withheld: bool,
}

impl WebFileResource {
    /// Parses a URL; percent-encodes characters that are not allowed in a request line, and drops the fragment, if any.
    /// Rejects a URL that contains a password. Errors: `InvalidArgument`.
    pub fn parse(url: &str) -> Result<Self> {
        let url = url.split('#').next().unwrap_or_default();
        let scheme_end = url.find("://").map_or(0, |at| at + 3);
        let path_start = url[scheme_end..].find(['/', '?']).map_or(url.len(), |at| scheme_end + at);
        let (base, rest) = url.split_at(path_start);
        if base.contains('@') {
            // A password would be visible in process lists, shell histories and logs.
            let detail = "an address with a user or password is not accepted; write them into ~/.netrc, as in: machine \
                          HOST login USER password PASSWORD";
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let (origin, _) = Origin::parse(base)?;
        let mut path = if rest.starts_with('/') { String::new() } else { "/".to_owned() };
        uri::push_typed(&mut path, rest);
        let shown = format!("{origin}{}", path.split('?').next().unwrap_or_default());
        let authority = origin.authority();
        let (authorization, headers) = (None, Arc::default());
        Ok(WebFileResource { authority, origin, path, shown, authorization, headers, is_withheld: false })
    }

    /// Returns the file with the credentials for its host, and with the headers of the session. Errors: `AccessDenied`,
    /// `InvalidArgument` or `Io` if these credentials cannot be used.
    pub(crate) fn authorized(mut self, options: &SessionOptions) -> Result<Self> {
        let SessionOptions { credentials, proxies, .. } = options;
        let said = credentials.authorization(&self.origin, proxies);
        self.authorization = said.map_err(|error| self.named("open", error))?;
        self.is_withheld = credentials.is_withheld_from(&self.origin, proxies);
        self.headers = options.headers.clone();
        Ok(self)
    }

    /// Returns whether the caller's headers replace the header `name`.
    fn is_replaced(&self, name: &str) -> bool {
        self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name))
    }

    /// Returns the URL, including any secrets in its query.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.origin, self.path)
    }

    /// Returns the URL without its query, for use in messages.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Resolves `reference` against this URL (RFC 3986 section 5.2). Errors: `InvalidArgument`.
    pub(super) fn relative(&self, reference: &str) -> Result<Self> {
        let path = self.path.split('?').next().unwrap_or_default();
        let scheme_end = reference.find(':').filter(|end| !reference[..*end].contains(['/', '?', '#']));
        match reference {
            _ if scheme_end.is_some() => Self::parse(reference),
            _ if reference.starts_with("//") => {
                Self::parse(&format!("{}:{reference}", if self.origin.tls { "https" } else { "http" }))
            }
            _ if reference.starts_with('/') => Self::parse(&format!("{}{reference}", self.origin)),
            _ if reference.starts_with(['?', '#']) || reference.is_empty() => {
                Self::parse(&format!("{}{path}{reference}", self.origin))
            }
            _ => {
                let (target, query) =
                    reference.split_at(reference.find(['?', '#']).unwrap_or(reference.len()));
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                let merged = without_dots(&format!("{directory}/{target}"));
                Self::parse(&format!("{}{merged}{query}", self.origin))
            }
        }
    }
}

/// Returns an absolute path with `.` and `..` resolved.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match (segment, segments.peek().is_none()) {
            ("..", is_last) => {
                kept.pop();
                kept.extend(is_last.then_some(""));
            }
            (".", is_last) => kept.extend(is_last.then_some("")),
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

impl RemoteResource for WebFileResource {
    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn named(&self, operation: &'static str, error: Error) -> Error {
        error.during_at(operation, LANE, &self.shown)
    }

    fn pin(&self) -> VersionPrecondition {
        VersionPrecondition::IfRange
    }

    fn may_know_many_ranges(&self) -> bool {
        true
    }

    fn write_head(&self, method: &'static str, headers: &[(&str, &str)], head: &mut Vec<u8>) {
        let mut push = |piece: &str| head.extend_from_slice(piece.as_bytes());
        [method, " ", &self.path, " HTTP/1.1\r\nHost: ", &self.authority].into_iter().for_each(&mut push);
        // Ranges of a compressed representation would not be ranges of the file.
        push("\r\nAccept-Encoding: identity\r\n");
        if !self.is_replaced("user-agent") {
            ["User-Agent: ", USER_AGENT, "\r\n"].into_iter().for_each(&mut push);
        }
        if let Some(authorization) = &self.authorization {
            ["Authorization: ", authorization, "\r\n"].into_iter().for_each(&mut push);
        }
        for (name, value) in &*self.headers {
            [name, ": ", value, "\r\n"].into_iter().for_each(&mut push);
        }
        for (name, value) in headers.iter().filter(|(name, _)| !self.is_replaced(name)) {
            push_capitalised(head, name);
            for piece in [": ", *value, "\r\n"] {
                head.extend_from_slice(piece.as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n");
    }

    fn refusal(&self, status: u16, location: Option<&str>, _: &[u8]) -> Error {
        let (kind, why) = match (status, location) {
            (304, _) => {
                let why = "the server states that the file has not changed, although the request did not ask for \
                           this; an intermediate cache may be the cause";
                (ErrorKind::BadResponse, why.to_owned())
            }
            (300..=399, Some(location)) => {
                // The query may contain a signature, so it is not shown.
                let shown = location.split(['?', '#']).next().unwrap_or_default();
                (ErrorKind::InvalidArgument, format!("it has moved; read {shown} instead"))
            }
            (202, _) => {
                let why = "the server has to fetch the file first, for example from tape; try again later";
                (ErrorKind::Unavailable, why.to_owned())
            }
            (200..=299, _) => {
                (ErrorKind::BadResponse, "the server's response does not contain the file".to_owned())
            }
            (404 | 410, _) => (ErrorKind::NoSuchKey, "there is no such file".to_owned()),
            (401 | 403, _) if self.is_withheld => {
                let why = "the server requires credentials, which are not sent without TLS; use https";
                (ErrorKind::AccessDenied, why.to_owned())
            }
            // A signature in the query is a credential too.
            (401 | 403, _) if self.authorization.is_none() && !self.path.contains('?') => {
                let why = "the file is not public, and no credentials were sent; for an object of an S3 service, \
                           use s3://BUCKET/KEY, or a URL from `fordway presign`";
                (ErrorKind::AccessDenied, why.to_owned())
            }
            (401 | 403 | 407, _) => {
                (ErrorKind::AccessDenied, "the server does not accept these credentials".to_owned())
            }
            _ => (s3_error::from_s3(status, ""), "the server refused".to_owned()),
        };
        Error::new(kind, format!("{why} (HTTP status {status})"))
    }
}

/// Writes `if-range` as `If-Range`: XrdHttp treats this header name as case-sensitive, although HTTP does not.
fn push_capitalised(head: &mut Vec<u8>, name: &str) {
    let mut is_first = true;
    head.extend(name.bytes().map(|letter| {
        let written = if is_first { letter.to_ascii_uppercase() } else { letter };
        is_first = letter == b'-';
        written
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(url: &str) -> String {
        let (file, mut head) = (WebFileResource::parse(url).unwrap(), Vec::new());
        file.write_head("GET", &[("range", "bytes=0-0"), ("if-range", "x")], &mut head);
        let text = String::from_utf8(head).unwrap();
        assert!(text.ends_with("\r\nRange: bytes=0-0\r\nIf-Range: x\r\n\r\n"), "{text}");
        text.lines().next().unwrap().to_owned()
    }

    #[test]
    fn addresses_become_request_lines() {
        assert_eq!(line("http://h"), "GET / HTTP/1.1");
        assert_eq!(line("http://h?q=1"), "GET /?q=1 HTTP/1.1");
        assert_eq!(
            line("http://h/a b/c%20d?x=%2F&y=\u{e4}#part"),
            "GET /a%20b/c%20d?x=%2F&y=%C3%A4 HTTP/1.1"
        );
        assert_eq!(line("http://h/a\r\nx: y"), "GET /a%0D%0Ax:%20y HTTP/1.1");
        assert_eq!(WebFileResource::parse("http://h/a?token=secret").unwrap().shown, "http://h/a");
        for bad in ["h/a", "ftp://h/a", "http://", "http://u@h/a"] {
            assert_eq!(
                WebFileResource::parse(bad).err().map(|error| error.kind()),
                Some(ErrorKind::InvalidArgument),
                "{bad}"
            );
        }
    }

    #[test]
    fn headers_of_the_caller_replace_our_own() {
        let headers = [("user-agent", "me"), ("If-Range", "y"), ("X-Own", "1")];
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options = SessionOptions { headers, ..SessionOptions::default() };
        let file = WebFileResource::parse("http://h/a").unwrap().authorized(&options).unwrap();
        let mut head = Vec::new();
        file.write_head("GET", &[("range", "bytes=0-0"), ("if-range", "x")], &mut head);
        let text = String::from_utf8(head).unwrap();
        assert!(
            text.ends_with("user-agent: me\r\nIf-Range: y\r\nX-Own: 1\r\nRange: bytes=0-0\r\n\r\n"),
            "{text}"
        );
        assert!(!text.contains("fordway"), "{text}");
    }

    #[test]
    fn only_a_redirection_says_that_the_file_has_moved() {
        let file = WebFileResource::parse("http://h/a").unwrap();
        let refusal = |status| file.refusal(status, Some("/t?secret"), b"");
        let moved = refusal(302);
        assert!(moved.detail().starts_with("it has moved; read /t instead"), "{moved}");
        let unmodified = refusal(304);
        assert_eq!(unmodified.kind(), ErrorKind::BadResponse);
        assert!(unmodified.detail().contains("has not changed") && !unmodified.detail().contains("/t"));
    }

    #[test]
    fn references_are_resolved_as_browsers_do() {
        let base = WebFileResource::parse("https://h:8443/a/b/c?q=1").unwrap();
        for (reference, url) in [
            ("http://other/x", "http://other/x"),
            ("//other:1/x?y", "https://other:1/x?y"),
            ("/x/y", "https://h:8443/x/y"),
            ("d?r=2", "https://h:8443/a/b/d?r=2"),
            ("../d", "https://h:8443/a/d"),
            ("../../../d/./e/..", "https://h:8443/d/"),
            ("?r=2", "https://h:8443/a/b/c?r=2"),
            ("d:e/f", ""),
            ("./d:e", "https://h:8443/a/b/d:e"),
            ("ftp://h/x", ""),
            ("https://user@h/x", ""),
        ] {
            let found = base.relative(reference).map(|file| file.url());
            assert_eq!(found.as_deref().unwrap_or_default(), url, "{reference}");
        }
    }
}
