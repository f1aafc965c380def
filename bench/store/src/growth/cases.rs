//! The cases. Each case creates objects for a given size, and measures the time of one operation.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, ExpectedContent, GetOptions, Key, ListQuery,
    MultipartUploadOperations, ObjectBatchOperations, ObjectVersionOperations, Objects, PartOptions,
    PartsQuery, PutOptions, UploadId, UploadsQuery, VersionId, VersioningState, VersionsQuery,
};

/// Which objects the size of a case counts.
#[derive(Clone, Copy)]
pub(crate) enum CaseSizeMeaning {
    /// The objects that the operation processes.
    Whole,
    /// Unrelated objects in the store. The operation processes only one key or page.
    One,
}

/// The timed operation, called repeatedly.
pub(crate) type GrowthOperation = Box<dyn FnMut() -> Result<()>>;

pub(crate) struct GrowthCase {
    pub(crate) name: &'static str,
    pub(crate) kind: CaseSizeMeaning,
    pub(crate) sizes: &'static [usize],
    /// The number of calls that are timed together.
    pub(crate) calls: usize,
    /// Creates the objects for a given size, and returns the operation.
    pub(crate) prepare: fn(&Path, usize) -> Result<GrowthOperation>,
}

/// Returns the mean time of `calls` calls, in nanoseconds.
pub(crate) fn timed(calls: usize, act: &mut GrowthOperation) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        act()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / calls as f64)
}

const MANY: &[usize] = &[1_000, 10_000, 100_000, 1_000_000];
const SOME: &[usize] = &[1_000, 10_000, 100_000];
const PARTS: &[usize] = &[100, 1_000, 10_000];
const BATCH: &[usize] = &[100, 1_000, 10_000];
const DEPTH: &[usize] = &[5, 50];

const fn whole(
    name: &'static str,
    sizes: &'static [usize],
    prepare: fn(&Path, usize) -> Result<GrowthOperation>,
) -> GrowthCase {
    GrowthCase { name, kind: CaseSizeMeaning::Whole, sizes, calls: 1, prepare }
}

const fn one(
    name: &'static str,
    sizes: &'static [usize],
    prepare: fn(&Path, usize) -> Result<GrowthOperation>,
) -> GrowthCase {
    GrowthCase { name, kind: CaseSizeMeaning::One, sizes, calls: 200, prepare }
}

pub(crate) fn all() -> Vec<GrowthCase> {
    vec![
        whole("list of all keys", MANY, |root, size| {
            list_all(BenchBucket::with_keys(root, size, plain)?, size, "")
        }),
        whole("list of all keys by prefix", MANY, |root, size| {
            list_all(BenchBucket::with_keys(root, size, plain)?, size, "k")
        }),
        whole("list of all odd keys", SOME, |root, size| {
            list_all(BenchBucket::with_keys(root, size, odd)?, size, "")
        }),
        one("page of keys", MANY, |root, size| {
            page(BenchBucket::with_keys(root, size, plain)?, plain(size / 2))
        }),
        one("page of odd keys", SOME, |root, size| {
            page(BenchBucket::with_keys(root, size, odd)?, odd(size / 2))
        }),
        one("get", MANY, get),
        one("head", MANY, head),
        one("head of a missing key", MANY, head_missing),
        one("put and delete of a key", MANY, |root, size| {
            put_and_delete(BenchBucket::with_keys(root, size, plain)?, "new")
        }),
        one("put and delete of an odd key", SOME, |root, size| {
            put_and_delete(BenchBucket::with_keys(root, size, odd)?, "run//new")
        }),
        one("overwrite", MANY, overwrite),
        one("put next to old versions", SOME, put_version),
        one("get of an old version", SOME, get_version),
        one("page of versions of a key", SOME, page_of_versions),
        whole("list of all versions, two of each key", SOME, list_versions),
        whole("list of all uploads", SOME, |root, size| list_uploads(root, size, usize::MAX)),
        one("page of uploads", SOME, |root, size| list_uploads(root, size, 50)),
        one("begin and abort of an upload", SOME, begin_and_abort),
        one("part of an upload", PARTS, put_part),
        one("page of parts", PARTS, page_of_parts),
        whole("completion of an upload", PARTS, complete),
        whole("batch of puts", BATCH, put_many),
        whole("batch of gets", BATCH, get_many),
        whole("batch of deletes", BATCH, delete_many),
        whole("put and delete at a depth", DEPTH, at_depth),
        whole("list of buckets", SOME, list_buckets),
        one("head of a bucket", SOME, head_bucket),
    ]
}

