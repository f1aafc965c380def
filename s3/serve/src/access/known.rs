//! Each serving thread's cache of bucket rules. A thread reads rules again after a second, or immediately if this
//! gateway has changed them. If the cache shows that a bucket has no rules, checking a request needs no system call and
//! no lock.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_policy::{BucketAccessRules, CallerRole, CannedAcl, Policy, PublicAccessBlock};
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Result, Store};
use s3s::dto::PublicAccessBlockConfiguration;

use crate::s3::acl::acl_of;
use crate::s3::documents::ownership::enables_acls;
use crate::users::{User, UserKind};

pub(crate) const POLICY: BucketDocumentKind = BucketDocumentKind::known("policy");
pub(crate) const ACL: BucketDocumentKind = BucketDocumentKind::known("acl");
pub(crate) const PUBLIC_ACCESS_BLOCK: BucketDocumentKind = BucketDocumentKind::known("public-access-block");

/// The time for which cached rules are valid. A change by another gateway takes effect after this time.
const FRESH: Duration = Duration::from_secs(1);
/// The maximum number of (bucket, user) pairs in a thread's cache.
const MOST: usize = 64;

/// A counter that is incremented whenever this gateway changes the rules of a bucket.
static GENERATION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static KNOWN: RefCell<Vec<CachedBucketRules>> = const { RefCell::new(Vec::new()) };
}

/// A bucket's rules, as read on behalf of one user.
struct CachedBucketRules {
    user: u64,
    bucket: Bucket,
    since: Instant,
    generation: u64,
    access: Arc<BucketOwnerAndRules>,
}

/// The owner of a bucket, and its rules.
pub(crate) struct BucketOwnerAndRules {
    /// The user ID of the bucket's owner; `None` if the store has no owners. In this case, each user counts as the
    /// owner.
    owner: Option<u32>,
    /// The rules, or the reason why they are not trusted. If the rules are not trusted, only the owner has access.
    pub(crate) rules: Result<BucketAccessRules, String>,
    /// The value of [`GENERATION`] before the rules were read.
    read_in: u64,
}

impl Default for BucketOwnerAndRules {
    fn default() -> Self {
        BucketOwnerAndRules { owner: None, rules: Ok(BucketAccessRules::default()), read_in: 0 }
    }
}

impl BucketOwnerAndRules {
    pub(crate) fn role_of(&self, user: &User) -> CallerRole {
        match user.kind {
            UserKind::Anonymous => CallerRole::Anonymous,
            _ if user.uid == 0 || self.owner.is_none_or(|owner| owner == user.uid) => CallerRole::Owner,
            _ => CallerRole::User,
        }
    }

    /// Returns whether the rules permit every request of the user.
    pub(crate) fn is_open_to(&self, user: &User) -> bool {
        user.kind != UserKind::Anonymous
            && self.rules.as_ref().is_ok_and(BucketAccessRules::are_open_to_users)
    }
}

/// Makes all threads reread the rules of all buckets. Call this function whenever rules have changed.
pub(crate) fn forget_rules() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Returns the rules of a bucket if they are in this thread's cache.
pub(super) fn known(user: &User, bucket: &Bucket, at: Instant) -> Option<Arc<BucketOwnerAndRules>> {
    look(user, bucket, at, Arc::clone)
}

/// Calls `read` with the rules of a bucket if they are in this thread's cache. Cost: no allocation, no lock, no
/// system call.
pub(super) fn look<T>(
    user: &User,
    bucket: &Bucket,
    at: Instant,
    read: impl FnOnce(&Arc<BucketOwnerAndRules>) -> T,
) -> Option<T> {
    let generation = GENERATION.load(Ordering::Acquire);
    KNOWN.with_borrow(|all| {
        let mut fresh = all.iter().filter(|known| {
            known.user == user.id
                && known.generation == generation
                && at.saturating_duration_since(known.since) < FRESH
        });
        fresh.find(|known| known.bucket == *bucket).map(|known| read(&known.access))
    })
}

