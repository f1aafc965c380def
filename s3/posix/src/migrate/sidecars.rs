//! Records kept apart, after a root was restored from a copy: they are called by the inodes that their
//! objects' files had, and those have others now.

use std::fs::File;
use std::sync::Arc;

use foldhash::HashMap;
use fordway_store::{Bucket, Result};
use fordway_sys::{EntryKind, FileStat, Mode, OFlags, name_to_text, open_in, stat};

use super::Migrated;
use crate::Inner;
use crate::area::{names_of, read_small};
use crate::errors::from_errno;
use crate::layout::{join, meta_dir};
use crate::record::{Record, Seal};
use crate::scan::{Area, each_entry, known_kind, open_child, path_of_child};
use crate::sidecar::{Attribute, MAX_RECORD_BYTES, inode_of, read_attribute};

/// What tells one version of one object from all others: size and time of its file, its tag, and its version.
type Identity = (u64, i64, String, String);

/// Records kept apart, by what they are of.
type Records = HashMap<Identity, Record>;

impl Inner {
    /// Gives each object whose record lies apart the one that is its, under the name of its file's inode.
    pub(super) fn rebind_sidecars(
        self: &Arc<Self>,
        bucket: &Bucket,
        tell: &mut dyn FnMut(Migrated) -> Result<()>,
    ) -> Result<()> {
        let records = self.records_apart(bucket)?;
        if records.is_empty() {
            return Ok(());
        }
        for area in Area::all(bucket) {
            if let Ok(dir) = self.open_to_scan(&area.top) {
                self.rebind_in(&area, (&dir, &area.top), &records, tell)?;
            }
        }
        Ok(())
    }

    fn records_apart(&self, bucket: &Bucket) -> Result<Records> {
        let mut records = Records::default();
        let Ok(dir) = self.open_to_scan(&meta_dir(bucket)) else { return Ok(records) };
        let names = names_of(&dir).map_err(|errno| from_errno(errno, "reading .fordway/meta"))?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        for name in names.iter().filter(|name| inode_of(name).is_some()) {
            let file = open_in(&dir, name, flags, Mode::empty());
            let Ok(Some((bytes, _))) = file.and_then(|file| read_small(&file, MAX_RECORD_BYTES)) else {
                continue;
            };
            let record = Record::decode(&bytes);
            records.extend(record.and_then(|record| Some((identity_of(&record)?, record))));
        }
        Ok(records)
    }

    fn rebind_in(
        self: &Arc<Self>,
        area: &Area,
        (dir, path): (&File, &str),
        records: &Records,
        tell: &mut dyn FnMut(Migrated) -> Result<()>,
    ) -> Result<()> {
        let read = each_entry(dir, |name, kind| {
            let text = name_to_text(name);
            if area.is_private(path, name) {
                return Ok(());
            }
            match known_kind(dir, &text, kind) {
                EntryKind::Dir => {
                    let Some(below) = path_of_child(area.bucket, path, &text) else { return Ok(()) };
                    match open_child(dir, &text) {
                        Ok(child) => self.rebind_in(area, (&child, &below), records, tell),
                        Err(_) => Ok(()),
                    }
                }
                EntryKind::File => self
                    .rebind(area.bucket, (dir, &text), records)?
                    .map_or(Ok(()), |done| tell(Migrated { path: join(path, &text), done })),
                _ => Ok(()),
            }
        })?;
        read.map_err(|errno| from_errno(errno, "reading the bucket"))
    }

    /// Writes the record of the file `name` where it is looked for, if it is not there; says so.
    fn rebind(
        self: &Arc<Self>,
        bucket: &Bucket,
        (dir, name): (&File, &str),
        records: &Records,
    ) -> Result<Option<&'static str>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Ok(file) = open_in(dir, name, flags, Mode::empty()).map(File::from) else { return Ok(None) };
        let Ok(state) = stat(&file) else { return Ok(None) };
        let Some(short) = short_record(&file, &state) else { return Ok(None) };
        // Damage is what a check tells of.
        if self
            .read_sidecar(bucket, &state)
            .is_ok_and(|found| found.is_some_and(|found| is_same(&found, &short)))
        {
            return Ok(None);
        }
        match identity_of(&short).and_then(|identity| records.get(&identity)) {
            Some(record) => {
                self.write_sidecar(bucket, &state, record)?;
                Ok(Some("bound to its metadata again"))
            }
            None => Ok(None),
        }
    }
}

/// What the file's attribute says, if it says that the rest lies apart and the file is as it was sealed.
fn short_record(file: &File, state: &FileStat) -> Option<Record> {
    match read_attribute(file) {
        Ok(Attribute::Found(short)) if state.is_file && short.is_apart => {
            Some(short).filter(|short| short.seal == Some(Seal::of(state)))
        }
        _ => None,
    }
}

fn is_same(one: &Record, other: &Record) -> bool {
    identity_of(one).is_some() && identity_of(one) == identity_of(other)
}

fn identity_of(record: &Record) -> Option<Identity> {
    let (seal, etag) = (record.seal?, record.etag.as_ref()?.as_str().to_owned());
    let version = record.version.as_ref().map_or(String::new(), |version| version.as_str().to_owned());
    Some((seal.size, seal.modified_ns, etag, version))
}
