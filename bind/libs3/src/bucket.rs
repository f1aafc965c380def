//! Bucket requests and listings. Also converts the grants of access control lists between S3's XML and C structures.
//! Responds to requests about lifecycle rules and access logs, which are not supported.
//!
//! On the embedded and node lanes, file permissions control access. They correspond to S3's `private` access control
//! list, in which only the owner has a grant. Requests therefore return that list, and cannot set any other list. On
//! the http lane, requests about access control lists, lifecycle rules and access logs fail with `ErrorNotImplemented`.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::ptr;

use fordway_store::{
    Bucket, BucketDocumentKind, BucketInfo, GetOptions, Key, ListEntry, ListQuery, MAX_KEYS, ObjectListing,
};
use fordway_wire::s3_xml::{self, AclDocument};

use super::response::{RequestFailure, RequestResult};
use crate::abi::{
    AclGrant, ListBucketCallback, ListBucketContent, ListServiceCallback, MAX_GRANTS, MAX_OWNER_BYTES,
    PERMISSION_FULL_CONTROL,
};
use crate::arguments::bucket_name;
use crate::lane::ConnectedBucket;
use crate::response::{CallbackResponder, QuotedETag, c_text, checked, keep, seconds, write_text};
use crate::status::Status;

/// The maximum number of entries passed to a listing callback in one call.
pub(crate) const BATCH: usize = 32;

