//! Form uploads (PostObject): a browser sends an object in an HTML form. A signed policy in the form defines which
//! forms are allowed. The head of the request is not signed, and an `Authorization` header is ignored.
//!
//! * `fields`: the fields of a form, and their conversion to headers
//! * `signature`: the signature of the policy, and the user who signed it
//! * `policy`: the policy, and whether it allows the form
//! * `file`: the content of the file as the body of an upload

mod fields;
mod file;
mod policy;
mod signature;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Buf as _, Bytes};
use fordway_store::{Checksum, PutResult, Store};
use fordway_wire::form_data::{self, FormError, FormReader, UploadFormFields};
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use fordway_wire::uri::push_query;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use s3s::Body;

use crate::access::{PolicyRequestContext, authorise, unsigned};
use crate::answer::UrlScheme;
use crate::domains::BucketDomains;
use crate::identity::RequestAuthenticator;
use crate::message::composed;
use crate::monitor::OperationCode;
use crate::s3::apart::{PublishLatency, here_unless_remote};
use crate::s3::convert::{add_text, add_version, checksum_headers, location, names, quoted};
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::upload::ObjectUpload;
use crate::sts::{TokenService, session_with};
use crate::unsigned::ConnectionPeer;
use crate::users::{User, Users};

use fields::FormFields;
use file::FileBody;
use policy::PostPolicy;
use signature::FormSignature;

/// The parts of a gateway that form uploads need.
#[derive(Clone, Copy)]
pub(crate) struct PostFormContext<'g> {
    pub(crate) users: &'g Users,
    pub(crate) caller: &'g ConnectionPeer,
    pub(crate) tokens: Option<&'g TokenService>,
    pub(crate) domains: &'g BucketDomains,
    pub(crate) publishing: &'g PublishLatency,
    pub(crate) region: &'g str,
    /// Whether version 2 signatures are accepted.
    pub(crate) allows_version_2: bool,
}

impl PostFormContext<'_> {
    /// Stores the file of a form. If the form is invalid in any way, the response is an error and nothing is stored.
    pub(crate) async fn answer(self, request: Request<Body>) -> Response<Body> {
        self.store(request).await.unwrap_or_else(crate::s3::failed)
    }

    async fn store(self, request: Request<Body>) -> OperationResult<Response<Body>> {
        let (mut parts, mut body) = request.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = form_data::boundary(kind.unwrap_or_default()).map_err(refused)?;
        let (start, rest) = read_start(&boundary, &mut body).await?;
        let form = FormFields::new(start)?;
        let (bucket, _) = self.domains.names(&parts.headers, &parts.uri);
        let target = (bucket, form.key()?);
        let signature = FormSignature::read(&form, self.allows_version_2)?;
        let user = self.uploader(&form, signature.as_ref()).await?;
        let operation = OperationCode::named("PostObject");
        RequestAuthenticator::take_note(&mut parts.extensions, &user, operation, || Some(target.clone()))
            .map_err(S3Failure)?;
        let sizes = match form.get("policy") {
            Some(policy) => PostPolicy::read(policy)?.check(&form, &target, SystemTime::now())?,
            None => 0..=u64::MAX,
        };
        let user = user.at(&target.0)?;
        let headers = form.headers()?;
        let stated = stated_headers(&parts.headers, &headers);
        let about_signature = signature.as_ref().map(FormSignature::condition_keys).unwrap_or_default();
        let (no_query, origin) = (Uri::from_static("/"), parts.extensions.get().copied());
        let facts = PolicyRequestContext::new(&stated, &no_query, origin).with(&about_signature);
        authorise(&user, operation.name(), (&target.0, &target.1), &facts).await?;
        let (bucket, key) = names(&target.0, &target.1)?;
        let begin = move |store: &dyn Store| {
            let mut upload = ObjectUpload::begin(store, (&bucket, &key), &headers, None, None)?;
            upload.note_form();
            Ok(upload)
        };
        let upload = here_unless_remote(&user, begin).await?;
        let (file, complaint) = FileBody::new(&boundary, rest, body, sizes);
        let stored =
            upload.receive(Body::http_body_unsync(file), self.publishing, user.server.as_ref()).await;
        let made = stored.map_err(|failure| complaint.take().unwrap_or(failure))?;
        let scheme = parts.extensions.get::<UrlScheme>().copied();
        Ok(stored_answer(&form, &target, &made, location(&target, scheme, &parts.headers).as_deref()))
    }

    /// Returns the user whose identity the upload uses: the user who signed the form's policy, the user whom the kernel
    /// identified, or the anonymous user. Errors: the errors of the signature check; `AccessDenied` for a form without
    /// a signature.
    async fn uploader(
        self,
        form: &FormFields,
        signature: Option<&FormSignature<'_>>,
    ) -> OperationResult<Arc<User>> {
        match (self.caller, signature) {
            (ConnectionPeer::Unix(user), _) => Ok(user.clone()),
            (ConnectionPeer::Remote { .. }, Some(signature)) => {
                let session = match form.get("x-amz-security-token") {
                    Some(token) => {
                        Some(session_with(self.tokens, self.users, token).await.map_err(|refusal| {
                            S3Failure::new(refusal.code, refusal.status, refusal.message)
                        })?)
                    }
                    None => None,
                };
                signature.signer(self.users, session.as_deref(), self.region)
            }
            (ConnectionPeer::Remote { .. }, None) => self.users.anonymous().ok_or_else(unsigned),
        }
    }
}

