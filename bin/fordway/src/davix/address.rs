//! davix's addresses: the URLs of files on web servers, and URLs that name the host of an S3 service and an object.

use fordway_client::s3::BucketAddressing;
use fordway_http::Origin;
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::uri;

use super::args::SecurityOptions;
use crate::web;

/// The resource that a URL addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DavixAddress {
    /// A file or collection on a web server, by its URL.
    Web(String),
    /// An object, prefix or bucket.
    S3(DavixS3Address),
}

/// A bucket of an S3 service, and a key, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DavixS3Address {
    pub(super) endpoint: String,
    pub(super) addressing: BucketAddressing,
    pub(super) bucket: String,
    pub(super) key: String,
}

impl DavixS3Address {
    /// Returns the address in the form that Fordway's commands accept.
    pub(super) fn url(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.key)
    }
}

impl DavixAddress {
    /// Parses a URL. If S3 keys are configured, http(s) URLs address objects too. Errors: `InvalidArgument`.
    pub(super) fn parse(url: &str, security: &SecurityOptions) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(url, "is not a URL"))?;
        let has_keys = security.s3accesskey.is_some();
        match scheme.to_ascii_lowercase().as_str() {
            "s3" => service("http", rest, security.s3alternate).map(DavixAddress::S3),
            "s3s" => service("https", rest, security.s3alternate).map(DavixAddress::S3),
            name @ ("http" | "https") if has_keys => {
                service(name, rest, security.s3alternate).map(DavixAddress::S3)
            }
            "dav" | "davs" if has_keys => Err(invalid(url, "cannot be used with S3 keys; write s3s://")),
            _ if web::is_address(url) => Ok(DavixAddress::Web(url.to_owned())),
            _ => Err(invalid(url, "has a scheme other than http(s)://, dav(s):// and s3(s)://")),
        }
    }

    /// Returns the address in the form that Fordway's commands accept.
    pub(super) fn word(&self) -> String {
        match self {
            DavixAddress::Web(url) => url.clone(),
            DavixAddress::S3(service) => service.url(),
        }
    }

    /// Returns whether the scheme implies that the server can list collections.
    pub(super) fn can_be_listed(&self) -> bool {
        match self {
            DavixAddress::Web(url) => url.to_ascii_lowercase().starts_with("dav"),
            DavixAddress::S3(_) => true,
        }
    }
}

fn invalid(url: &str, why: &str) -> Error {
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    Error::new(ErrorKind::InvalidArgument, format!("the address {shown:?} {why}"))
}

/// Finds the bucket in the host's name or, if `is_in_path` is set, in the path.
fn service(scheme: &str, rest: &str, is_in_path: bool) -> Result<DavixS3Address> {
    let url = format!("{scheme}://{rest}");
    let path_start = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path_start);
    let (origin, _) = Origin::parse(&format!("{scheme}://{authority}"))?;
    if path.contains(['?', '#']) {
        return Err(invalid(&url, "has a query; a signed URL needs no S3 keys"));
    }
    let path = path.strip_prefix('/').unwrap_or_default();
    let path = uri::decode(path).ok_or_else(|| invalid(&url, "does not name a key in UTF-8"))?;
    if is_in_path {
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        return Ok(DavixS3Address {
            endpoint: origin.to_string(),
            addressing: BucketAddressing::Path,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        });
    }
    let (bucket, host) = split_host(&origin)
        .ok_or_else(|| invalid(&url, "has no bucket in its host; add --s3alternate for one in its path"))?;
    let endpoint = Origin { host: host.to_owned(), ..origin.clone() };
    Ok(DavixS3Address {
        endpoint: endpoint.to_string(),
        addressing: BucketAddressing::VirtualHost,
        bucket: bucket.to_owned(),
        key: path,
    })
}

/// Splits a host into the bucket and the host of the service. The hosts of AWS begin with `s3`, so the name of a bucket
/// on AWS may contain dots.
fn split_host(origin: &Origin) -> Option<(&str, &str)> {
    if origin.is_numeric_or_local() {
        return None;
    }
    let host = origin.host.as_str();
    let at_aws = host.ends_with(".amazonaws.com").then(|| host.rfind(".s3")).flatten();
    let dot = at_aws.or_else(|| host.find('.'))?;
    Some((&host[..dot], &host[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str, alternate: bool, keys: bool) -> Result<String> {
        let security = SecurityOptions {
            s3alternate: alternate,
            s3accesskey: keys.then(|| "k".to_owned()),
            ..SecurityOptions::default()
        };
        Ok(match DavixAddress::parse(url, &security)? {
            DavixAddress::Web(url) => url,
            DavixAddress::S3(service) => format!("{} {}", service.endpoint, service.url()),
        })
    }

    #[test]
    fn buckets_are_found_in_hosts_and_paths() {
        for (url, alternate, keys, found) in [
            ("davs://h/d/a%20b?x", false, false, "davs://h/d/a%20b?x"),
            ("https://h/f", false, false, "https://h/f"),
            ("s3://h:9000/b/k/x%20y", true, false, "http://h:9000 s3://b/k/x y"),
            ("s3s://h/b", true, true, "https://h s3://b/"),
            ("https://b.s3.example.org/k", false, true, "https://s3.example.org s3://b/k"),
            (
                "s3s://a.b.s3.eu-west-1.amazonaws.com/k",
                false,
                true,
                "https://s3.eu-west-1.amazonaws.com s3://a.b/k",
            ),
            ("http://127.0.0.1:1/b/k", true, true, "http://127.0.0.1:1 s3://b/k"),
        ] {
            assert_eq!(parsed(url, alternate, keys).unwrap(), found, "{url}");
        }
        for (url, alternate, keys) in [
            ("s3://127.0.0.1/b/k", false, false),
            ("s3://service/k", false, false),
            ("dav://h/f", true, true),
            ("swift://h/f", false, false),
            ("h/f", false, false),
            ("s3://h/b/k?signature=x", true, true),
        ] {
            assert_eq!(parsed(url, alternate, keys).unwrap_err().kind(), ErrorKind::InvalidArgument, "{url}");
        }
    }
}
