//! Documents of buckets that S3 operations read and write. Each file in this folder describes one kind of document.
//! [`KINDS`] contains the kinds whose operations this module serves; `policy` serves its operations itself.
//!
//! A put parses and checks an XML document, and serializes the document again before storing it. The stored document is
//! therefore well formed.

pub(crate) mod cors;
mod lifecycle;
mod notification;
pub(crate) mod ownership;
pub(super) mod policy;
mod public_access;
pub(super) mod tagging;

use std::sync::Arc;

use fordway_policy::Policy;
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Result, Store};
use fordway_wire::s3_error::from_s3;
use fordway_wire::s3_xml::{XmlElement, simplified};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::xml::{DeError, Deserialize, Deserializer, Serialize, Serializer};
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response};

use crate::access::{POLICY, forget_rules};
use crate::gate::{GateRefusal, check_elements_of};
use crate::s3::apart::change_apart;
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::lock;
use crate::s3::look_up::look_up;
use crate::users::User;

/// A kind of document that clients may get and put and, in most cases, delete.
pub(super) struct DocumentKindHandler {
    kind: BucketDocumentKind,
    /// The operation that gets a document of this kind.
    get: &'static str,
    /// The operation that puts a document of this kind.
    put: &'static str,
    /// The operation that deletes a document of this kind; `None` if S3 has no such operation.
    delete: Option<&'static str>,
    /// The response for a bucket that has no document of this kind.
    absent: AbsentSetting,
    /// The status of a successful put.
    put_status: StatusCode,
    /// Checks the document that was sent, and returns the document to store.
    check: fn(&[u8]) -> OperationResult<Vec<u8>>,
    /// Checks that the bucket permits storing this document, or deleting the existing document.
    permits: BucketCheck,
}

/// The response to a get of a setting that the bucket does not have.
enum AbsentSetting {
    /// An error with this code and message.
    Error(&'static str, &'static str),
    /// A document that consists of this root element. A put of such a document removes the setting. Clients expect the
    /// same element ([`BucketDocumentKind::absent_root`]).
    EmptyDocument(&'static str),
}

/// A change that a client has requested, for a [`BucketCheck`].
struct SettingChange<'c> {
    store: &'c dyn Store,
    bucket: &'c Bucket,
    /// The document to store; `None` to remove the existing document.
    document: Option<&'c [u8]>,
    headers: &'c HeaderMap,
    /// The names of the gateway's webhooks.
    webhooks: &'c [String],
}

/// Checks whether a bucket permits a change.
type BucketCheck = fn(&SettingChange) -> OperationResult<()>;

/// Permits every change in every bucket. Most kinds of documents have this [`BucketCheck`].
fn always(_: &SettingChange) -> OperationResult<()> {
    Ok(())
}

const KINDS: [&DocumentKindHandler; 6] = [
    &cors::SERVICE,
    &lifecycle::SERVICE,
    &notification::SERVICE,
    &ownership::SERVICE,
    &public_access::SERVICE,
    &tagging::SERVICE,
];

/// The action of an operation on a document.
pub(super) enum DocumentAction {
    Get,
    Put,
    Delete,
}

/// Returns the kind of document on which an operation acts, and the action; `None` for all other operations.
pub(super) fn of_operation(name: &str) -> Option<(&'static DocumentKindHandler, DocumentAction)> {
    KINDS.into_iter().find_map(|service| {
        let action = match name {
            _ if name == service.get => DocumentAction::Get,
            _ if name == service.put => DocumentAction::Put,
            _ if Some(name) == service.delete => DocumentAction::Delete,
            _ => return None,
        };
        Some((service, action))
    })
}

/// Checks an XML document in the same way as a document that a client puts, and returns the document to store. Does not
/// check whether a gateway has the webhooks that a notification configuration names. A program that sets documents
/// without a gateway must call this function first, because stores do not check documents. Errors: `InvalidArgument`,
/// `InvalidTag`, and `NotImplemented` for elements and kinds that the gateway does not support.
pub fn checked_document(kind: &BucketDocumentKind, document: &[u8]) -> Result<Vec<u8>> {
    let Some((operation, check)) = check_of(kind) else {
        return Err(Error::new(
            ErrorKind::NotImplemented,
            format!("the bucket setting {kind} is not supported"),
        ));
    };
    let unknown = |refusal: GateRefusal| Error::new(ErrorKind::NotImplemented, refusal.message);
    check_elements_of(operation, document).map_err(unknown)?;
    check(document).map_err(|failure| {
        let S3Failure(error) = &failure;
        let status = error.status_code().map_or(400, |status| status.as_u16());
        Error::new(from_s3(status, error.code().as_str()), reason(&failure))
    })
}