thread_local! {
    /// The marker of the last listing, kept because some programs (such as IOR) pass the marker of one listing to the
    /// next listing without copying it.
    static LAST_MARKER: Cell<Option<CString>> = const { Cell::new(None) };
    /// Replaces `LAST_MARKER` after the thread has destroyed that variable.
    static LATE_MARKER: Cell<ManuallyDrop<Option<CString>>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// Passes every bucket to the callback. Errors: the errors of the store and of the callback.
pub(crate) fn list_all(
    lane: &fordway_lanes::Lane,
    callback: Option<ListServiceCallback>,
    responder: &CallbackResponder,
) -> RequestResult {
    let buckets = lane.store.list_buckets()?;
    responder.succeeded_plainly()?;
    let Some(callback) = callback else { return Ok(()) };
    responder.call(|| buckets.iter().try_for_each(|bucket| tell_bucket(bucket, callback, responder)))
}

fn tell_bucket(
    bucket: &BucketInfo,
    callback: ListServiceCallback,
    responder: &CallbackResponder,
) -> RequestResult {
    let name = c_text(bucket.name.as_str());
    let created_s = seconds(bucket.created);
    // SAFETY: the program guarantees that its callback may be called with its data. The strings outlive the call.
    checked(unsafe { callback(c"".as_ptr(), c"".as_ptr(), name.as_ptr(), created_s, responder.data()) })
}

/// Checks whether the bucket exists, and writes its location to the `capacity` bytes at `location`. The location is
/// empty for S3's original region (us-east-1), for a service that states no region, and for a directory. Errors:
/// `NoSuchBucket`, `AccessDenied`.
///
/// # Safety
/// Whenever callbacks may run, `location` is NULL or valid for writes.
pub(crate) unsafe fn test(
    target: &ConnectedBucket,
    (location, capacity): (*mut c_char, usize),
    responder: &CallbackResponder,
) -> RequestResult {
    let tell = |text: &str| {
        responder.call(|| {
            // SAFETY: the caller guarantees that `location` is NULL or valid for writes of `capacity` bytes.
            unsafe { write_text(location, capacity, text) };
            Ok(())
        })
    };
    tell("")?;
    match &target.lane.service {
        Some(service) => {
            // As in S3, the location of a bucket in S3's original region is empty.
            let region = service.bucket_region(&target.bucket)?.filter(|region| region != "us-east-1");
            region.map_or(Ok(()), |region| tell(&region))?;
        }
        None => drop(target.lane.store.head_bucket(&target.bucket)?),
    }
    responder.succeeded_plainly()
}

/// Creates a bucket. Errors: `BucketAlreadyOwnedByYou`, and an error for a location that is not the lane's region.
pub(crate) fn create(
    target: &ConnectedBucket,
    location: Option<&str>,
    region: Option<&str>,
    responder: &CallbackResponder,
) -> RequestResult {
    if let Some(location) = location.filter(|location| Some(*location) != region) {
        let why = format!(
            "a bucket is created in the region of its endpoint, not in {location:?}; use an endpoint and an authRegion \
             of that region, or no location"
        );
        return Err(RequestFailure::refused(Status::ErrorInvalidLocationConstraint, why));
    }
    target.lane.store.create_bucket(&target.bucket)?;
    responder.succeeded_plainly()
}

/// Removes an empty bucket. Errors: `NoSuchBucket`, `BucketNotEmpty`.
pub(crate) fn delete(target: &ConnectedBucket, responder: &CallbackResponder) -> RequestResult {
    target.lane.store.delete_bucket(&target.bucket)?;
    responder.succeeded_plainly()
}

/// Converts a listing query of libs3. A `max_keys` of 0 means S3's maximum, which also caps larger numbers.
pub(crate) fn query(
    prefix: Option<&str>,
    marker: Option<&str>,
    delimiter: Option<&str>,
    max_keys: usize,
) -> ListQuery {
    ListQuery {
        prefix: prefix.unwrap_or_default().to_owned(),
        delimiter: delimiter.map(str::to_owned),
        start_after: marker.map(str::to_owned),
        max_keys: if max_keys == 0 { MAX_KEYS } else { max_keys.min(MAX_KEYS) },
    }
}

/// Passes one page of a bucket to the callback, in batches. The page is read before the first call, so that the
/// callback may change the bucket.
pub(crate) fn list(
    target: &ConnectedBucket,
    query: &ListQuery,
    callback: Option<ListBucketCallback>,
    responder: &CallbackResponder,
) -> RequestResult {
    let page = target.lane.store.list(&target.bucket, query)?;
    responder.succeeded_plainly()?;
    let Some(callback) = callback else { return Ok(()) };
    let next = page.next.as_deref().map(c_text);
    let marker = next.as_deref().map_or(c"".as_ptr(), |next| next.as_ptr());
    responder.call(|| {
        let told = tell_entries(&page, marker, callback, responder);
        keep(&LAST_MARKER, &LATE_MARKER, next);
        told
    })
}

fn tell_entries(
    page: &ObjectListing,
    marker: *const c_char,
    callback: ListBucketCallback,
    responder: &CallbackResponder,
) -> RequestResult {
    let is_truncated = i32::from(page.next.is_some());
    for batch in page.entries.chunks(BATCH) {
        let batch = ListingEntryBatch::new(batch);
        let (contents, prefixes) = (batch.contents(), batch.prefix_pointers());
        // SAFETY: the program guarantees that its callback may be called with its data. `batch`, `contents` and
        // `prefixes` outlive the call. The marker remains valid even after the call.
        checked(unsafe {
            callback(
                is_truncated,
                marker,
                contents.len() as i32,
                contents.as_ptr(),
                prefixes.len() as i32,
                prefixes.as_ptr(),
                responder.data(),
            )
        })?;
    }
    Ok(())
}

/// Entries of a listing, with their names as C strings.
struct ListingEntryBatch {
    objects: Vec<(CString, QuotedETag, i64, u64)>,
    prefixes: Vec<CString>,
}

impl ListingEntryBatch {
    fn new(entries: &[ListEntry]) -> Self {
        let mut batch =
            ListingEntryBatch { objects: Vec::with_capacity(entries.len()), prefixes: Vec::new() };
        for entry in entries {
            match entry {
                ListEntry::Object(object) => batch.objects.push((
                    c_text(&object.key),
                    QuotedETag::new(&object.etag),
                    seconds(object.modified),
                    object.size,
                )),
                ListEntry::CommonPrefix(prefix) => batch.prefixes.push(c_text(prefix)),
            }
        }
        batch
    }

    fn contents(&self) -> Vec<ListBucketContent> {
        let content =
            |(key, etag, last_modified_s, size): &(CString, QuotedETag, i64, u64)| ListBucketContent {
                key: key.as_ptr(),
                last_modified_s: *last_modified_s,
                etag: etag.as_ptr(),
                size: *size,
                owner_id: ptr::null(),
                owner_display_name: ptr::null(),
            };
        self.objects.iter().map(content).collect()
    }

    fn prefix_pointers(&self) -> Vec<*const c_char> {
        self.prefixes.iter().map(|prefix| prefix.as_ptr()).collect()
    }
}

/// Returns the destination bucket of a copy: `name`, or `own`, the source's bucket, if `name` is `None`. Errors:
/// as for [`bucket_name`].
pub(crate) fn named_or_own(name: Option<&CStr>, own: &Bucket) -> RequestResult<Bucket> {
    name.map_or_else(|| Ok(own.clone()), bucket_name)
}

/// The memory to which an access control list is written.
pub(crate) struct AclOutputPointers {
    pub(crate) owner_id: *mut c_char,
    pub(crate) owner_name: *mut c_char,
    pub(crate) count: *mut i32,
    pub(crate) grants: *mut AclGrant,
}

/// Checks that the request is not on the http lane, and that the object or bucket exists. Errors:
/// `ErrorNotImplemented` on the http lane; `NoSuchKey` or `NoSuchBucket` if the object or bucket does not exist.
fn check(target: &ConnectedBucket, key: Option<&Key>, what: &str) -> RequestResult {
    let store = &target.lane.store;
    if store.lane() == "http" {
        let why = format!("{what} of an S3 service are not supported here; use the service's own tools");
        return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
    }
    match key {
        Some(key) => drop(store.head(&target.bucket, key, &GetOptions::default())?),
        None => drop(store.head_bucket(&target.bucket)?),
    }
    Ok(())
}

/// Returns the effective user ID of this process, in decimal.
fn owner() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

/// Returns the access control list in which only the owner has a grant, with all rights.
pub(crate) fn get_acl(
    target: &ConnectedBucket,
    key: Option<&Key>,
    returns: &AclOutputPointers,
    responder: &CallbackResponder,
) -> RequestResult {
    check(target, key, "access control lists")?;
    let id = owner();
    // SAFETY: `S3_get_acl` requires its caller to pass two buffers of 128 bytes, and room for 100 grants.
    responder.call(|| unsafe {
        write_text(returns.owner_id, MAX_OWNER_BYTES, &id);
        write_text(returns.owner_name, MAX_OWNER_BYTES, &id);
        if let (Some(count), Some(first)) = (returns.count.as_mut(), returns.grants.as_mut()) {
            let grantee = Grantee::User { id: id.clone(), name: id };
            *first = AccessGrant { grantee, permission: PERMISSION_FULL_CONTROL }.to_c()?;
            *count = 1;
        }
        Ok(())
    })?;
    responder.succeeded_plainly()
}

/// Accepts the access control list in which only the owner has a grant. Errors: any other list.
pub(crate) fn set_acl(
    target: &ConnectedBucket,
    key: Option<&Key>,
    grants: &[AclGrant],
    responder: &CallbackResponder,
) -> RequestResult {
    check(target, key, "access control lists")?;
    let is_owner_alone = grants.iter().all(|grant| {
        let is_user = matches!(Grantee::of_c(grant), Grantee::User { id, .. } if id == owner());
        is_user && grant.permission == PERMISSION_FULL_CONTROL
    });
    if !is_owner_alone {
        let why = "grants to other users are not supported; use the permissions of the file system";
        return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
    }
    responder.succeeded_plainly()
}

/// Reports that the bucket has no lifecycle rules, or that this lane cannot return them.
pub(crate) fn get_lifecycle(target: &ConnectedBucket) -> RequestResult {
    check(target, None, "lifecycle rules")?;
    if target.lane.store.document(&target.bucket, &BucketDocumentKind::known("lifecycle"))?.is_some() {
        let why = "this lane does not return lifecycle rules; read them over HTTP";
        return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
    }
    Err(RequestFailure::refused(
        Status::ErrorNoSuchLifecycleConfiguration,
        "the bucket has no lifecycle rules",
    ))
}

/// Reports that lifecycle rules are not supported.
pub(crate) fn set_lifecycle(target: &ConnectedBucket) -> RequestResult {
    check(target, None, "lifecycle rules")?;
    let why = "this lane cannot set lifecycle rules; set them over HTTP";
    Err(RequestFailure::refused(Status::ErrorNotImplemented, why))
}

/// Writes an empty log bucket name, an empty prefix, and a grant count of 0, which together mean that access logging is
/// off.
///
/// # Safety
/// Each pointer is NULL or valid for a write.
pub(crate) unsafe fn write_no_logging(bucket: *mut c_char, prefix: *mut c_char, count: *mut i32) {
    // SAFETY: the caller guarantees that each pointer is NULL or valid for writes.
    unsafe {
        write_text(bucket, 1, "");
        write_text(prefix, 1, "");
        if let Some(count) = count.as_mut() {
            *count = 0;
        }
    }
}

/// Reports that access logging is off. [`write_no_logging`] has already written the result to the program's memory.
pub(crate) fn get_logging(target: &ConnectedBucket, responder: &CallbackResponder) -> RequestResult {
    check(target, None, "access logs")?;
    responder.succeeded_plainly()
}

/// Accepts a request that turns access logging off. Errors: the request names a log bucket.
pub(crate) fn set_logging(
    target: &ConnectedBucket,
    bucket: Option<&str>,
    responder: &CallbackResponder,
) -> RequestResult {
    check(target, None, "access logs")?;
    if bucket.is_some() {
        let why = "access logs are not supported; FORDWAY_LOG=debug logs what this process does";
        return Err(RequestFailure::refused(Status::ErrorNotImplemented, why));
    }
    responder.succeeded_plainly()
}

/// The URIs of S3's groups, each with its `S3GranteeType`.
const GROUPS: &[(&str, c_int)] = &[
    ("http://acs.amazonaws.com/groups/global/AuthenticatedUsers", 2),
    ("http://acs.amazonaws.com/groups/global/AllUsers", 3),
    ("http://acs.amazonaws.com/groups/s3/LogDelivery", 4),
];
/// Permission names, in the order of `S3Permission`.
const PERMISSIONS: [&str; PERMISSION_FULL_CONTROL as usize + 1] =
    ["READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"];

/// The recipient of a grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grantee {
    /// A user, by e-mail address.
    Email(String),
    /// A user, by canonical id.
    User { id: String, name: String },
    /// A group, by its `S3GranteeType`.
    Group(c_int),
}

