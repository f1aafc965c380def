//! CORS: rules that define which web pages may read and write a bucket through a browser (the Fetch standard, section
//! 3.2).
//!
//! The CORS rules of a bucket are stored as one document. The response to a request with an `Origin` contains the
//! headers of the first rule that matches. The response to a preflight request (`OPTIONS`) contains only these headers.
//! Browsers enforce the rules. Signatures and the kernel still determine which users can read and write.

use std::sync::Arc;

use fordway_store::{Bucket, BucketDocumentKind, Error, Result, Store};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use s3s::dto::{CORSConfiguration, CORSRule};

use crate::message::composed;
use crate::s3::documents::{AbsentSetting, DocumentKindHandler, always, malformed, read, write};
use crate::s3::error::{OperationResult, S3Failure};

/// The maximum number of rules of a bucket (S3's limit).
const MAX_RULES: usize = 100;
/// The methods that a rule may allow (S3's list).
const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];
/// The value of `Vary`: the request headers on which a response depends.
const VARY: &str = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method";
const KIND: BucketDocumentKind = BucketDocumentKind::known("cors");

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: KIND,
    get: "GetBucketCors",
    put: "PutBucketCors",
    delete: Some("DeleteBucketCors"),
    absent: AbsentSetting::Error("NoSuchCORSConfiguration", "the bucket has no CORS rules"),
    put_status: StatusCode::OK,
    check,
    permits: always,
};

/// Checks the rules of a bucket. Errors: `MalformedXML` for a document that does not match the schema; `InvalidRequest`
/// for invalid rules.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    let configuration: CORSConfiguration = read(document)?;
    if !(1..=MAX_RULES).contains(&configuration.cors_rules.len()) {
        return Err(malformed(format!("a bucket has 1 to {MAX_RULES} CORS rules")));
    }
    configuration.cors_rules.iter().try_for_each(check_rule)?;
    write(&configuration)
}

fn check_rule(rule: &CORSRule) -> OperationResult<()> {
    let refused = |words: String| {
        // Fordway's own client prints only the detail.
        let detail = format!("{words}; correct the rule");
        Err(S3Failure::aws("InvalidRequest", StatusCode::BAD_REQUEST, &words, &detail))
    };
    if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
        return Err(malformed("a CORS rule names at least one method and one origin".to_owned()));
    }
    if let Some(method) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
        return refused(format!(
            "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
        ));
    }
    let has_wildcards = |pattern: &&String| pattern.matches('*').count() > 1;
    if let Some(origin) = rule.allowed_origins.iter().find(has_wildcards) {
        return refused(format!("AllowedOrigin \"{origin}\" can not have more than one wildcard."));
    }
    let allowed = rule.allowed_headers.iter().flatten();
    if let Some(pattern) = allowed.clone().find(has_wildcards) {
        return refused(format!("AllowedHeader \"{pattern}\" can not have more than one wildcard."));
    }
    // AWS's message names `AllowedHeader` even for the response headers that a page may read (`ExposeHeader`).
    match allowed.chain(rule.expose_headers.iter().flatten()).find(|name| !is_header(name)) {
        Some(name) => refused(format!("AllowedHeader \"{name}\" contains invalid character.")),
        None => Ok(()),
    }
}

/// Returns whether `name` is a header name, which may contain an asterisk.
fn is_header(name: &str) -> bool {
    HeaderName::try_from(name).is_ok()
}

/// The request that a browser wants to make for a web page.
struct PreflightRequest<'r> {
    origin: &'r str,
    method: &'r str,
    /// Names of the request's headers, in lower case.
    headers: Vec<String>,
}

impl<'r> PreflightRequest<'r> {
    /// Reads a request that a web page sent; `None` for any other request. As on AWS, the headers of a preflight
    /// request also determine the rule for other requests.
    fn of_request(method: &'r Method, headers: &'r HeaderMap) -> Option<Self> {
        if let Some(announced) = PreflightRequest::of_preflight(headers) {
            return Some(announced);
        }
        let origin = text(headers, header::ORIGIN)?;
        Some(PreflightRequest { origin, method: method.as_str(), headers: Vec::new() })
    }

