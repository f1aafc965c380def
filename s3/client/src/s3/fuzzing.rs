//! Fuzzes the parsers of the configuration files that all AWS tools share, and of the output of a `credential_process`.

use super::S3Credentials;
use super::process::printed_keys;
use super::profile::{CredentialProfile, ProfileFileKind, shell_words};

/// Reads a profile from the two configuration files. The input consists of the name of the profile, the credentials
/// file, the config file and the output of a `credential_process`, separated by NUL bytes. Runs no program.
pub fn aws_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut texts = text.split('\0');
    let mut next = || texts.next().unwrap_or_default();
    let (name, secrets, config, printed) = (next(), next(), next(), next());
    let wanted = (!name.is_empty()).then(|| name.to_owned());
    if let Ok(profile) = CredentialProfile::of_texts(wanted, secrets, config) {
        check(&profile);
    }
    check_words(config);
    if let Ok((keys, _)) = printed_keys(printed.as_bytes()) {
        check_keys(&keys);
    }
}

fn check(profile: &CredentialProfile) {
    for (name, value) in profile.settings() {
        assert_eq!(*name, name.to_ascii_lowercase(), "names are in lower case");
        assert!(name.trim() == name && value.trim() == value, "{name:?} = {value:?}");
        assert!(!name.contains(['\n', '=']) && !value.contains('\n'), "{name:?} = {value:?}");
        assert!(profile.get(name).is_some());
    }
    for file in [ProfileFileKind::Credentials, ProfileFileKind::Config] {
        if let Ok(Some(keys)) = S3Credentials::in_file(profile, file) {
            check_keys(&keys);
        }
    }
    profile.get("credential_process").map(check_words);
}

/// Checks that words remain the same if they are quoted and split again.
fn check_words(text: &str) {
    let Some(words) = shell_words(text) else { return };
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    assert_eq!(shell_words(&quoted.join(" ")), Some(words), "{text:?}");
}

fn check_keys(keys: &S3Credentials) {
    let S3Credentials::Keys { access_key, secret_key, .. } = keys else { panic!("{keys:?} are no keys") };
    assert!(!access_key.is_empty() && !secret_key.is_empty(), "{keys:?}");
}
