//! Reads directories, and represents file names, which may contain any bytes, as text.
//!
//! Linux allows any bytes but `/` and NUL in a name. In text, each byte that is not valid UTF-8 appears as a private
//! character: U+EF80 to U+EFFF for the bytes 0x80 to 0xFF (as in the OPTU-8 encoding of MirBSD). If a name itself
//! contains one of these characters, each of its three bytes is represented in the same way. Different names are
//! therefore never represented by the same string, and all other names in valid UTF-8 are unchanged.
//!
//! Every function of this crate that takes a name or path as `&str` expects this representation.

use std::borrow::Cow;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::call::{self, statat};
use crate::nowait::would_scan;

/// The size of the buffer for one `getdents64` call, which is enough for about a thousand names.
const BUFFER_BYTES: usize = 32 * 1024;
/// The size, in bytes, of the longest record of an entry: 19 bytes before the name, 255 bytes, NUL, and padding.
const ENTRY_BYTES_MAX: usize = 280;

/// The type of a file according to its directory entry, without a `stat` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// The file system does not report the type; [`kind_in`] determines it.
    Unknown,
    /// A FIFO, socket or device.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, in the bytes that the file system stores.
    pub name: Vec<u8>,
    /// The type of the file.
    pub kind: EntryKind,
}

/// Calls `visit` for every entry of `dir` except `.` and `..`, in the file system's order, starting at the current
/// position of `dir`. If the directory is removed during the iteration, the iteration ends there. Cost: one
/// `getdents64` for about a thousand entries.
pub fn read_dir(dir: impl AsFd, mut visit: impl FnMut(&[u8], EntryKind)) -> Result<()> {
    read_entries(dir.as_fd(), &mut visit, &|| false).map(drop)
}

/// Reads entries like [`read_dir`]. Returns whether the entries are a snapshot, which they are if one `getdents64` had
/// room for all of them. Otherwise, an entry that was renamed during the call may be missing (see
/// [`keeps_entries_in_place`]).
///
/// [`keeps_entries_in_place`]: crate::keeps_entries_in_place
pub fn read_dir_in_steps(dir: impl AsFd, mut visit: impl FnMut(&[u8], EntryKind)) -> Result<bool> {
    read_entries(dir.as_fd(), &mut visit, &|| false)
}

/// Sets the position of the directory `dir` to its start. Cost: one `lseek`.
pub fn rewind(dir: impl AsFd) -> Result<()> {
    call::point("lseek")?;
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0)).map(drop)
}

/// Reads entries like [`read_dir`]. Errors: as for [`read_dir`], and `AGAIN` within
/// [`without_scanning`](crate::without_scanning) if the entries of `dir` need more than one `getdents64`. `visit` has
/// then been called for the entries that the first `getdents64` returned.
pub fn read_dir_briefly(dir: impl AsFd, mut visit: impl FnMut(&[u8], EntryKind)) -> Result<()> {
    read_entries(dir.as_fd(), &mut visit, &would_scan).map(drop)
}

/// Calls `visit` for the entries that one `getdents64` returns, about a thousand. Otherwise like [`read_dir`].
pub fn read_dir_start(dir: impl AsFd, mut visit: impl FnMut(&[u8], EntryKind)) -> Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    call::point("getdents64")?;
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::NOENT) => return Ok(()),
            entry => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            visit(name, kind_of(entry.file_type()));
        }
        if entries.is_buffer_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// Calls `visit` for every entry, as [`read_dir`] does, and returns what [`read_dir_in_steps`] returns. Calls `is_long`