/// One grant of an access control list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AccessGrant {
    pub(crate) grantee: Grantee,
    /// The number of an `S3Permission`.
    pub(crate) permission: c_int,
}

/// An access control list, as `S3_convert_acl` returns it.
#[derive(Debug)]
pub(crate) struct AccessControlList {
    pub(crate) owner_id: String,
    pub(crate) owner_name: String,
    pub(crate) grants: Vec<AclGrant>,
}

impl AccessControlList {
    /// Parses S3's document. Errors: the document is not valid, or does not fit in C's structures.
    pub(crate) fn read(document: &[u8]) -> RequestResult<AccessControlList> {
        let read = s3_xml::access_control_policy(document);
        let AclDocument { owner_id, owner_name, grants } = read.map_err(|error| {
            RequestFailure::refused(
                Status::XmlParseFailure,
                format!("the access control list: {}", error.detail()),
            )
        })?;
        if grants.len() > MAX_GRANTS {
            let why = format!("there are {} grants; {MAX_GRANTS} fit", grants.len());
            return Err(RequestFailure::refused(Status::TooManyGrants, why));
        }
        fits(&owner_id, Status::UserIdTooLong)?;
        fits(&owner_name, Status::UserDisplayNameTooLong)?;
        let grants =
            grants.into_iter().map(|grant| AccessGrant::read(grant)?.to_c()).collect::<RequestResult<_>>()?;
        Ok(AccessControlList { owner_id, owner_name, grants })
    }
}

