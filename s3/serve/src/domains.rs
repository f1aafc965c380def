//! Virtual-hosted-style addressing: in a request to `BUCKET.DOMAIN`, the host names the bucket and the path names only
//! the key.

use fordway_store::{Error, ErrorKind, Result};
use http::{HeaderMap, Uri, header};
use percent_encoding::percent_decode_str;
use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The lowercase domains that a bucket's name may precede in a host name. A domain precedes its parent domains.
#[derive(Clone, Debug)]
pub(crate) struct BucketDomains(Vec<String>);

impl BucketDomains {
    /// Creates the list of domains. Errors: `InvalidArgument` if a name is not a host name.
    pub(crate) fn new(names: &[String]) -> Result<Self> {
        let names = names.iter().map(|name| match is_host_name(name) {
            true => Ok(name.to_ascii_lowercase()),
            false => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{name:?} is not a domain; specify a host name without a port, such as s3.example.org"
                ),
            )),
        });
        let mut names: Vec<String> = names.collect::<Result<_>>()?;
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Ok(BucketDomains(names))
    }

    /// Returns an empty list of domains. With an empty list, only the path of a request can name the bucket.
    pub(crate) fn none() -> Self {
        BucketDomains(Vec::new())
    }

    /// Returns whether only the path of a request can name the bucket.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bucket that precedes one of the domains in a `Host` header, if there is one. If several domains
    /// match, the longest one applies, so the bucket does not depend on the order of the domains.
    pub(crate) fn bucket_of<'h>(&self, host: &'h str) -> Option<&'h str> {
        let name = without_port(host);
        let before = self.0.iter().find_map(|domain| {
            let (before, end) = name.split_at_checked(name.len().checked_sub(domain.len())?)?;
            let is_domain = end.eq_ignore_ascii_case(domain) && (before.is_empty() || before.ends_with('.'));
            is_domain.then_some(before)
        });
        before?.strip_suffix('.').filter(|bucket| !bucket.is_empty())
    }
}

impl BucketDomains {
    /// Returns the decoded bucket and key from the host and the path. A missing bucket or key is an empty string.
    pub(crate) fn names(&self, headers: &HeaderMap, uri: &Uri) -> (String, String) {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let path = percent_decode_str(uri.path().strip_prefix('/').unwrap_or(uri.path())).decode_utf8_lossy();
        match self.bucket_of(host) {
            Some(bucket) => (bucket.to_owned(), path.into_owned()),
            None => {
                let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
                (bucket.to_owned(), key.to_owned())
            }
        }
    }
}

impl S3Host for BucketDomains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let named = VirtualHost::new(host);
        Ok(match self.bucket_of(host) {
            Some(bucket) => named.with_bucket(bucket),
            None => named,
        })
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_host_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_stands_before_the_domain() {
        let names = ["S3.example.org", "localhost"].map(str::to_owned);
        let domains = BucketDomains::new(&names).unwrap();
        for (host, bucket) in [
            ("data.s3.example.org", Some("data")),
            ("my.data.s3.Example.org:9000", Some("my.data")),
            ("data.localhost:", Some("data")),
            ("s3.example.org", None),
            (".s3.example.org", None),
            ("datas3.example.org", None),
            ("data.example.org", None),
            ("127.0.0.1:9000", None),
            ("[::1]:9000", None),
            ("é.localhost", Some("é")),
            ("", None),
        ] {
            assert_eq!(domains.bucket_of(host), bucket, "{host}");
        }
    }

    #[test]
    fn the_longest_domain_counts() {
        for names in [["example.org", "s3.example.org"], ["s3.example.org", "example.org"]] {
            let domains = BucketDomains::new(&names.map(str::to_owned)).unwrap();
            for (host, bucket) in [
                ("s3.example.org", None),
                ("data.s3.example.org", Some("data")),
                ("data.example.org", Some("data")),
                ("my-s3.example.org", Some("my-s3")),
                ("example.org", None),
            ] {
                assert_eq!(domains.bucket_of(host), bucket, "{host}");
            }
        }
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        for name in ["", "s3.example.org:9000", "http://s3", "*.s3", "s3..org", ".s3"] {
            let error = BucketDomains::new(&[name.to_owned()]).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
