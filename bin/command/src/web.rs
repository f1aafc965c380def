//! Recognizes addresses of web servers in commands.

/// The URL schemes of web servers, each with the corresponding HTTP scheme.
const SCHEMES: [(&str, &str); 4] =
    [("http://", "http://"), ("https://", "https://"), ("dav://", "http://"), ("davs://", "https://")];

/// Returns whether an address refers to a web server.
pub fn is_address(text: &str) -> bool {
    scheme(text).is_some()
}

/// Converts the scheme of a web server's address to `http` or `https`. Returns any other string unchanged.
pub fn http_url(text: &str) -> String {
    scheme(text).map_or_else(|| text.to_owned(), |(name, http)| format!("{http}{}", &text[name.len()..]))
}

fn scheme(text: &str) -> Option<(&'static str, &'static str)> {
    let is_it = |name: &str| text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    SCHEMES.into_iter().find(|(name, _)| is_it(name))
}
