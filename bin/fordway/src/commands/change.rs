//! Commands that create buckets (`mb`), remove buckets (`rb`) and objects (`rm`), and create collections on WebDAV
//! servers or markers that represent directories in buckets (`mkdir`). This file also contains the commands that change
//! settings of a bucket or object (`versioning`, `tag`).

use std::fmt;
use std::sync::Arc;

use fordway_command::{CommandContext, CommandExit, StorageAddress, shown_name};
use fordway_store::{
    Bucket, Conditions, DeleteOptions, DeleteResult, Error, ErrorKind, GetOptions, Key, ListQuery,
    PutOptions, Result, Store, Tags, UploadsQuery, VersionId, VersionSummary, VersioningState, VersionsQuery,
};
use serde::Serialize;

use super::batches::{BusyKeys, VersionBatches};
use super::cp::from_item;
use super::{AddressOptions, SourceSelection};
use crate::args::{MbArgs, MkdirArgs, RbArgs, RmArgs, TagArgs, VersioningArgs, VersioningChange};
use crate::transfer::{
    self, LinkRemoval, RemovedLinks, SharedTransferCounts, TransferAction, TransferSettings, plan,
};
use crate::wildcard::{FilterRules, object_name};
use crate::{dav, web};

/// A bucket that was created or removed.
#[derive(Serialize)]
pub(super) struct BucketChangeOutput<'e> {
    pub(super) operation: &'static str,
    pub(super) bucket: &'e str,
    pub(super) dry_run: bool,
}

impl fmt::Display for BucketChangeOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, self.bucket)
    }
}

pub(super) fn mb(args: &MbArgs, context: &CommandContext) -> Result<CommandExit> {
    super::for_each(context, &args.buckets, |text| {
        let bucket = StorageAddress::parse(text)?.into_bucket()?;
        context.store()?.create_bucket(&bucket)?;
        let event = BucketChangeOutput { operation: "make_bucket", bucket: bucket.as_str(), dry_run: false };
        context.output.completed(&event).map(|()| CommandExit::Ok)
    })
}

pub(super) fn rb(args: &RbArgs, context: &CommandContext) -> Result<CommandExit> {
    super::for_each(context, &args.buckets, |text| {
        let bucket = StorageAddress::parse(text)?.into_bucket()?;
        if args.force {
            let emptied = empty(args, context, &bucket)?;
            if emptied != CommandExit::Ok {
                return Ok(emptied);
            }
        }
        let store = context.store()?;
        match args.dry_run {
            // The dry run has not removed the objects, so with --force, the bucket need not be empty.
            true if args.force => store.head_bucket(&bucket).map(drop)?,
            true => rehearse_removal(&*store, &bucket)?,
            false => store.delete_bucket(&bucket)?,
        }
        let event =
            BucketChangeOutput { operation: "remove_bucket", bucket: bucket.as_str(), dry_run: args.dry_run };
        context.output.completed(&event).map(|()| CommandExit::Ok)
    })
}

/// Checks that a bucket exists and contains neither objects nor versions. Errors: `BucketNotEmpty`, and the errors for
/// a bucket that does not exist. Cost: up to four requests.
fn rehearse_removal(store: &dyn Store, bucket: &Bucket) -> Result<()> {
    store.head_bucket(bucket)?;
    let first = ListQuery { max_keys: 1, ..Default::default() };
    if store.list(bucket, &first)?.entries.is_empty() && !has_versions(store, bucket)? {
        return Ok(());
    }
    let error = Error::from(ErrorKind::BucketNotEmpty);
    Err(error.during("delete bucket", store.lane(), bucket.as_str(), ""))
}

fn has_versions(store: &dyn Store, bucket: &Bucket) -> Result<bool> {
    let first = VersionsQuery { max_keys: 1, ..Default::default() };
    match store.versioning(bucket) {
        // A user who may remove a bucket need not have permission to read its settings.
        Ok(VersioningState::Unversioned) | Err(_) => Ok(false),
        Ok(_) => Ok(!store.list_versions(bucket, &first)?.versions.is_empty()),
    }
}

