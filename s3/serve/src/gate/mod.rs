//! The gate: the first check of every request, over every version of HTTP. The gate identifies the S3 operation, and
//! checks that this gateway supports the operation and all parameters and headers of the request. The gate refuses any
//! other request with an error that names the unsupported operation, parameter or header. Without the gate, the S3
//! layer would ignore unknown parameters and execute the operation without them.
//!
//! * `table`: the operations
//! * `document`: bodies that are XML
//! * `encryption`: headers for encryption that contradict each other

mod document;
mod encryption;
mod table;

use std::borrow::Cow;

use fordway_wire::sigv2;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use percent_encoding::percent_decode_str;

pub(crate) use document::{check_elements_of, decoded_md5, take_document};
pub(crate) use table::OperationRule;
use table::{PathResource, PermittedValues, TABLE};

use crate::aws_chunked::is_in_chunks;
use crate::domains::BucketDomains;
use crate::message::composed;

/// The refusal of a request: the status, the code and the message of the response.
#[derive(Debug)]
pub(crate) struct GateRefusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl GateRefusal {
    fn not_implemented(message: impl Into<String>) -> Self {
        GateRefusal { status: StatusCode::NOT_IMPLEMENTED, code: "NotImplemented", message: message.into() }
    }

    fn bad(code: &'static str, message: impl Into<String>) -> Self {
        GateRefusal { status: StatusCode::BAD_REQUEST, code, message: message.into() }
    }

    fn argument(words: &str, name: &str, value: &str) -> Self {
        let facts = [("ArgumentName", name), ("ArgumentValue", value)];
        GateRefusal::bad("InvalidArgument", composed(words, "", &facts))
    }

    fn not_allowed(method: &Method, resource: &str) -> Self {
        let words = "The specified method is not allowed against this resource.";
        let facts = [("Method", method.as_str()), ("ResourceType", resource)];
        let message = composed(words, "check the operation", &facts);
        GateRefusal { status: StatusCode::METHOD_NOT_ALLOWED, code: "MethodNotAllowed", message }
    }
}

/// The decoded name and value of a query parameter.
type QueryParameter<'q> = (Cow<'q, str>, Cow<'q, str>);

/// Returns the requested operation. Copies headers that a presigned URL contains as parameters into the request's
/// headers. Errors: no operation matches, or the operation does not support a parameter or a header.
pub(crate) fn admit<B>(
    request: &mut Request<B>,
    domains: &BucketDomains,
) -> Result<&'static OperationRule, GateRefusal> {
    check_size(request.headers())?;
    let uri = request.uri().clone();
    let parameters = parameters(uri.query().unwrap_or_default())?;
    take_hoisted(&uri, &parameters, request.headers_mut())?;
    let resource = resource(request.headers(), &uri, domains);
    let headers = request.headers();
    check_not_of_sts(resource, &parameters)?;
    check_combination(request.method(), resource, &parameters, headers)?;
    let operation = select(request.method(), resource, &parameters, headers)?;
    check_not_a_form(operation, headers)?;
    if !operation.is_offered {
        // After the signature has been checked, the `s3` module returns NotImplemented with the operation's name.
        return Ok(operation);
    }
    check_parameters(operation, &parameters)?;
    let has = |wanted: &str| parameters.iter().any(|(name, value)| name == wanted && !value.is_empty());
    if has("allow-unordered") && has("delimiter") {
        let message =
            "unordered keys cannot be grouped by a delimiter; remove allow-unordered or the delimiter";
        return Err(GateRefusal::bad("InvalidArgument", message));
    }
    check_headers(operation, request.method(), headers)?;
    check_has_length(operation, request)?;
    check_is_signed(operation, &parameters)?;
    Ok(operation)
}

/// Copies the host in the request's target (`:authority` over HTTP/2 and 3, or an absolute URL over HTTP/1) to the
/// `Host` header, from which all other code reads the host. Two programs could derive different buckets from a request
/// whose two hosts differ. Errors: `InvalidRequest` if the request has a `Host` header with another host (RFC 9112
/// section 3.2.2, RFC 9113 section 8.3.1, RFC 9114 section 4.3.1).
pub(crate) fn take_host<B>(request: &mut Request<B>) -> Result<(), GateRefusal> {
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let is_newer = [Version::HTTP_2, Version::HTTP_3].contains(&request.version());
    let of_target = if is_newer { ":authority" } else { "the host in the request's target" };
    let differ = || {
        let message = format!("the Host header and {of_target} differ; send the same host, or only one");
        GateRefusal::bad("InvalidRequest", message)
    };
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| differ())?;
    let mut stated = request.headers().get_all(header::HOST).iter();
    if !stated.all(|stated| stated.as_bytes().eq_ignore_ascii_case(host.as_bytes())) {
        return Err(differ());
    }
    // An existing `Host` header remains unchanged, because the signature may cover the header.
    request.headers_mut().entry(header::HOST).or_insert(host);
    Ok(())
}

