//! The end of a multipart upload.

use std::sync::Arc;

use fordway_store::{
    ChecksumType, CompleteOptions, CompletedPart, Error, ErrorKind, PartsQuery, PutResult, Store, UploadId,
};
use fordway_wire::s3_xml::{AnswerDocument, completed_parts};
use http::{HeaderMap, StatusCode, Uri};
use s3s::{Body, S3Request, S3Response};

use crate::message::composed;
use crate::s3::apart::change_apart;
use crate::s3::convert::{
    CONDITIONS, add_version, checksum_type, conditions_in, document, invalid_request, names, parameter,
    quoted, stated_checksum,
};
use crate::s3::error::{Failure, Outcome, unreadable_body};
use crate::users::User;

pub(super) async fn complete(
    user: Arc<User>,
    names: (String, String),
    mut request: S3Request<Body>,
) -> Outcome<S3Response<Body>> {
    // Its size is limited already.
    let document = request.input.store_all_limited(usize::MAX).await;
    let document = document.map_err(|error| unreadable_body(&*error))?;
    let made = change_apart(user, move |store| {
        let wanted = Wanted::read(&names, &request.headers, &request.uri)?;
        let parts = completed_parts(&document).map_err(malformed)?;
        wanted.complete(store, &parts).map(|made| (names, made))
    });
    let ((bucket, key), made) = made.await?;
    Ok(answer(&bucket, &key, &made))
}

fn malformed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::InvalidArgument => error.into(),
        _ => no_document(error.detail().to_owned()),
    }
}

fn no_document(message: String) -> Failure {
    Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
}

/// What a completion asks for in its head.
struct Wanted {
    bucket: fordway_store::Bucket,
    key: fordway_store::Key,
    upload: UploadId,
    kind: Option<ChecksumType>,
    options: CompleteOptions,
}

impl Wanted {
    fn read((bucket, key): &(String, String), headers: &HeaderMap, uri: &Uri) -> Outcome<Self> {
        let (bucket, key) = names(bucket, key)?;
        let upload = UploadId::new(parameter(uri, "uploadId").unwrap_or_default())?;
        let checksum = stated_checksum(headers).map_err(invalid_request)?;
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let kind = text("x-amz-checksum-type").map(checksum_type).transpose()?;
        let not_a_size = |size: &str| {
            let why = if size.starts_with('-') { "less than zero" } else { "invalid" };
            let words = format!("Value for x-amz-mp-object-size header is {why}: '{size}'");
            invalid_request(composed(&words, "", &[]))
        };
        let size = text("x-amz-mp-object-size").map(|size| size.parse().map_err(|_| not_a_size(size)));
        let options = CompleteOptions {
            checksum,
            size: size.transpose()?,
            conditions: conditions_in(headers, &CONDITIONS)?,
        };
        Ok(Wanted { bucket, key, upload, kind, options })
    }

    fn complete(&self, store: &dyn Store, parts: &[CompletedPart]) -> Outcome<PutResult> {
        self.check_type(store)?;
        let made = store.complete_upload(&self.bucket, &self.key, &self.upload, parts, &self.options);
        made.map_err(|error| match (error.kind(), parts.is_empty()) {
            (ErrorKind::InvalidArgument, true) => {
                no_document("the document names no part; name at least one".to_owned())
            }
            _ => error.into(),
        })
    }

    /// Holds the type of checksum that is stated against the upload's. Errors: `InvalidRequest`, errors of
    /// the store.
    fn check_type(&self, store: &dyn Store) -> Outcome<()> {
        let Some(stated) = self.kind else { return Ok(()) };
        let query = PartsQuery { max_parts: 0, ..Default::default() };
        // An upload that was completed already is looked for by the completion.
        let Ok(upload) = store.list_parts(&self.bucket, &self.key, &self.upload, &query) else {
            return Ok(());
        };
        match upload.checksum.filter(|plan| plan.kind != stated) {
            None => Ok(()),
            Some(plan) => {
                let (asked, stated) = (plan.kind.name(), stated.name());
                let words = format!(
                    "The upload was created using the {asked} checksum mode. The complete request must use \
                     the same checksum mode."
                );
                Err(invalid_request(composed(&words, &format!("not {stated}"), &[])))
            }
        }
    }
}

fn answer(bucket: &str, key: &str, made: &PutResult) -> S3Response<Body> {
    let mut result = AnswerDocument::new("CompleteMultipartUploadResult");
    result.element("Location", &format!("/{bucket}/{key}"));
    result.element("Bucket", bucket).element("Key", key).element("ETag", &quoted(&made.etag));
    result.checksum_with_type(made.checksum.as_ref());
    let mut response = document(result);
    add_version(&mut response.headers, made.version.as_ref());
    response
}