/// A store that has one bucket.
pub(crate) struct BenchBucket {
    pub(crate) store: PosixStore,
    pub(crate) bucket: Bucket,
}

pub(crate) fn plain(number: usize) -> String {
    format!("k{number:08}")
}

/// Returns an odd key, whose path has an empty component.
pub(crate) fn odd(number: usize) -> String {
    format!("run//e{number:08}")
}

impl BenchBucket {
    pub(crate) fn new(root: &Path) -> Result<Self> {
        let (store, bucket) = (PosixStore::open(root, PosixConfig::default())?, Bucket::new("growth")?);
        store.create_bucket(&bucket)?;
        Ok(BenchBucket { store, bucket })
    }

    pub(crate) fn with_keys(root: &Path, count: usize, name: fn(usize) -> String) -> Result<Self> {
        let bench = BenchBucket::new(root)?;
        (0..count).try_for_each(|number| bench.put(&name(number)).map(drop))?;
        // Reopen the store, so that the store has no cached state of the bucket, as in a later program.
        Ok(BenchBucket { store: PosixStore::open(root, PosixConfig::default())?, ..bench })
    }

    fn with_versions(root: &Path, count: usize) -> Result<(Self, Vec<VersionId>)> {
        let bench = BenchBucket::new(root)?;
        bench.store.set_versioning(&bench.bucket, VersioningState::Enabled)?;
        let versions = (0..count).map(|_| bench.put("k")).collect::<Result<Vec<_>>>()?;
        Ok((bench, versions.into_iter().flatten().collect()))
    }

    fn with_parts(root: &Path, count: usize) -> Result<(Self, UploadId)> {
        let bench = BenchBucket::new(root)?;
        let upload = bench.store.create_upload(&bench.bucket, &Key::new("u")?, &PutOptions::default())?;
        (1..=count).try_for_each(|number| bench.put_part(&upload, number).map(drop))?;
        Ok((bench, upload))
    }

    pub(crate) fn put(&self, key: &str) -> Result<Option<VersionId>> {
        Ok(self.store.put(&self.bucket, &Key::new(key)?, b"content", &PutOptions::default())?.version)
    }

    fn put_part(&self, upload: &UploadId, number: usize) -> Result<CompletedPart> {
        let (number, key) = (u16::try_from(number)?, Key::new("u")?);
        let mut part = self.store.part_writer(&self.bucket, &key, upload, number, &PartOptions::default())?;
        part.write(b"content")?;
        Ok(CompletedPart::new(number, part.commit(&ExpectedContent::default())?.etag))
    }

    /// Lists in one page; returns the number of keys.
    pub(crate) fn list(&self, prefix: &str) -> Result<usize> {
        let query = ListQuery { max_keys: usize::MAX, ..ListQuery::prefix(prefix) };
        Ok(self.store.list(&self.bucket, &query)?.entries.len())
    }
}

/// Returns a generator of numbers below `size`; successive numbers are far apart.
fn far_apart(size: usize) -> impl FnMut() -> usize {
    let mut number = 0;
    move || {
        number = (number + 7_919) % size;
        number
    }
}

fn list_all(bench: BenchBucket, size: usize, prefix: &'static str) -> Result<GrowthOperation> {
    Ok(Box::new(move || {
        ensure!(bench.list(prefix)? == size);
        Ok(())
    }))
}

fn page(bench: BenchBucket, start: String) -> Result<GrowthOperation> {
    let query = ListQuery { start_after: Some(start), max_keys: 50, ..ListQuery::default() };
    Ok(Box::new(move || {
        ensure!(bench.store.list(&bench.bucket, &query)?.entries.len() == 50);
        Ok(())
    }))
}

fn get(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, mut next) = (BenchBucket::with_keys(root, size, plain)?, far_apart(size));
    let mut content = Vec::new();
    Ok(Box::new(move || {
        let key = Key::new(plain(next()))?;
        bench.store.read(&bench.bucket, &key, &GetOptions::default(), &mut content)?;
        Ok(())
    }))
}