fn empty(args: &RbArgs, context: &CommandContext, bucket: &Bucket) -> Result<CommandExit> {
    let removed = match context.store()?.versioning(bucket)? {
        VersioningState::Unversioned => remove_objects(args, context, bucket)?,
        VersioningState::Enabled | VersioningState::Suspended => remove_versions(args, context, bucket)?,
    };
    let aborted = if args.dry_run { CommandExit::Ok } else { abort_uploads(args, context, bucket)? };
    Ok(if removed == CommandExit::Ok { aborted } else { removed })
}

fn remove_objects(args: &RbArgs, context: &CommandContext, bucket: &Bucket) -> Result<CommandExit> {
    let root = StorageAddress::S3(bucket.clone(), String::new());
    let items = plan::items(context, &root, &FilterRules::default())?;
    let removals = items.map(|item| item.map(|item| TransferAction::Remove(from_item(&root, &item))));
    let settings = TransferSettings::removal(args.dry_run, args.jobs, vec![(bucket.clone(), String::new())]);
    transfer::run(context, &settings, removals)
}

/// Aborts all unfinished uploads of a bucket, because services refuse to remove a bucket that has unfinished uploads.
/// Aborts several uploads at a time.
fn abort_uploads(args: &RbArgs, context: &CommandContext, bucket: &Bucket) -> Result<CommandExit> {
    let store = context.store()?;
    let mut query = UploadsQuery::default();
    let pages = pages(move || {
        let page = context.store()?.list_uploads(bucket, &query)?;
        let last = page.uploads.last().filter(|_| page.truncated);
        let is_last = last.is_none();
        if let Some(last) = last {
            query.key_after = Some(last.key.clone());
            query.upload_after = Some(last.upload.as_str().to_owned());
        }
        Ok((page.uploads, is_last))
    });
    let uploads = pages.flat_map(|page| match page {
        Ok(uploads) => uploads.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    });
    let tally = SharedTransferCounts::default();
    let uploads = uploads.take_while(|_| !context.interrupt.is_raised());
    transfer::for_each(args.jobs, uploads, |upload| {
        let aborted =
            upload.and_then(|found| store.abort_upload(bucket, &Key::new(found.key)?, &found.upload));
        tally.count(context, aborted);
    });
    tally.finish(context)
}

/// Returns the pages of a listing. `next` fetches one page, and returns whether this is the last page. The iterator
/// ends after an error.
fn pages<T>(mut next: impl FnMut() -> Result<(Vec<T>, bool)>) -> impl Iterator<Item = Result<Vec<T>>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let page = next();
        is_over = page.as_ref().is_ok_and(|(_, is_last)| *is_last) || page.is_err();
        Some(page.map(|(entries, _)| entries))
    })
}

