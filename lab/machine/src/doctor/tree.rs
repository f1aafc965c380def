//! The files that checks read: files of this node, or a copy of another node's files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use fordway_sys::OFlags;

/// The exclusive upper bound for processor numbers and NUMA node numbers. Kernels for x86 and Arm can be built for at
/// most 8,192 processors.
const MAX_NUMBER: usize = 1 << 16;
/// The maximum number of processors that a kernel can be built for.
const MAX_EACH: usize = 1 << 13;
/// The maximum size of a file that is read. Kernel files are smaller: with 1,000 processors, `/proc/interrupts` is a
/// few MiB in size.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A directory used in place of `/`. The tree records which files were read, so that findings can name them.
#[derive(Debug)]
pub struct SystemTree {
    root: PathBuf,
    copy: Option<PathBuf>,
    seen: RefCell<Vec<String>>,
    /// The contents of the files read during [`SystemTree::remember`]; otherwise `None`.
    recorded: RefCell<Option<HashMap<String, String>>>,
    /// The earlier contents of files with counters.
    earlier: HashMap<String, String>,
}

/// A file that could not be read, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableFile {
    path: String,
    why: String,
}

impl SystemTree {
    /// Creates a tree that reads files below `root`, which takes the place of `/`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        SystemTree {
            root: root.into(),
            copy: None,
            seen: RefCell::default(),
            recorded: RefCell::default(),
            earlier: HashMap::new(),
        }
    }

    /// Also copies everything that is read from now on to `directory`, so that the node can be examined on another
    /// machine. A file that cannot be copied is skipped.
    pub fn copying_to(self, directory: impl Into<PathBuf>) -> Self {
        SystemTree { copy: Some(directory.into()), ..self }
    }

    /// Returns the trimmed content of a file. `path` has no leading slash.
    pub(crate) fn read(&self, path: &str) -> Result<String, UnreadableFile> {
        let text = read_bounded(&self.root.join(path)).map_err(|error| UnreadableFile::of(path, &error))?;
        self.note(path);
        self.write_copy(path, |copy| fs::write(copy, &text));
        self.record(path, &text);
        Ok(text.trim().to_owned())
    }

    /// Stores the contents of all files that `examine` reads, so that a later check can compute how much their counters
    /// have increased.
    pub(super) fn remember(&mut self, examine: impl FnOnce(&Self)) {
        *self.recorded.borrow_mut() = Some(HashMap::new());
        examine(self);
        self.take_seen();
        self.earlier = self.recorded.take().unwrap_or_default();
    }

    fn record(&self, path: &str, text: &str) {
        if let Some(recorded) = self.recorded.borrow_mut().as_mut() {
            recorded.insert(path.to_owned(), text.trim().to_owned());
        }
    }

    /// Returns the content that a file had when it was remembered; `None` if it was not remembered.
    pub(crate) fn earlier(&self, path: &str) -> Option<&str> {
        self.earlier.get(path).map(String::as_str)
    }

    /// Returns the names in a directory, sorted.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, UnreadableFile> {
        let entries = fs::read_dir(self.root.join(path)).map_err(|error| UnreadableFile::of(path, &error))?;
        let mut names: Vec<_> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        self.note(path);
        self.write_copy(path, |copy| fs::create_dir(copy));
        Ok(names)
    }

    /// Reads the file `{before}N{after}` for each number N, for at most [`MAX_EACH`] numbers; leaves out missing files.
    /// In the list of files read, all these files appear as one entry with `*` in place of the number.
    pub(crate) fn read_each(&self, before: &str, numbers: &[usize], after: &str) -> Vec<(usize, String)> {
        let text = |number: &usize| {
            let path = format!("{before}{number}{after}");
            let text = read_bounded(&self.root.join(&path)).ok()?;
            self.write_copy(&path, |copy| fs::write(copy, &text));
            self.record(&path, &text);
            Some((*number, text.trim().to_owned()))
        };
        let found: Vec<_> = numbers.iter().take(MAX_EACH).filter_map(text).collect();
        if !found.is_empty() {
            self.note(&format!("{before}*{after}"));
        }
        found
    }

    /// Returns the last component of a symbolic link's target, such as the driver of a device or the device of an
    /// interface.
    pub(super) fn link(&self, path: &str) -> Result<String, UnreadableFile> {
        let target = fs::read_link(self.root.join(path)).map_err(|error| UnreadableFile::of(path, &error))?;
        self.note(path);
        let name = target.file_name().unwrap_or_default();
        // Files reached through the link may be read next. Therefore, the copy of the link points to a new directory
        // next to it.
        self.write_copy(path, |copy| {
            symlink(name, copy).and_then(|()| fs::create_dir(copy.with_file_name(name)))
        });
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns whether a file or directory exists at `path`.
    pub(super) fn has(&self, path: &str) -> bool {
        let found = fs::symlink_metadata(self.root.join(path)).is_ok();
        if found {
            self.note(path);
            self.write_copy(path, |copy| if copy.exists() { Ok(()) } else { fs::write(copy, "") });
        }
        found
    }

    /// Returns the files read since the last call, in order, without repetitions.
    pub(crate) fn take_seen(&self) -> Vec<String> {
        self.seen.take()
    }

    fn note(&self, path: &str) {
        let path = format!("/{path}");
        let mut seen = self.seen.borrow_mut();
        if !seen.contains(&path) {
            seen.push(path);
        }
    }

    fn write_copy(&self, path: &str, write: impl FnOnce(&Path) -> io::Result<()>) {
        let Some(copy) = self.copy.as_ref().map(|copy| copy.join(path)) else { return };
        if copy.parent().is_some_and(|parent| fs::create_dir_all(parent).is_ok()) {
            // Ignore the error: if a file or link is read again, the copy already exists, and creating it again may
            // fail.
            let _ = write(&copy);
        }
    }
}

