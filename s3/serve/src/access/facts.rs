//! A request's values for policy condition keys.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_policy::{ANONYMOUS_USER_ID, Action, ConditionKeyValues};
use fordway_store::Tags;
use fordway_wire::date::{format_iso8601, parse_amz_date, parse_iso8601};
use fordway_wire::sigv4::UNSIGNED_PAYLOAD;
use fordway_wire::tagging;
use http::{HeaderMap, Uri, header};
use percent_encoding::percent_decode_str;

use crate::access::actions::RequiredPermission;
use crate::s3::{OperationResult, tags};
use crate::tls::TlsVersion;
use crate::users::{User, UserKind};

/// The origin of a request, stored as an extension of `http` requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestNetworkOrigin {
    /// The address of the client, or of the proxy in front of this gateway.
    pub(crate) address: Option<IpAddr>,
    /// The version of TLS; `None` if the connection is not encrypted.
    pub(crate) tls: Option<TlsVersion>,
}

/// The facts about a request that policies use, apart from the names of its bucket and object.
#[derive(Clone, Copy)]
pub(crate) struct PolicyRequestContext<'r> {
    headers: &'r HeaderMap,
    uri: &'r Uri,
    origin: RequestNetworkOrigin,
    /// The version that the request's body names.
    version: Option<&'r str>,
    /// The tags in the request's body.
    tags: Option<&'r Tags>,
    /// Whether the request starts a multipart upload or adds a part to an upload.
    is_of_parts: bool,
    /// The condition keys whose values come from the request's body; `None` until the body has been read.
    stated: Option<&'r [(&'static str, String)]>,
}

/// Headers that have a condition key `s3:NAME`.
const HEADERS: [&str; 20] = [
    "if-match",
    "if-none-match",
    "x-amz-acl",
    "x-amz-content-sha256",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write",
    "x-amz-grant-write-acp",
    "x-amz-metadata-directive",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-ownership",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
    "x-amz-copy-source",
];
const COPY_SOURCE: &str = "x-amz-copy-source";
/// The condition key for the date until which a version is retained.
pub(crate) const RETAIN_UNTIL: &str = "s3:object-lock-retain-until-date";
/// The condition key for the ETag that the object must have.
pub(crate) const IF_MATCH: &str = "s3:if-match";
/// The listing parameters that have a condition key `s3:NAME`.
const PARAMETERS: [&str; 3] = ["prefix", "delimiter", "max-keys"];

/// The operations that need `s3:PutObject` although they create no object (see "Enforce conditional writes" in the S3
/// user guide).
const OF_PARTS: [&str; 3] = ["CreateMultipartUpload", "UploadPart", "UploadPartCopy"];

impl<'r> PolicyRequestContext<'r> {
    pub(crate) fn new(headers: &'r HeaderMap, uri: &'r Uri, origin: Option<RequestNetworkOrigin>) -> Self {
        let nowhere = RequestNetworkOrigin { address: None, tls: None };
        PolicyRequestContext {
            headers,
            uri,
            origin: origin.unwrap_or(nowhere),
            version: None,
            tags: None,
            is_of_parts: false,
            stated: None,
        }
    }

