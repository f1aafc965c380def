//! Patterns with wildcards and variables. `*` matches any characters, including slashes, and `?` matches one character.
//! `${NAME}` is replaced by the value of a condition key; `*` and `?` in this value are literal.

use crate::request::AccessRequest;
use crate::wildcard::{ANY_CHARACTER, ANY_CHARACTERS, PatternSymbol, fits};

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternSegment {
    /// Bytes and wildcards, each as a [`PatternSymbol`].
    Fixed(Vec<u16>),
    Variable {
        key: String,
        default: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    pieces: Vec<PatternSegment>,
}

/// The special characters of a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatternSyntax {
    /// Whether `*` and `?` are wildcards.
    pub(crate) has_wildcards: bool,
    /// Whether `${NAME}` is a variable.
    pub(crate) has_variables: bool,
}

impl Pattern {
    /// Reads a pattern with wildcards and without variables.
    pub(crate) fn plain(text: &str) -> Self {
        let syntax = PatternSyntax { has_wildcards: true, has_variables: false };
        Pattern {
            text: text.to_owned(),
            pieces: vec![PatternSegment::Fixed(symbols(text, syntax).collect())],
        }
    }

    /// Reads a pattern. Errors: the unknown or malformed variable, or the rest of the text from a `${` that is not
    /// closed.
    pub(crate) fn new(text: &str, syntax: PatternSyntax, is_key: fn(&str) -> bool) -> Result<Self, String> {
        let mut pieces = vec![PatternSegment::Fixed(Vec::new())];
        let mut rest = text;
        let fixed = |pieces: &mut Vec<PatternSegment>, text: &str, syntax| match pieces.last_mut() {
            Some(PatternSegment::Fixed(known)) => known.extend(symbols(text, syntax)),
            _ => pieces.push(PatternSegment::Fixed(symbols(text, syntax).collect())),
        };
        while let Some(at) = rest.find("${").filter(|_| syntax.has_variables) {
            fixed(&mut pieces, &rest[..at], syntax);
            let Some((name, after)) = rest[at + 2..].split_once('}') else {
                return Err(rest[at..].to_owned());
            };
            match name {
                // `${*}`, `${?}` and `${$}` are AWS's escapes for the three characters.
                "*" | "?" | "$" => {
                    fixed(&mut pieces, name, PatternSyntax { has_wildcards: false, has_variables: false });
                }
                _ => pieces.push(variable(name, is_key).ok_or_else(|| format!("${{{name}}}"))?),
            }
            rest = after;
        }
        fixed(&mut pieces, rest, syntax);
        Ok(Pattern { text: text.to_owned(), pieces })
    }

    /// Returns the string from which the pattern was read.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern has neither wildcards nor variables.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(&self.pieces[..], [PatternSegment::Fixed(symbols)] if symbols.iter().all(|symbol| *symbol < 256))
    }

    /// Returns whether the pattern matches the whole of `text`. A pattern matches nothing if one of its variables has
    /// several values, or has neither a value nor a default.
    pub(crate) fn fits(&self, text: &str, request: &AccessRequest<'_>) -> bool {
        match &self.pieces[..] {
            [PatternSegment::Fixed(symbols)] => fits(symbols, text),
            pieces => expanded(pieces, request, text.len()).is_some_and(|symbols| fits(&symbols, text)),
        }
    }

    /// Returns whether the pattern, which has no variables, matches the whole of `text`.
    pub(crate) fn fits_plain(&self, text: &str) -> bool {
        matches!(&self.pieces[..], [PatternSegment::Fixed(symbols)] if fits(symbols, text))
    }

    /// Returns whether the pattern, which has no wildcards, matches the whole of a string, ignoring case. `folded` is
    /// the case-folded string (see [`fold`]). Cost: ends at the first difference, because a client chooses the values
    /// of some variables, and a pattern can repeat a variable often.
    pub(crate) fn equals_ignoring_case(&self, folded: &str, request: &AccessRequest<'_>) -> bool {
        let mut rest = folded;
        for piece in &self.pieces {
            let after = match piece {
                PatternSegment::Fixed(symbols) => {
                    let bytes: Vec<u8> = symbols.iter().map(|symbol| *symbol as u8).collect();
                    without_start(rest, &String::from_utf8_lossy(&bytes))
                }
                PatternSegment::Variable { key, default } => {
                    value_of(key, default.as_deref(), request).and_then(|value| without_start(rest, value))
                }
            };
            let Some(after) = after else { return false };
            rest = after;
        }
        rest.is_empty()
    }
}