    /// Reads the request that a preflight request announces; `None` if a required header is missing.
    fn of_preflight(headers: &'r HeaderMap) -> Option<Self> {
        let origin = text(headers, header::ORIGIN)?;
        let method = text(headers, header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let names = text(headers, header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
        let names = names.split(',').map(|name| name.trim().to_ascii_lowercase());
        Some(PreflightRequest { origin, method, headers: names.filter(|name| !name.is_empty()).collect() })
    }

    /// Returns the origin pattern by which the rule allows the request; `None` if the rule does not allow the request.
    fn allowed_by<'c>(&self, rule: &'c CORSRule) -> Option<&'c str> {
        let allows_method = rule.allowed_methods.iter().any(|method| method == self.method);
        let pattern = rule.allowed_origins.iter().find(|pattern| fits(pattern, self.origin));
        let pattern = pattern.filter(|_| allows_method)?;
        if self.headers.is_empty() {
            return Some(pattern);
        }
        // The patterns are converted only once, because a rule may have thousands of patterns, and a request may have
        // many headers.
        let allowed = rule.allowed_headers.iter().flatten();
        let allowed: Vec<String> = allowed.map(|pattern| pattern.to_ascii_lowercase()).collect();
        let is_allowed = |name: &String| allowed.iter().any(|pattern| fits(pattern, name));
        self.headers.iter().all(is_allowed).then_some(pattern)
    }

