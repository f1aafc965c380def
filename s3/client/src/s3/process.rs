//! Gets keys from the program that a profile names as its `credential_process`.

use std::process::{Command, Stdio};
use std::time::SystemTime;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date::parse_iso8601;
use serde_json::Value;

use super::S3Credentials;
use super::profile::shell_words;

/// Runs the program, without a shell, and returns the keys that it prints. The keys are used until this process ends.
/// Errors: `InvalidArgument` if the program cannot be run, fails, or does not print valid keys.
pub(super) fn run(command: &str, profile: &str) -> Result<S3Credentials> {
    let source = format!("the credential_process of profile `{profile}`");
    let failed = |why: &str| Error::new(ErrorKind::InvalidArgument, format!("{source} {why}"));
    let words = shell_words(command).ok_or_else(|| failed("has a quote that is not closed"))?;
    let (program, arguments) = words.split_first().ok_or_else(|| failed("is empty"))?;
    // The program does not inherit standard input, because standard input may be the content of an object.
    let child = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = child.map_err(|error| failed("cannot be run").caused_by(error))?;
    if !output.status.success() {
        return Err(failed(&format!("failed ({})", output.status)));
    }
    // The output is never part of a message, because it contains the secret key.
    let printed: Value =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("did not print a JSON object"))?;
    keys(&printed, &source, SystemTime::now()).map_err(|why| failed(&why))
}

fn keys(printed: &Value, source: &str, now: SystemTime) -> Result<S3Credentials, String> {
    let text = |name: &str| printed[name].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
    let required = |name: &str| text(name).ok_or_else(|| format!("printed no {name}"));
    if printed["Version"] != 1 {
        return Err("printed an unknown version of keys; only version 1 is known".to_owned());
    }
    if let Some(end) = text("Expiration") {
        match parse_iso8601(&end) {
            Some(time) if time > now => {}
            Some(_) => return Err(format!("printed keys that expired at {end}")),
            // Keys whose expiration cannot be parsed are used, because the service also checks the expiration.
            None => tracing::debug!(%end, "the expiration of keys cannot be parsed"),
        }
    }
    Ok(S3Credentials::Keys {
        access_key: required("AccessKeyId")?,
        secret_key: required("SecretAccessKey")?,
        session_token: text("SessionToken"),
        source: source.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn keys_come_from_the_output() {
        let found = run(
            r#"printf '{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "%s", "SessionToken": "T"}' 'a b'"#,
            "p",
        );
        let S3Credentials::Keys { access_key, secret_key, session_token, source } = found.unwrap() else {
            panic!("keys")
        };
        assert_eq!(
            (access_key.as_str(), secret_key.as_str(), session_token.as_deref()),
            ("AK", "a b", Some("T"))
        );
        assert_eq!(source, "the credential_process of profile `p`");
    }

    #[test]
    fn failures_are_named_and_show_no_secret() {
        for (command, why) in [
            ("", "is empty"),
            ("'", "has a quote that is not closed"),
            ("/nonexistent/program", "cannot be run"),
            ("false", "failed (exit status: 1)"),
            ("echo SECRET", "did not print a JSON object"),
            ("echo {}", "printed an unknown version"),
            (r#"echo '{"Version": 1, "SecretAccessKey": "SECRET"}'"#, "printed no AccessKeyId"),
        ] {
            let error = run(command, "p").unwrap_err();
            assert!(error.detail().contains(why), "{command}: {error}");
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn expired_keys_are_refused() {
        let printed = |end: &str| serde_json::json!({"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S", "Expiration": end});
        let now = UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        assert!(keys(&printed("2017-07-14T02:39:59Z"), "", now).is_err());
        assert!(keys(&printed("2017-07-14T02:40:01Z"), "", now).is_ok());
        assert!(keys(&printed("2017-07-14T02:40:01+00:00"), "", now).is_ok());
    }
}