impl AccessGrant {
    fn read(grant: s3_xml::GrantElement) -> RequestResult<AccessGrant> {
        let s3_xml::GrantElement { email, id, name, uri, permission } = grant;
        let group = GROUPS.iter().find(|(name, _)| *name == uri).map(|(_, number)| *number);
        let grantee = match (email.is_empty(), id.is_empty(), group) {
            (false, ..) => Grantee::Email(email),
            (true, false, _) => Grantee::User { id, name },
            (true, true, Some(group)) => Grantee::Group(group),
            (true, true, None) => {
                let why = format!("the group {uri:?} is not one of S3's");
                return Err(RequestFailure::refused(Status::BadGrantee, why));
            }
        };
        let number = PERMISSIONS.iter().position(|known| *known == permission).ok_or_else(|| {
            RequestFailure::refused(
                Status::BadPermission,
                format!("the permission {permission:?} is not one of S3's"),
            )
        })?;
        Ok(AccessGrant { grantee, permission: number as c_int })
    }

    /// Converts the grant to C's structure. Errors: a string does not fit in its field.
    pub(crate) fn to_c(&self) -> RequestResult<AclGrant> {
        let (grantee_type, first, second) = match &self.grantee {
            Grantee::Email(address) => (0, fits(address, Status::EmailAddressTooLong)?, [0; MAX_OWNER_BYTES]),
            Grantee::User { id, name } => {
                (1, fits(id, Status::UserIdTooLong)?, fits(name, Status::UserDisplayNameTooLong)?)
            }
            Grantee::Group(number) => (*number, [0; MAX_OWNER_BYTES], [0; MAX_OWNER_BYTES]),
        };
        Ok(AclGrant { grantee_type, grantee: [first, second], permission: self.permission })
    }
}

