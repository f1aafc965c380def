//! The elements of error documents that repeat a part of the request, such as `BucketName` and `Condition`. AWS adds
//! these elements to its documents, and programs read them.

use std::borrow::Cow;

use fordway_wire::s3_error::facts_of;
use fordway_wire::s3_xml::escaped;
use http::header::{CONTENT_RANGE, HOST, HeaderValue, RANGE};
use http::{HeaderMap, Method, Request, Uri};
use percent_encoding::percent_decode_str;

use crate::domains::BucketDomains;
use crate::identity::parameter;
use crate::message::one_line;

/// The headers with conditions of a read, and AWS's spelling of them. The first condition of a request takes precedence
/// over the second (RFC 9110 section 13.2.2).
const READ_CONDITIONS: [(&str, &str); 2] =
    [("if-match", "If-Match"), ("if-unmodified-since", "If-Unmodified-Since")];

/// The headers with conditions of a write, and AWS's spelling of them.
const WRITE_CONDITIONS: [(&str, &str); 6] = [
    ("if-match", "If-Match"),
    ("if-none-match", "If-None-Match"),
    ("x-amz-copy-source-if-match", "x-amz-copy-source-If-Match"),
    ("x-amz-copy-source-if-none-match", "x-amz-copy-source-If-None-Match"),
    ("x-amz-copy-source-if-modified-since", "x-amz-copy-source-If-Modified-Since"),
    ("x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-If-Unmodified-Since"),
];

const COPY_SOURCE: &str = "x-amz-copy-source";

/// The parts of a request that the document of an error may repeat.
#[derive(Clone, Default)]
pub(crate) struct RequestFacts {
    host: Option<HeaderValue>,
    uri: Uri,
    range: Option<HeaderValue>,
    copy_source: Option<HeaderValue>,
    condition: Option<&'static str>,
}

impl RequestFacts {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        RequestFacts {
            host: headers.get(HOST).cloned(),
            uri: request.uri().clone(),
            range: headers.get(RANGE).cloned(),
            copy_source: headers.get(COPY_SOURCE).cloned(),
            condition: match *request.method() {
                Method::GET | Method::HEAD => read_condition(headers),
                _ => write_condition(headers),
            },
        }
    }

    /// Returns the facts about an upload whose only known part is its condition.
    pub(crate) fn of_condition(condition: Option<&'static str>) -> Self {
        RequestFacts { condition, ..Default::default() }
    }

    /// Adds the elements that AWS adds to documents with the same code, unless the document contains them already.
    /// `headers` are the headers of the response.
    pub(crate) fn add_to(&self, document: &mut String, headers: &HeaderMap, domains: &BucketDomains) {
        const END: &str = "</Error>";
        let code = document.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        for name in facts_of(code.map_or("", |(code, _)| code)) {
            if document.ends_with(END)
                && !document.contains(&format!("<{name}>"))
                && let Some(value) = self.value(name, headers, domains)
            {
                document.truncate(document.len() - END.len());
                document.push_str(&format!("<{name}>{}</{name}>{END}", escaped(&one_line(&value))));
            }
        }
    }

    fn value(&self, name: &str, headers: &HeaderMap, domains: &BucketDomains) -> Option<Cow<'_, str>> {
        match name {
            "BucketName" => self.names(domains).map(|(bucket, _)| bucket.into()),
            "Key" => self.names(domains).map(|(_, key)| key.into()),
            "UploadId" => parameter(&self.uri, "uploadId").map(decoded),
            "VersionId" => self.version(),
            "RangeRequested" => self.range.as_ref()?.to_str().ok().map(Cow::from),
            "ActualObjectSize" => size_in(headers).map(Cow::from),
            "Condition" => self.condition.map(Cow::from),
            _ => None,
        }
        .filter(|value| !value.is_empty())
    }

    /// Returns the bucket and the key. `None` for a copy, which has two buckets and two keys; the store's error names
    /// the right bucket and key.
    fn names(&self, domains: &BucketDomains) -> Option<(String, String)> {
        let headers = self.host.clone().map(|host| (HOST, host)).into_iter().collect();
        self.copy_source.is_none().then(|| domains.names(&headers, &self.uri))
    }

    fn version(&self) -> Option<Cow<'_, str>> {
        let of_source = || {
            let source = self.copy_source.as_ref()?.to_str().ok()?;
            source.split_once("?versionId=").map(|(_, version)| version)
        };
        parameter(&self.uri, "versionId").or_else(of_source).map(decoded)
    }
}

fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

/// Returns the condition that did not hold if a read failed because of a condition.
fn read_condition(headers: &HeaderMap) -> Option<&'static str> {
    present(&READ_CONDITIONS, headers).next()
}

/// Returns the condition that did not hold if a write failed because of a condition. `None` if the write has several
/// conditions, because the request alone does not show which of them failed.
pub(crate) fn write_condition(headers: &HeaderMap) -> Option<&'static str> {
    let mut present = present(&WRITE_CONDITIONS, headers);
    let first = present.next();
    first.filter(|_| present.next().is_none())
}

fn present<'h>(
    conditions: &'static [(&str, &str)],
    headers: &'h HeaderMap,
) -> impl Iterator<Item = &'static str> + use<'h> {
    conditions.iter().filter(|(header, _)| headers.contains_key(*header)).map(|(_, name)| *name)
}

/// Returns the size of the object from the `Content-Range` header of a response with status 416.
fn size_in(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes */").map(str::to_owned)
}