pub(super) fn rm(args: &RmArgs, context: &CommandContext) -> Result<CommandExit> {
    let mut sources = Vec::new();
    let (web, others): (Vec<_>, Vec<_>) = args.addresses.iter().partition(|text| web::is_address(text));
    if !web.is_empty() {
        if !others.is_empty() || args.version_id.is_some() {
            let why = "web addresses cannot be combined with other addresses or with --version-id";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        return super::for_each(context, web, |text| dav::remove(text, args, context));
    }
    let options =
        AddressOptions { recursive: args.recursive, raw: args.raw, has_version: args.version_id.is_some() };
    for text in &args.addresses {
        // Local files can be removed with the system's `rm`. A typo in this command must not remove a local file.
        StorageAddress::parse(text)?.into_s3()?;
        sources.push(SourceSelection::resolve(text, options, context)?);
    }
    super::check_filters_of_removal(&sources, &args.filters)?;
    if let Some(version) = &args.version_id {
        let (bucket, key) = only_object(&sources)?;
        if args.dry_run {
            context.store()?.head_bucket(&bucket)?;
        }
        return remove(context, (&bucket, &key), version, args.dry_run);
    }
    let settings = TransferSettings::removal(args.dry_run, args.jobs, emptied(&sources, &args.filters));
    let removals = sources.into_iter().flat_map(|source| removals(context, source, &args.filters));
    transfer::run(context, &settings, removals)
}

/// Returns the buckets and prefixes of the sources that the command removes completely.
fn emptied(sources: &[SourceSelection], filters: &FilterRules) -> Vec<(Bucket, String)> {
    let below = sources.iter().filter_map(|source| match source {
        SourceSelection::Below(StorageAddress::S3(bucket, prefix)) if filters.is_empty() => {
            Some((bucket.clone(), prefix.clone()))
        }
        _ => None,
    });
    below.collect()
}

/// Returns the removals to perform for one address. An address that cannot be listed counts as one failure.
fn removals<'a>(
    context: &CommandContext,
    source: SourceSelection,
    filters: &'a FilterRules,
) -> Box<dyn Iterator<Item = Result<TransferAction>> + 'a> {
    let root = source.root();
    match (source.items(context, filters), source) {
        (Err(error), _) => Box::new(std::iter::once(Err(error))),
        (Ok(None), SourceSelection::One(place)) => {
            let is_admitted = match &place {
                StorageAddress::S3(_, key) => filters.admit(object_name(key)),
                _ => true,
            };
            Box::new(is_admitted.then_some(Ok(TransferAction::Remove(place))).into_iter())
        }
        (Ok(None), _) => Box::new(std::iter::empty()),
        (Ok(Some(items)), _) => Box::new(items.filter_map(move |item| match item {
            Ok(item) => {
                filters.admit(&item.relative).then(|| Ok(TransferAction::Remove(from_item(&root, &item))))
            }
            Err(error) => Some(Err(error)),
        })),
    }
}

/// A version that was removed.
#[derive(Serialize)]
struct RemovedVersionOutput<'r> {
    operation: &'static str,
    source: &'r str,
    version_id: &'r str,
    dry_run: bool,
}

impl fmt::Display for RemovedVersionOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}delete: {} (version {})", shown_name(self.source), self.version_id)
    }
}

/// Returns the object to which `--version-id` applies. Errors: `InvalidArgument` if the sources are not exactly one
/// object.
pub(super) fn only_object(sources: &[SourceSelection]) -> Result<(Bucket, Key)> {
    match sources {
        [SourceSelection::One(place @ StorageAddress::S3(..))] => place.clone().into_object(),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            "--version-id needs exactly one object and its full key (add --raw to treat * and ? as literal \
             characters)",
        )),
    }
}

/// Removes a version permanently, and reports the removal.
pub(super) fn remove(
    context: &CommandContext,
    (bucket, key): (&Bucket, &Key),
    version: &VersionId,
    dry_run: bool,
) -> Result<CommandExit> {
    if !dry_run {
        let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
        context.store()?.delete(bucket, key, &options)?;
    }
    print_removed(context, (bucket, key), version, dry_run).map(|()| CommandExit::Ok)
}

/// Reports the removal of a version.
fn print_removed(
    context: &CommandContext,
    (bucket, key): (&Bucket, &Key),
    version: &VersionId,
    dry_run: bool,
) -> Result<()> {
    let source = format!("s3://{bucket}/{key}");
    let version_id = version.as_str();
    let removed = RemovedVersionOutput { operation: "delete", source: &source, version_id, dry_run };
    context.output.completed(&removed)
}