/// Checks a document and returns the document to store.
type DocumentCheck = fn(&[u8]) -> OperationResult<Vec<u8>>;

/// Returns the operation that puts XML documents of the given kind, and the check for these documents; `None` for all
/// other kinds.
fn check_of(kind: &BucketDocumentKind) -> Option<(&'static str, DocumentCheck)> {
    const LOCK: [&str; 2] = ["object-lock", "PutObjectLockConfiguration"];
    match KINDS.into_iter().find(|service| service.kind == *kind) {
        Some(service) => Some((service.put, service.check)),
        None if kind.as_str() == LOCK[0] => Some((LOCK[1], lock::check)),
        None => None,
    }
}

/// Returns the message of an error in one line.
fn reason(S3Failure(error): &S3Failure) -> String {
    // The first line is AWS's message, and the second line is the gateway's own message. The other lines are for
    // programs.
    let lines = error.message().unwrap_or_default().lines().take(2).filter(|line| !line.is_empty());
    let lines: Vec<_> = lines.map(|line| line.trim_end_matches('.')).collect();
    lines.join("; ")
}

/// Reads a document of a bucket, and checks that clients can parse it. Other programs, and failing disks, can change
/// the documents of a bucket. A document that only breaks a rule about its content is returned, because the rules may
/// have been different when the document was stored. Errors: `Corrupt`, and errors from reading.
pub fn sound_document(
    store: &dyn Store,
    bucket: &Bucket,
    kind: &BucketDocumentKind,
) -> Result<Option<Vec<u8>>> {
    let Some(document) = store.document(bucket, kind)? else { return Ok(None) };
    match document_problem(bucket, kind, &document) {
        None => Ok(Some(document)),
        Some(why) => {
            let why = format!("the stored {kind} document is malformed ({why}); set it again, or delete it");
            Err(Error::new(ErrorKind::Corrupt, why))
        }
    }
}