/// each time a `getdents64` after the first one returns entries. Errors: as for [`read_dir`], and `AGAIN` if `is_long`
/// returns true.
fn read_entries(
    dir: BorrowedFd<'_>,
    visit: &mut dyn FnMut(&[u8], EntryKind),
    is_long: &dyn Fn() -> bool,
) -> Result<bool> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let (mut calls, mut bytes) = (0, 0);
    loop {
        let is_new = entries.is_buffer_empty();
        if is_new {
            call::point("getdents64")?;
        }
        let Some(entry) = entries.next() else {
            return Ok(calls <= 1 && bytes + ENTRY_BYTES_MAX <= BUFFER_BYTES);
        };
        let entry = match entry {
            // The directory was removed after it was opened, so it has no more entries.
            Err(Errno::NOENT) => return Ok(true),
            entry => entry?,
        };
        calls += u32::from(is_new);
        if is_new && calls > 1 && is_long() {
            return Err(Errno::AGAIN);
        }
        let name = entry.file_name().to_bytes();
        bytes += (19 + name.len() + 1).next_multiple_of(8);
        if name != b"." && name != b".." {
            visit(name, kind_of(entry.file_type()));
        }
    }
}

/// Returns the type of `name` in `dir`, for an entry that was [`EntryKind::Unknown`]. Links are not followed.
/// Cost: one `newfstatat`.
pub fn kind_in(dir: impl AsFd, name: &str) -> Result<EntryKind> {
    let stat = with_name(name, |name| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))?;
    Ok(kind_of(FileType::from_raw_mode(stat.st_mode)))
}

fn kind_of(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Link,
        FileType::Unknown => EntryKind::Unknown,
        _ => EntryKind::Other,
    }
}

/// The character for a byte has the code point `BASE` + the byte.
const BASE: u32 = 0xEF00;
/// The longest name, in bytes, that [`with_name`] copies.
const LONGEST_SHORT_NAME: usize = 63;
/// The first byte, in UTF-8, of U+E000 to U+EFFF. Almost no name contains this byte.
const LEAD: u8 = 0xEE;

/// Converts a file name to text.
pub fn name_to_text(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !may_have_escapes(text) => Cow::Borrowed(text),
        _ => Cow::Owned(escaped(name)),
    }
}