/// Removes all versions and delete markers of a bucket, in batches, of which several are removed at a time.
fn remove_versions(args: &RbArgs, context: &CommandContext, bucket: &Bucket) -> Result<CommandExit> {
    let mut query = VersionsQuery::default();
    let pages = pages(move || {
        let page = context.store()?.list_versions(bucket, &query)?;
        let is_last = page.next.is_none();
        if let Some((key, version)) = page.next {
            (query.key_after, query.version_after) = (Some(key), version);
        }
        Ok((page.versions, is_last))
    });
    let (tally, links) = (SharedTransferCounts::default(), RemovedLinks::default());
    let removal =
        VersionRemoval { context, store: context.store()?, bucket, dry_run: args.dry_run, links, tally };
    let batches = VersionBatches::new(pages).take_while(|_| !context.interrupt.is_raised());
    let busy = BusyKeys::default();
    transfer::for_each(args.jobs, batches, |batch| match batch {
        Ok(versions) => {
            let _busy = versions.first().map(|first| busy.wait_for(&first.key));
            removal.remove(&versions);
        }
        Err(error) => removal.tally.failed(context, &error),
    });
    removal.tally.finish(context)
}

/// The removal of all versions of a bucket.
struct VersionRemoval<'c> {
    context: &'c CommandContext,
    store: Arc<dyn Store>,
    bucket: &'c Bucket,
    dry_run: bool,
    links: RemovedLinks,
    tally: SharedTransferCounts,
}

impl VersionRemoval<'_> {
    /// Removes a batch of versions. After a signal, does nothing.
    fn remove(&self, listed: &[VersionSummary]) {
        if self.context.interrupt.is_raised() {
            return;
        }
        let mut versions = Vec::with_capacity(listed.len());
        for found in listed {
            match Key::new(found.key.as_str()) {
                Ok(key) => versions.push((key, found.version.clone())),
                Err(error) => self.tally.failed(self.context, &error),
            }
        }
        let results = match self.dry_run {
            true => versions.iter().map(|_| Ok(DeleteResult::default())).collect(),
            false => self.store.delete_versions(self.bucket, &versions),
        };
        for ((key, version), result) in versions.iter().zip(results) {
            let removed = match result {
                Ok(_) => print_removed(self.context, (self.bucket, key), version, self.dry_run),
                Err(error) if error.leaves_bucket() => self.remove_link(key, error),
                Err(error) => Err(error),
            };
            self.tally.count(self.context, removed);
        }
    }

    /// Removes the link through which `key` leaves the bucket, instead of the versions reached through the link. The
    /// removal of `key` has failed with `error`.
    fn remove_link(&self, key: &Key, error: Error) -> Result<()> {
        match self.links.remove(&*self.store, (self.bucket, key), "")? {
            LinkRemoval::Done(link) => {
                print_removed(self.context, (self.bucket, &link), &VersionId::null(), self.dry_run)
            }
            LinkRemoval::DoneBefore => Ok(()),
            LinkRemoval::NotFound => Err(error),
        }
    }
}

/// A directory marker that was created.
#[derive(Serialize)]
struct CreatedDirectoryMarker {
    operation: &'static str,
    source: String,
}

impl std::fmt::Display for CreatedDirectoryMarker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.operation, shown_name(&self.source))
    }
}