impl Grantee {
    pub(crate) fn of_c(grant: &AclGrant) -> Grantee {
        let [first, second] = &grant.grantee;
        match grant.grantee_type {
            0 => Grantee::Email(field(first)),
            1 => Grantee::User { id: field(first), name: field(second) },
            group => Grantee::Group(group),
        }
    }
}

/// Returns a field that contains `text` and a NUL. Errors: `too_long`.
fn fits(text: &str, too_long: Status) -> RequestResult<[c_char; MAX_OWNER_BYTES]> {
    let mut field = [0; MAX_OWNER_BYTES];
    if text.len() >= MAX_OWNER_BYTES {
        return Err(RequestFailure::refused(
            too_long,
            format!("{text:?} has over {} bytes", MAX_OWNER_BYTES - 1),
        ));
    }
    for (to, byte) in field.iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    Ok(field)
}

/// Returns the string in a field, up to its NUL.
fn field(bytes: &[c_char; MAX_OWNER_BYTES]) -> String {
    let bytes = bytes.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(grants: &str) -> String {
        format!(
            "<AccessControlPolicy><Owner><ID>me</ID><DisplayName>Me</DisplayName></Owner>\
             <AccessControlList>{grants}</AccessControlList></AccessControlPolicy>"
        )
    }

    fn grant(grantee: &str, permission: &str) -> String {
        format!("<Grant><Grantee>{grantee}</Grantee><Permission>{permission}</Permission></Grant>")
    }

    #[test]
    fn every_grantee_and_permission_survives() {
        let grantees = [
            ("<EmailAddress>a@b</EmailAddress>", Grantee::Email("a@b".into())),
            ("<ID>x</ID><DisplayName>X</DisplayName>", Grantee::User { id: "x".into(), name: "X".into() }),
            (&format!("<URI>{}</URI>", GROUPS[0].0), Grantee::Group(2)),
            (&format!("<URI>{}</URI>", GROUPS[1].0), Grantee::Group(3)),
            (&format!("<URI>{}</URI>", GROUPS[2].0), Grantee::Group(4)),
        ];
        let grants: String =
            grantees.iter().zip(PERMISSIONS).map(|((xml, _), permission)| grant(xml, permission)).collect();
        let acl = AccessControlList::read(document(&grants).as_bytes()).unwrap();
        assert_eq!((acl.owner_id.as_str(), acl.owner_name.as_str()), ("me", "Me"));
        for (index, (found, (_, wanted))) in acl.grants.iter().zip(&grantees).enumerate() {
            assert_eq!((&Grantee::of_c(found), found.permission), (wanted, index as c_int));
        }
        assert_eq!(acl.grants.len(), grantees.len());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = "x".repeat(MAX_OWNER_BYTES);
        let user = "<ID>x</ID><DisplayName>X</DisplayName>";
        for (grants, status) in [
            (grant(&format!("<EmailAddress>{long}</EmailAddress>"), "READ"), Status::EmailAddressTooLong),
            (grant(&format!("<ID>{long}</ID>"), "READ"), Status::UserIdTooLong),
            (grant("<URI>http://elsewhere</URI>", "READ"), Status::BadGrantee),
            (grant(user, "DANCE"), Status::BadPermission),
            (grant(user, "READ").repeat(MAX_GRANTS + 1), Status::TooManyGrants),
            ("<Grant>".to_owned(), Status::XmlParseFailure),
        ] {
            let failure = AccessControlList::read(document(&grants).as_bytes()).expect_err("it does not fit");
            assert_eq!(failure.number(crate::abi::AbiVersion::V4_1), status as i32);
        }
    }
}
