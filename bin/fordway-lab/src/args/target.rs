//! `--target NAME=URL`: a service that gets its own row in a comparison.

use std::fmt;

use fordway_store::Bucket;

/// The maximum length of a name, in characters. Names appear in a column of tables.
const NAME_CHARS_MAX: usize = 32;
const FORM: &str =
    "write NAME=URL, such as other=http://127.0.0.1:7070 or other=http://127.0.0.1:7070/BUCKET";

/// A service and its name in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetArg {
    /// The name of the service's row.
    pub(crate) name: String,
    /// The URL exactly as the user wrote it.
    pub(crate) url: String,
    /// The URL without bucket and prefix.
    pub(crate) endpoint: String,
    /// The bucket to work in; if `None`, a bucket is created.
    pub(crate) bucket: Option<Bucket>,
    /// The prefix of all keys in that bucket: empty, or ending with a slash.
    pub(crate) prefix: String,
}

impl TargetArg {
    /// Parses `NAME=URL`. Errors are messages that clap prints.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, url) = text.split_once('=').ok_or_else(|| FORM.to_owned())?;
        // A URL such as `http://h/?a=b` contains an equals sign too.
        if name.contains("://") {
            return Err(FORM.to_owned());
        }
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_fit) {
            return Err(format!(
                "the name {name:?} is not usable in a table; use 1 to {NAME_CHARS_MAX} letters, digits, dots, \
                 hyphens or underscores"
            ));
        }
        Self::at(name, url)
    }

    /// Returns the service `name` at `url`. Errors are messages for the user.
    pub(crate) fn at(name: &str, url: &str) -> Result<Self, String> {
        let target = |endpoint: &str, bucket, prefix| TargetArg {
            name: name.to_owned(),
            url: url.to_owned(),
            endpoint: endpoint.to_owned(),
            bucket,
            prefix,
        };
        let Some((scheme @ ("http" | "https"), rest)) = url.split_once("://") else {
            return match url.starts_with('/') || is_local(url) {
                true => Ok(target(url, None, String::new())),
                false => Err(format!(
                    "{url:?} is not a URL of a service; write http(s)://HOST[:PORT][/BUCKET[/PREFIX]], \
                     file:///DIRECTORY, unix:///SOCKET or tcp://HOST:PORT"
                )),
            };
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        check_host(host, rest)?;
        let (bucket, prefix) = place_in_bucket(path)?;
        Ok(target(&format!("{scheme}://{host}"), bucket, prefix))
    }
}

impl fmt::Display for TargetArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.url)
    }
}

fn is_local(url: &str) -> bool {
    ["file:///", "unix:///", "tcp://"].iter().any(|scheme| url.starts_with(scheme))
}

/// Checks the host of a URL. Fails if there is no host, if the URL contains access keys, a query or a fragment, or if
/// the port is invalid.
fn check_host(host: &str, rest: &str) -> Result<(), String> {
    if host.contains('@') {
        return Err(
            "do not put keys into the URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned()
        );
    }
    if rest.contains(['?', '#']) {
        return Err(
            "the URL of a service must not have a query or a fragment; remove everything from ? or # on"
                .to_owned(),
        );
    }
    // The colons of an IPv6 address are within brackets.
    let after_address = host.rsplit(']').next().unwrap_or(host);
    let (name, port) = after_address.split_once(':').unwrap_or((after_address, "80"));
    if host.is_empty() || (name.is_empty() && !host.contains(']')) || host.contains(char::is_whitespace) {
        return Err("the URL has no host; write http(s)://HOST[:PORT]".to_owned());
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("the URL's port {port:?} is invalid; ports are 1 to 65535")),
    }
}

/// Splits a URL's path into bucket and prefix. Fails if the bucket's name is invalid.
fn place_in_bucket(path: &str) -> Result<(Option<Bucket>, String), String> {
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    if bucket.is_empty() {
        return Ok((None, String::new()));
    }
    let bucket = Bucket::new(bucket).map_err(|error| format!("the bucket of the URL: {error}"))?;
    let prefix = prefix.trim_end_matches('/');
    Ok((Some(bucket), if prefix.is_empty() { String::new() } else { format!("{prefix}/") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_a_prefix_may_follow_the_host() {
        let read = |text: &str| {
            let found = TargetArg::parse(text).unwrap();
            let bucket = found.bucket.map(|bucket| bucket.as_str().to_owned()).unwrap_or_default();
            (found.name, found.endpoint, bucket, found.prefix)
        };
        let is = |name: &str, endpoint: &str, bucket: &str, prefix: &str| {
            (name.to_owned(), endpoint.to_owned(), bucket.to_owned(), prefix.to_owned())
        };
        assert_eq!(read("o=http://h:7070"), is("o", "http://h:7070", "", ""));
        assert_eq!(read("o=http://h:7070/"), is("o", "http://h:7070", "", ""));
        assert_eq!(read("o=https://[::1]:7/data"), is("o", "https://[::1]:7", "data", ""));
        assert_eq!(read("o=http://h/data/a/b/"), is("o", "http://h", "data", "a/b/"));
        assert_eq!(read("full=file:///x?durability=full"), is("full", "file:///x?durability=full", "", ""));
    }

    #[test]
    fn what_is_none_is_refused_in_a_sentence() {
        for (text, says) in [
            ("http://h:1", "write NAME=URL"),
            ("http://h/?a=b", "write NAME=URL"),
            ("=http://h", "not usable"),
            ("a b=http://h", "not usable"),
            ("o=", "is not a URL"),
            ("o=h:9000", "is not a URL"),
            ("o=ftp://h", "is not a URL"),
            ("o=http://", "no host"),
            ("o=http://:80", "no host"),
            ("o=http://h:port", "the URL's port"),
            ("o=http://h:99999", "the URL's port"),
            ("o=http://me:secret@h", "do not put keys"),
            ("o=http://h/b?x=1", "must not have a query"),
            ("o=http://h/-a", "the bucket of the URL"),
        ] {
            let refused = TargetArg::parse(text).expect_err(text);
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