/// Returns the case-folded characters of a string. The two lower-case forms of sigma are the same letter.
fn folded_chars(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase).map(|found| if found == 'ς' { 'σ' } else { found })
}

/// Returns the case-folded string.
pub(crate) fn fold(text: &str) -> String {
    folded_chars(text).collect()
}

/// Returns the part of `folded`, a case-folded string, that follows `start`.
fn without_start<'t>(folded: &'t str, start: &str) -> Option<&'t str> {
    if start.is_ascii() {
        let (found, rest) = folded.split_at_checked(start.len())?;
        return found.eq_ignore_ascii_case(start).then_some(rest);
    }
    let mut rest = folded.chars();
    folded_chars(start).all(|wanted| rest.next() == Some(wanted)).then_some(rest.as_str())
}

fn symbols(text: &str, syntax: PatternSyntax) -> impl Iterator<Item = PatternSymbol> + '_ {
    text.bytes().map(move |byte| match byte {
        b'*' if syntax.has_wildcards => ANY_CHARACTERS,
        b'?' if syntax.has_wildcards => ANY_CHARACTER,
        byte => u16::from(byte),
    })
}

/// Parses the text between the braces of `${NAME}` or `${NAME, 'DEFAULT'}`. Returns `None` if the key is not known, or
/// the default is not in single quotes.
fn variable(text: &str, is_key: fn(&str) -> bool) -> Option<PatternSegment> {
    let (name, default) = match text.split_once(',') {
        Some((name, default)) => {
            let default = default.trim();
            (name.trim(), Some(default.strip_prefix('\'')?.strip_suffix('\'')?.to_owned()))
        }
        None => (text, None),
    };
    let key = crate::condition::canonical_key(name);
    is_key(&key).then_some(PatternSegment::Variable { key, default })
}

/// Returns the value of a variable; `None` if the variable has several values, or has neither a value nor a default.
fn value_of<'v>(key: &'v str, default: Option<&'v str>, request: &'v AccessRequest<'_>) -> Option<&'v str> {
    let mut values = request.keys.values(key);
    let value = values.next().or(default)?;
    values.next().is_none().then_some(value)
}

/// Replaces variables with their values. Returns `None` if a variable has several values, or has neither a value nor a
/// default. Also returns `None`, before any value is copied, if the result matches only strings longer than
/// `text_bytes`. This check limits the cost, because a client chooses the values of some variables, and a pattern can
/// repeat a variable often.
fn expanded(
    pieces: &[PatternSegment],
    request: &AccessRequest<'_>,
    text_bytes: usize,
) -> Option<Vec<PatternSymbol>> {
    let mut parts: Vec<(&[PatternSymbol], &str)> = Vec::with_capacity(pieces.len());
    let mut bytes = 0;
    for piece in pieces {
        let (symbols, value) = match piece {
            PatternSegment::Fixed(symbols) => (&symbols[..], ""),
            PatternSegment::Variable { key, default } => {
                (&[][..], value_of(key, default.as_deref(), request)?)
            }
        };
        bytes += symbols.iter().filter(|symbol| **symbol != ANY_CHARACTERS).count() + value.len();
        if bytes > text_bytes {
            return None;
        }
        parts.push((symbols, value));
    }
    let mut all = Vec::with_capacity(bytes);
    for (symbols, value) in parts {
        all.extend_from_slice(symbols);
        all.extend(value.bytes().map(u16::from));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_fit_whole_texts() {
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("*", "a/b"),
            ("a*c", "abc"),
            ("a*b*c", "aXbYbZc"),
            ("?", "ä"),
            ("a?c", "a/c"),
            ("**a", "a"),
            ("*?", "ab"),
            ("a*", "a"),
            ("*ab", "aab"),
        ] {
            assert!(Pattern::plain(pattern).fits_plain(text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a", "ab"), ("?", ""), ("?", "ab"), ("a*c", "ab"), ("", "a"), ("*?", ""), ("ab*ab", "aba")]
        {
            assert!(!Pattern::plain(pattern).fits_plain(text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_long_pattern_ends_soon() {
        let pattern = Pattern::plain(&"*a".repeat(500));
        assert!(!pattern.fits_plain(&format!("{}b", "a".repeat(1000))));
    }
}
