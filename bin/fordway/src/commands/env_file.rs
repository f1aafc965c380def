//! The file that gives programs access to a gateway: its endpoint and keys, as lines for a shell.

use std::io::Write;
use std::path::Path;

use fordway_command::file_error;
use fordway_serve::AccessKeyPair;
use fordway_store::Result;

use super::env::{AWS_ENDPOINT, ClientToolSettings};

/// Writes `path` atomically, readable only by its owner. Errors: the errors of the file system.
pub(super) fn write(
    path: &Path,
    (endpoint, region): (&str, Option<&str>),
    keys: Option<&AccessKeyPair>,
) -> Result<()> {
    let failed = |error| file_error("writing", path.display(), error);
    let settings = ClientToolSettings {
        endpoint: endpoint.to_owned(),
        region: region.map(str::to_owned),
        keys: keys.cloned(),
        session_token: None,
        ca_bundle: None,
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A temporary file has mode 0600 from the start, regardless of the mode of any existing file at `path`.
    let mut file = tempfile::Builder::new().prefix(".fordway-").tempfile_in(parent).map_err(failed)?;
    file.write_all(settings.shell(AWS_ENDPOINT).as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_was_written() {
        let keys = AccessKeyPair { access_key: "a'b $HOME".into(), secret_key: "`c` \"d\" \\".into() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.env");
        write(&path, ("unix:///run/a b", None), Some(&keys)).unwrap();
        let script = ". \"$1\" && printf '%s|' \"$AWS_ENDPOINT_URL\" \"$AWS_ACCESS_KEY_ID\" \"$AWS_SECRET_ACCESS_KEY\"";
        let mut shell = std::process::Command::new("sh");
        let read = shell.args(["-c", script, "sh"]).arg(&path).output().unwrap();
        let wanted = format!("unix:///run/a b|{}|{}|", keys.access_key, keys.secret_key);
        assert_eq!(String::from_utf8_lossy(&read.stdout), wanted);
    }
}
