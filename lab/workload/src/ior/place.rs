//! Where a file of IOR lies.

use std::fs;
use std::path::PathBuf;

use fordway_store::{Error, ErrorKind, Key, Result};

use super::{Mapping, Shape};
use crate::site::Means;
use crate::{Site, Target};

/// The file of one rank, or the one all share.
pub(super) struct Place {
    pub(super) site: Site,
    pub(super) target: Box<dyn Target>,
    /// The file's name below the site, empty where the site is the file.
    name: String,
}

impl Place {
    /// The file that `rank` writes.
    pub(super) fn new(site: &Site, shape: &Shape, rank: usize) -> Result<Self> {
        let file = match shape.file_per_process {
            true => format!("data.{rank:08}"),
            false => "data".to_owned(),
        };
        let is_bucket = shape.mapping == Mapping::Bucket && matches!(site.means(), Means::Objects(..));
        let (site, name) = match is_bucket {
            true => (site.beside(&format!("{}-{file}", shape.name))?, String::new()),
            false => (site.clone(), format!("{}/{file}", shape.name)),
        };
        Ok(Place { target: site.target(), site, name })
    }

    /// Makes what the file lies in, where it is not the site. All ranks call it.
    pub(super) fn prepare(&self, shape: &Shape, rank: usize) -> Result<()> {
        let is_mine = shape.file_per_process || rank == 0;
        match self.path() {
            Some(path) => fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(|error| {
                Error::new(ErrorKind::Io, format!("making the directory of {}", path.display()))
                    .caused_by(error)
            }),
            None if self.is_bucket() && is_mine => self.site.make(),
            None => Ok(()),
        }
    }

    /// Removes the file's bucket, where it has one. All ranks call it.
    pub(super) fn remove(&self, shape: &Shape, rank: usize) -> Result<()> {
        let is_mine = shape.file_per_process || rank == 0;
        if self.is_bucket() && is_mine { self.site.remove() } else { Ok(()) }
    }

    fn is_bucket(&self) -> bool {
        self.name.is_empty()
    }

    /// Its path, where it is a file.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match self.site.means() {
            Means::Files(dir) => Some(dir.join(&self.name)),
            Means::Objects(..) => None,
        }
    }

    /// The key of the whole file.
    pub(super) fn key(&self) -> Result<Key> {
        Key::new(&*self.name)
    }

    /// The key of the transfer at `offset`, where each is an object.
    pub(super) fn fragment(&self, offset: u64) -> Result<Key> {
        match self.is_bucket() {
            true => Key::new(format!("{offset:016}")),
            false => Key::new(format!("{}/{offset:016}", self.name)),
        }
    }

    pub(super) fn wrong(&self, offset: u64) -> Error {
        let what = format!("{} at byte {offset} has other content than was written there", self.name);
        Error::new(ErrorKind::Corrupt, format!("{what}, on lane {}", self.site.lane().name))
    }
}
