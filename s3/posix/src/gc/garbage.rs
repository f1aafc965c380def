//! What a collection finds, and what it tells.

use fordway_store::Error;

/// What kind of thing nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageKind {
    /// A file that a writer staged and never published.
    StagedFile,
    /// A multipart upload that nobody went on with.
    Upload,
    /// The rest of an upload whose record is gone, so that it can never be completed.
    UploadRest,
    /// An object's second file, which the one at the key's own path hides.
    HiddenFile,
    /// An empty directory that a put had made.
    EmptyDir,
    /// A record kept apart, in a sidecar file, of an object that is gone or was changed since.
    Sidecar,
    /// A name among the old versions of what is still, or again, the latest one.
    VersionAlias,
}

impl GarbageKind {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GarbageKind::StagedFile => "staged-file",
            GarbageKind::Upload => "upload",
            GarbageKind::UploadRest => "upload-rest",
            GarbageKind::HiddenFile => "hidden-file",
            GarbageKind::EmptyDir => "empty-dir",
            GarbageKind::Sidecar => "sidecar",
            GarbageKind::VersionAlias => "version-alias",
        }
    }
}

/// One thing that was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// What it was.
    pub kind: GarbageKind,
    /// Where it lay, relative to the root.
    pub path: String,
    /// The bytes of content in it.
    pub size_bytes: u64,
}

/// What a collection tells while it goes on. Whoever is told may end it with an error.
#[derive(Debug)]
pub enum GcEvent {
    /// This many directory entries have been looked at.
    Progress {
        /// Entries since the start.
        entries: u64,
    },
    /// Something was removed, or would be.
    Removed(Garbage),
    /// Something could not be looked at or removed; the collection goes on.
    Failed(Error),
}

/// What a collection did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSummary {
    /// Directory entries looked at.
    pub entries: u64,
    /// Things removed.
    pub removed: u64,
    /// Bytes of content in them.
    pub freed_bytes: u64,
    /// Things that could not be looked at or removed.
    pub failed: u64,
}
