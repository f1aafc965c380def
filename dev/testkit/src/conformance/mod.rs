//! The definition of the behaviour of a [`Store`]. Every case is a function that takes an empty store, so one line is
//! enough to test a new lane: `conformance_suite!(open_my_store())`.

mod buckets;
mod listing;
mod locks;
mod multipart;
mod objects;
mod versions;

pub use buckets::{
    a_bucket_with_objects_stays, a_missing_bucket_is_named, bucket_names_are_checked,
    buckets_are_made_listed_and_removed, documents_are_kept_and_replaced, documents_have_limits,
    tags_are_kept_and_replaced, tags_have_limits, tags_leave_the_metadata, tags_of_an_upload,
    tags_of_versions, tags_survive_copies,
};
pub use listing::{
    a_key_beside_its_own_prefix, a_prefix_beside_its_own_key, keys_that_are_no_paths, keys_that_are_paths,
    listing_is_in_byte_order, listing_pages_join, listing_rolls_up, listing_says_what_head_says,
    listing_with_start_after, long_keys,
};
pub use locks::{
    a_legal_hold_protects, a_new_version_has_no_retention_in_the_past, a_rename_has_conditions,
    a_rename_is_refused_by_name, a_rename_moves_an_object, a_retained_version_stays,
    a_retention_is_only_extended, object_lock_is_a_setting_of_the_bucket,
    the_default_retention_is_for_all_writers, without_object_lock_nothing_is_locked,
};
pub use multipart::{
    multipart_abort, multipart_checksum_without_the_number_of_parts, multipart_checksums_are_checked,
    multipart_checksums_are_kept, multipart_completion_is_repeatable, multipart_copies_parts,
    multipart_copies_parts_on_conditions, multipart_etag_is_that_of_s3, multipart_makes_one_object,
    multipart_of_uniform_parts, multipart_outlives_a_failed_completion, multipart_part_is_replaced,
    multipart_parts_are_checked, multipart_parts_are_listed, multipart_refuses_what_does_not_fit,
    parts_are_copied_from_versions_and_parts, parts_are_described, parts_are_read_by_number,
};
pub use objects::{
    an_abandoned_writer_leaves_nothing, batches_answer_in_order, checksums_are_kept, conditional_reads,
    copy_conditions, copy_keeps_all, copy_onto_itself, copy_replaces_metadata, copy_with_a_checksum,
    create_only, delete_only_if, deleting_nothing_succeeds, empty_objects, etags_follow_the_policy,
    large_objects_stream, many_are_deleted, many_ranges_at_once, many_ranges_of_a_version,
    metadata_round_trips, overwriting_replaces_everything, put_get_head_delete,
    racing_creators_have_one_winner, ranges, ranges_outside_are_refused, replace_only_if,
    very_many_ranges_at_once, wrong_digests_publish_nothing,
};
pub use versions::{
    a_bucket_with_versions_stays, a_delete_hides_behind_a_marker, a_malformed_id_is_refused,
    conditions_see_the_latest_version, deleting_a_version_promotes_the_next, many_are_marked,
    many_versions_are_deleted, objects_of_before_are_the_version_null, overwriting_keeps_versions,
    pages_of_versions_join, suspended_versioning_replaces_null, unknown_versions_are_named,
    versioning_is_a_state_of_the_bucket, versions_are_copied, versions_are_selected_and_rolled_up,
    versions_list_their_checksums, without_versioning_there_is_one_version,
};

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use fordway_store::{
    Bucket, DeleteOptions, Error, ErrorKind, GetOptions, Key, ListQuery, PutOptions, PutResult, Result, Store,
};

/// A store to test, together with the resources that must exist as long as the store.
pub struct StoreFixture {
    store: Arc<dyn Store>,
    _keep: Box<dyn std::any::Any>,
}

impl StoreFixture {
    /// Creates a fixture. `keep` (such as a temporary directory or a server) is dropped after the test.
    pub fn new(store: impl Store + 'static, keep: impl std::any::Any) -> Self {
        StoreFixture { store: Arc::new(store), _keep: Box::new(keep) }
    }
}

