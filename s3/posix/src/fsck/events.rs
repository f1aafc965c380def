//! Checks the notification configuration of a bucket, and the journal of its events.

use fordway_store::{Bucket, ErrorKind, Result};
use fordway_sys::{Errno, Mode, OFlags, name_to_text, open_in, stat_in};
use fordway_wire::event_record::{EventRecord, RECORD_BYTES_MAX};
use fordway_wire::notification::read;

use crate::area::read_small;
use crate::errors::lacks_permission;
use crate::events::NOTIFICATION;
use crate::fsck::{FindingKind, FsckRun};
use crate::layout::{document_name, events_dir, join, private_dir, webhook_of_event};
use crate::scan::each_entry;
use crate::spool::{event_mark, is_writers};

impl FsckRun<'_> {
    /// Checks that writers can find and read the bucket's notification configuration, if there is one.
    pub(super) fn notifications(&mut self, bucket: &Bucket) -> Result<()> {
        let path = join(&private_dir(bucket), &document_name(&NOTIFICATION));
        let document = match self.inner.document(bucket, &NOTIFICATION) {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(()),
            // The store rejects the file of the document because of its owner or mode.
            Err(error) if error.kind() == ErrorKind::AccessDenied && !lacks_permission(&error) => {
                return self.found(FindingKind::BadNotification, path, error.detail().to_owned());
            }
            Err(error) => return self.found(FindingKind::Unreadable, path, error.to_string()),
        };
        if let Err(error) = read(&document) {
            return self.found(FindingKind::BadNotification, path, error.message);
        }
        match self.inner.volume.contents(bucket) {
            Ok(contents) if contents.may_notify => Ok(()),
            Ok(_) => {
                let why = "the file .fordway/markers is empty or missing";
                self.found(FindingKind::BadNotification, path, why)
            }
            Err(error) => self.found(FindingKind::Unreadable, private_dir(bucket), error.to_string()),
        }
    }

    /// Checks that the journal contains only records that can be delivered.
    pub(super) fn events(&mut self, bucket: &Bucket) -> Result<()> {
        let path = events_dir(bucket);
        let dir = match self.inner.volume.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let mark = event_mark(&self.inner.volume, bucket)?;
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            let shown = join(&path, &name_to_text(name));
            let name = str::from_utf8(name).ok().filter(|name| webhook_of_event(name).is_some());
            let Some(name) = name else {
                return self.found(FindingKind::BadEvent, shown, "it has another name");
            };
            match stat_in(&dir, name) {
                // The record was delivered after the directory was read.
                Err(Errno::NOENT) => return Ok(()),
                Ok(state) if state.is_file && state.links == 1 => {}
                Ok(_) => {
                    let why = "it is not a regular file with one name";
                    return self.found(FindingKind::BadEvent, shown, why);
                }
                Err(errno) => return self.unreadable(&shown, errno, "examining"),
            }
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            let open = || {
                let file = open_in(&dir, name, flags, Mode::empty())?;
                Ok(read_small(&file, RECORD_BYTES_MAX)?
                    .filter(|(_, state)| is_writers(&file, state, mark.as_ref())))
            };
            let is_record = |text: &[u8]| {
                EventRecord::decode(text).is_some_and(|record| record.bucket == bucket.as_str())
            };
            match self.actors.or_as_owner(&dir, name, open) {
                Ok(Some((text, _))) if is_record(&text) => Ok(()),
                Ok(_) => self.found(
                    FindingKind::BadEvent,
                    shown,
                    "it is not a record of this bucket that its owner wrote",
                ),
                Err(Errno::NOENT | Errno::STALE) => Ok(()),
                Err(errno) => self.unreadable(&shown, errno, "reading"),
            }
        })?;
        read.or_else(|errno| self.unreadable(&path, errno, "reading"))
    }
}
