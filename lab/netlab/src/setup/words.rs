//! Words in braces, which stand for what is known only when a set-up is started.

use std::collections::BTreeMap;

use fordway_store::{Error, ErrorKind, Result};

/// What words stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Words(BTreeMap<String, String>);

impl Words {
    pub(super) fn set(&mut self, word: &str, value: impl Into<String>) {
        self.0.insert(word.to_owned(), value.into());
    }

    /// `text` with all words replaced: `{word}`, of letters, digits, `-` and `_`. Other braces stay, because the
    /// languages of commands have them too. Errors: `InvalidArgument` for a word that stands for nothing.
    pub(super) fn fill(&self, text: &str) -> Result<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            filled += before;
            match after.split_once('}').filter(|(word, _)| is_word(word)) {
                Some((word, behind)) => {
                    filled +=
                        self.0.get(word).filter(|value| !value.is_empty()).ok_or_else(|| unknown(word))?;
                    rest = behind;
                }
                None => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        Ok(filled + rest)
    }

    /// The same for each word of a command.
    pub(super) fn fill_all(&self, command: &[String]) -> Result<Vec<String>> {
        command.iter().map(|part| self.fill(part)).collect()
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn unknown(word: &str) -> Error {
    let detail = format!("{{{word}}} stands for nothing; say what it is by --set {word}=VALUE");
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_other_braces_stay() {
        let mut words = Words::default();
        words.set("port", "8080");
        words.set("host", "");
        assert_eq!(words.fill("dnat to 172.17.0.2:{port}; }").unwrap(), "dnat to 172.17.0.2:8080; }");
        assert_eq!(words.fill("table ip nat {\n chain x { a }}").unwrap(), "table ip nat {\n chain x { a }}");
        for unknown in ["ssh {host}", "{nobody}"] {
            let error = words.fill(unknown).expect_err("it stands for nothing");
            assert!(error.to_string().contains("--set"), "{error}");
        }
    }
}
