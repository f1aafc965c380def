//! The ACL of a bucket: one of the canned ACLs that [`CannedAcl`] lists. A bucket can have an ACL only if its ownership
//! controls enable ACLs. Objects have no ACLs of their own, because an ACL would be part of an object's record, which
//! authorisation does not read.
//!
//! The ACL is stored as a document that contains the grants but not the owner, because the file system stores the
//! owner. A private bucket has no such document.

use std::sync::Arc;

use fordway_policy::{AclGrant, AclGroup, AclPermission, CannedAcl};
use fordway_store::{Bucket, Error, ErrorKind, Result, Store};
use fordway_wire::s3_xml::{AclDocument, access_control_policy, escaped};
use http::{HeaderMap, StatusCode};
use s3s::dto::{Grant, Grantee, Owner, Permission, Type};
use s3s::{Body, S3Request, S3Response};

use crate::access::{ACL, denied, forget_rules, read_acl, read_block};
use crate::gate::{CANNED_ACLS, NO_ACLS};
use crate::s3::apart::change_apart;
use crate::s3::buckets::full_control;
use crate::s3::documents::ownership::enables_acls;
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::look_up::look_up;
use crate::users::User;

/// The header with the name of a canned ACL.
const CANNED: &str = "x-amz-acl";
/// The prefix of the names of the headers that grant permissions to users and groups.
const GRANT: &str = "x-amz-grant-";

/// Returns the grants of a bucket's ACL. Errors: `NoSuchBucket`, and errors from reading the ACL.
pub(super) fn grants(store: &dyn Store, bucket: &Bucket, owner: &Owner) -> OperationResult<Vec<Grant>> {
    store.head_bucket(bucket)?;
    let acl = read_acl(store, bucket)?;
    let mut grants = full_control(owner);
    grants.extend(acl.grants().iter().map(|(group, permission)| Grant {
        grantee: Some(Grantee {
            id: None,
            display_name: None,
            email_address: None,
            type_: Type::from_static(Type::GROUP),
            uri: Some(group.uri().to_owned()),
        }),
        permission: Some(Permission::from_static(permission.name())),
    }));
    Ok(grants)
}

/// Sets the ACL of a bucket. Errors: `AccessControlListNotSupported` if the bucket's ownership controls disable ACLs;
/// `AccessDenied` if its public access block refuses the ACL; `NotImplemented` for grants that no supported ACL has.
pub(super) async fn put(
    user: Arc<User>,
    owner: Owner,
    bucket: String,
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let bucket = Bucket::new(bucket)?;
    // `crate::gate` has already limited the size of the body.
    let sent = request.input.store_all_limited(usize::MAX).await;
    let sent = sent.map_err(|error| unreadable_body(&*error))?;
    let wanted = bucket.clone();
    let (has_acls, block) = look_up(user.clone(), move |store| {
        store.head_bucket(&wanted)?;
        Ok((enables_acls(store, &wanted)?, read_block(store, &wanted)?))
    })
    .await?;
    if !has_acls {
        return Err(disabled());
    }
    let acl = stated_acl(&request.headers, &sent, &owner)?;
    if acl.is_public() && block.block_public_acls {
        return Err(denied(BLOCKED));
    }
    change_apart(user, move |store| Ok(store_acl(store, &bucket, acl)?)).await?;
    forget_rules();
    Ok(S3Response::new(Body::empty()))
}

/// Returns the ACL that gateways apply to a bucket of `store`, for programs without a gateway. The ACL is private if
/// the bucket's ownership controls disable ACLs. Errors: `NoSuchBucket`, `Corrupt`, `AccessDenied`.
pub fn bucket_acl(store: &dyn Store, bucket: &Bucket) -> Result<CannedAcl> {
    store.head_bucket(bucket)?;
    read_acl(store, bucket)
}

/// Sets the ACL of a bucket of `store`, for programs without a gateway. First makes the same checks as a gateway.
/// Errors: `InvalidArgument` if the bucket's ownership controls disable ACLs; `AccessDenied` if its public access block
/// refuses the ACL, and for users who may not change the bucket's settings; `NoSuchBucket`.
pub fn set_bucket_acl(store: &dyn Store, bucket: &Bucket, acl: CannedAcl) -> Result<()> {
    store.head_bucket(bucket)?;
    if !enables_acls(store, bucket)? {
        return Err(Error::new(ErrorKind::InvalidArgument, DISABLED));
    }
    if acl.is_public() && read_block(store, bucket)?.block_public_acls {
        return Err(Error::new(ErrorKind::AccessDenied, BLOCKED));
    }
    store_acl(store, bucket, acl)
}

/// The gateway's own messages for a bucket that does not permit a change of its ACL.
const DISABLED: &str = "the bucket's ownership setting disables ACLs; use a policy, or set the ownership to \
    BucketOwnerPreferred first";
const BLOCKED: &str = "the bucket's public access block refuses public ACLs; change that first";

/// Stores the ACL of a bucket. Errors: the errors of the store.
pub(super) fn store_acl(store: &dyn Store, bucket: &Bucket, acl: CannedAcl) -> Result<()> {
    match acl {
        CannedAcl::Private => store.delete_document(bucket, &ACL),
        _ => store.set_document(bucket, &ACL, acl_document(acl, None).as_bytes()),
    }
}

/// Returns the error for a change of the ACL of a bucket without ACLs.
fn disabled() -> S3Failure {
    S3Failure::aws("AccessControlListNotSupported", StatusCode::BAD_REQUEST, NO_ACLS, DISABLED)
}