/// Refuses an upload whose head does not specify the length of the body. Over HTTP/1, a request with neither
/// `Content-Length` nor `Transfer-Encoding` has no body, so the gateway would store an empty object instead of the
/// client's content. The `aws_chunked` module checks the length of an `aws-chunked` body. Errors:
/// `MissingContentLength`.
fn check_has_length<B>(operation: &OperationRule, request: &Request<B>) -> Result<(), GateRefusal> {
    let headers = request.headers();
    let has_body = request.version() > Version::HTTP_11 || headers.contains_key(header::TRANSFER_ENCODING);
    let is_stated = headers.contains_key(header::CONTENT_LENGTH) || (is_in_chunks(headers) && has_body);
    if is_stated || !operation.is_upload() {
        return Ok(());
    }
    let detail = "state the length of the body; content of unknown length needs a multipart upload, whose parts have \
                  known lengths";
    Err(GateRefusal {
        status: StatusCode::LENGTH_REQUIRED,
        code: "MissingContentLength",
        message: composed("You must provide the Content-Length HTTP header.", detail, &[]),
    })
}

/// Refuses a URL if its version 2 signature does not cover the parameter that selects the operation. Anyone who has the
/// URL could have added this parameter. Errors: `AccessDenied`.
fn check_is_signed(operation: &OperationRule, parameters: &[QueryParameter<'_>]) -> Result<(), GateRefusal> {
    let has = |wanted: &str| parameters.iter().any(|(name, _)| name == wanted);
    if !has("AWSAccessKeyId") {
        return Ok(());
    }
    // `list-type` need not be signed, because it only selects between ListObjects and ListObjectsV2.
    let is_free = |name: &str| name == "list-type" || sigv2::covers(name);
    match operation.selecting_parameters.iter().find(|(name, _)| !is_free(name)) {
        None => Ok(()),
        Some((name, _)) => Err(GateRefusal {
            status: StatusCode::FORBIDDEN,
            code: "AccessDenied",
            message: format!("a version 2 signature does not cover {name}; sign with version 4"),
        }),
    }
}

/// Checks the total size of the names and values of a request's headers. `Range` does not count towards the limit,
/// because its value is long if a program reads many ranges in one request. Tags do not count towards the limit either,
/// because there is a separate limit on tags. Errors: `RequestHeaderSectionTooLarge`.
pub(crate) fn check_size(headers: &HeaderMap) -> Result<(), GateRefusal> {
    let counted = headers.iter().filter(|(name, _)| **name != header::RANGE && *name != "x-amz-tagging");
    match counted.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() {
        ..=HEADER_BYTES_MAX => Ok(()),
        bytes => {
            let words = "Your request header section exceeds the maximum allowed size.";
            let detail = format!("the headers have {bytes} bytes; send fewer or shorter ones");
            let message = composed(words, &detail, &[("MaxSizeAllowed", &HEADER_BYTES_MAX.to_string())]);
            Err(GateRefusal::bad("RequestHeaderSectionTooLarge", message))
        }
    }
}

/// The maximum size of a request's headers in bytes (S3's limit).
pub(crate) const HEADER_BYTES_MAX: usize = 8 * 1024;

/// Refuses forms for operations other than PostObject. The S3 layer would accept the signature of a form's policy as
/// the signature of the request, for any operation.
fn check_not_a_form(operation: &OperationRule, headers: &HeaderMap) -> Result<(), GateRefusal> {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_form = kind.get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM));
    match is_form && operation.method == "POST" && !operation.is_form() {
        false => Ok(()),
        true => {
            let message = format!("{} does not accept a form; change the Content-Type", operation.name);
            Err(GateRefusal::bad("InvalidRequest", message))
        }
    }
}

const FORM: &[u8] = b"multipart/form-data";

/// Checks the headers that correspond to the fields of a form. Errors: as for a PutObject request with these headers.
pub(crate) fn check_form_fields(headers: &HeaderMap) -> Result<(), GateRefusal> {
    let operation = TABLE.form();
    for name in headers.keys() {
        check_is_readable(name, headers)?;
        if name.as_str().starts_with("x-amz-") || CONDITIONS.contains(name) {
            let permits = TABLE.form_field(name.as_str()).unwrap_or(&PermittedValues::Nothing);
            check_header(operation, name, permits, headers)?;
        }
    }
    Ok(())
}