    /// Adds values of condition keys from the request's body. The keys are in lower case, such as `s3:x-amz-acl`. The
    /// added values replace the values of headers.
    pub(crate) fn with(self, stated: &'r [(&'static str, String)]) -> Self {
        PolicyRequestContext { stated: Some(stated), ..self }
    }

    /// Sets the operation of the request.
    pub(super) fn of_operation(self, operation: &str) -> Self {
        PolicyRequestContext { is_of_parts: OF_PARTS.contains(&operation), ..self }
    }

    /// Returns whether the check of an operation needs values from the request's body that have not been added yet.
    pub(super) fn awaits_body(&self, operation: &str) -> bool {
        self.stated.is_none() && ["PutObjectRetention", "PutObjectLegalHold"].contains(&operation)
    }

    /// Returns whether the request contains an ETag that the object must have, or must not have.
    pub(super) fn names_etag(&self) -> bool {
        let stated = self.stated.unwrap_or_default().iter().find(|(key, _)| *key == IF_MATCH);
        let tag = stated.map(|(_, tag)| tag.as_str()).or_else(|| self.header("if-match"));
        tag.into_iter().chain(self.header("if-none-match")).any(|tag| tag.trim() != "*")
    }

    /// Returns whether a copy takes its tags from the request rather than from its source.
    pub(super) fn replaces_tags(&self) -> bool {
        self.header("x-amz-tagging-directive").is_some_and(|text| text.eq_ignore_ascii_case("REPLACE"))
    }

    /// Adds the tags in the request's body.
    pub(crate) fn with_tags(self, tags: &'r Tags) -> Self {
        PolicyRequestContext { tags: Some(tags), ..self }
    }

    /// Sets the version of an object that the request's body names.
    pub(crate) fn of_version(self, version: Option<&'r str>) -> Self {
        PolicyRequestContext { version, ..self }
    }

    /// Returns the version in the request.
    pub(super) fn version(&self) -> Option<String> {
        let named = self.version.map(Cow::Borrowed).or_else(|| self.parameter("versionId"));
        named.map(Cow::into_owned).filter(|version| !version.is_empty())
    }

    pub(super) fn has_tags(&self) -> bool {
        self.tags.is_some()
    }

    pub(super) fn headers(&self) -> Option<&'r HeaderMap> {
        Some(self.headers)
    }

    pub(super) fn header(&self, name: &str) -> Option<&'r str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns whether a query parameter overrides a response header.
    pub(super) fn changes_response_headers(&self) -> bool {
        let mut names = self.uri.query().unwrap_or_default().split('&').map(|pair| pair.split('=').next());
        names.any(|name| decoded(name.unwrap_or_default()).starts_with("response-"))
    }

    /// Returns the decoded value of a query parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<Cow<'r, str>> {
        self.uri.query().unwrap_or_default().split('&').find_map(|pair| {
            let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(known) == name).then(|| decoded(value))
        })
    }

    /// Returns the values of all condition keys, except the existing tags of an object.
    pub(super) fn condition_keys(
        &self,
        user: &'r User,
        need: &RequiredPermission<'_>,
    ) -> ConditionKeyValues<'r> {
        let mut keys = ConditionKeyValues::default();
        self.add_caller(&mut keys, user);
        self.add_signature(&mut keys, user);
        for name in PARAMETERS.iter().filter(|_| !need.action.is_of_objects()) {
            if let Some(value) = self.parameter(name) {
                keys.add(format!("s3:{name}"), value);
            }
        }
        if need.action.short_name() == "PutObject" {
            keys.add("s3:objectcreationoperation", if self.is_of_parts { "false" } else { "true" });
        }
        if let Some(version) = &need.version {
            keys.add("s3:versionid", version.clone());
        }
        for name in HEADERS {
            if let Some(value) = self.header(name) {
                // The condition keys for object lock do not have the prefix `x-amz-`.
                let name = name
                    .strip_prefix("x-amz-")
                    .filter(|rest| rest.starts_with("object-lock-"))
                    .unwrap_or(name);
                let value = if name == COPY_SOURCE { source(value) } else { Cow::Borrowed(value) };
                keys.add(format!("s3:{name}"), value);
            }
        }
        if self.is_presigned() {
            // The signature of a URL never covers the content, whatever the sender of the request states.
            keys.replace("s3:x-amz-content-sha256", [Cow::Borrowed(UNSIGNED_PAYLOAD)]);
        }
        self.add_tags(&mut keys);
        for (key, value) in self.stated.unwrap_or_default() {
            keys.replace(key, [Cow::Borrowed(value.as_str())]);
        }
        if let Some(days) = self.retention_days() {
            keys.add("s3:object-lock-remaining-retention-days", days);
        }
        keys
    }

    /// Returns the values of all condition keys for an action on the bucket.
    pub(crate) fn keys_on_bucket(
        &self,
        user: &'r User,
        action: Action,
        bucket: &str,
    ) -> ConditionKeyValues<'r> {
        let need = RequiredPermission {
            action,
            bucket: Cow::Borrowed(bucket),
            key: Cow::Borrowed(""),
            version: None,
            tags_are_in_body: false,
        };
        self.condition_keys(user, &need)
    }

    /// Returns the number of days, rounded up, until the retention date in the request.
    fn retention_days(&self) -> Option<String> {
        const DAY_MS: u128 = 24 * 60 * 60 * 1000;
        let stated = self.stated.unwrap_or_default().iter().find(|(key, _)| *key == RETAIN_UNTIL);
        let until = stated
            .map(|(_, date)| date.as_str())
            .or_else(|| self.header("x-amz-object-lock-retain-until-date"));
        let left = parse_iso8601(until?)?.duration_since(SystemTime::now()).unwrap_or_default();
        Some(left.as_millis().div_ceil(DAY_MS).to_string())
    }

    fn add_caller(&self, keys: &mut ConditionKeyValues<'r>, user: &'r User) {
        let now = SystemTime::now();
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        keys.add("aws:currenttime", format_iso8601(now));
        keys.add("aws:epochtime", seconds.to_string());
        keys.add("aws:securetransport", if self.origin.tls.is_some() { "true" } else { "false" });
        if let Some(version) = self.origin.tls {
            keys.add("s3:tlsversion", version.number());
        }
        // No AWS service sends requests to this gateway.
        keys.add("aws:viaawsservice", "false");
        if let Some(address) = self.origin.address {
            keys.add("aws:sourceip", address.to_canonical().to_string());
        }
        if let Some(agent) = self.header(header::USER_AGENT.as_str()) {
            keys.add("aws:useragent", agent);
        }
        if let Some(referer) = self.header(header::REFERER.as_str()) {
            keys.add("aws:referer", referer);
        }
        if user.kind == UserKind::Anonymous {
            keys.add("aws:principaltype", "Anonymous");
            keys.add("aws:userid", ANONYMOUS_USER_ID);
            return;
        }
        keys.add("aws:userid", user.userid());
        match user.role_session() {
            Some(_) => keys.add("aws:principaltype", "AssumedRole"),
            None => {
                keys.add("aws:principaltype", "User");
                keys.add("aws:username", user.name.as_str());
            }
        }
        keys.add("aws:principalarn", user.arn());
        keys.add("aws:principalisawsservice", "false");
        if let Some(session) = &user.session {
            let issued = UNIX_EPOCH + Duration::from_secs(session.issued_s);
            keys.add("aws:tokenissuetime", format_iso8601(issued));
            // Sessions are started without MFA. As on AWS, requests with permanent keys do not have this condition key.
            keys.add("aws:multifactorauthpresent", "false");
        }
    }

    fn add_signature(&self, keys: &mut ConditionKeyValues<'r>, user: &User) {
        // An anonymous request has no verified signature.
        if user.kind == UserKind::Anonymous {
            return;
        }
        let header = self.header(header::AUTHORIZATION.as_str());
        let (date, is_v4, is_v2) = match header {
            Some(text) => (
                self.header("x-amz-date").map(Cow::Borrowed),
                text.starts_with("AWS4-"),
                text.starts_with("AWS "),
            ),
            None => {
                let has = |name| self.parameter(name).is_some();
                (self.parameter("X-Amz-Date"), self.is_presigned(), has("Signature"))
            }
        };
        if !is_v4 && !is_v2 {
            return;
        }
        keys.add("s3:authtype", if header.is_some() { "REST-HEADER" } else { "REST-QUERY-STRING" });
        keys.add("s3:signatureversion", if is_v4 { "AWS4-HMAC-SHA256" } else { "AWS" });
        // As on AWS, a version 2 signature has no age.
        let age = if is_v4 { date.as_deref().and_then(signature_age_ms) } else { Some("0".to_owned()) };
        if let Some(age) = age {
            keys.add("s3:signatureage", age);
        }
    }

    /// Returns whether the request's version 4 signature is in its URL.
    fn is_presigned(&self) -> bool {
        self.parameter("X-Amz-Signature").is_some()
    }

    /// Returns the value of the header with the tags of a new object.
    fn stated_tags(&self) -> Option<&'r str> {
        // Unless the request replaces the tags, a copy has the tags of its source, and `x-amz-tagging` has no effect.
        let is_used = self.header(COPY_SOURCE).is_none() || self.replaces_tags();
        self.header("x-amz-tagging").filter(|_| is_used)
    }

    /// Checks the tags in the request's header. Without this check, a header could contain thousands of tags, and
    /// evaluating a policy for all of them could take seconds. Errors: as for PutObject.
    pub(super) fn check_tags(&self) -> OperationResult<()> {
        tags(self.stated_tags()).map(drop)
    }

    fn add_tags(&self, keys: &mut ConditionKeyValues<'r>) {
        let parsed = self.stated_tags().and_then(|text| tagging::decode(text).ok());
        let tags = self.tags.cloned().or(parsed).unwrap_or_default();
        for (name, value) in tags {
            keys.add(format!("s3:requestobjecttag/{name}"), value);
            keys.add("s3:requestobjecttagkeys", name);
        }
    }
}