fn head(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, mut next) = (BenchBucket::with_keys(root, size, plain)?, far_apart(size));
    Ok(Box::new(move || {
        bench.store.head(&bench.bucket, &Key::new(plain(next()))?, &GetOptions::default())?;
        Ok(())
    }))
}

fn head_missing(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, mut next) = (BenchBucket::with_keys(root, size, plain)?, far_apart(size));
    Ok(Box::new(move || {
        let key = Key::new(format!("{}-not", plain(next())))?;
        ensure!(bench.store.head(&bench.bucket, &key, &GetOptions::default()).is_err());
        Ok(())
    }))
}

fn put_and_delete(bench: BenchBucket, name: &'static str) -> Result<GrowthOperation> {
    let key = Key::new(name)?;
    Ok(Box::new(move || {
        bench.put(name)?;
        bench.store.delete(&bench.bucket, &key, &Default::default())?;
        Ok(())
    }))
}

fn overwrite(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, mut next) = (BenchBucket::with_keys(root, size, plain)?, far_apart(size));
    Ok(Box::new(move || bench.put(&plain(next())).map(drop)))
}

fn put_version(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, _) = BenchBucket::with_versions(root, size)?;
    Ok(Box::new(move || bench.put("k").map(drop)))
}

fn get_version(root: &Path, size: usize) -> Result<GrowthOperation> {
    let ((bench, versions), mut next) = (BenchBucket::with_versions(root, size)?, far_apart(size));
    let key = Key::new("k")?;
    Ok(Box::new(move || {
        bench.store.get(&bench.bucket, &key, &GetOptions::version(versions[next()].clone()))?;
        Ok(())
    }))
}

fn page_of_versions(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, versions) = BenchBucket::with_versions(root, size)?;
    let query = VersionsQuery {
        key_after: Some("k".into()),
        version_after: Some(versions[size / 2].clone()),
        max_keys: 50,
        ..Default::default()
    };
    Ok(Box::new(move || {
        ensure!(bench.store.list_versions(&bench.bucket, &query)?.versions.len() == 50);
        Ok(())
    }))
}

fn list_versions(root: &Path, size: usize) -> Result<GrowthOperation> {
    let bench = with_two_versions(root, size / 2)?;
    Ok(Box::new(move || {
        ensure!(all_versions(&bench)? == size / 2 * 2);
        Ok(())
    }))
}

/// Creates a bucket in which each of `keys` keys has two versions.
pub(crate) fn with_two_versions(root: &Path, keys: usize) -> Result<BenchBucket> {
    let (bench, _) = BenchBucket::with_versions(root, 0)?;
    (0..2 * keys).try_for_each(|number| bench.put(&plain(number % keys)).map(drop))?;
    Ok(bench)
}

/// Lists all versions in pages of 1,000; returns their number.
pub(crate) fn all_versions(bench: &BenchBucket) -> Result<usize> {
    let (mut query, mut count) = (VersionsQuery::default(), 0);
    loop {
        let page = bench.store.list_versions(&bench.bucket, &query)?;
        count += page.versions.len();
        match page.next {
            Some((key, version)) => (query.key_after, query.version_after) = (Some(key), version),
            None => return Ok(count),
        }
    }
}

fn with_uploads(root: &Path, count: usize) -> Result<BenchBucket> {
    let bench = BenchBucket::new(root)?;
    for number in 0..count {
        bench.store.create_upload(&bench.bucket, &Key::new(plain(number))?, &PutOptions::default())?;
    }
    Ok(bench)
}

fn list_uploads(root: &Path, size: usize, max_uploads: usize) -> Result<GrowthOperation> {
    let bench = with_uploads(root, size)?;
    let is_page = max_uploads < size;
    let key_after = is_page.then(|| plain(size / 2));
    let query = UploadsQuery { key_after, max_uploads, ..Default::default() };
    let wanted = max_uploads.min(size);
    Ok(Box::new(move || {
        ensure!(bench.store.list_uploads(&bench.bucket, &query)?.uploads.len() == wanted);
        Ok(())
    }))
}