/// The maximum number of query parameters of a request. Every operation has far fewer parameters. Without this limit,
/// comparing the parameters with each other could take a long time, and the sender is not authenticated yet.
const PARAMETERS_MAX: usize = 100;

/// Parses the parameters of a query. Errors: `InvalidURI`; `InvalidArgument` if there are too many parameters, or if a
/// parameter occurs twice, because two programs could interpret such a query differently.
fn parameters(query: &str) -> Result<Vec<QueryParameter<'_>>, GateRefusal> {
    let mut parameters: Vec<QueryParameter<'_>> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        if parameters.len() == PARAMETERS_MAX {
            let message = format!("the query has more than {PARAMETERS_MAX} parameters; send fewer");
            return Err(GateRefusal::bad("InvalidArgument", message));
        }
        if parameters.iter().any(|(known, _)| *known == name) {
            let message = format!("the query parameter {} appears twice; send it once", shown(&name));
            return Err(GateRefusal::bad("InvalidArgument", message));
        }
        parameters.push((name, value));
    }
    Ok(parameters)
}

/// Decodes a name or a value as the S3 layer does.
fn decoded(text: &str) -> Result<Cow<'_, str>, GateRefusal> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let wrong =
        |_| GateRefusal::bad("InvalidURI", "the query is not UTF-8 when decoded; encode it correctly");
    Ok(Cow::Owned(decoded.map_err(wrong)?.into_owned()))
}

/// Escapes and shortens a name chosen by the client, for use in a response.
fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_default).collect()
}

/// Returns the kind of resource that a request's path names. An encoded slash separates bucket and key like a plain
/// slash, because the S3 layer interprets it in this way.
fn resource(headers: &HeaderMap, uri: &Uri, domains: &BucketDomains) -> PathResource {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_in_host = host.is_some_and(|host| domains.bucket_of(host).is_some());
    let path = uri.path().strip_prefix('/').unwrap_or(uri.path());
    if is_in_host {
        return if path.is_empty() { PathResource::Bucket } else { PathResource::Object };
    }
    let slash = path.bytes().position(|byte| byte == b'/').map(|at| (at, 1));
    let encoded = path.find("%2F").or_else(|| path.find("%2f")).map(|at| (at, 3));
    match slash.into_iter().chain(encoded).min() {
        None if path.is_empty() => PathResource::Service,
        Some((at, length)) if at + length < path.len() => PathResource::Object,
        _ => PathResource::Bucket,
    }
}

