//! What a check can find, how bad it is, and what to do about it.

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something a person should know; no data is wrong.
    Note,
    /// Something could not be checked.
    Unreadable,
    /// Data or metadata is not what was stored.
    Corrupt,
}

impl Severity {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Unreadable => "unreadable",
            Severity::Corrupt => "corrupt",
        }
    }
}

macro_rules! findings {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $severity:ident, $advice:literal;)*) => {
        /// What a check can find.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FindingKind { $($(#[$doc])* $kind,)* }

        impl FindingKind {
            /// All kinds, in the order of their declaration.
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$kind),*];

            /// The name in tables and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name),* }
            }

            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self { $(FindingKind::$kind => Severity::$severity),* }
            }

            /// What a person can do next.
            pub const fn advice(self) -> &'static str {
                match self { $(FindingKind::$kind => $advice),* }
            }
        }
    };
}

findings! {
    /// The content is not what the stored MD5 or checksum says, although size and time are.
    Corrupt = "corrupt", Corrupt,
        "restore it from a copy; do not write over it before you have one";
    /// The attribute `user.fordway`, or the sidecar file below `.fordway/meta`, does not decode.
    BadRecord = "bad-record", Corrupt,
        "restore it, or remove it (an attribute: setfattr -x user.fordway) to accept the content without metadata";
    /// The attribute says that the rest of the record lies in a sidecar file, and that is gone, or is
    /// of another version. The content is whole; metadata, tags and parts of the object are lost.
    RecordMissing = "record-missing", Corrupt,
        "restore the file below .fordway/meta that has the inode's name, or put the object again with its metadata";
    /// The file `.fordway/versioning` says neither that old versions are kept nor that they are not.
    BadVersioning = "bad-versioning", Corrupt,
        "old versions are kept as long as it is so; set the bucket's versioning anew with an S3 client";
    /// The record of a multipart upload, or of a part, does not decode, or names no key.
    BadUpload = "bad-upload", Corrupt,
        "have the client send the part again, or remove the upload's directory and have it start again";
    /// The file or directory cannot be opened or read.
    Unreadable = "unreadable", Unreadable,
        "run as a user who may read it; if that does not help, look for disk errors in the kernel's log";
    /// A POSIX program changed the file, so that its stored ETag and checksum no longer count.
    Changed = "changed", Note,
        "nothing if that was meant; else restore it; copying it onto itself, with a --content-type or --metadata, stores a new ETag";
    /// A name below `.fordway/odd` that no key has.
    OddName = "odd-name", Note,
        "move it away; no S3 client can see it";
    /// A name below `.fordway/versions` that no version has.
    VersionName = "version-name", Note,
        "move it away; no S3 client can see it";
    /// A name below `.fordway/meta` that no sidecar file has.
    SidecarName = "sidecar-name", Note,
        "move it away; nothing reads it";
    /// A key of more than 1,024 bytes.
    LongKey = "long-key", Note,
        "shorten the path; S3 clients cannot name it";
    /// A name that is not UTF-8.
    NotUtf8 = "not-utf8", Note,
        "rename it (convmv); S3 clients see private characters in place of such bytes";
    /// A symbolic link that leads outside the root, or in a circle.
    LinkOutside = "link-outside", Note,
        "replace it by what it leads to, or a link within the root; it is refused to S3 clients";
    /// A symbolic link to nothing.
    LinkDangling = "link-dangling", Note,
        "remove it or restore what it leads to; S3 clients do not see it";
    /// A FIFO, socket or device.
    SpecialFile = "special-file", Note,
        "move it away; S3 clients do not see it";
    /// The directory of an upload without its record.
    UploadRest = "upload-rest", Note,
        "run `fordway gc`";
    /// Something in an upload's directory that is neither its record nor a part.
    StrayPart = "stray-part", Note,
        "remove it by hand once the upload is gone; nothing reads it, and nothing of Fordway's removes it";
    /// A name in `.fordway` that Fordway does not write.
    StrayPrivate = "stray-private", Note,
        "move it away; nothing reads it, and nothing of Fordway's removes it";
    /// `.fordway`, or something in it, is not what Fordway makes there: a link, a FIFO, a file in the place of a
    /// directory; or, in a bucket with the sticky bit, a third user's, who could remove what others keep there.
    NotOurs = "not-ours", Corrupt,
        "see who put it there, and remove it; or run `fordway fsck --migrate` as root, which gives directories to the bucket's owner";
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// Where it lies, relative to the root; bytes that are not UTF-8 are shown as `\xNN`.
    pub path: String,
    /// What is known beyond the kind; may be empty.
    pub detail: String,
}

/// A name in any bytes, as text that tells one from another.
pub(super) fn show_name(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        shown.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_and_say_what_to_do() {
        let mut names: Vec<_> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FindingKind::ALL.len());
        assert!(FindingKind::ALL.iter().all(|kind| !kind.advice().is_empty()));
    }

    #[test]
    fn foreign_names_are_shown_byte_by_byte() {
        assert_eq!(show_name(b"a\xff\xc3\xa4"), "a\\xff\u{e4}");
    }
}
