//! Recognizes addresses of web servers in commands, and finds the options for connections to them.

use std::path::PathBuf;

use fordway_http::vector::SessionOptions;
use fordway_http::{ProxySettings, SessionCredentials, TlsRoots};

/// The URL schemes of web servers, each with the HTTP scheme for which it stands.
const SCHEMES: [(&str, &str); 4] =
    [("http://", "http://"), ("https://", "https://"), ("dav://", "http://"), ("davs://", "https://")];

/// Returns whether an address refers to a web server.
pub fn is_address(text: &str) -> bool {
    scheme(text).is_some()
}

/// Returns the same address as an HTTP URL.
pub fn http_url(text: &str) -> String {
    scheme(text).map_or_else(|| text.to_owned(), |(name, http)| format!("{http}{}", &text[name.len()..]))
}

fn scheme(text: &str) -> Option<(&'static str, &'static str)> {
    let is_it = |name: &str| text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    SCHEMES.into_iter().find(|(name, _)| is_it(name))
}

/// Returns the CA bundle that the environment names.
pub fn ca_bundle() -> Option<PathBuf> {
    std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns options with the credentials and proxies that the environment names. `ca_bundle` takes precedence over the
/// environment's CA bundle.
pub fn options(ca_bundle: Option<PathBuf>) -> SessionOptions {
    SessionOptions {
        tls_roots: TlsRoots::find(ca_bundle),
        credentials: SessionCredentials::discover(),
        proxies: ProxySettings::discover(),
        ..SessionOptions::default()
    }
}