fn begin_and_abort(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, key) = (with_uploads(root, size)?, Key::new("new")?);
    Ok(Box::new(move || {
        let upload = bench.store.create_upload(&bench.bucket, &key, &PutOptions::default())?;
        Ok(bench.store.abort_upload(&bench.bucket, &key, &upload)?)
    }))
}

fn put_part(root: &Path, size: usize) -> Result<GrowthOperation> {
    let ((bench, upload), mut next) = (BenchBucket::with_parts(root, size)?, far_apart(size));
    Ok(Box::new(move || bench.put_part(&upload, next() + 1).map(drop)))
}

fn page_of_parts(root: &Path, size: usize) -> Result<GrowthOperation> {
    let ((bench, upload), key) = (BenchBucket::with_parts(root, size)?, Key::new("u")?);
    let query = PartsQuery { after: u16::try_from(size / 2)?, max_parts: 50 };
    Ok(Box::new(move || {
        ensure!(bench.store.list_parts(&bench.bucket, &key, &upload, &query)?.parts.len() == 50);
        Ok(())
    }))
}

/// The time includes the upload of the parts, because each completion needs a new upload.
fn complete(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, key) = (BenchBucket::new(root)?, Key::new("u")?);
    Ok(Box::new(move || {
        let upload = bench.store.create_upload(&bench.bucket, &key, &PutOptions::default())?;
        // Complete the upload with its last part only: any other part would have to be at least 5 MiB.
        let parts = (1..=size).map(|number| bench.put_part(&upload, number)).collect::<Result<Vec<_>>>()?;
        let last = &parts[size - 1..];
        bench.store.complete_upload(&bench.bucket, &key, &upload, last, &CompleteOptions::default())?;
        Ok(())
    }))
}

fn keys(count: usize) -> Result<Vec<Key>> {
    (0..count).map(|number| Ok(Key::new(plain(number))?)).collect()
}

fn put_many(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, keys) = (BenchBucket::new(root)?, keys(size)?);
    Ok(Box::new(move || {
        let objects: Vec<(Key, &[u8])> = keys.iter().map(|key| (key.clone(), &b"content"[..])).collect();
        let made = bench.store.put_many(&bench.bucket, &objects, &PutOptions::default());
        ensure!(made.iter().all(|made| made.is_ok()));
        Ok(())
    }))
}

fn get_many(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, keys) = (BenchBucket::with_keys(root, size, plain)?, keys(size)?);
    Ok(Box::new(move || {
        ensure!(bench.store.get_many(&bench.bucket, &keys).iter().all(|got| got.is_ok()));
        Ok(())
    }))
}

/// The time includes a batch of puts, which creates the objects to delete.
fn delete_many(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (mut put, keys) = (put_many(root, size)?, keys(size)?);
    let bench = BenchBucket {
        store: PosixStore::open(root, PosixConfig::default())?,
        bucket: Bucket::new("growth")?,
    };
    Ok(Box::new(move || {
        put()?;
        ensure!(bench.store.delete_many(&bench.bucket, &keys).iter().all(|done| done.is_ok()));
        Ok(())
    }))
}

fn at_depth(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (bench, name) = (BenchBucket::new(root)?, "d/".repeat(size) + "object");
    let key = Key::new(&*name)?;
    Ok(Box::new(move || {
        bench.put(&name)?;
        bench.store.delete(&bench.bucket, &key, &Default::default())?;
        Ok(())
    }))
}

fn with_buckets(root: &Path, count: usize) -> Result<PosixStore> {
    let store = PosixStore::open(root, PosixConfig::default())?;
    (0..count).try_for_each(|number| store.create_bucket(&Bucket::new(plain(number))?))?;
    Ok(store)
}

fn list_buckets(root: &Path, size: usize) -> Result<GrowthOperation> {
    let store = with_buckets(root, size)?;
    Ok(Box::new(move || {
        ensure!(store.list_buckets()?.len() == size);
        Ok(())
    }))
}

fn head_bucket(root: &Path, size: usize) -> Result<GrowthOperation> {
    let (store, mut next) = (with_buckets(root, size)?, far_apart(size));
    Ok(Box::new(move || {
        store.head_bucket(&Bucket::new(plain(next()))?)?;
        Ok(())
    }))
}
