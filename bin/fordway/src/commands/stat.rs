//! `stat` shows all metadata of an object or a bucket. `du` shows total sizes for each prefix one level below the
//! address, or for each owner of files.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use fordway_command::units::{human_bytes, local_time, show_bytes, utc_time};
use fordway_command::{CommandContext, CommandExit, StorageAddress, shown_name};
use fordway_posix::{ChosenBuckets, PosixConfig, PosixStore, UsageEvent, UserUsage};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Metadata, ObjectInfo, Result, VersionId};
use serde::Serialize;

use super::care::check_not_bucket;
use super::{SourceSelection, report};
use crate::args::{DuArgs, StatArgs};
use crate::wildcard::{FilterRules, has_wildcard};
use crate::{dav, web};

pub(super) fn run(args: &StatArgs, context: &CommandContext) -> Result<CommandExit> {
    if args.version_id.is_some() && args.addresses.len() != 1 {
        let why = "--version-id needs exactly one object";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    super::for_each(context, &args.addresses, |text| {
        if dav::is_dav(text) {
            return dav::stat(text, context).map(|()| CommandExit::Ok);
        }
        if web::is_address(text) {
            return web::stat(text, context).map(|()| CommandExit::Ok);
        }
        let (bucket, key) = StorageAddress::parse(text)?.into_s3()?;
        let store = context.store()?;
        if key.is_empty() && args.version_id.is_none() {
            let created = store.head_bucket(&bucket)?.created;
            context.output.record(&BucketStatOutput::new(&bucket, created))?;
        } else {
            let key = Key::new(key)?;
            let options = GetOptions { version: args.version_id.clone(), ..Default::default() };
            let info = store.head(&bucket, &key, &options)?;
            context.output.record(&ObjectStatOutput::new(&bucket, &key, &info))?;
        }
        Ok(CommandExit::Ok)
    })
}

#[derive(Serialize)]
struct BucketStatOutput<'r> {
    bucket: &'r str,
    created: Option<String>,
    #[serde(skip)]
    shown_time: Option<String>,
}

impl<'r> BucketStatOutput<'r> {
    /// Creates the record. S3 does not report the creation time of a single bucket. The Unix epoch in `created` means
    /// that the time is unknown.
    fn new(bucket: &'r Bucket, created: SystemTime) -> Self {
        let known = (created != SystemTime::UNIX_EPOCH).then_some(created);
        BucketStatOutput {
            bucket: bucket.as_str(),
            created: known.map(utc_time),
            shown_time: known.map(local_time),
        }
    }
}

impl fmt::Display for BucketStatOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "    Bucket: s3://{}", self.bucket)?;
        self.shown_time.as_ref().map_or(Ok(()), |time| write!(f, "\n   Created: {time}"))
    }
}

#[derive(Serialize)]
struct ObjectStatOutput<'r> {
    bucket: &'r str,
    key: &'r str,
    size_bytes: u64,
    modified: String,
    etag: &'r str,
    version_id: Option<&'r str>,
    part_count: Option<u16>,
    tag_count: usize,
    checksum_algorithm: Option<&'static str>,
    checksum: Option<String>,
    content_type: Option<&'r str>,
    content_encoding: Option<&'r str>,
    content_language: Option<&'r str>,
    content_disposition: Option<&'r str>,
    cache_control: Option<&'r str>,
    expires: Option<&'r str>,
    metadata: &'r BTreeMap<String, String>,
    #[serde(skip)]
    shown_time: String,
}

impl<'r> ObjectStatOutput<'r> {
    fn new(bucket: &'r Bucket, key: &'r Key, info: &'r ObjectInfo) -> Self {
        let Metadata {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            expires,
            user,
        } = &*info.metadata;
        ObjectStatOutput {
            bucket: bucket.as_str(),
            key: key.as_str(),
            size_bytes: info.size,
            modified: utc_time(info.modified),
            etag: info.etag.as_str(),
            version_id: info.version.as_ref().map(VersionId::as_str),
            part_count: info.part_count,
            tag_count: info.tag_count,
            checksum_algorithm: info.checksum.as_ref().map(|checksum| checksum.algorithm.name()),
            checksum: info.checksum.as_ref().map(fordway_store::Checksum::to_base64),
            content_type: content_type.as_deref(),
            content_encoding: content_encoding.as_deref(),
            content_language: content_language.as_deref(),
            content_disposition: content_disposition.as_deref(),
            cache_control: cache_control.as_deref(),
            expires: expires.as_deref(),
            metadata: user,
            shown_time: local_time(info.modified),
        }
    }
}

