//! The gate that every request passes before anything of it is believed, whatever protocol brought it:
//! what it asks for is an operation of S3 that is done here, with nothing beside it that nobody knows, or
//! it is refused by name. The S3 layer behind takes what it does not know for a plain call.
//!
//! * `table`: the operations
//! * `document`: bodies that are XML

mod document;
mod table;

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;

pub(crate) use document::take_document;
pub(crate) use table::OperationRule;
use table::{PathResource, PermittedValues, TABLE};

use crate::domains::BucketDomains;

/// Why a request goes no further.
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
}

/// A parameter, decoded.
type Parameter<'q> = (Cow<'q, str>, Cow<'q, str>);

/// The operation that is asked for. What a presigned URL says in place of headers is put there.
/// Errors: it is none, or more is asked than it knows.
pub(crate) fn admit<B>(
    request: &mut Request<B>,
    domains: &BucketDomains,
) -> Result<&'static OperationRule, GateRefusal> {
    let uri = request.uri().clone();
    let parameters = parameters(uri.query().unwrap_or_default())?;
    take_hoisted(&uri, &parameters, request.headers_mut())?;
    let resource = resource(request.headers(), &uri, domains);
    let headers = request.headers();
    let operation = select(request.method(), resource, &parameters, headers)?;
    if !operation.is_offered {
        // The route refuses it by name after it has checked the signature.
        return Ok(operation);
    }
    check_parameters(operation, &parameters)?;
    let has = |wanted: &str| parameters.iter().any(|(name, value)| name == wanted && !value.is_empty());
    if has("allow-unordered") && has("delimiter") {
        let message = "keys in no order cannot be rolled up; leave allow-unordered or the delimiter out";
        return Err(GateRefusal::bad("InvalidArgument", message));
    }
    check_headers(operation, request.method(), headers)?;
    Ok(operation)
}

/// The parameters of a query. Errors: one is there twice, so that two programs could read it differently.
fn parameters(query: &str) -> Result<Vec<Parameter<'_>>, GateRefusal> {
    let mut parameters: Vec<Parameter<'_>> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        if parameters.iter().any(|(known, _)| *known == name) {
            let message = format!("the query parameter {} is there twice; send it once", shown(&name));
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
    let wrong = |_| GateRefusal::bad("InvalidURI", "the query is not UTF-8 when decoded; encode it anew");
    Ok(Cow::Owned(decoded.map_err(wrong)?.into_owned()))
}

/// A name that a client made up, as an answer shows it.
fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_default).collect()
}

/// Whose a path is. Encoded slashes divide it as others do: that is how the S3 layer reads it.
fn resource(headers: &HeaderMap, uri: &Uri, domains: &BucketDomains) -> PathResource {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str()));
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

/// The operation with the most selectors that are all there. Errors: the method is none of the resource's.
fn select(
    method: &Method,
    resource: PathResource,
    parameters: &[Parameter<'_>],
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
        let message = format!("S3 has no {method} of {what}{named}; look up the operation");
        GateRefusal::not_implemented(message)
    })
}

fn check_parameters(operation: &OperationRule, parameters: &[Parameter<'_>]) -> Result<(), GateRefusal> {
    for (name, value) in parameters {
        let is_permitted = match operation.parameter(name) {
            Some(permits) => permits.is_met_by(value),
            // Those that stand for headers are looked at with these.
            None => TABLE.is_harmless_parameter(name) || is_hoisted(name),
        };
        if !is_permitted {
            let (name, operation) = (shown(name), operation.name);
            let message = format!("{operation} has no query parameter {name} here; leave it out");
            return Err(GateRefusal::not_implemented(message));
        }
    }
    Ok(())
}

/// Only reads may ignore conditions.
const CONDITIONS: [HeaderName; 4] =
    [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];

fn check_headers(operation: &OperationRule, method: &Method, headers: &HeaderMap) -> Result<(), GateRefusal> {
    for name in headers.keys() {
        let is_of_amazon = name.as_str().starts_with("x-amz-");
        let changes = !method.is_safe() && (CONDITIONS.contains(name) || *name == header::CONTENT_RANGE);
        if !is_of_amazon && !changes {
            continue;
        }
        let permits = operation.header(name.as_str());
        if permits.is_none() && is_of_amazon && TABLE.is_harmless_header(name.as_str()) {
            continue;
        }
        check_header(operation, name, permits.unwrap_or(&PermittedValues::Nothing), headers)?;
    }
    Ok(())
}

fn check_header(
    operation: &OperationRule,
    name: &HeaderName,
    permits: &PermittedValues,
    headers: &HeaderMap,
) -> Result<(), GateRefusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map_or("", |value| value.to_str().unwrap_or_default());
    if values.next().is_some() && !may_be_repeated(name.as_str()) {
        let message = format!("the header {name} is there twice; send it once");
        return Err(GateRefusal::bad("InvalidArgument", message));
    }
    if permits.is_met_by(value) {
        return Ok(());
    }
    let operation = operation.name;
    Err(GateRefusal::not_implemented(match permits {
        PermittedValues::Values(known) => {
            let known = known.join(" or ");
            format!("{operation} takes no {name} but {known} here; change it, or leave it out")
        }
        _ => format!("{operation} does not take the header {name} here; leave it out"),
    }))
}

/// Whether several headers of a name are one list, as SDKs send them.
fn may_be_repeated(name: &str) -> bool {
    name.starts_with("x-amz-meta-")
        || ["x-amz-object-attributes", "x-amz-optional-object-attributes"].contains(&name)
}

/// Whether a parameter stands for a header of Amazon's.
fn is_hoisted(name: &str) -> bool {
    let is_of_amazon = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
    is_of_amazon && !crate::unsigned::is_of_signature(name)
}

/// Presigned URLs of some clients hold headers as parameters, and S3 takes them from there. Errors: a
/// header says something else, or the URL is not presigned.
fn take_hoisted(uri: &Uri, parameters: &[Parameter<'_>], headers: &mut HeaderMap) -> Result<(), GateRefusal> {
    for (name, value) in parameters.iter().filter(|(name, _)| is_hoisted(name)) {
        let is_presigned = uri.query().is_some_and(|query| query.contains("X-Amz-Signature="));
        let header = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
        let refused = || {
            let message = format!("the query parameter {} is a header of S3; send it as one", shown(name));
            GateRefusal::not_implemented(message)
        };
        let (header, value) = header.filter(|_| is_presigned).ok_or_else(refused)?;
        match headers.get(&header) {
            Some(said) if *said != value => return Err(refused()),
            Some(_) => {}
            None => drop(headers.insert(header, value)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
