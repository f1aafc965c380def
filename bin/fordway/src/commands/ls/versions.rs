//! `ls --versions`: all versions and delete markers.

use std::fmt;

use fordway_store::{Bucket, Result, VersionSummary, VersionsQuery};
use serde::Serialize;

use super::{Line, Lister, last_segment};
use crate::args::LsArgs;
use crate::wildcard::{Pattern, has_wildcard, literal_prefix};
use fordway_command::units::{local_time, show_bytes, utc_time};

/// A version, or a delete marker, which has neither size nor tag.
#[derive(Serialize)]
pub(super) struct Version {
    key: String,
    version_id: String,
    is_latest: bool,
    is_delete_marker: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip)]
    shown: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Lister<'_> {
    pub(super) fn versions(&mut self, bucket: &Bucket, key: &str, args: &LsArgs) -> Result<()> {
        let wildcard = (!args.raw && has_wildcard(key)).then(|| Pattern::of_address(key));
        let prefix = if wildcard.is_some() { literal_prefix(key) } else { key };
        let whole_keys = args.recursive || wildcard.is_some();
        let delimiter = (!whole_keys).then(|| "/".to_owned());
        let mut query = VersionsQuery { prefix: prefix.to_owned(), delimiter, ..Default::default() };
        let store = self.context.store()?;
        loop {
            let page = store.list_versions(bucket, &query)?;
            let mut prefixes = page.prefixes.into_iter().peekable();
            for version in page.versions {
                while let Some(prefix) = prefixes.next_if(|prefix| *prefix < version.key) {
                    self.prefix(prefix)?;
                }
                if wildcard.as_ref().is_none_or(|wildcard| wildcard.matches(&version.key)) {
                    self.version(version, whole_keys)?;
                }
            }
            prefixes.try_for_each(|prefix| self.prefix(prefix))?;
            let Some((key, version)) = page.next else { return Ok(()) };
            (query.key_after, query.version_after) = (Some(key), version);
        }
    }

    fn prefix(&mut self, key: String) -> Result<()> {
        let shown = last_segment(key.trim_end_matches('/')).to_owned() + "/";
        self.print(&Line::Prefix { key, shown })
    }

    fn version(&mut self, found: VersionSummary, whole_keys: bool) -> Result<()> {
        let (size_bytes, etag) = found.content.map(|(size, etag)| (size, etag.to_string())).unzip();
        let size = size_bytes.map_or("deleted".to_owned(), |size| show_bytes(size, self.human));
        let name = if whole_keys { &found.key } else { last_segment(&found.key) };
        let latest = if found.is_latest { " (latest)" } else { "" };
        let shown = format!("{} {size:>10} {name} {}{latest}", local_time(found.modified), found.version);
        self.objects += 1;
        self.total_bytes += size_bytes.unwrap_or(0);
        self.print(&Line::Version(Version {
            version_id: found.version.to_string(),
            is_latest: found.is_latest,
            is_delete_marker: size_bytes.is_none(),
            size_bytes,
            modified: utc_time(found.modified),
            etag,
            key: found.key,
            shown,
        }))
    }
}
