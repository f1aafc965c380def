//! Descriptions that were used before, for the day on which who gave them is dead.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::metalink::{Metalink, MetalinkFile};

/// Larger ones are not kept.
const BYTES_MAX: usize = 4 << 20;
/// Addresses that a description is kept for.
const ADDRESSES_MAX: usize = 8;

/// A directory with descriptions, one for each address.
#[derive(Clone, Debug)]
pub struct MetalinkCache {
    directory: PathBuf,
}

impl MetalinkCache {
    /// In this directory, which is made when there is something to keep.
    pub fn new(directory: PathBuf) -> Self {
        MetalinkCache { directory }
    }

    /// The user's: `$XDG_CACHE_HOME/fordway/metalinks`, else below `~/.cache`; `None` without a home.
    pub fn of_user() -> Option<Self> {
        let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")))?;
        Some(MetalinkCache::new(base.join("fordway/metalinks")))
    }

    fn path(&self, url: &str) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        url.hash(&mut hasher);
        self.directory.join(format!("{:016x}.meta4", hasher.finish()))
    }

    /// Keeps what is known of a file for where it is. What has queries, which may be secret, is not kept.
    /// Errors: `Io`.
    pub fn keep(&self, file: &MetalinkFile) -> Result<()> {
        let metalink = Metalink { files: vec![file.clone()] };
        let document = metalink.to_xml();
        let has_queries = file.replicas.iter().any(|replica| replica.url.contains('?'));
        if document.len() > BYTES_MAX || has_queries {
            return Ok(());
        }
        let failed = |error| Error::new(ErrorKind::Io, "keeping a Metalink").caused_by(error);
        fs::create_dir_all(&self.directory).map_err(failed)?;
        for replica in file.replicas.iter().take(ADDRESSES_MAX) {
            let path = self.path(&replica.url);
            if fs::read(&path).is_ok_and(|known| known == document.as_bytes()) {
                continue;
            }
            let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
            let written =
                fs::File::create(&unfinished).and_then(|mut file| file.write_all(document.as_bytes()));
            written.and_then(|()| fs::rename(&unfinished, &path)).map_err(failed)?;
        }
        Ok(())
    }

    /// What is known of the file at `url`, if that is anything.
    pub fn find(&self, url: &str) -> Option<MetalinkFile> {
        let document = fs::read(self.path(url)).ok()?;
        let file = Metalink::parse(&document).ok()?.file(None).ok()?;
        // Two addresses may share a name in the directory.
        file.replicas.iter().any(|replica| replica.url == url).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use fordway_wire::metalink::MetalinkUrl;

    use super::*;

    #[test]
    fn what_is_kept_is_found_by_each_address() {
        let directory = tempfile::tempdir().unwrap();
        let cache = MetalinkCache::new(directory.path().join("a/b"));
        let at = |url: &str| MetalinkUrl { url: url.into(), priority: 1, location: None };
        let replicas = vec![at("http://a/f"), at("http://b/f")];
        let file = MetalinkFile { name: "f".into(), size_bytes: Some(3), replicas, ..Default::default() };
        cache.keep(&file).unwrap();
        cache.keep(&file).unwrap();
        assert_eq!(cache.find("http://b/f"), Some(file.clone()));
        assert_eq!(cache.find("http://c/f"), None);
        let secret = MetalinkFile { replicas: vec![at("http://s/f?token=1")], ..file };
        cache.keep(&secret).unwrap();
        assert_eq!(cache.find("http://s/f?token=1"), None);
        assert_eq!(directory.path().join("a/b").read_dir().unwrap().count(), 2);
    }
}