impl fmt::Display for ObjectStatOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    Object: s3://{}/{}", self.bucket, shown_name(self.key))?;
        writeln!(f, "      Size: {} ({} bytes)", human_bytes(self.size_bytes), self.size_bytes)?;
        write!(f, "  Modified: {}\n      ETag: {}", self.shown_time, self.etag)?;
        if let Some(version) = self.version_id {
            write!(f, "\n   Version: {version}")?;
        }
        if let Some(parts) = self.part_count {
            write!(f, "\n     Parts: {parts}")?;
        }
        if self.tag_count > 0 {
            write!(f, "\n      Tags: {}", self.tag_count)?;
        }
        if let (Some(algorithm), Some(value)) = (self.checksum_algorithm, &self.checksum) {
            write!(f, "\n  Checksum: {algorithm} {value}")?;
        }
        let headers = [
            ("Content-Type", self.content_type),
            ("Content-Encoding", self.content_encoding),
            ("Content-Language", self.content_language),
            ("Content-Disposition", self.content_disposition),
            ("Cache-Control", self.cache_control),
            ("Expires", self.expires),
        ];
        for (name, value) in headers {
            value.map_or(Ok(()), |value| write!(f, "\n    Header: {name}: {value}"))?;
        }
        self.metadata.iter().try_for_each(|(name, value)| write!(f, "\n  Metadata: {name}={value}"))
    }
}

#[derive(Clone, Copy, Default)]
struct SpaceUsage {
    objects: u64,
    size_bytes: u64,
}

impl SpaceUsage {
    fn add(&mut self, size_bytes: u64) {
        self.objects += 1;
        self.size_bytes += size_bytes;
    }
}

#[derive(Serialize)]
struct DiskUsageOutput<'r> {
    address: &'r str,
    objects: u64,
    size_bytes: u64,
    #[serde(skip)]
    human: bool,
}

impl fmt::Display for DiskUsageOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = show_bytes(self.size_bytes, self.human);
        write!(f, "{size:>14} {:>10} objects  {}", self.objects, shown_name(self.address))
    }
}

pub(super) fn du(args: &DuArgs, context: &CommandContext) -> Result<CommandExit> {
    if args.by_user {
        return du_by_user(args, context);
    }
    StorageAddress::parse(&args.address)?.into_s3()?;
    let source = SourceSelection::find(&args.address, true, args.raw)?;
    let root = source.root();
    let (mut prefixes, mut total) = (BTreeMap::<String, SpaceUsage>::new(), SpaceUsage::default());
    let items = match source.items(context, &FilterRules::default()) {
        // No key begins with the prefix, but the address may name one object, which is looked up later.
        Err(error) if matches!(source, SourceSelection::Below(_)) && error.kind() == ErrorKind::NoSuchKey => {
            None
        }
        items => items?,
    };
    for item in items.into_iter().flatten() {
        context.interrupt.check()?;
        let item = item?;
        total.add(item.size);
        if let Some((prefix, _)) = item.relative.split_once('/')
            && !args.summarize
        {
            prefixes.entry(prefix.to_owned()).or_default().add(item.size);
        }
    }
    if total.objects == 0
        && let Some(size_bytes) = object_size(args, context)?
    {
        total.add(size_bytes);
    }
    let print = |address: &str, usage: SpaceUsage| {
        let SpaceUsage { objects, size_bytes } = usage;
        context.output.record(&DiskUsageOutput { address, objects, size_bytes, human: args.human_readable })
    };
    for (prefix, usage) in prefixes {
        print(&format!("{}{prefix}/", show_root(&root)), usage)?;
    }
    print(&args.address, total)?;
    Ok(CommandExit::Ok)
}

/// Returns the size of the object at the address; `None` if there is no object at the address.
fn object_size(args: &DuArgs, context: &CommandContext) -> Result<Option<u64>> {
    let (bucket, key) = StorageAddress::parse(&args.address)?.into_s3()?;
    if key.is_empty() || (!args.raw && has_wildcard(&key)) {
        return Ok(None);
    }
    match context.store()?.head(&bucket, &Key::new(key)?, &GetOptions::default()) {
        Ok(info) => Ok(Some(info.size)),
        Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(None),
        Err(error) => Err(error),
    }
}

fn show_root(root: &StorageAddress) -> String {
    match root {
        StorageAddress::S3(bucket, prefix) => format!("s3://{bucket}/{prefix}"),
        other => other.to_string(),
    }
}

