//! The file that gives programs access to a gateway: its endpoint and keys, as lines for a shell.

use std::io::Write;
use std::path::Path;

use fordway_command::file_error;
use fordway_serve::AccessKeyPair;
use fordway_store::Result;

/// Writes `path` atomically, readable only by its owner. Errors: the errors of the file system.
pub(super) fn write(path: &Path, endpoint: &str, keys: Option<&AccessKeyPair>) -> Result<()> {
    let failed = |error| file_error("writing", path.display(), error);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A temporary file has mode 0600 from the start, regardless of the mode of any existing file at `path`.
    let mut file = tempfile::Builder::new().prefix(".fordway-").tempfile_in(parent).map_err(failed)?;
    file.write_all(lines(endpoint, keys).as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn lines(endpoint: &str, keys: Option<&AccessKeyPair>) -> String {
    let mut text = export("AWS_ENDPOINT_URL", endpoint);
    if let Some(AccessKeyPair { access_key, secret_key }) = keys {
        text += &export("AWS_ACCESS_KEY_ID", access_key);
        text += &export("AWS_SECRET_ACCESS_KEY", secret_key);
        // A token left from an earlier session would otherwise be sent with these keys.
        text += "unset AWS_SESSION_TOKEN\n";
    }
    text
}

/// Writes an assignment. Within single quotes, only the quote itself is special.
fn export(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_was_written() {
        let keys = AccessKeyPair { access_key: "a'b $HOME".into(), secret_key: "`c` \"d\" \\".into() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.env");
        write(&path, "unix:///run/a b", Some(&keys)).unwrap();
        let script = ". \"$1\" && printf '%s|' \"$AWS_ENDPOINT_URL\" \"$AWS_ACCESS_KEY_ID\" \"$AWS_SECRET_ACCESS_KEY\"";
        let mut shell = std::process::Command::new("sh");
        let read = shell.args(["-c", script, "sh"]).arg(&path).output().unwrap();
        let wanted = format!("unix:///run/a b|{}|{}|", keys.access_key, keys.secret_key);
        assert_eq!(String::from_utf8_lossy(&read.stdout), wanted);
    }
}