impl Deref for StoreFixture {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

/// Declares one test for each case. Each test runs on a new store, which `$open` returns.
#[macro_export]
macro_rules! conformance_suite {
    ($open:expr) => {
        $crate::conformance_suite! { @list declare ($open) }
    };
    (@list $rule:ident $open:tt) => {
        $crate::conformance_suite! { @$rule $open;
            buckets_are_made_listed_and_removed, bucket_names_are_checked, a_missing_bucket_is_named,
            a_bucket_with_objects_stays, put_get_head_delete, overwriting_replaces_everything, empty_objects,
            large_objects_stream, an_abandoned_writer_leaves_nothing, metadata_round_trips, ranges,
            ranges_outside_are_refused, deleting_nothing_succeeds, many_are_deleted, batches_answer_in_order, keys_that_are_paths,
            keys_that_are_no_paths, long_keys, a_key_beside_its_own_prefix, a_prefix_beside_its_own_key,
            listing_is_in_byte_order, listing_pages_join, listing_rolls_up, listing_with_start_after,
            listing_says_what_head_says, etags_follow_the_policy, wrong_digests_publish_nothing,
            checksums_are_kept, create_only, replace_only_if, delete_only_if, conditional_reads, copy_keeps_all,
            copy_replaces_metadata, copy_conditions, copy_onto_itself, copy_with_a_checksum, multipart_makes_one_object, multipart_of_uniform_parts, multipart_outlives_a_failed_completion,
            multipart_completion_is_repeatable, multipart_refuses_what_does_not_fit, multipart_parts_are_listed, multipart_part_is_replaced,
            multipart_abort, multipart_copies_parts, multipart_copies_parts_on_conditions,
            multipart_etag_is_that_of_s3, racing_creators_have_one_winner,
            many_ranges_at_once, many_ranges_of_a_version, very_many_ranges_at_once,
            multipart_checksum_without_the_number_of_parts,
            multipart_checksums_are_checked, multipart_checksums_are_kept, multipart_parts_are_checked,
            parts_are_copied_from_versions_and_parts, parts_are_described, parts_are_read_by_number,
            tags_are_kept_and_replaced, tags_have_limits, tags_leave_the_metadata, tags_of_an_upload,
            tags_of_versions, tags_survive_copies, a_bucket_with_versions_stays,
            a_delete_hides_behind_a_marker, a_malformed_id_is_refused,
            conditions_see_the_latest_version, deleting_a_version_promotes_the_next, many_are_marked, many_versions_are_deleted, objects_of_before_are_the_version_null,
            overwriting_keeps_versions, pages_of_versions_join, suspended_versioning_replaces_null,
            versions_list_their_checksums,
            unknown_versions_are_named, versioning_is_a_state_of_the_bucket, versions_are_copied,
            versions_are_selected_and_rolled_up, without_versioning_there_is_one_version,
            documents_are_kept_and_replaced, documents_have_limits, a_legal_hold_protects, a_rename_has_conditions,
            a_rename_is_refused_by_name, a_rename_moves_an_object, a_retained_version_stays,
            a_new_version_has_no_retention_in_the_past, a_retention_is_only_extended, object_lock_is_a_setting_of_the_bucket,
            the_default_retention_is_for_all_writers, without_object_lock_nothing_is_locked
        }
    };
    (@declare ($open:expr); $($case:ident),* $(,)?) => {
        $(#[test]
        fn $case() {
            let fixture: $crate::conformance::StoreFixture = $open;
            $crate::conformance::$case(&*fixture);
        })*

        /// Every case must be declared, because an undeclared case would never run.
        #[test]
        fn every_case_is_declared() {
            assert_eq!([$(stringify!($case)),*].len(), $crate::conformance::cases_written());
        }
    };
    (@run ($open:expr); $($case:ident),* $(,)?) => {{
        let cases: &[ConformanceCase] = &[$((stringify!($case), $case)),*];
        run_cases(cases, $open)
    }};
}

/// Runs every case on a separate store, and returns the number of cases. Used with fixtures that are too costly to
/// create for each test, such as a file system. Panics with the names of the failed cases.
pub fn run_all(open: &dyn Fn() -> StoreFixture) -> usize {
    conformance_suite! { @list run (open) }
}

/// A case and its name.
type ConformanceCase = (&'static str, fn(&dyn Store));

#[allow(clippy::print_stderr, reason = "which of them failed, and how long each takes")]
fn run_cases(cases: &[ConformanceCase], open: &dyn Fn() -> StoreFixture) -> usize {
    let fails = |(name, case): &ConformanceCase| {
        let begin = Instant::now();
        let has_failed = catch_unwind(AssertUnwindSafe(|| case(&*open()))).is_err();
        eprintln!("{name}: {:?}, {}", begin.elapsed(), !has_failed);
        has_failed
    };
    let failed: Vec<_> = cases.iter().filter(|case| fails(case)).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:?}", failed.len(), cases.len());
    cases.len()
}

/// Returns the number of cases in the files of this module.
pub fn cases_written() -> usize {
    let files = [
        include_str!("buckets.rs"),
        include_str!("listing.rs"),
        include_str!("locks.rs"),
        include_str!("multipart.rs"),
        include_str!("objects.rs"),
        include_str!("versions.rs"),
    ];
    let is_case = |line: &&str| line.starts_with("pub fn ") && line.ends_with("(store: &dyn Store) {");
    files.iter().map(|file| file.lines().filter(is_case).count()).sum()
}

fn bucket(store: &dyn Store) -> Bucket {
    let bucket = Bucket::new("conformance").unwrap();
    store.create_bucket(&bucket).unwrap();
    bucket
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn put(store: &dyn Store, bucket: &Bucket, name: &str, body: &[u8]) -> PutResult {
    store.put(bucket, &key(name), body, &PutOptions::default()).unwrap()
}

fn get(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<Vec<u8>> {
    store.get(bucket, &key(name), &GetOptions::default())?.content.into_vec()
}

fn head(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<fordway_store::ObjectInfo> {
    store.head(bucket, &key(name), &GetOptions::default())
}

fn delete(store: &dyn Store, bucket: &Bucket, name: &str) {
    store.delete(bucket, &key(name), &DeleteOptions::default()).unwrap();
}

fn all_keys(store: &dyn Store, bucket: &Bucket) -> Vec<String> {
    let listing = store.list(bucket, &ListQuery::default()).unwrap();
    assert_eq!(listing.next, None);
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

#[track_caller]
fn assert_kind<T>(result: Result<T>, kind: ErrorKind) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("this should have failed with {kind:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Returns bytes that depend on the offset and the seed.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = vec![0; len];
    for piece in content.chunks_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
    content
}