fn du_by_user(args: &DuArgs, context: &CommandContext) -> Result<CommandExit> {
    if args.address.contains("://") {
        let why = "--by-user counts files by owner; specify the directory that contains the buckets instead of a URL";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let store = PosixStore::open_for_care(args.address.as_ref(), PosixConfig::default())?;
    check_not_bucket(&store, args.address.as_ref())?;
    let mut exit = CommandExit::Ok;
    context.output.start_counting();
    let (mut usages, mut stopped) = (Vec::new(), false);
    let chosen = ChosenBuckets::of(&store, &[])?;
    for (_, error) in chosen.unreadable {
        exit = report(context, error)?;
    }
    for bucket in chosen.buckets {
        let usage = store.usage(&bucket, &mut |event| {
            context.interrupt.check().inspect_err(|_| stopped = true)?;
            match event {
                UsageEvent::Progress(entries) => context.output.counted(entries, "entries"),
                UsageEvent::Failed(error) => exit = report(context, error)?,
            }
            Ok(())
        });
        match usage {
            Ok(usage) => usages.push((bucket, usage)),
            // The bucket was removed in the meantime.
            Err(error) if error.kind() == ErrorKind::NoSuchBucket => {}
            Err(error) if stopped => return Err(error),
            Err(error) => exit = report(context, error)?,
        }
    }
    context.output.end_progress();
    let mut records = Vec::new();
    for (bucket, users) in &usages {
        for (uid, usage) in users {
            records.push(UserDiskUsageOutput::new(bucket, *uid, usage, args.human_readable));
        }
    }
    if args.prometheus {
        context.output.data(usage_metrics(&records).as_bytes())?;
        return Ok(exit);
    }
    records.iter().try_for_each(|record| context.output.record(record))?;
    Ok(exit)
}

/// Writes usage in the text format of Prometheus (0.0.4).
fn usage_metrics(records: &[UserDiskUsageOutput<'_>]) -> String {
    let mut text = String::new();
    let mut put = |name: &str, help: &str, values: fn(&UserDiskUsageOutput<'_>) -> [u64; 3]| {
        text += &format!("# HELP fordway_{name} {help}\n# TYPE fordway_{name} gauge\n");
        for record in records {
            // Names of buckets contain no characters that must be escaped (see `Bucket::new`). Names of users may: with
            // winbind or SSSD, a name can be `DOMAIN\user`.
            let labels = format!("bucket=\"{}\",user=\"{}\"", record.bucket, label(&record.user_name()));
            for (kind, value) in ["objects", "versions", "other"].iter().zip(values(record)) {
                text += &format!("fordway_{name}{{{labels},kind=\"{kind}\"}} {value}\n");
            }
        }
    };
    put("stored_files", "Files of a user in a bucket.", |of| [of.objects, of.versions, of.other_files]);
    put("stored_bytes", "Total length of the files of a user in a bucket.", |of| {
        [of.objects_bytes, of.versions_bytes, of.other_bytes]
    });
    text
}

/// Returns the text as the value of a label in the text format of Prometheus, without the quotation marks.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The files of a user in a bucket. The sizes are sums of file lengths, in bytes.
#[derive(Serialize)]
struct UserDiskUsageOutput<'r> {
    bucket: &'r str,
    uid: u32,
    /// The name of the user; `None` if the uid has no name on this machine.
    user: Option<String>,
    objects: u64,
    objects_bytes: u64,
    versions: u64,
    versions_bytes: u64,
    other_files: u64,
    other_bytes: u64,
    #[serde(skip)]
    human: bool,
}

impl<'r> UserDiskUsageOutput<'r> {
    fn new(bucket: &'r Bucket, uid: u32, usage: &UserUsage, human: bool) -> Self {
        let UserUsage { objects, versions, other } = usage;
        UserDiskUsageOutput {
            bucket: bucket.as_str(),
            uid,
            user: fordway_sys::user_name(uid),
            objects: objects.files,
            objects_bytes: objects.size_bytes,
            versions: versions.files,
            versions_bytes: versions.size_bytes,
            other_files: other.files,
            other_bytes: other.size_bytes,
            human,
        }
    }
}

impl UserDiskUsageOutput<'_> {
    fn user_name(&self) -> String {
        self.user.clone().unwrap_or_else(|| self.uid.to_string())
    }
}

impl fmt::Display for UserDiskUsageOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes| show_bytes(bytes, self.human);
        let user = self.user_name();
        write!(f, "{:>14} {:>10} objects", size(self.objects_bytes), self.objects)?;
        write!(f, " {:>14} {:>8} versions", size(self.versions_bytes), self.versions)?;
        write!(f, " {:>14} other  {user}  s3://{}", size(self.other_bytes), self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_escapes_what_would_end_it() {
        assert_eq!(label("anna"), "anna");
        assert_eq!(label("LAB\\user"), "LAB\\\\user");
        assert_eq!(label("a\"b\nc"), "a\\\"b\\nc");
    }
}