pub(super) fn mkdir(args: &MkdirArgs, context: &CommandContext) -> Result<CommandExit> {
    super::for_each(context, &args.addresses, |text| {
        if web::is_address(text) {
            return dav::make(text, args.parents, context).map(|()| CommandExit::Ok);
        }
        let place = StorageAddress::parse(text)?;
        if matches!(place, StorageAddress::Local(_)) {
            let why = format!("{text} is a local path; use the `mkdir` command of the system");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let (bucket, key) = place.into_directory().into_s3()?;
        if key.is_empty() {
            let why = format!("s3://{bucket} is a bucket; create it with `fordway mb`");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let source = format!("s3://{bucket}/{key}");
        make_marker(&*context.store()?, &bucket, &Key::new(key)?, args.parents)?;
        let event = CreatedDirectoryMarker { operation: "make_prefix", source };
        context.output.completed(&event).map(|()| CommandExit::Ok)
    })
}

/// Creates an empty object whose key ends with a slash. Never replaces an object: programs that show such objects as
/// directories may store content in them. Errors: `PreconditionFailed` if the object exists, unless `may_exist`.
fn make_marker(store: &dyn Store, bucket: &Bucket, key: &Key, may_exist: bool) -> Result<()> {
    let only_new = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    let made = match store.head(bucket, key, &GetOptions::default()) {
        // Some services ignore the condition of the request, and would replace the object.
        Ok(_) => Err(ErrorKind::PreconditionFailed.into()),
        Err(error) if error.kind() == ErrorKind::NoSuchKey => {
            match store.put(bucket, key, &[], &only_new) {
                // The service does not support the condition.
                Err(error) if error.kind() == ErrorKind::NotImplemented => {
                    store.put(bucket, key, &[], &PutOptions::default())
                }
                made => made,
            }
        }
        // Services refuse to tell users without permission to list the bucket whether an object exists.
        Err(error) if error.kind() == ErrorKind::AccessDenied => store.put(bucket, key, &[], &only_new),
        Err(error) => Err(error),
    };
    match made {
        Err(error) if error.kind() == ErrorKind::PreconditionFailed && may_exist => Ok(()),
        Err(error) if error.kind() == ErrorKind::PreconditionFailed => {
            Err(Error::new(ErrorKind::PreconditionFailed, format!("s3://{bucket}/{key} already exists")))
        }
        made => made.map(drop),
    }
}

/// The output of `versioning`.
#[derive(Serialize)]
struct BucketVersioningReport<'r> {
    bucket: &'r str,
    versioning: &'static str,
}

impl fmt::Display for BucketVersioningReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}: {}", self.bucket, self.versioning)
    }
}

pub(super) fn versioning(args: &VersioningArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let store = context.store()?;
    let wanted = args.change.map(|change| match change {
        VersioningChange::Enable => VersioningState::Enabled,
        VersioningChange::Suspend => VersioningState::Suspended,
    });
    let versioning = match wanted {
        Some(wanted) => store.set_versioning(&bucket, wanted).map(|()| wanted)?,
        None => store.versioning(&bucket)?,
    };
    let versioning = match versioning {
        VersioningState::Unversioned => "unversioned",
        VersioningState::Enabled => "enabled",
        VersioningState::Suspended => "suspended",
    };
    context
        .output
        .record(&BucketVersioningReport { bucket: bucket.as_str(), versioning })
        .map(|()| CommandExit::Ok)
}

/// The tags of an object, printed one per line.
#[derive(Serialize)]
struct PrintedObjectTags<'r> {
    bucket: &'r str,
    key: &'r str,
    tags: &'r Tags,
}

impl fmt::Display for PrintedObjectTags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

pub(super) fn tag(args: &TagArgs, context: &CommandContext) -> Result<CommandExit> {
    let (bucket, key) = StorageAddress::parse(&args.address)?.into_object()?;
    let (store, version) = (context.store()?, args.version_id.as_ref());
    if args.remove || !args.tags.is_empty() {
        store.set_tags(&bucket, &key, version, &distinct(&args.tags)?)?;
        return Ok(CommandExit::Ok);
    }
    let tags = store.tags(&bucket, &key, version)?;
    let record = PrintedObjectTags { bucket: bucket.as_str(), key: key.as_str(), tags: &tags };
    match tags.is_empty() {
        // For an object without tags, the text format prints nothing, but JSON output contains a record.
        true => context.output.row(&record)?,
        false => context.output.record(&record)?,
    }
    Ok(CommandExit::Ok)
}

/// Collects tags. Errors: `InvalidTag` for a repeated name.
fn distinct(listed: &[(String, String)]) -> Result<Tags> {
    let mut tags = Tags::new();
    for (name, value) in listed {
        if tags.insert(name.clone(), value.clone()).is_some() {
            return Err(Error::new(ErrorKind::InvalidTag, format!("{name:?} is used twice")));
        }
    }
    Ok(tags)
}