impl UnreadableFile {
    fn of(path: &str, error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "there is no such file".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            io::ErrorKind::InvalidData => "it is not text".to_owned(),
            _ => error.to_string(),
        };
        UnreadableFile { path: format!("/{path}"), why }
    }

    /// Creates the error for a file whose content could not be parsed.
    pub(super) fn unknown(path: &str, text: &str) -> Self {
        let start: String = text.chars().take(40).collect();
        UnreadableFile { path: format!("/{path}"), why: format!("{start:?} is not understood") }
    }
}

impl fmt::Display for UnreadableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

/// Returns the content of a regular file. A copied tree may contain any kind of file, so files that would block the
/// reader (a FIFO) or never end (a device that is a link's target) are not read.
fn read_bounded(path: &Path) -> io::Result<String> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE_BYTES {
        true => Err(io::Error::other(format!("it has more than {} MiB", MAX_FILE_BYTES >> 20))),
        false => Ok(text),
    }
}

/// Returns the value that follows `name` in text whose lines have the form `name value` or `name: value`.
pub(super) fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ':');
        (value.len() < rest.len()).then(|| value.trim_end())
    })
}

/// Parses a list of processors or nodes in the kernel's format: `0-2,5` means 0, 1, 2 and 5. Leaves out numbers that no
/// kernel uses, and everything after the first [`MAX_NUMBER`] entries.
pub(super) fn listed(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < MAX_NUMBER).then_some(first..=last)
    };
    list.split(',').filter_map(range).flatten().take(MAX_NUMBER).collect()
}

/// Formats numbers in the kernel's list format: 0, 1, 2 and 5 become `0-2,5`.
pub(super) fn shown(numbers: &[usize]) -> String {
    let mut text = String::new();
    let mut numbers = numbers.iter().copied().peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if_eq(&(last + 1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}-{last}") };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_says_why() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("directory")).unwrap();
        fs::write(place.path().join("bytes"), [0xff, 0xfe]).unwrap();
        let tree = SystemTree::at(place.path());
        let missing = tree.read("missing").expect_err("it does not exist");
        assert_eq!(missing.to_string(), "/missing: there is no such file");
        assert_eq!(tree.read("bytes").expect_err("no text").to_string(), "/bytes: it is not text");
        assert!(tree.read("directory").expect_err("no file").to_string().starts_with("/directory: "));
        assert!(tree.take_seen().is_empty());
    }

    #[test]
    fn what_has_no_end_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(place.path().join("fifo")).status().unwrap();
        assert!(made.success());
        symlink("/dev/zero", place.path().join("zero")).unwrap();
        fs::File::create(place.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
        let tree = SystemTree::at(place.path());
        for (name, why) in
            [("fifo", "not a regular file"), ("zero", "not a regular file"), ("huge", "more than 16 MiB")]
        {
            let unseen = tree.read(name).expect_err("it has no end");
            assert!(unseen.to_string().contains(why), "{unseen}");
        }
    }

    #[test]
    fn a_copy_answers_as_the_original() {
        let place = tempfile::tempdir().unwrap();
        let (original, copy) = (place.path().join("a"), place.path().join("b"));
        fs::create_dir_all(original.join("sys/net")).unwrap();
        fs::write(original.join("sys/net/speed"), "1000\n").unwrap();
        fs::create_dir_all(original.join("sys/virtio2")).unwrap();
        fs::write(original.join("sys/virtio2/id"), "1").unwrap();
        symlink("../virtio2", original.join("sys/net/device")).unwrap();
        let ask = |tree: &SystemTree| {
            let texts =
                [tree.read("sys/net/speed"), tree.link("sys/net/device"), tree.read("sys/net/device/id")];
            (texts.map(Result::ok), tree.has("sys/x"))
        };
        let tree = SystemTree::at(&original).copying_to(&copy);
        let answer = ask(&tree);
        assert_eq!(answer, (["1000", "virtio2", "1"].map(|text| Some(text.to_owned())), false));
        assert_eq!(tree.take_seen(), ["/sys/net/speed", "/sys/net/device", "/sys/net/device/id"]);
        assert_eq!(ask(&SystemTree::at(&copy)), answer);
    }

    #[test]
    fn values_and_lists_are_read() {
        let text = "nr_throttled 3\nthrottled_usec 12\nCpus_allowed_list:\t0-1\nSwapTotal:       8 kB";
        assert_eq!(value_of(text, "nr_throttled"), Some("3"));
        assert_eq!(value_of(text, "Cpus_allowed_list"), Some("0-1"));
        assert_eq!(value_of(text, "SwapTotal"), Some("8 kB"));
        assert_eq!(value_of(text, "throttled"), None);
        assert_eq!(listed("0-2,5"), [0, 1, 2, 5]);
        assert_eq!([shown(&[0, 1, 2, 5]), shown(&[7]), shown(&[])], ["0-2,5", "7", ""]);
        assert!(listed("").is_empty());
        assert_eq!(listed("0-999999999,3,5-4"), [3], "no kernel has as many");
        assert_eq!(listed(&"0-60000,".repeat(1_000)).len(), MAX_NUMBER);
    }
}
