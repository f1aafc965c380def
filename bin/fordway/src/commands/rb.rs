//! `rb`: removes buckets, with `--force` those that hold something too.

use fordway_command::{Address, Context, Exit};
use fordway_store::{Bucket, Result, Store, UploadsQuery, Versioning};

use super::cp::from_item;
use super::mb::BucketEvent;
use super::versions::remove_all;
use crate::args::RbArgs;
use crate::transfer::{self, Action, Settings, tree};

pub(super) fn run(args: &RbArgs, context: &Context) -> Result<Exit> {
    super::for_each(context, &args.buckets, |text| {
        let bucket = Address::parse(text)?.into_bucket()?;
        if args.force {
            let emptied = empty(args, context, &bucket)?;
            if emptied != Exit::Ok {
                return Ok(emptied);
            }
        }
        let store = context.store()?;
        match args.dry_run {
            true => store.head_bucket(&bucket).map(drop)?,
            false => store.delete_bucket(&bucket)?,
        }
        let event =
            BucketEvent { operation: "remove_bucket", bucket: bucket.as_str(), dry_run: args.dry_run };
        context.output.event(&event).map(|()| Exit::Ok)
    })
}

fn empty(args: &RbArgs, context: &Context, bucket: &Bucket) -> Result<Exit> {
    let removed = match context.store()?.versioning(bucket)? {
        Versioning::Unversioned => remove_objects(args, context, bucket)?,
        Versioning::Enabled | Versioning::Suspended => remove_all(context, bucket, args.dry_run)?,
    };
    if !args.dry_run {
        abort_uploads(&*context.store()?, bucket)?;
    }
    Ok(removed)
}

fn remove_objects(args: &RbArgs, context: &Context, bucket: &Bucket) -> Result<Exit> {
    let root = Address::S3(bucket.clone(), String::new());
    let items = tree::items(context, &root)?;
    let removals = items.map(|item| item.map(|item| Action::Remove(from_item(&root, &item))));
    transfer::run(context, &Settings::removal(args.dry_run, args.jobs), removals)
}

/// Services refuse to remove a bucket in which uploads are unfinished.
fn abort_uploads(store: &dyn Store, bucket: &Bucket) -> Result<()> {
    let mut query = UploadsQuery::default();
    loop {
        let page = store.list_uploads(bucket, &query)?;
        for upload in &page.uploads {
            store.abort_upload(bucket, &fordway_store::Key::new(upload.key.clone())?, &upload.upload)?;
        }
        let last = page.uploads.last().filter(|_| page.truncated);
        let Some(last) = last else { return Ok(()) };
        query.key_after = Some(last.key.clone());
        query.upload_after = Some(last.upload.as_str().to_owned());
    }
}