/// Returns the headers to which the rules of a bucket apply: the headers of the request, and the headers that
/// correspond to fields of the form. Omits request headers that are meaningless in a form upload (`x-amz-*`, `if-*`,
/// `Authorization`), because they are not signed.
fn stated_headers(of_request: &HeaderMap, of_fields: &HeaderMap) -> HeaderMap {
    let is_meaningless = |name: &HeaderName| {
        name.as_str().starts_with("x-amz-")
            || name.as_str().starts_with("if-")
            || name == header::AUTHORIZATION
    };
    let plain = of_request.iter().filter(|(name, _)| !is_meaningless(name));
    plain.chain(of_fields).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Reads the fields of a form. Returns the fields and the first bytes of the file. Errors: `MalformedPOSTRequest` and
/// other errors in the form; errors from the body.
async fn read_start(boundary: &str, body: &mut Body) -> OperationResult<(UploadFormFields, Bytes)> {
    let mut reader = FormReader::new(boundary);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        let Ok(mut piece) = frame.map_err(|error| unreadable_body(&*error))?.into_data() else { continue };
        if let Some((start, taken)) = reader.read(&piece).map_err(refused)? {
            piece.advance(taken);
            return Ok((start, piece));
        }
    }
    Err(refused(FormError::Malformed("the body ends before its file; send all of it")))
}

/// Returns AWS's error for a form that cannot be read.
fn refused(error: FormError) -> S3Failure {
    let bad = |code, words: &str, detail: &str| S3Failure::aws(code, StatusCode::BAD_REQUEST, words, detail);
    match error {
        FormError::NotAForm => {
            let condition = "Bucket POST must be of the enclosure-type multipart/form-data";
            let words = "At least one of the pre-conditions you specified did not hold.";
            let detail = "a POST to a bucket must be a form; set its Content-Type";
            let text = composed(words, detail, &[("Condition", condition)]);
            S3Failure::new("PreconditionFailed", StatusCode::PRECONDITION_FAILED, text)
        }
        FormError::Malformed(why) => {
            let words = "The body of your POST request is not well-formed multipart/form-data.";
            bad("MalformedPOSTRequest", words, why)
        }
        FormError::FieldsTooLarge => {
            let words = "Your POST request fields preceding the upload file were too large.";
            bad("MaxPostPreDataLengthExceeded", words, "the limit is 20 KiB; send shorter fields")
        }
        FormError::NoFile => {
            let facts = [("ArgumentName", "file"), ("ArgumentValue", "0")];
            let words = "POST requires exactly one file upload per request.";
            let text = composed(words, "the last field must be file; add it", &facts);
            S3Failure::new("InvalidArgument", StatusCode::BAD_REQUEST, text)
        }
    }
}

/// Returns the response to a form whose file was stored: a redirect, a document, or an empty response.
fn stored_answer(
    form: &FormFields,
    (bucket, key): &(String, String),
    made: &PutResult,
    location: Option<&str>,
) -> Response<Body> {
    let etag = quoted(&made.etag);
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.extend(checksum_headers(
        made.checksum.as_ref(),
        made.checksum.as_ref().map(Checksum::checksum_type),
    ));
    add_text(headers, header::ETAG, &etag);
    add_version(headers, made.version.as_ref());
    if let Some(page) = redirect(form.redirect(), [("bucket", bucket), ("key", key), ("etag", &etag)]) {
        headers.insert(header::LOCATION, page);
        *response.status_mut() = StatusCode::SEE_OTHER;
        return response;
    }
    if let Some(location) = location {
        add_text(headers, header::LOCATION, location);
    }
    *response.status_mut() = match form.get("success_action_status") {
        Some("200") => StatusCode::OK,
        Some("201") => StatusCode::CREATED,
        _ => StatusCode::NO_CONTENT,
    };
    if response.status() == StatusCode::CREATED {
        let mut document = ResponseDocumentBuilder::new("PostResponse");
        if let Some(location) = location {
            document.element("Location", location);
        }
        document.element("Bucket", bucket).element("Key", key).element("ETag", &etag);
        headers_of_document(&mut response);
        *response.body_mut() = Body::from(document.finish());
    }
    response
}

fn headers_of_document(response: &mut Response<Body>) {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
}

/// Returns the URL of the page that the browser shows next, with the bucket, key and ETag as query parameters. Returns
/// `None` if the form does not name the URL of a web page. The response then contains no redirect, as on AWS.
fn redirect(page: Option<&str>, parameters: [(&str, &str); 3]) -> Option<HeaderValue> {
    let page = page?;
    let uri: Uri = page.parse().ok()?;
    uri.host().filter(|_| matches!(uri.scheme_str(), Some("http" | "https")))?;
    let mut url = page.split('#').next().unwrap_or_default().to_owned();
    for (at, (name, value)) in parameters.into_iter().enumerate() {
        url.push(if at == 0 && uri.query().is_none() { '?' } else { '&' });
        url.push_str(name);
        url.push('=');
        push_query(&mut url, value);
    }
    HeaderValue::from_str(&url).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_to_a_web_page_and_names_the_object() {
        let to = |page: &str| {
            let found = redirect(Some(page), [("bucket", "b"), ("key", "a/ü&c"), ("etag", "\"e\"")]);
            found.map(|url| url.to_str().unwrap().to_owned())
        };
        let query = "bucket=b&key=a%2F%C3%BC%26c&etag=%22e%22";
        assert_eq!(to("https://p.example/done"), Some(format!("https://p.example/done?{query}")));
        assert_eq!(to("http://p.example:8/?a=b#end"), Some(format!("http://p.example:8/?a=b&{query}")));
        for page in
            ["", "/done", "ftp://p.example/", "javascript:alert(1)", "https://", "https://p/\r\nX: y", "a b"]
        {
            assert_eq!(to(page), None, "{page}");
        }
        assert_eq!(redirect(None, [("", ""); 3]), None);
    }
}
