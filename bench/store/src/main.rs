//! Compares the embedded store with plain files, and with the `object_store` crate's `LocalFileSystem`, which runs on
//! tokio. All three targets are measured in one run of interleaved blocks.
//!
//! Prints the table that `fordway compare` prints, for objects of one size. Then prints the costs of other operations:
//! overwriting an object, accessing keys outside one flat directory, listing in pages, and completing a multipart
//! upload.

mod single;
mod sparse;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Parser;
use fordway_measure::{Machine, RowDescription, RunDocument, SCHEMA, SCHEMA_VERSION, table};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, Error, ErrorKind, Key};
use fordway_workload::compare::{CompareClients, ComparePhase, ComparePlan, run};
use fordway_workload::summary::{RunParallelism, summarise};
use fordway_workload::{FileTree, MeasuredTarget, PosixTarget, StoreTarget, SyncLevel, TreeFile};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::{Handle, Runtime};

/// Compare the embedded store with plain files and the object_store crate
#[derive(Parser)]
struct StoreBenchArgs {
    /// Directory for the working files; on tmpfs, the times do not include a disk
    #[arg(long, default_value = "/dev/shm")]
    root: PathBuf,
    /// Size of an object, in bytes
    #[arg(long, default_value_t = 3901)]
    size: usize,
    /// Number of objects
    #[arg(long, default_value_t = 1000)]
    objects: usize,
    /// Number of measured rounds
    #[arg(long, default_value_t = 9)]
    rounds: u16,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of keys to list; 0 skips the listing
    #[arg(long, default_value_t = 0)]
    list: usize,
    /// Skip overwrites and the multipart upload
    #[arg(long)]
    only_phases: bool,
}

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

fn main() -> Result<()> {
    let options = StoreBenchArgs::parse();
    let place = tempfile::Builder::new().prefix("fordway-bench-").tempdir_in(&options.root)?;
    let s3 = place.path().join("s3");
    std::fs::create_dir(&s3)?;
    println!("{}", compare(&options, place.path(), &s3)?);
    if !options.only_phases {
        single::overwrite(place.path(), options.size, usize::from(options.rounds))?;
        sparse::sparse(place.path(), usize::from(options.rounds) * 5)?;
        single::batches(&s3, options.size, usize::from(options.rounds))?;
        single::complete(&s3, usize::from(options.rounds))?;
    }
    if options.list > 0 {
        single::list(&s3, options.list)?;
    }
    Ok(())
}

fn compare(options: &StoreBenchArgs, place: &std::path::Path, s3: &std::path::Path) -> Result<String> {
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![
        Box::new(PosixTarget::new(&place.join("posix"), SyncLevel::Nothing)?),
        Box::new(embedded(s3, "embedded", true)?),
        Box::new(embedded(s3, "none-match-only", false)?),
        Box::new(ObjectStoreCrateTarget::new(&place.join("peer"))?),
    ];
    let (plan, tree) = (plan(options), tree(options)?);
    let outcome = run(&plan, &tree, &targets, &AtomicBool::new(false), &mut || Ok(()), &mut |_| {})?;
    let lanes: Vec<RowDescription> = targets.iter().map(|target| target.lane().clone()).collect();
    let machine = Machine::observe(&[("root", place)]);
    let capacity = RunParallelism::of(plan.threads, &machine);
    let summaries = summarise(&lanes, &outcome.records, capacity);
    targets.iter().try_for_each(|target| target.clean_up())?;
    anyhow::ensure!(outcome.failures.is_empty(), "{}", outcome.failures.join("; "));
    let parameters = [("durability", "none"), ("etag_policy", "fast")];
    let run = RunDocument {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "bench-store".into(),
        started: String::new(),
        elapsed_ns: 0,
        command: std::env::args().collect(),
        machine,
        parameters: parameters.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect(),
        lanes,
        phases: ComparePhase::ALL.iter().map(|phase| phase.name().to_owned()).collect(),
        summaries,
        scores: Vec::new(),
        warnings: vec![],
        conditions: None,
    };
    Ok(table(&run))
}

fn plan(options: &StoreBenchArgs) -> ComparePlan {
    ComparePlan {
        rounds: options.rounds,
        warm_up: 2,
        seed: 1,
        clients: CompareClients::ThisProcess,
        threads: options.threads,
        range_bytes: 4096,
        cold: None,
    }
}

fn tree(options: &StoreBenchArgs) -> Result<FileTree> {
    let item = |i: usize| -> Result<TreeFile> {
        Ok(TreeFile { key: Key::new(format!("f{i:06}"))?, body: vec![i as u8; options.size] })
    };
    let items = (0..options.objects).map(item).collect::<Result<Vec<_>>>()?;
    Ok(FileTree { bytes: (options.size * options.objects) as u64, items, warnings: vec![] })
}

fn embedded(root: &std::path::Path, name: &str, if_match: bool) -> Result<StoreTarget> {
    let store = PosixStore::open(root, PosixConfig { if_match, ..PosixConfig::default() })?;
    let lane = RowDescription { name: name.to_owned(), description: String::new() };
    Ok(StoreTarget::new(lane, std::sync::Arc::new(store), Bucket::new(name)?, None)?)
}

/// A target that stores objects with the `object_store` crate, below one directory.
pub(crate) struct ObjectStoreCrateTarget {
    lane: RowDescription,
    store: LocalFileSystem,
    runtime: Runtime,
}

impl ObjectStoreCrateTarget {
    pub(crate) fn new(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir(dir)?;
        let lane = RowDescription { name: "object_store".into(), description: String::new() };
        let store = LocalFileSystem::new_with_prefix(dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(ObjectStoreCrateTarget { lane, store, runtime })
    }

    fn wait<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> fordway_store::Result<T> {
        let handle: &Handle = self.runtime.handle();
        handle.block_on(work).map_err(|error| Error::new(ErrorKind::Io, "").caused_by(error))
    }
}

fn path(key: &Key) -> object_store::path::Path {
    object_store::path::Path::from(key.as_str())
}

impl MeasuredTarget for ObjectStoreCrateTarget {
    fn lane(&self) -> &RowDescription {
        &self.lane
    }

    fn put(&self, key: &Key, body: &[u8]) -> fordway_store::Result<()> {
        let payload = PutPayload::from(body.to_vec());
        self.wait(self.store.put(&path(key), payload)).map(drop)
    }

    fn list(&self) -> fordway_store::Result<Vec<(String, u64)>> {
        let listed = self.wait(self.store.list_with_delimiter(None))?;
        let mut keys: Vec<_> =
            listed.objects.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn head(&self, key: &Key) -> fordway_store::Result<u64> {
        self.wait(self.store.head(&path(key))).map(|meta| meta.size)
    }

    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> fordway_store::Result<()> {
        let bytes = self.wait(async { self.store.get(&path(key)).await?.bytes().await })?;
        buffer.clear();
        buffer.extend_from_slice(&bytes);
        Ok(())
    }

    fn get_range(&self, key: &Key, offset: u64, len: u64, buffer: &mut Vec<u8>) -> fordway_store::Result<()> {
        let bytes = self.wait(self.store.get_range(&path(key), offset..offset + len))?;
        buffer.clear();
        buffer.extend_from_slice(&bytes);
        Ok(())
    }

    fn delete(&self, key: &Key) -> fordway_store::Result<()> {
        self.wait(self.store.delete(&path(key)))
    }

    fn clean_up(&self) -> fordway_store::Result<()> {
        Ok(())
    }
}