/// Refuses a request for the token service (STS) that has its parameters in the URL. Errors: `NotImplemented`.
fn check_not_of_sts(resource: PathResource, parameters: &[QueryParameter<'_>]) -> Result<(), GateRefusal> {
    let is_of_sts = resource == PathResource::Service && parameters.iter().any(|(name, _)| name == "Action");
    match is_of_sts {
        true => Err(GateRefusal::not_implemented(
            "Action is not supported in a URL; send STS requests with POST, with all parameters in the body",
        )),
        false => Ok(()),
    }
}

/// Refuses combinations of method, resource and parameters for which AWS has specific messages.
fn check_combination(
    method: &Method,
    resource: PathResource,
    parameters: &[QueryParameter<'_>],
    headers: &HeaderMap,
) -> Result<(), GateRefusal> {
    if let Some(source) = headers.get(COPY_SOURCE).filter(|_| method != Method::PUT) {
        let words = "You can only specify a copy source header for copy requests.";
        let source = source.to_str().unwrap_or_default();
        return Err(GateRefusal::argument(words, COPY_SOURCE.as_str(), source));
    }
    let has = |name: &str| parameters.iter().any(|(known, _)| known == name);
    let invalid = |words| Err(GateRefusal::bad("InvalidRequest", composed(words, "omit the key", &[])));
    match (method.as_str(), resource) {
        ("POST", PathResource::Service | PathResource::Object) if parameters.is_empty() => {
            Err(GateRefusal::not_allowed(method, "SERVICE"))
        }
        ("GET", PathResource::Object) if has("uploads") => {
            invalid("Key is not expected for the GET method ?uploads subresource")
        }
        ("GET", PathResource::Object) if has("versions") => {
            invalid("There is no such thing as the ?versions sub-resource for a key")
        }
        ("PUT", PathResource::Object) if has("partNumber") != has("uploadId") => match has("uploadId") {
            true => Err(GateRefusal::not_allowed(method, "UPLOAD")),
            false => {
                let words = "This operation does not accept partNumber without uploadId";
                Err(GateRefusal::argument(words, "partNumber", "partNumber"))
            }
        },
        _ => Ok(()),
    }
}

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Returns the requested operation: among the operations whose selectors are all present, the operation with the most
/// selectors. Errors: `NotImplemented` if the resource has no such operation with this method.
fn select(
    method: &Method,
    resource: PathResource,
    parameters: &[QueryParameter<'_>],
    headers: &HeaderMap,
) -> Result<&'static OperationRule, GateRefusal> {
    let says = |(name, value): &(&str, Option<&str>)| {
        parameters.iter().any(|(known, said)| known == name && value.is_none_or(|value| said == value))
    };
    let is_meant = |operation: &&OperationRule| {
        operation.selecting_parameters.iter().all(says)
            && operation.selecting_headers.iter().all(|name| headers.contains_key(*name))
    };
    TABLE.of(resource, method.as_str()).iter().find(is_meant).ok_or_else(|| {
        let named = parameters.first().map_or(String::new(), |(name, _)| format!(" with {}", shown(name)));
        let what = match resource {
            PathResource::Service => "the service",
            PathResource::Bucket => "a bucket",
            PathResource::Object => "an object",
        };
        let message = format!("S3 has no {method} of {what}{named}; check the operation");
        GateRefusal::not_implemented(message)
    })
}

fn check_parameters(operation: &OperationRule, parameters: &[QueryParameter<'_>]) -> Result<(), GateRefusal> {
    for (name, value) in parameters {
        let is_permitted = match operation.parameter(name) {
            Some(permits) => permits.is_met_by(value),
            // Parameters that represent headers are checked together with the headers.
            None => TABLE.is_harmless_parameter(name) || is_hoisted(name),
        };
        if !is_permitted {
            let (name, operation) = (shown(name), operation.name);
            let message = format!("{operation} does not support the query parameter {name}; remove it");
            return Err(GateRefusal::not_implemented(message));
        }
    }
    Ok(())
}

/// The headers of conditional requests. The gate accepts these headers in every read, but in other requests only if the
/// operation supports them.
const CONDITIONS: [HeaderName; 4] =
    [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];

/// Other headers that change the effect of a put or a delete. `x-minio-force-delete` makes MinIO delete a whole prefix.
const OTHERS: [HeaderName; 3] =
    [header::CONTENT_RANGE, header::IF_RANGE, HeaderName::from_static("x-minio-force-delete")];

/// Headers of which later code reads only the first occurrence; the same applies to all `x-amz-` headers. Two programs
/// could interpret a request that repeats such a header differently.
const SINGLE: [HeaderName; 10] = [
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    CONTENT_MD5,
    header::CONTENT_TYPE,
    header::CONTENT_DISPOSITION,
    header::EXPIRES,
];

fn check_headers(operation: &OperationRule, method: &Method, headers: &HeaderMap) -> Result<(), GateRefusal> {
    for name in headers.keys() {
        check_is_readable(name, headers)?;
        if SINGLE.contains(name) {
            check_is_single(name, headers)?;
        }
        let is_of_amazon = name.as_str().starts_with("x-amz-");
        let changes = !method.is_safe() && (CONDITIONS.contains(name) || OTHERS.contains(name));
        if !is_of_amazon && !changes {
            continue;
        }
        if !method.is_safe() && is_condition(name) && headers.get(name).is_some_and(is_blank) {
            let message = format!("the condition {name} is empty; state a value, or omit the header");
            return Err(GateRefusal::bad("InvalidArgument", message));
        }
        let permits = operation.header(name.as_str());
        if permits.is_none() && is_of_amazon && TABLE.is_harmless_header(name.as_str()) {
            continue;
        }
        check_header(operation, name, permits.unwrap_or(&PermittedValues::Nothing), headers)?;
    }
    Ok(())
}

/// Refuses a header that later code could not read, and would therefore ignore. Errors: `InvalidDigest`,
/// `InvalidArgument`.
fn check_is_readable(name: &HeaderName, headers: &HeaderMap) -> Result<(), GateRefusal> {
    if headers.get_all(name).iter().all(|value| is_readable(name, value)) {
        return Ok(());
    }
    let fault = if is_metadata(name) { "is not UTF-8" } else { "has characters other than printable ASCII" };
    let message = format!("the header {name} {fault}; encode its value");
    let code = if *name == CONTENT_MD5 { "InvalidDigest" } else { "InvalidArgument" };
    Err(GateRefusal::bad(code, message))
}

/// Returns whether later code can read the value of a header. User metadata must be UTF-8. `Content-MD5`, and `x-amz-`
/// headers other than user metadata, must be printable ASCII. The S3 layer ignores a value that it cannot read when it
/// checks a signature.
pub(crate) fn is_readable(name: &HeaderName, value: &HeaderValue) -> bool {
    if is_metadata(name) {
        return std::str::from_utf8(value.as_bytes()).is_ok();
    }
    let is_text = *name == CONTENT_MD5 || name.as_str().starts_with("x-amz-");
    !is_text || value.to_str().is_ok()
}

fn is_metadata(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-amz-meta-")
}

/// Returns whether the header makes a request conditional, in HTTP or in S3.
fn is_condition(name: &HeaderName) -> bool {
    CONDITIONS.contains(name)
        || ["x-amz-if-match-", "x-amz-copy-source-if-", "x-amz-rename-source-if-"]
            .iter()
            .any(|start| name.as_str().starts_with(start))
}

fn is_blank(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii().is_empty()
}

/// Errors: `InvalidArgument` for a repeated header that may occur only once.
fn check_is_single(name: &HeaderName, headers: &HeaderMap) -> Result<(), GateRefusal> {
    if headers.get_all(name).iter().nth(1).is_none() || may_be_repeated(name.as_str()) {
        return Ok(());
    }
    let message = format!("the header {name} appears twice; send it once");
    Err(GateRefusal::bad("InvalidArgument", message))
}

fn check_header(
    operation: &OperationRule,
    name: &HeaderName,
    permits: &PermittedValues,
    headers: &HeaderMap,
) -> Result<(), GateRefusal> {
    check_is_single(name, headers)?;
    let value = headers.get(name).map_or("", |value| value.to_str().unwrap_or_default());
    // s3fs sends an empty canned ACL by default, which AWS ignores.
    let is_empty_acl = name == "x-amz-acl" && value.is_empty();
    if permits.is_met_by(value) || is_empty_acl {
        return Ok(());
    }
    let has_acls = headers.get(OWNERSHIP).is_some_and(|ownership| ownership != "BucketOwnerEnforced");
    let is_of_acl = name == "x-amz-acl" || name.as_str().starts_with("x-amz-grant-");
    // In a bucket with ACLs, AWS would accept the value, so the error is `NotImplemented`.
    if !(has_acls && is_of_acl && (name != "x-amz-acl" || CANNED_ACLS.contains(&value))) {
        check_value(operation, name.as_str(), value)?;
    }
    if name.as_str().starts_with(encryption::METHOD) {
        encryption::check(operation, headers)?;
    }
    let operation = operation.name;
    Err(GateRefusal::not_implemented(match permits {
        PermittedValues::Values(known) => {
            let known = known.join(" or ");
            format!("{operation} supports only {known} for {name}; change it, or remove it")
        }
        _ => format!("{operation} does not support the header {name}; remove it"),
    }))
}

/// Refuses the unsupported values that AWS also refuses, with AWS's errors. AWS refuses these values either always, or
/// for a bucket with ACLs disabled. Objects never have ACLs. The caller refuses all other unsupported values. Errors:
/// `InvalidArgument`, `AccessControlListNotSupported`, `InvalidBucketAclWithObjectOwnership`,
/// `InvalidRedirectLocation`, `InvalidRequest`.
fn check_value(operation: &OperationRule, name: &str, value: &str) -> Result<(), GateRefusal> {
    let detail = format!("{} does not support {name}: {}; remove it", operation.name, shown(value));
    let refused = |code, words| Err(GateRefusal::bad(code, composed(words, &detail, &[])));
    match name {
        "x-amz-acl" if !CANNED_ACLS.contains(&value) => Err(GateRefusal::argument("", name, value)),
        OWNERSHIP if !OWNERSHIPS.contains(&value) => {
            let words = format!("Invalid {OWNERSHIP} header: {value}");
            Err(GateRefusal::bad("InvalidArgument", composed(&words, "", &[("ArgumentName", OWNERSHIP)])))
        }
        _ if name == "x-amz-acl" || name.starts_with("x-amz-grant-") => match operation.resource {
            PathResource::Bucket if !operation.is_form() => {
                refused("InvalidBucketAclWithObjectOwnership", NO_BUCKET_ACLS)
            }
            _ => refused("AccessControlListNotSupported", NO_ACLS),
        },
        REDIRECT if !["/", "http://", "https://"].iter().any(|start| value.starts_with(start)) => {
            refused("InvalidRedirectLocation", BAD_REDIRECT)
        }
        _ if name.starts_with("x-amz-checksum-") && !OF_CHECKSUMS.contains(&name) => refused(
            "InvalidRequest",
            "The algorithm type you specified in x-amz-checksum- header is invalid.",
        ),
        _ => Ok(()),
    }
}

/// AWS's message for a request with an access control list (ACL) to a bucket with ACLs disabled.
pub(crate) const NO_ACLS: &str = "The bucket does not allow ACLs";
pub(crate) const NO_BUCKET_ACLS: &str =
    "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting";
const BAD_REDIRECT: &str =
    "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.";
const REDIRECT: &str = "x-amz-website-redirect-location";
pub(crate) const OWNERSHIP: &str = "x-amz-object-ownership";
/// AWS's canned ACLs.
pub(crate) const CANNED_ACLS: [&str; 8] = [
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
    "log-delivery-write",
];
/// Headers that concern checksums but do not contain a checksum.
const OF_CHECKSUMS: [&str; 3] = ["x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"];
const OWNERSHIPS: [&str; 3] = ["BucketOwnerEnforced", "BucketOwnerPreferred", "ObjectWriter"];

/// Returns whether a request may have several headers with this name. Some SDKs send the elements of a list in separate
/// headers with the same name.
fn may_be_repeated(name: &str) -> bool {
    name.starts_with("x-amz-meta-")
        || ["x-amz-object-attributes", "x-amz-optional-object-attributes"].contains(&name)
}

/// Returns whether a query parameter represents an `x-amz-` header.
fn is_hoisted(name: &str) -> bool {
    let is_of_amazon = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
    is_of_amazon && !crate::unsigned::is_of_signature(name)
}

/// Moves headers that the request's presigned URL contains as parameters into the request's headers. [`admit`] needs
/// the signature to recognize a presigned URL, so this function must be called before the signature is removed. Errors:
/// as for [`admit`].
pub(crate) fn take_presigned_headers<B>(request: &mut Request<B>) -> Result<(), GateRefusal> {
    let uri = request.uri().clone();
    if !is_presigned(&uri) {
        return Ok(());
    }
    let parameters = parameters(uri.query().unwrap_or_default())?;
    take_hoisted(&uri, &parameters, request.headers_mut())?;
    let is_kept =
        |pair: &str| !decoded(pair.split('=').next().unwrap_or_default()).is_ok_and(|name| is_hoisted(&name));
    *request.uri_mut() = crate::unsigned::with_parameters(uri, is_kept);
    Ok(())
}

fn is_presigned(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("X-Amz-Signature="))
}

/// Copies headers that some clients send as parameters of a presigned URL into the request's headers, because S3
/// accepts these parameters. Errors: `NotImplemented` if a header has a different value, or if the URL is not
/// presigned; `InvalidRequest` for a session token in a URL with a version 2 signature.
fn take_hoisted(
    uri: &Uri,
    parameters: &[QueryParameter<'_>],
    headers: &mut HeaderMap,
) -> Result<(), GateRefusal> {
    for (name, value) in parameters.iter().filter(|(name, _)| is_hoisted(name)) {
        if name == "x-amz-security-token" && parameters.iter().any(|(name, _)| name == "AWSAccessKeyId") {
            // By default, boto3 signs URLs with Signature Version 2, so the error names the setting for Version 4.
            let words = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
            let detail =
                "temporary credentials need version 4; in boto3 that is Config(signature_version='s3v4')";
            return Err(GateRefusal::bad("InvalidRequest", composed(words, detail, &[])));
        }
        let header = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
        let refused = || {
            let message = format!("send {} as a header, not as a query parameter", shown(name));
            GateRefusal::not_implemented(message)
        };
        let (header, value) = header.filter(|_| is_presigned(uri)).ok_or_else(refused)?;
        match headers.get(&header) {
            Some(said) if *said != value => return Err(refused()),
            Some(_) => {}
            None => drop(headers.insert(header, value)),
        }
    }
    Ok(())
}

/// Returns the operation with this name.
#[cfg(test)]
pub(crate) fn operation_named(name: &str) -> &'static OperationRule {
    TABLE.named(name).expect(name)
}

#[cfg(test)]
mod tests;
