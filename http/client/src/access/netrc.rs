//! Passwords by host, as `ftp` and `curl` keep them in `~/.netrc`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A user's name and password.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    user: String,
    password: String,
}

impl Login {
    /// The value of `Authorization` (RFC 7617).
    pub(super) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

/// The login of the first entry for `host`. The `default` entry is not looked at: it would tell a
/// password to everybody.
pub(super) fn find(text: &str, host: &str) -> Option<Login> {
    let mut words = words(text);
    while let Some(word) = words.next() {
        if word == "machine" && words.next().is_some_and(|name| name.eq_ignore_ascii_case(host)) {
            return Some(entry(&mut words));
        }
    }
    None
}

fn entry<'t>(words: &mut impl Iterator<Item = &'t str>) -> Login {
    let mut login = Login::default();
    while let Some(word) = words.next() {
        match word {
            "login" => login.user = words.next().unwrap_or_default().to_owned(),
            "password" => login.password = words.next().unwrap_or_default().to_owned(),
            "account" => drop(words.next()),
            _ => break,
        }
    }
    login
}

/// All words outside comments and macros; a macro ends with an empty line.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_macro = false;
    let lines = text.lines().filter(move |line| {
        is_macro = line.trim_start().starts_with("macdef") || (is_macro && !line.trim().is_empty());
        !is_macro && !line.trim_start().starts_with('#')
    });
    lines.flat_map(str::split_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_host() {
        let text = "# machine a login no password no\nmacdef init\nmachine a login macro\n\n\
                    machine b login bob\n  password b#1 account x\nmachine a password pa login ann\n\
                    machine a login second\ndefault login anybody password open";
        let found = |host| find(text, host).map(|login| (login.user, login.password));
        assert_eq!(found("B"), Some(("bob".into(), "b#1".into())));
        assert_eq!(found("a"), Some(("ann".into(), "pa".into())));
        assert_eq!(found("c"), None);
        assert_eq!(found("ann"), None);
    }
}