/// Returns the reason why clients cannot parse a stored document; `None` if they can parse it (see [`sound_document`]).
pub fn document_problem(bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Option<String> {
    match check_of(kind) {
        Some((_, check)) => {
            let failure = check(document).err();
            let failure = failure.filter(|S3Failure(error)| error.code().as_str() == "MalformedXML");
            failure.map(|failure| reason(&failure))
        }
        None if *kind == POLICY => {
            Policy::parse(document, bucket.as_str()).err().map(|error| error.to_string())
        }
        None => None,
    }
}

impl DocumentKindHandler {
    /// Serves one operation. `webhooks` are the names of the gateway's webhooks.
    pub(super) async fn serve(
        &'static self,
        action: DocumentAction,
        (user, bucket): (Arc<User>, String),
        webhooks: Arc<[String]>,
        request: S3Request<Body>,
    ) -> OperationResult<S3Response<Body>> {
        let bucket = Bucket::new(bucket)?;
        match action {
            DocumentAction::Get => {
                let found =
                    look_up(user, move |store| Ok(sound_document(store, &bucket, &self.kind)?)).await?;
                found.map_or_else(|| self.absent(), |document| Ok(answer(document)))
            }
            DocumentAction::Put => {
                let S3Request { input, headers, .. } = request;
                let document = self.checked(&user, &bucket, input).await?;
                let document = Some(document).filter(|document| !self.is_empty(document));
                self.change(user, (bucket, document), (headers, webhooks)).await?;
                Ok(S3Response::with_status(Body::empty(), self.put_status))
            }
            DocumentAction::Delete => {
                self.change(user, (bucket, None), (request.headers, webhooks)).await?;
                Ok(S3Response::with_status(Body::empty(), StatusCode::NO_CONTENT))
            }
        }
    }

    /// Reads and checks the document that a client puts.
    async fn checked(&self, user: &Arc<User>, bucket: &Bucket, mut sent: Body) -> OperationResult<Vec<u8>> {
        // `crate::gate` has already limited the size of the body.
        let sent = sent.store_all_limited(usize::MAX).await;
        let checked = (self.check)(&sent.map_err(|error| unreadable_body(&*error))?);
        if checked.is_err() {
            // AWS reports a missing bucket rather than an invalid document.
            let bucket = bucket.clone();
            look_up(user.clone(), move |store| Ok(store.head_bucket(&bucket)?)).await?;
        }
        checked
    }

    /// Stores the document, or removes the existing document.
    async fn change(
        &'static self,
        user: Arc<User>,
        (bucket, document): (Bucket, Option<Vec<u8>>),
        (headers, webhooks): (HeaderMap, Arc<[String]>),
    ) -> OperationResult<()> {
        let change = move |store: &dyn Store| {
            let (bucket, document) = (&bucket, document.as_deref());
            let (headers, webhooks) = (&headers, &*webhooks);
            (self.permits)(&SettingChange { store, bucket, document, headers, webhooks })?;
            match document {
                Some(document) => store.set_document(bucket, &self.kind, document)?,
                None => store.delete_document(bucket, &self.kind)?,
            }
            Ok(())
        };
        change_apart(user, change).await?;
        // Changed access rules take effect immediately.
        if self.kind.decides_access() {
            forget_rules();
        }
        Ok(())
    }

    /// Returns whether a put of this document, which has passed the check, removes the setting.
    fn is_empty(&self, document: &[u8]) -> bool {
        matches!(self.absent, AbsentSetting::EmptyDocument(_))
            && XmlElement::read(document).is_ok_and(|root| root.children.is_empty())
    }

    /// Returns the response to a get of a setting that the bucket does not have.
    fn absent(&self) -> OperationResult<S3Response<Body>> {
        match self.absent {
            AbsentSetting::Error(code, message) => Err(S3Failure::new(code, StatusCode::NOT_FOUND, message)),
            AbsentSetting::EmptyDocument(root) => {
                let document = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><{root}></{root}>");
                Ok(answer(document.into_bytes()))
            }
        }
    }
}

pub(super) fn answer(document: Vec<u8>) -> S3Response<Body> {
    let mut response = S3Response::new(Body::from(in_namespace(document)));
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Adds S3's namespace to the root element of a document, because some programs check the namespace. Stored documents
/// have no namespace.
fn in_namespace(mut document: Vec<u8>) -> Vec<u8> {
    const NAMESPACE: &[u8] = b" xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    let root = document.windows(2).position(|pair| pair[0] == b'<' && pair[1].is_ascii_alphabetic());
    let name = |at: usize| document[at..].iter().position(|byte| b" />".contains(byte)).map(|end| at + end);
    if let Some(end) = root.and_then(name).filter(|end| document[*end] != b' ') {
        document.splice(end..end, NAMESPACE.iter().copied());
    }
    document
}

/// Reads and parses the document in the body of a request. Errors: `MissingRequestBodyError`, `MalformedXML`, errors of
/// the body.
pub(crate) async fn sent<T: for<'xml> Deserialize<'xml>>(mut body: Body) -> OperationResult<T> {
    // `crate::gate` has already limited the size of the body.
    let document = body.store_all_limited(usize::MAX).await.map_err(|error| unreadable_body(&*error))?;
    if document.is_empty() {
        return Err(S3Error::from(S3ErrorCode::MissingRequestBodyError).into());
    }
    read(&document)
}

/// Parses a document. Errors: `MalformedXML`.
pub(crate) fn read<T: for<'xml> Deserialize<'xml>>(document: &[u8]) -> OperationResult<T> {
    // The deserializer ignores CDATA sections, and compares names with their prefixes.
    let document = simplified(document);
    let document = document.ok_or_else(|| malformed("the document is not XML; correct it".to_owned()))?;
    let mut input = Deserializer::new(&document);
    let read = T::deserialize(&mut input).and_then(|value| input.expect_eof().map(|()| value));
    read.map_err(|error| {
        // The deserializer does not say which element is missing.
        let missing = matches!(error, DeError::MissingField).then(|| missing_element(&document)).flatten();
        let why = missing.unwrap_or_else(|| format!("{error}; check its elements"));
        malformed(format!("S3 does not accept this document here: {why}"))
    })
}

/// The elements that S3 requires: the path of the parent, and the name of the element.
const REQUIRED: [(&str, &str); 8] = [
    ("CORSConfiguration", "CORSRule"),
    ("CORSConfiguration/CORSRule", "AllowedMethod"),
    ("CORSConfiguration/CORSRule", "AllowedOrigin"),
    ("OwnershipControls", "Rule"),
    ("OwnershipControls/Rule", "ObjectOwnership"),
    ("Tagging", "TagSet"),
    ("Tagging/TagSet/Tag", "Key"),
    ("Tagging/TagSet/Tag", "Value"),
];

/// Returns a sentence about the first element in [`REQUIRED`] that is missing in a document; `None` if no element is
/// missing.
fn missing_element(document: &[u8]) -> Option<String> {
    let root = XmlElement::read(document).ok()?;
    let is_lacking = |(path, name): &&(&str, &str)| {
        let mut steps = path.split('/');
        let mut parents = Vec::from_iter((steps.next() == Some(&*root.name)).then_some(&root));
        for step in steps {
            parents = parents.iter().flat_map(|it| &it.children).filter(|it| it.name == step).collect();
        }
        parents.iter().any(|parent| parent.child(name).is_none())
    };
    let (path, name) = REQUIRED.iter().find(is_lacking)?;
    let parent = path.rsplit('/').next().unwrap_or(path);
    Some(format!("{parent} has no {name}; add one"))
}

/// Serializes a document, with an XML declaration. Errors: `MalformedXML`.
fn write(value: &impl Serialize) -> OperationResult<Vec<u8>> {
    let mut document = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>".to_vec();
    let written = value.serialize(&mut Serializer::new(&mut document));
    written.map_err(|error| malformed(format!("the document cannot be serialized: {error}")))?;
    Ok(document)
}

pub(super) fn malformed(message: String) -> S3Failure {
    S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client of the http lane and the gateway treat the absence of a setting in the same way.
    #[test]
    fn clients_know_which_settings_are_absent_as_an_empty_document() {
        for service in KINDS {
            let root = match service.absent {
                AbsentSetting::Error(..) => None,
                AbsentSetting::EmptyDocument(root) => Some(root),
            };
            assert_eq!(service.kind.absent_root(), root, "{}", service.kind);
            assert!(root.is_some() || service.delete.is_some(), "{} can be removed", service.kind);
        }
    }

    #[test]
    fn documents_are_checked_without_a_gateway() {
        let check = |kind: &'static str, document: &str| {
            let checked = checked_document(&BucketDocumentKind::known(kind), document.as_bytes());
            checked.map(|document| String::from_utf8(document).unwrap())
        };
        let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
        assert!(check("tagging", tags).unwrap().ends_with(tags));
        let lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>";
        assert!(check("object-lock", lock).unwrap().contains("<ObjectLockEnabled>Enabled<"));
        for (kind, document, why) in [
            ("cors", "<CORSConfiguration/>", ErrorKind::InvalidArgument),
            ("cors", "<CORSConfiguration><Rule/></CORSConfiguration>", ErrorKind::NotImplemented),
            ("lifecycle", "<LifecycleConfiguration/>", ErrorKind::InvalidArgument),
            ("object-lock", "<ObjectLockConfiguration/>", ErrorKind::InvalidArgument),
            ("tagging", &tags.replace(">a<", ">?<"), ErrorKind::InvalidTag),
            (
                "notification",
                "<NotificationConfiguration><Rule/></NotificationConfiguration>",
                ErrorKind::NotImplemented,
            ),
            ("website", "<WebsiteConfiguration/>", ErrorKind::NotImplemented),
        ] {
            let error = check(kind, document).unwrap_err();
            assert_eq!(error.kind(), why, "{kind}: {error}");
            assert!(!error.detail().is_empty(), "{kind}: {error}");
        }
        for (kind, document, missing) in [
            ("cors", "<CORSConfiguration/>", "CORSConfiguration has no CORSRule; add one"),
            (
                "cors",
                "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>",
                "CORSRule has no AllowedOrigin; add one",
            ),
            ("ownership", "<OwnershipControls/>", "OwnershipControls has no Rule; add one"),
            ("tagging", "<Tagging/>", "Tagging has no TagSet; add one"),
        ] {
            let error = check(kind, document).unwrap_err();
            assert!(error.detail().ends_with(missing), "{kind}: {error}");
        }
    }
}