/// Caches the rules of a bucket, which were read after `at`.
pub(super) fn remember(
    user: &User,
    bucket: &Bucket,
    access: BucketOwnerAndRules,
    at: Instant,
) -> Arc<BucketOwnerAndRules> {
    let access = Arc::new(access);
    KNOWN.with_borrow_mut(|all| {
        all.retain(|known| known.user != user.id || known.bucket != *bucket);
        if all.len() >= MOST {
            all.remove(0);
        }
        let (user, generation) = (user.id, access.read_in);
        all.push(CachedBucketRules {
            user,
            bucket: bucket.clone(),
            since: at,
            generation,
            access: access.clone(),
        });
    });
    access
}

/// Reads the rules of a bucket. Errors: `NoSuchBucket`, and errors from reading.
pub(crate) fn read(store: &dyn Store, bucket: &Bucket) -> Result<BucketOwnerAndRules> {
    let read_in = GENERATION.load(Ordering::Acquire);
    let owner = store.bucket_owner(bucket)?;
    let rules = match rules(store, bucket) {
        Ok(rules) => Ok(rules),
        Err(error) if matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::Corrupt) => {
            Err(format!("the bucket's policy or ACL, if it has one, cannot be relied on: {}", error.detail()))
        }
        Err(error) => return Err(error),
    };
    Ok(BucketOwnerAndRules { owner, rules, read_in })
}

/// Reads the documents that control access. The public access block is read only if the policy or the ACL is public.
fn rules(store: &dyn Store, bucket: &Bucket) -> Result<BucketAccessRules> {
    let policy = store.document(bucket, &POLICY)?.map(|document| {
        Policy::parse(&document, bucket.as_str()).map_err(|error| corrupt("the policy", error.to_string()))
    });
    let (policy, acl) = (policy.transpose()?, acl(store, bucket)?);
    let block = match acl.is_public() || policy.as_ref().is_some_and(Policy::is_public) {
        true => block(store, bucket)?,
        false => PublicAccessBlock::default(),
    };
    Ok(BucketAccessRules { policy, acl, block })
}

/// Reads the public access block of a bucket. Errors: `Corrupt`, and errors from reading.
pub(crate) fn block(store: &dyn Store, bucket: &Bucket) -> Result<PublicAccessBlock> {
    let block = store.document(bucket, &PUBLIC_ACCESS_BLOCK)?.map(|document| {
        block_of(&document).ok_or_else(|| corrupt("the public access block", "it is malformed".to_owned()))
    });
    Ok(block.transpose()?.unwrap_or_default())
}

/// Reads the ACL of a bucket. The ACL is private if the ownership controls disable ACLs. Errors: `Corrupt`, and errors
/// from reading. Cost: one document; two documents if the bucket has an ACL.
pub(crate) fn acl(store: &dyn Store, bucket: &Bucket) -> Result<CannedAcl> {
    let Some(document) = store.document(bucket, &ACL)? else { return Ok(CannedAcl::Private) };
    let acl = acl_of(&document).ok_or_else(|| corrupt("the ACL", "it is not a canned ACL".to_owned()))?;
    Ok(if enables_acls(store, bucket)? { acl } else { CannedAcl::Private })
}

fn corrupt(what: &str, why: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}: {why}"))
}

/// Reads a public access block; `None` if the document is malformed.
pub(crate) fn block_of(document: &[u8]) -> Option<PublicAccessBlock> {
    let read: PublicAccessBlockConfiguration = crate::s3::documents::read(document).ok()?;
    Some(PublicAccessBlock {
        block_public_acls: read.block_public_acls.unwrap_or(false),
        ignore_public_acls: read.ignore_public_acls.unwrap_or(false),
        block_public_policy: read.block_public_policy.unwrap_or(false),
        restrict_public_buckets: read.restrict_public_buckets.unwrap_or(false),
    })
}