/// Returns the number of milliseconds since the date of a signature.
pub(crate) fn signature_age_ms(amz_date: &str) -> Option<String> {
    let age = SystemTime::now().duration_since(parse_amz_date(amz_date)?).ok()?;
    Some(age.as_millis().to_string())
}

/// Returns the source of a copy as `BUCKET/KEY`.
fn source(text: &str) -> Cow<'_, str> {
    let path = text.split_once("?versionId=").map_or(text, |(path, _)| path);
    let path = path.strip_prefix('/').unwrap_or(path);
    decoded(path)
}

/// Decodes a name or a value of a query in the same way as the S3 operations do.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fordway_store::MemoryStore;
    use http::HeaderValue;

    use super::*;
    use crate::{AccessKeyPair, AnonymousUser, Users};

    /// A condition on the signature must not depend on a header that nobody verifies.
    #[test]
    fn an_anonymous_request_has_no_keys_of_a_signature() {
        let identity = AccessKeyPair { access_key: "key".to_owned(), secret_key: "secret".to_owned() };
        let users = Users::one(identity, Arc::new(MemoryStore::default()));
        let users = users.with_anonymous(AnonymousUser { name: "nobody".to_owned(), acts_as: None }).unwrap();
        let value = HeaderValue::from_static("AWS4-HMAC-SHA256 x");
        let (signed, plain) =
            (HeaderMap::from_iter([(header::AUTHORIZATION, value)]), Uri::from_static("/b/k"));
        let (unsigned, presigned) = (HeaderMap::new(), Uri::from_static("/b/k?X-Amz-Signature=0"));
        for (headers, uri) in [(&signed, &plain), (&unsigned, &presigned)] {
            let has_signature = |user: &User| {
                let facts = PolicyRequestContext::new(headers, uri, None);
                let keys = facts.keys_on_bucket(user, Action::new("ListBucket").unwrap(), "b");
                let text = format!("{keys:?}");
                ["s3:authtype", "s3:signatureversion"].map(|key| text.contains(key))
            };
            assert_eq!(has_signature(&users.find("key").unwrap()), [true; 2]);
            assert_eq!(has_signature(&users.anonymous().unwrap()), [false; 2]);
        }
    }
}
