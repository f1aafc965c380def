//! The output of `--version`.

use std::sync::OnceLock;

/// The commit from which a release is built; tools/dist sets the environment variable. Other builds do not include the
/// commit, because otherwise each new commit would require relinking.
const COMMIT: Option<&str> = option_env!("FORDWAY_COMMIT");

/// Returns the output of `--version` after the program's name: the version, the commit, and the enabled features. `-V`
/// prints only the version.
pub fn long_version(features: &'static [&'static str]) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| describe(env!("CARGO_PKG_VERSION"), COMMIT, features))
}

fn describe(version: &str, commit: Option<&str>, features: &[&str]) -> String {
    let commit = commit.map_or("development build".to_owned(), |commit| format!("commit {commit}"));
    let features = if features.is_empty() { "none" } else { &features.join(" ") };
    format!("{version} ({commit}, features: {features})")
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn commit_and_features_are_named() {
        let release = describe("1.2.3", Some("0123456789ab"), &["http3", "other"]);
        assert_eq!(release, "1.2.3 (commit 0123456789ab, features: http3 other)");
        assert_eq!(describe("1.2.3", None, &[]), "1.2.3 (development build, features: none)");
    }
}
