//! Keys that do not share one flat directory: missing keys, keys that are alone in their directory, and keys whose
//! three parent directories must be created.
//!
//! Compares the store with plain files, and with bare system calls whose paths, as in the store, cannot leave the root.
//! The bare calls resolve a path with `openat2`, because no call that returns a file's attributes by path supports
//! `RESOLVE_BENEATH`.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fordway_measure::{ConfidenceInterval, median_interval};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, GetOptions, Key, Objects, PutOptions};
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, XattrFlags, fsetxattr, linkat, mkdirat, openat, openat2, statat,
};

/// The number of calls in a block. Blocks of the three kinds of call are interleaved.
const BLOCK: usize = 200;

/// The directories that are compared: one for plain files, one for bare calls, and a bucket.
struct ComparedFiles<'p> {
    plain: &'p Path,
    bare: &'p Path,
    store: PosixStore,
    bucket: Bucket,
}

impl ComparedFiles<'_> {
    fn put(&self, key: &str) -> Result<()> {
        self.store.put(&self.bucket, &Key::new(key)?, b"content", &PutOptions::default())?;
        Ok(())
    }

    fn head(&self, key: &str) -> fordway_store::Result<u64> {
        self.store.head(&self.bucket, &Key::new(key)?, &GetOptions::default()).map(|info| info.size)
    }
}

/// One call, implemented in three ways; the argument of each function is the key's number.
struct ComparedCalls<'c> {
    plain: &'c mut dyn FnMut(usize) -> Result<()>,
    bare: &'c mut dyn FnMut(usize) -> Result<()>,
    ours: &'c mut dyn FnMut(usize) -> Result<()>,
}

/// Measures missing keys, keys that are alone in their directories, and keys below new directories. Works in the
/// directory `place`.
pub(crate) fn sparse(place: &Path, rounds: usize) -> Result<()> {
    let (plain, bare, s3) = (place.join("sparse"), place.join("bare"), place.join("s3"));
    fs::create_dir(&plain)?;
    fs::create_dir(&bare)?;
    let (store, bucket) = (PosixStore::open(&s3, PosixConfig::default())?, Bucket::new("sparse")?);
    store.create_bucket(&bucket)?;
    let dirs = ComparedFiles { plain: &plain, bare: &bare, store, bucket };
    // A first put creates the bucket's private area. Every bucket in use has a private area.
    dirs.put("first")?;
    missing(&dirs, rounds)?;
    lonely(&dirs, rounds)?;
    new_levels(&dirs, rounds)
}

/// Measures HEAD on missing keys.
fn missing(dirs: &ComparedFiles, rounds: usize) -> Result<()> {
    let root = File::open(dirs.bare)?;
    measure(
        "head of a missing key",
        rounds,
        ComparedCalls {
            plain: &mut |number| match fs::metadata(dirs.plain.join(format!("no{number:06}"))) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => anyhow::bail!("{other:?}"),
            },
            bare: &mut |number| {
                let found = statat(&root, format!("no{number:06}"), AtFlags::SYMLINK_NOFOLLOW);
                ensure!(found.is_err());
                Ok(())
            },
            ours: &mut |number| match dirs.head(&format!("no{number:06}")) {
                Err(error) if error.kind() == fordway_store::ErrorKind::NoSuchKey => Ok(()),
                other => anyhow::bail!("{other:?}"),
            },
        },
    )
}

/// Measures HEAD on objects that are alone in their directories, each visited once.
fn lonely(dirs: &ComparedFiles, rounds: usize) -> Result<()> {
    let keys = (rounds + 1) * BLOCK;
    let name = |number: usize| format!("d{number:06}/object");
    for number in 0..keys {
        dirs.put(&name(number))?;
        for root in [dirs.plain, dirs.bare] {
            let path = root.join(name(number));
            fs::create_dir(path.parent().context("a key without a directory")?)?;
            fs::write(path, b"content")?;
        }
    }
    let root = File::open(dirs.bare)?;
    measure(
        "head of an object alone in its directory",
        rounds,
        ComparedCalls {
            plain: &mut |number| {
                ensure!(fs::metadata(dirs.plain.join(name(number)))?.len() == 7);
                Ok(())
            },
            bare: &mut |number| {
                let (flags, beneath) =
                    (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, ResolveFlags::BENEATH);
                let dir = openat2(&root, format!("d{number:06}"), flags, Mode::empty(), beneath)?;
                ensure!(statat(dir, "object", AtFlags::SYMLINK_NOFOLLOW)?.st_size == 7);
                Ok(())
            },
            ours: &mut |number| {
                ensure!(dirs.head(&name(number))? == 7);
                Ok(())
            },
        },
    )
}

/// Measures putting an object whose three parent directories must be created.
fn new_levels(dirs: &ComparedFiles, rounds: usize) -> Result<()> {
    let root = File::open(dirs.bare)?;
    measure(
        "put into three new directories",
        rounds,
        ComparedCalls {
            plain: &mut |number| {
                let dir = dirs.plain.join(format!("n{number:06}/b/c"));
                fs::create_dir_all(&dir)?;
                Ok(File::create(dir.join("object"))?.write_all(b"content")?)
            },
            bare: &mut |number| {
                let mut dir = root.try_clone()?.into();
                for name in [format!("n{number:06}"), "b".into(), "c".into()] {
                    mkdirat(&dir, &name, Mode::from_raw_mode(0o777))?;
                    dir = openat(
                        &dir,
                        &name,
                        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                        Mode::empty(),
                    )?;
                    fsetxattr(&dir, "user.bench", b"1", XattrFlags::empty())?;
                }
                let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
                let mut file = File::from(openat(&dir, ".", unnamed, Mode::from_raw_mode(0o666))?);
                file.write_all(b"content")?;
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                Ok(linkat(rustix::fs::CWD, path, &dir, "object", AtFlags::SYMLINK_FOLLOW)?)
            },
            ours: &mut |number| dirs.put(&format!("n{number:06}/b/c/object")),
        },
    )
}

/// Prints the speed of the store and of bare calls, relative to plain files.
fn measure(what: &str, rounds: usize, calls: ComparedCalls) -> Result<()> {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let numbers = round * BLOCK..(round + 1) * BLOCK;
        let by_plain = block(numbers.clone(), calls.plain)?;
        bare.push(by_plain / block(numbers.clone(), calls.bare)?);
        ours.push(by_plain / block(numbers, calls.ours)?);
    }
    // The first round is a warm-up.
    let interval = |ratios: &[f64]| median_interval(&ratios[1..]).context("too few rounds");
    println!(
        "{what}: {} x posix; bare calls beneath a root: {}",
        text(&interval(&ours)?),
        text(&interval(&bare)?)
    );
    Ok(())
}

fn block(numbers: std::ops::Range<usize>, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    numbers.into_iter().try_for_each(call)?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn text(interval: &ConfidenceInterval) -> String {
    format!("{:.2} [{:.2}, {:.2}]", interval.value, interval.low, interval.high)
}