/// Converts text to the bytes of the name that it represents. [`name_to_text`] converts the bytes back to the same
/// text, unless the text has unnecessary escapes.
pub fn text_to_name(text: &str) -> Cow<'_, [u8]> {
    if !may_have_escapes(text) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut name = Vec::with_capacity(text.len());
    for char in text.chars() {
        match byte_of(char) {
            Some(byte) => name.push(byte),
            None => name.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(name)
}

/// Returns whether [`name_to_text`] converts the name that `text` represents back to `text`. Exactly one of the strings
/// that represent a name meets this condition.
pub fn is_text_of_a_name(text: &str) -> bool {
    !may_have_escapes(text) || name_to_text(&text_to_name(text)) == text
}

/// Calls `act` with the name that `text` represents. Errors: `INVAL` if the name contains NUL. For most names, this
/// function executes far fewer instructions than `CStr::from_bytes_with_nul`, which checks each byte.
#[inline]
pub(crate) fn with_name<T>(text: &str, act: impl FnOnce(&CStr) -> Result<T>) -> Result<T> {
    let mut buffer = [0; LONGEST_SHORT_NAME + 1];
    match buffer.get_mut(..=text.len()) {
        Some(name) if is_ascii_without_nul(text.as_bytes()) => {
            name[..text.len()].copy_from_slice(text.as_bytes());
            // SAFETY: no byte of the text is NUL, and the byte after the text is NUL.
            act(unsafe { CStr::from_bytes_with_nul_unchecked(name) })
        }
        _ => (&*text_to_name(text)).into_with_c_str(act),
    }
}

#[inline]
fn may_have_escapes(text: &str) -> bool {
    !is_ascii_without_nul(text.as_bytes()) && memchr::memchr(LEAD, text.as_bytes()).is_some()
}

/// Returns whether all bytes are between 1 and 127. For names of usual length, this function executes far fewer
/// instructions than `<[u8]>::is_ascii`.
#[inline]
fn is_ascii_without_nul(name: &[u8]) -> bool {
    const ONES: u128 = u128::MAX / 255;
    const HIGH_BITS: u128 = ONES << 7;
    // Subtracting 1 from each byte sets the high bit of the lowest zero byte. If no byte is zero, no subtraction
    // borrows from the next byte.
    macro_rules! is_met_by {
        ($word:ident, $bytes:expr) => {{
            let word = $word::from_ne_bytes($bytes);
            (word.wrapping_sub(ONES as $word) | word) & HIGH_BITS as $word == 0
        }};
    }
    if let Some([first, last]) = ends::<4>(name) {
        return is_met_by!(u32, first) && is_met_by!(u32, last);
    }
    if let Some([first, last]) = ends::<8>(name) {
        return is_met_by!(u64, first) && is_met_by!(u64, last);
    }
    if let Some([first, last]) = ends::<16>(name) {
        return is_met_by!(u128, first) && is_met_by!(u128, last);
    }
    name.is_ascii() && memchr::memchr(0, name).is_none()
}

/// Returns the first and the last `N` bytes, which may overlap, if together they cover the whole name.
fn ends<const N: usize>(name: &[u8]) -> Option<[[u8; N]; 2]> {
    let ends = [*name.first_chunk()?, *name.last_chunk()?];
    (name.len() <= 2 * N).then_some(ends)
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len() * 3);
    let escape = |text: &mut String, bytes: &[u8]| {
        text.extend(bytes.iter().filter_map(|byte| char::from_u32(BASE + u32::from(*byte))));
    };
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match byte_of(char) {
                Some(_) => escape(&mut text, char.encode_utf8(&mut [0; 4]).as_bytes()),
                None => text.push(char),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

fn byte_of(char: char) -> Option<u8> {
    let byte = u32::from(char).checked_sub(BASE).and_then(|low| u8::try_from(low).ok());
    byte.filter(|byte| *byte >= 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts() {
        for (name, text) in [
            (&b"plain \xc3\xa9"[..], "plain é"),
            (b"\xff", "\u{efff}"),
            (b"a\x80b\xc3", "a\u{ef80}b\u{efc3}"),
            ("\u{ef80}".as_bytes(), "\u{efee}\u{efbe}\u{ef80}"),
            ("\u{e000}".as_bytes(), "\u{e000}"),
            ("\u{ef7f}".as_bytes(), "\u{ef7f}"),
        ] {
            assert_eq!(name_to_text(name), text);
            assert_eq!(&*text_to_name(text), name, "{text:?}");
            assert!(is_text_of_a_name(text));
        }
        // These escapes are not needed, because the unescaped text represents the same name.
        assert_eq!(&*text_to_name("\u{efc3}\u{efa9}"), "é".as_bytes());
        assert!(!is_text_of_a_name("\u{efc3}\u{efa9}"));
    }

    #[test]
    fn a_byte_that_is_not_ascii_or_nul_is_found_at_every_place() {
        for len in 0..70 {
            let mut name = vec![b'a'; len];
            assert!(is_ascii_without_nul(&name));
            for at in 0..len {
                for byte in [0x80, 0, 0xff] {
                    name[at] = byte;
                    assert!(!is_ascii_without_nul(&name), "{byte} at {at} of {len}");
                }
                name[at] = [0x7f, 1][at % 2];
            }
            assert!(is_ascii_without_nul(&name));
        }
    }

    #[test]
    fn a_name_for_the_kernel_ends_with_nul_and_has_no_other() {
        let for_the_kernel = |text: &str| with_name(text, |name| Ok(name.to_bytes().to_vec()));
        for len in 0..300 {
            let plain = "n".repeat(len);
            assert_eq!(for_the_kernel(&plain), Ok(plain.clone().into_bytes()));
            assert_eq!(for_the_kernel(&format!("{plain}\0")), Err(Errno::INVAL));
            let escaped = format!("{plain}\u{ef80}");
            assert_eq!(for_the_kernel(&escaped), Ok(text_to_name(&escaped).into_owned()));
        }
    }

    /// A name of arbitrary bytes survives the conversion to text and back.
    #[test]
    fn every_name_comes_back() {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            [0xee, 0xbe, 0x80, 0xef, 0xc3, b'a', (state >> 24) as u8][(state >> 16) as usize % 7]
        };
        for len in (0..12).cycle().take(20_000) {
            let name: Vec<u8> = (0..len).map(|_| next()).collect();
            let text = name_to_text(&name).into_owned();
            assert_eq!(&*text_to_name(&text), name, "{text:?}");
            assert!(is_text_of_a_name(&text));
        }
    }
}
