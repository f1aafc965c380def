//! AWS Signature Version 2, for clients of old services (from before 2014) that require this version. The signature is
//! a pure function of the request.
//!
//! Newer services refuse version 2 signatures, which cover less than version 4 signatures ([`crate::sigv4`]). A version
//! 2 signature does not cover the host, the body (except by `Content-MD5`), or most of the query.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// The query parameters that are signed. The gateway also uses this list, to verify signatures.
const SIGNED_PARAMETERS: [&str; 31] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Returns whether a signature covers the query parameter `name`.
pub fn covers(name: &str) -> bool {
    SIGNED_PARAMETERS.contains(&name)
}

/// Returns the signed part of a query: `?`, followed by the signed parameters in order. Returns an empty string if no
/// parameter is signed. `query` contains names and values, not encoded, in any order.
pub fn signed_query(query: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut signed: Vec<_> = query.iter().filter(|(name, _)| covers(name)).collect();
    signed.sort_unstable();
    for (index, (name, value)) in signed.into_iter().enumerate() {
        text.extend([if index == 0 { "?" } else { "&" }, name]);
        if !value.is_empty() {
            text.extend(["=", value]);
        }
    }
    text
}

/// The parts of a request that are signed.
pub struct LegacySignedRequest<'a> {
    /// The HTTP method, such as `GET`.
    pub method: &'a str,
    /// The bucket, if its name is part of the host name and therefore not in `path`.
    pub host_bucket: Option<&'a str>,
    /// The encoded path, starting with `/`.
    pub path: &'a str,
    /// The query parameters, not encoded, in any order.
    pub query: &'a [(&'a str, &'a str)],
    /// Headers (lowercase name and value), sorted by name; must contain `date` or `x-amz-date`.
    pub headers: &'a [(&'a str, &'a str)],
}

impl LegacySignedRequest<'_> {
    /// Returns the value of `Authorization`.
    pub fn authorization(&self, access_key: &str, secret_key: &str) -> String {
        // HMAC accepts keys of any length, so this call does not fail.
        let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(secret_key.as_bytes()) else { return String::new() };
        mac.update(self.string_to_sign().as_bytes());
        format!("AWS {access_key}:{}", BASE64.encode(mac.finalize().into_bytes()))
    }

    fn string_to_sign(&self) -> String {
        let (md5, kind) = (self.header("content-md5"), self.header("content-type"));
        // `x-amz-date` takes precedence over `date`; the loop below adds it with the other `x-amz-` headers.
        let date = if self.header("x-amz-date").is_empty() { self.header("date") } else { "" };
        let mut text = format!("{}\n{md5}\n{kind}\n{date}\n", self.method);
        for (name, value) in self.headers.iter().filter(|(name, _)| name.starts_with("x-amz-")) {
            text.extend([name, ":", value.trim(), "\n"]);
        }
        text.extend(self.host_bucket.into_iter().flat_map(|bucket| ["/", bucket]));
        text.push_str(self.path);
        text.push_str(&signed_query(self.query));
        text
    }

    fn header(&self, wanted: &str) -> &str {
        self.headers.iter().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two examples from Amazon's description of this signature (REST authentication).
    #[test]
    fn the_documented_examples() {
        for (method, date, signature) in [
            ("GET", "Tue, 27 Mar 2007 19:36:42 +0000", "bWq2s1WEIj+Ydj0vQ697zp+IXMU="),
            ("DELETE", "Tue, 27 Mar 2007 21:20:26 +0000", "lx3byBScXR6KzyMaifNkardMwNk="),
        ] {
            let request = LegacySignedRequest {
                method,
                host_bucket: None,
                path: "/johnsmith/photos/puppy.jpg",
                query: &[],
                headers: &[("date", date)],
            };
            let secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
            let found = request.authorization("AKIAIOSFODNN7EXAMPLE", secret_key);
            assert_eq!(found, format!("AWS AKIAIOSFODNN7EXAMPLE:{signature}"));
        }
    }

    /// AWS lists `website` among the subresources that are signed (REST authentication).
    #[test]
    fn the_settings_of_a_bucket_are_signed() {
        for name in ["cors", "lifecycle", "notification", "policy", "tagging", "versioning", "website"] {
            assert_eq!(signed_query(&[("prefix", "p"), (name, "")]), format!("?{name}"));
        }
        assert_eq!(signed_query(&[("prefix", "p"), ("max-keys", "1")]), "");
        assert!(SIGNED_PARAMETERS.is_sorted(), "the signed text is in this order");
    }

    #[test]
    fn what_is_signed_is_in_order_and_the_rest_is_left_out() {
        let request = LegacySignedRequest {
            method: "PUT",
            host_bucket: Some("b"),
            path: "/a%20b",
            query: &[("uploadId", "u"), ("list-type", "2"), ("partNumber", "7"), ("acl", "")],
            headers: &[
                ("content-md5", "m"),
                ("content-type", "t"),
                ("host", "h"),
                ("x-amz-date", " d "),
                ("x-amz-meta-a", "1"),
            ],
        };
        assert_eq!(
            request.string_to_sign(),
            "PUT\nm\nt\n\nx-amz-date:d\nx-amz-meta-a:1\n/b/a%20b?acl&partNumber=7&uploadId=u"
        );
    }
}
