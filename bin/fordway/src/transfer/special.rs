//! Destinations that are written in place, because a rename would replace them: devices, pipes, and open files of a
//! process, such as `/dev/stdout`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fordway_command::CommandOutputStreams;

/// The maximum number of links in a path that the kernel follows.
const MAX_LINKS: usize = 40;

/// Opens `path` for writing; `None` if `path` is a regular file or a directory, or does not exist. If `path` is
/// standard output, the command prints no further events, which would otherwise become a part of the content.
pub(crate) fn open_special(path: &Path, output: &CommandOutputStreams) -> Option<io::Result<File>> {
    let opened = open(path);
    if let Some(Ok(file)) = &opened
        && is_standard_output(file)
    {
        output.withhold_events();
    }
    opened
}

fn open(path: &Path) -> Option<io::Result<File>> {
    if let Some(descriptor) = descriptor(path) {
        return Some(open_descriptor(&descriptor));
    }
    let is_special = path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir());
    is_special.then(|| OpenOptions::new().write(true).open(path))
}

/// Returns whether `path` points to an open file of a process, which a rename must not replace.
pub(crate) fn is_open_file(path: &Path) -> bool {
    descriptor(path).is_some()
}

/// Returns whether `file` is this process's standard output, or the same pipe, device or file under another name.
fn is_standard_output(file: &File) -> bool {
    let id = |file: &File| file.metadata().map(|about| (about.dev(), about.ino()));
    let output = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    output.and_then(|output| Ok(id(&output)? == id(file)?)).unwrap_or(false)
}

/// If the path points to an open file of a process, returns the path of that file below `/proc`, such as
/// `/proc/PID/fd/1`.
fn descriptor(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().ok()?;
        let name = path.file_name()?;
        if parent.starts_with("/proc") && parent.ends_with("fd") {
            return Some(parent.join(name));
        }
        path = parent.join(path.read_link().ok()?);
    }
    None
}

/// Opens a file that a process has open. For this process's standard output and standard error, duplicates the
/// descriptor, so that the file keeps its content and its position. If the file were opened by its path instead, the
/// writes would begin at its start. Other files are opened for appending.
fn open_descriptor(path: &Path) -> io::Result<File> {
    let own = |number: u8| format!("/proc/{}/fd/{number}", std::process::id());
    if path == Path::new(&own(1)) {
        return io::stdout().as_fd().try_clone_to_owned().map(File::from);
    }
    if path == Path::new(&own(2)) {
        return io::stderr().as_fd().try_clone_to_owned().map(File::from);
    }
    OpenOptions::new().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_open_file_is_found_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "before ").unwrap();
        let opened = OpenOptions::new().append(true).open(&file).unwrap();
        std::os::unix::fs::symlink(format!("/dev/fd/{}", opened.as_raw_fd()), &link).unwrap();
        open(&link).unwrap().unwrap().write_all(b"after").unwrap();
        let mut text = String::new();
        File::open(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "before after");
        assert!(link.is_symlink() && open(&file).is_none());
        assert!(open(&dir.path().join("none")).is_none() && open(dir.path()).is_none());
        assert!(open(Path::new("/dev/null")).unwrap().is_ok());
    }
}