    /// Returns the response headers from the first rule that allows the request.
    fn answer(&self, configuration: &CORSConfiguration) -> Option<HeaderMap> {
        let mut rules = configuration.cors_rules.iter();
        let (rule, pattern) = rules.find_map(|rule| Some((rule, self.allowed_by(rule)?)))?;
        let mut answer = HeaderMap::new();
        let mut say = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                answer.insert(name, value);
            }
        };
        if pattern == "*" {
            say(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
        } else {
            say(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
            say(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
        say(header::ACCESS_CONTROL_ALLOW_METHODS, &rule.allowed_methods.join(", "));
        if !self.headers.is_empty() {
            say(header::ACCESS_CONTROL_ALLOW_HEADERS, &self.headers.join(", "));
        }
        if let Some(exposed) = rule.expose_headers.as_ref().filter(|exposed| !exposed.is_empty()) {
            say(header::ACCESS_CONTROL_EXPOSE_HEADERS, &exposed.join(", "));
        }
        if let Some(seconds) = rule.max_age_seconds.filter(|seconds| *seconds > 0) {
            say(header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
        }
        say(header::VARY, VARY);
        Some(answer)
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns whether `name` matches a pattern in which one `*` matches any characters.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// Returns whether a web page sent the request. The response to such a request contains headers from the bucket's
/// rules.
pub(crate) fn is_of_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
}

/// Returns the CORS headers of a response to a web page, or `None` if no rule allows the request. Without these
/// headers, the browser withholds the response from the page. Cost: reads the CORS document for each request that a web
/// page sent.
pub(crate) fn headers_for(
    store: &dyn Store,
    bucket: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Option<HeaderMap> {
    let asked = PreflightRequest::of_request(method, headers)?;
    let configuration = configuration(store, bucket).ok().flatten()?;
    asked.answer(&configuration)
}

/// Returns the headers of the response to a preflight request. Errors: the status, the code and the message of the
/// response.
pub(crate) fn preflight(
    store: Result<Arc<dyn Store>>,
    bucket: &str,
    headers: &HeaderMap,
) -> Result<HeaderMap, (StatusCode, &'static str, String)> {
    let forbidden = |words: &str, detail: &str| {
        (StatusCode::FORBIDDEN, "AccessForbidden", composed(&format!("CORSResponse: {words}"), detail, &[]))
    };
    let asked = checked_preflight(headers)
        .map_err(|words| (StatusCode::BAD_REQUEST, "BadRequest", composed(&words, FOR_BROWSERS, &[])))?;
    // Anyone may send a preflight request, so the response does not reveal whether a bucket is missing or unreadable.
    let configuration = store.and_then(|store| configuration(&*store, bucket)).ok().flatten();
    let configuration =
        configuration.ok_or_else(|| forbidden("CORS is not enabled for this bucket.", "put CORS rules"))?;
    asked.answer(&configuration).ok_or_else(|| {
        let words = "This CORS request is not allowed. This is usually because the evalution of Origin, request \
                     method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted \
                     by the resource's CORS spec.";
        forbidden(words, "no CORS rule of the bucket allows this origin, method and headers together")
    })
}

const FOR_BROWSERS: &str = "OPTIONS is for browsers; send Origin and Access-Control-Request-Method";

/// Reads the request that a preflight request announces. Errors: AWS's message for a missing or malformed header.
fn checked_preflight(headers: &HeaderMap) -> Result<PreflightRequest<'_>, String> {
    if text(headers, header::ORIGIN).is_none_or(str::is_empty) {
        return Err("Insufficient information. Origin request header needed.".to_owned());
    }
    let method = text(headers, header::ACCESS_CONTROL_REQUEST_METHOD).unwrap_or_default();
    if !METHODS.contains(&method) {
        return Err(format!("Invalid Access-Control-Request-Method: {method}"));
    }
    let names = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).map(HeaderValue::as_bytes);
    let names = String::from_utf8_lossy(names.unwrap_or_default());
    match names.split(',').find(|name| !name.is_empty() && !is_header(name.trim())) {
        Some(name) => Err(format!("Access-Control-Request-Headers \"{name}\" contains invalid character.")),
        None => PreflightRequest::of_preflight(headers).ok_or_else(String::new),
    }
}

fn configuration(store: &dyn Store, bucket: &str) -> Result<Option<CORSConfiguration>> {
    let document = store.document(&Bucket::new(bucket)?, &KIND)?;
    let unreadable = |S3Failure(_)| Error::from(fordway_store::ErrorKind::Corrupt);
    document.map(|document| read(&document).map_err(unreadable)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod>\
        <AllowedOrigin>https://*.example.org</AllowedOrigin><ExposeHeader>ETag</ExposeHeader>\
        <ExposeHeader>x-amz-version-id</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule>\
        <CORSRule><AllowedMethod>PUT</AllowedMethod><AllowedMethod>POST</AllowedMethod><AllowedOrigin>*</AllowedOrigin>\
        <AllowedHeader>x-amz-*</AllowedHeader><AllowedHeader>Content-Type</AllowedHeader></CORSRule></CORSConfiguration>";

    fn asked(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn answered(pairs: &[(&'static str, &str)]) -> Option<HeaderMap> {
        let configuration: CORSConfiguration = read(&check(RULES.as_bytes()).unwrap()).unwrap();
        PreflightRequest::of_preflight(&asked(pairs)).unwrap().answer(&configuration)
    }

    #[test]
    fn the_first_rule_that_allows_all_of_it_answers() {
        let origin = ("origin", "https://data.example.org");
        let get = answered(&[origin, ("access-control-request-method", "GET")]).unwrap();
        let said =
            |answer: &HeaderMap, name: &str| answer.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(said(&get, "access-control-allow-origin").as_deref(), Some(origin.1));
        assert_eq!(said(&get, "access-control-allow-credentials").as_deref(), Some("true"));
        assert_eq!(said(&get, "access-control-expose-headers").as_deref(), Some("ETag, x-amz-version-id"));
        assert_eq!(said(&get, "access-control-max-age").as_deref(), Some("60"));
        assert_eq!(said(&get, "vary").as_deref(), Some(VARY));
        let headers = ("access-control-request-headers", "X-Amz-Date, content-type");
        let put = answered(&[origin, ("access-control-request-method", "PUT"), headers]).unwrap();
        assert_eq!(said(&put, "access-control-allow-origin").as_deref(), Some("*"));
        assert_eq!(said(&put, "access-control-allow-methods").as_deref(), Some("PUT, POST"));
        assert_eq!(said(&put, "access-control-allow-headers").as_deref(), Some("x-amz-date, content-type"));
        assert_eq!(said(&put, "access-control-allow-credentials"), None);
    }

    #[test]
    fn what_no_rule_allows_is_not_answered() {
        for pairs in [
            [("origin", "https://example.org"), ("access-control-request-method", "GET")],
            [("origin", "https://data.example.org.evil"), ("access-control-request-method", "GET")],
            [("origin", "https://data.example.org"), ("access-control-request-method", "DELETE")],
            [("origin", "https://data.example.org"), ("access-control-request-method", "get")],
        ] {
            assert!(answered(&pairs).is_none(), "{pairs:?}");
        }
        let foreign = ("access-control-request-headers", "x-amz-date, cookie");
        assert!(answered(&[("origin", "x"), ("access-control-request-method", "PUT"), foreign]).is_none());
        assert!(PreflightRequest::of_preflight(&asked(&[("origin", "x")])).is_none());
    }

    #[test]
    fn headers_of_a_preflight_count_in_other_requests() {
        let headers = asked(&[("origin", "https://x.org"), ("access-control-request-method", "PUT")]);
        let method = |headers: &HeaderMap| {
            PreflightRequest::of_request(&Method::GET, headers).map(|asked| asked.method.to_owned())
        };
        assert_eq!(method(&headers).as_deref(), Some("PUT"));
        assert_eq!(method(&asked(&[("origin", "https://x.org")])).as_deref(), Some("GET"));
        assert_eq!(method(&HeaderMap::new()), None);
    }

    #[test]
    fn a_preflight_names_a_page_a_method_and_headers() {
        let origin = ("origin", "https://example.org");
        let put = ("access-control-request-method", "PUT");
        for (pairs, words) in [
            (&[put][..], "Insufficient information."),
            (&[origin], "Invalid Access-Control-Request-Method: "),
            (
                &[origin, ("access-control-request-method", "Put")],
                "Invalid Access-Control-Request-Method: Put",
            ),
            (
                &[origin, put, ("access-control-request-headers", "a, b/c")],
                "Access-Control-Request-Headers \" b/c\"",
            ),
        ] {
            let refused = checked_preflight(&asked(pairs)).err().expect(words);
            assert!(refused.starts_with(words), "{refused}");
        }
        assert!(
            checked_preflight(&asked(&[origin, put, ("access-control-request-headers", "a, b")])).is_ok()
        );
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        let rule =
            |inner: &str| format!("<CORSConfiguration><CORSRule>{inner}</CORSRule></CORSConfiguration>");
        let (get, any) = ("<AllowedMethod>GET</AllowedMethod>", "<AllowedOrigin>*</AllowedOrigin>");
        assert!(check(rule(&format!("{get}{any}")).as_bytes()).is_ok());
        for bad in [
            "<CORSConfiguration></CORSConfiguration>".to_owned(),
            rule(get),
            rule(any),
            rule(&format!("<AllowedMethod>OPTIONS</AllowedMethod>{any}")),
            rule(&format!("{get}<AllowedOrigin>*.*</AllowedOrigin>")),
            rule(&format!("{get}{any}<AllowedHeader>*a*</AllowedHeader>")),
            rule(&format!("{get}{any}<ExposeHeader>a b</ExposeHeader>")),
            rule(&format!("{get}{any}<AllowedHeader>a(b)</AllowedHeader>")),
            rule(&format!("{get}{any}<MaxAgeSeconds>soon</MaxAgeSeconds>")),
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