fn not_implemented(detail: String) -> Error {
    Error::new(ErrorKind::NotImplemented, detail)
}

/// Returns the ACL from a header or from the document of a request.
fn stated_acl(headers: &HeaderMap, document: &[u8], owner: &Owner) -> OperationResult<CannedAcl> {
    if let Some(name) = headers.keys().find(|name| name.as_str().starts_with(GRANT)) {
        return Err(not_implemented(format!("PutBucketAcl does not support {name}; send x-amz-acl")).into());
    }
    let refused = |code, words: &str| Err(S3Failure::aws(code, StatusCode::BAD_REQUEST, words, ""));
    match (headers.get(CANNED), document.is_empty()) {
        (Some(name), true) => named_acl(name.to_str().unwrap_or_default()),
        (Some(_), false) => refused("UnexpectedContent", "This request does not support content"),
        (None, true) => {
            let words = "Your request was missing a required header: x-amz-acl, or a document with an access \
                         control list";
            refused("MissingSecurityHeader", words)
        }
        (None, false) => {
            let sent = access_control_policy(document).map_err(|error| {
                S3Failure::new("MalformedACLError", StatusCode::BAD_REQUEST, error.detail().to_owned())
            })?;
            Ok(acl_of_document(&sent, owner.id.as_deref().unwrap_or_default())?)
        }
    }
}

/// Returns the canned ACL with this name. Errors: `NotImplemented` for AWS's other canned ACLs; `InvalidArgument` for
/// any other name.
pub(super) fn named_acl(name: &str) -> OperationResult<CannedAcl> {
    let known = CannedAcl::ALL.map(CannedAcl::name).join(", ");
    match CannedAcl::named(name) {
        Some(acl) => Ok(acl),
        None if CANNED_ACLS.contains(&name) => {
            Err(not_implemented(format!("a bucket cannot have the ACL {name}; use one of {known}")).into())
        }
        None => Err(S3Failure::argument("", CANNED, name)),
    }
}

/// Returns the canned ACL with the grants of a document, apart from the grant of `owner`, which may be missing. Errors:
/// `NotImplemented` for grants that no supported ACL has.
pub fn acl_of_document(sent: &AclDocument, owner: &str) -> Result<CannedAcl> {
    let mut grants = Vec::new();
    for grant in &sent.grants {
        let is_owner = grant.id == owner && grant.permission == "FULL_CONTROL";
        match grant_of(&grant.uri, &grant.permission) {
            _ if is_owner => {}
            Some(known) => grants.push(known),
            None => {
                let who = [&grant.uri, &grant.email, &grant.id].into_iter().find(|text| !text.is_empty());
                let who = who.map_or("nobody", |text| text.as_str());
                return Err(not_implemented(format!(
                    "a bucket cannot grant {} to {who:?}; grant READ to a group, or use a policy",
                    grant.permission
                )));
            }
        }
    }
    CannedAcl::with_grants(&grants).ok_or_else(|| {
        let known = CannedAcl::ALL.map(CannedAcl::name).join(", ");
        not_implemented(format!("the grants are not those of a canned ACL ({known}); use a policy"))
    })
}

fn grant_of(uri: &str, permission: &str) -> Option<AclGrant> {
    let group = AclGroup::ALL.into_iter().find(|group| group.uri() == uri)?;
    let permission = AclPermission::ALL.into_iter().find(|known| known.name() == permission)?;
    Some((group, permission))
}

/// Returns the document with the grants of an ACL. S3 requires the owner's ID in a document that it receives. A stored
/// document does not contain the owner.
pub fn acl_document(acl: CannedAcl, owner: Option<&str>) -> String {
    let of_owner = owner.map(escaped).map(|id| {
        let grantee = format!("<Grantee {XSI} xsi:type=\"CanonicalUser\"><ID>{id}</ID></Grantee>");
        let grant = format!("<Grant>{grantee}<Permission>FULL_CONTROL</Permission></Grant>");
        (format!("<Owner><ID>{id}</ID></Owner>"), grant)
    });
    let (owner, full_control) = of_owner.unwrap_or_default();
    let grants = acl.grants().iter().map(|(group, permission)| {
        format!(
            "<Grant><Grantee {XSI} xsi:type=\"Group\"><URI>{}</URI></Grantee><Permission>{}</Permission></Grant>",
            group.uri(),
            permission.name()
        )
    });
    let grants: String = grants.collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><AccessControlPolicy>{owner}<AccessControlList>{full_control}{grants}\
         </AccessControlList></AccessControlPolicy>"
    )
}

/// The attribute that declares the namespace of `xsi:type`.
const XSI: &str = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"";

/// Reads a stored document; `None` if it is not the document of a canned ACL.
pub(crate) fn acl_of(document: &[u8]) -> Option<CannedAcl> {
    let stored = access_control_policy(document).ok()?;
    let grants: Option<Vec<_>> =
        stored.grants.iter().map(|grant| grant_of(&grant.uri, &grant.permission)).collect();
    CannedAcl::with_grants(&grants?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_documents_are_read_again() {
        for acl in CannedAcl::ALL {
            assert_eq!(acl_of(acl_document(acl, None).as_bytes()), Some(acl));
        }
        for bad in ["", "public-read", "<AccessControlList/>"] {
            assert_eq!(acl_of(bad.as_bytes()), None, "{bad}");
        }
        let other = acl_document(CannedAcl::PublicRead, None).replace("READ", "FULL_CONTROL");
        assert_eq!(acl_of(other.as_bytes()), None);
    }
}
