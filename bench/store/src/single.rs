//! Operations for which `compare` has no phase: overwriting objects, listing many keys in pages, and completing an
//! upload.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use fordway_measure::{ConfidenceInterval, median_interval, ns_text};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, ExpectedContent, Key, ListQuery, MIN_PART_BYTES,
    MultipartUploadOperations, ObjectBatchOperations, Objects, PartOptions, PutOptions,
};

const OBJECTS: usize = 200;

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn text(interval: &ConfidenceInterval) -> String {
    format!("{:.2} [{:.2}, {:.2}]", interval.value, interval.low, interval.high)
}

/// Compares overwriting an object with replacing a plain file by a temporary file that is renamed over the old file.
pub(crate) fn overwrite(place: &Path, size: usize, rounds: usize) -> Result<()> {
    let (plain, s3) = (place.join("overwrite"), place.join("s3"));
    fs::create_dir(&plain)?;
    let (store, bucket) = (PosixStore::open(&s3, PosixConfig::default())?, Bucket::new("overwrite")?);
    store.create_bucket(&bucket)?;
    let body = vec![7; size];
    let mut ratios = Vec::new();
    for _ in 0..=rounds {
        for i in 0..OBJECTS {
            let (path, key) = (plain.join(format!("f{i}")), Key::new(format!("f{i}"))?);
            let by_posix = timed(|| {
                let staged = path.with_extension("tmp");
                let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&staged)?;
                file.write_all(&body)?;
                Ok(fs::rename(&staged, &path)?)
            })?;
            let ours = timed(|| {
                store.put(&bucket, &key, &body, &PutOptions::default())?;
                Ok(())
            })?;
            ratios.push(by_posix / ours);
        }
    }
    // The first round creates the objects.
    let interval = median_interval(&ratios[OBJECTS..]).context("too few rounds")?;
    println!("overwrite of {size} B: {} x posix (tmp, write, rename over)", text(&interval));
    Ok(())
}

/// Compares batches with a loop of single calls on the same objects.
pub(crate) fn batches(s3: &Path, size: usize, rounds: usize) -> Result<()> {
    let (store, bucket) = (PosixStore::open(s3, PosixConfig::default())?, Bucket::new("batches")?);
    store.create_bucket(&bucket)?;
    let body = vec![7; size];
    for count in [64, 256] {
        let keys = (0..count).map(|i| Ok(Key::new(format!("f{i}"))?)).collect::<Result<Vec<_>>>()?;
        let objects: Vec<(Key, &[u8])> = keys.iter().map(|key| (key.clone(), body.as_slice())).collect();
        let put = PutOptions::default();
        let mut ratios = Vec::new();
        for _ in 0..rounds * 20 {
            let many = timed(|| Ok(store.put_many(&bucket, &objects, &put)))?;
            let one_by_one =
                || objects.iter().map(|(key, body)| store.put(&bucket, key, body, &put)).collect();
            let one = timed(|| Ok::<Vec<_>, anyhow::Error>(one_by_one()))?;
            ratios.push(many / one);
        }
        let interval = median_interval(&ratios).context("too few rounds")?;
        println!("batch of {count} puts: {} x the time of a loop", text(&interval));
    }
    Ok(())
}

/// Times the completion of an upload of 32 parts of 8 MiB each.
pub(crate) fn complete(s3: &Path, rounds: usize) -> Result<()> {
    let (store, bucket, key) =
        (PosixStore::open(s3, PosixConfig::default())?, Bucket::new("complete")?, Key::new("k")?);
    store.create_bucket(&bucket)?;
    let body = vec![7; 8 << 20];
    anyhow::ensure!(body.len() as u64 >= MIN_PART_BYTES);
    let mut times = Vec::new();
    for _ in 0..rounds.max(5) {
        let upload = store.create_upload(&bucket, &key, &PutOptions::default())?;
        let mut parts = Vec::new();
        for number in 1..=32 {
            let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
            let mut writer = store.part_writer(&bucket, &key, &upload, number, &options)?;
            writer.write(&body)?;
            parts.push(CompletedPart::new(number, writer.commit(&ExpectedContent::default())?.etag));
        }
        times.push(timed(|| {
            store.complete_upload(&bucket, &key, &upload, &parts, &CompleteOptions::default())?;
            Ok(())
        })?);
        store.delete(&bucket, &key, &Default::default())?;
    }
    let interval = median_interval(&times).context("too few rounds")?;
    println!(
        "completing 256 MiB in 32 parts: {} [{}, {}]",
        ns_text(interval.value as u64),
        ns_text(interval.low as u64),
        ns_text(interval.high as u64)
    );
    Ok(())
}

/// Times listings of a directory that contains `keys` keys: all keys in one stream, all keys in pages of 1,000, and 1 %
/// of the keys by a prefix.
pub(crate) fn list(s3: &Path, keys: usize) -> Result<()> {
    let (store, bucket) = (PosixStore::open(s3, PosixConfig::default())?, Bucket::new("list")?);
    store.create_bucket(&bucket)?;
    for i in 0..keys {
        store.put(&bucket, &Key::new(format!("k{:02}-{i:08}", i % 100))?, b"x", &PutOptions::default())?;
    }
    // Wait, because the store does not trust directory timestamps that are less than one clock tick old.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let one_page = |query: ListQuery| timed(|| Ok(store.list(&bucket, &query)?));
    let all = || ListQuery { max_keys: usize::MAX, ..Default::default() };
    let (mut stream, mut pages, mut readdir, mut prefix) = (vec![], vec![], vec![], vec![]);
    for _ in 0..5 {
        // Reopen the store each time, so that the first page is read with a cold cache.
        let cold = PosixStore::open(s3, PosixConfig::default())?;
        stream.push(timed(|| Ok(cold.list(&bucket, &all())?))?);
        let cold = PosixStore::open(s3, PosixConfig::default())?;
        pages.push(timed(|| in_pages(&cold, &bucket, keys))?);
        readdir.push(timed(|| {
            let dir = fs::File::open(s3.join("list"))?;
            let mut count = 0;
            fordway_sys::read_dir(&dir, |_, _| count += 1)?;
            anyhow::ensure!(count >= keys);
            Ok(())
        })?);
        prefix.push(one_page(ListQuery { prefix: "k07-".into(), ..all() })?);
    }
    let ratio = |a: &[f64], b: &[f64]| {
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        median_interval(&ratios).map_or("-".into(), |interval| text(&interval))
    };
    let median = |values: &[f64]| median_interval(values).map_or(0, |interval| interval.value as u64);
    println!(
        "listing {keys} keys: one stream {}, pages of 1,000 {} x that",
        ns_text(median(&stream)),
        ratio(&pages, &stream)
    );
    println!(
        "1 % of them by prefix: {} x a bare readdir ({})",
        ratio(&prefix, &readdir),
        ns_text(median(&readdir))
    );
    Ok(())
}

fn in_pages(store: &PosixStore, bucket: &Bucket, keys: usize) -> Result<()> {
    let (mut query, mut seen) = (ListQuery::default(), 0);
    loop {
        let page = store.list(bucket, &query)?;
        seen += page.entries.len();
        match page.next {
            Some(next) => query.start_after = Some(next),
            None => break,
        }
    }
    anyhow::ensure!(seen == keys, "{seen} of {keys} keys were listed");
    Ok(())
}
