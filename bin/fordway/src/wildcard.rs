//! Wildcards in addresses, and the include and exclude filters.

use std::path::{Component, Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};

/// A pattern in which `*` matches any characters (including slashes, as in `aws` and `s5cmd`), and `?` matches one
/// character. Filters also support `[abc]`, `[a-z]` and `[!a-z]`.
#[derive(Clone, Debug)]
pub(crate) struct WildcardPattern {
    tokens: Vec<PatternToken>,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum PatternToken {
    Literal(char),
    AnyOne,
    AnyMany,
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl WildcardPattern {
    /// Parses the pattern of an address, in which only `*` and `?` are special, because keys often contain brackets.
    pub(crate) fn of_address(text: &str) -> Self {
        WildcardPattern { tokens: text.chars().map(PatternToken::simple).collect(), text: text.to_owned() }
    }

    /// Parses the pattern of `--include` or `--exclude`.
    pub(crate) fn of_filter(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < chars.len() {
            let (token, used) =
                PatternToken::class(&chars[at..]).unwrap_or((PatternToken::simple(chars[at]), 1));
            tokens.push(token);
            at += used;
        }
        WildcardPattern { tokens, text: text.to_owned() }
    }

    /// Returns the pattern of a filter relative to the local directory `root`, if the pattern begins with the absolute
    /// path of `root`.
    fn relative_to(&self, root: &Path) -> Option<Self> {
        let below = |root: PathBuf| {
            let root = root.to_str()?.trim_end_matches('/');
            self.text.strip_prefix(root)?.strip_prefix('/').filter(|rest| !rest.starts_with('/'))
        };
        // If one name leads through the other, the longer name is right.
        names_of(root).into_iter().filter_map(below).min_by_key(|rest| rest.len()).map(Self::of_filter)
    }

    /// Returns whether the pattern matches every name.
    fn is_of_all(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.iter().all(|token| *token == PatternToken::AnyMany)
    }

    /// Returns whether all of `text` matches. The worst-case time is proportional to the product of the lengths of the
    /// pattern and the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let (tokens, mut at, mut rest) = (&self.tokens, 0, text.chars());
        // The position after the last `*` in the pattern, and the rest of the string, which this `*` has not consumed
        // yet.
        let mut star: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            if tokens.get(at) == Some(&PatternToken::AnyMany) {
                at += 1;
                star = Some((at, rest.clone()));
                continue;
            }
            match (tokens.get(at), rest.next()) {
                (None, None) => return true,
                (Some(token), Some(c)) if token.takes(c) => at += 1,
                _ => {
                    // Mismatch: the last `*`, if any, consumes one more character.
                    let Some((after, swallowed)) = &mut star else { return false };
                    if swallowed.next().is_none() {
                        return false;
                    }
                    (at, rest) = (*after, swallowed.clone());
                }
            }
        }
    }
}

impl PatternToken {
    fn simple(c: char) -> Self {
        match c {
            '*' => PatternToken::AnyMany,
            '?' => PatternToken::AnyOne,
            other => PatternToken::Literal(other),
        }
    }

    /// Parses a bracket expression at the start of `chars`. Returns the expression and its length, or `None` if there
    /// is no closing bracket.
    fn class(chars: &[char]) -> Option<(Self, usize)> {
        if chars.first() != Some(&'[') {
            return None;
        }
        let negated = chars.get(1) == Some(&'!');
        let start = if negated { 2 } else { 1 };
        // A closing bracket in the first position is a member of the class.
        let end = start + 1 + chars.get(start + 1..)?.iter().position(|&c| c == ']')?;
        let mut ranges = Vec::new();
        let mut members = &chars[start..end];
        while let [first, rest @ ..] = members {
            (members, _) = match rest {
                ['-', last, rest @ ..] => (rest, ranges.push((*first, *last))),
                rest => (rest, ranges.push((*first, *first))),
            };
        }
        Some((PatternToken::Class { negated, ranges }, end + 1))
    }

    fn takes(&self, c: char) -> bool {
        match self {
            PatternToken::Literal(literal) => *literal == c,
            PatternToken::AnyOne => true,
            PatternToken::AnyMany => false,
            PatternToken::Class { negated, ranges } => {
                ranges.iter().any(|(first, last)| (first..=last).contains(&&c)) != *negated
            }
        }
    }
}

/// Returns whether an address contains a wildcard.
pub(crate) fn has_wildcard(key: &str) -> bool {
    key.contains(['*', '?'])
}

/// Returns the part of a wildcard before its first special character, which a listing can use as its prefix.
pub(crate) fn literal_prefix(key: &str) -> &str {
    &key[..key.find(['*', '?']).unwrap_or(key.len())]
}

/// Returns the "directory" of a key: everything up to and including its last slash.
pub(crate) fn directory(key: &str) -> &str {
    &key[..key.rfind('/').map_or(0, |slash| slash + 1)]
}

/// Returns the name of a single object, which the filters are applied to: the last segment of its key. A slash at the
/// end belongs to the name.
pub(crate) fn object_name(key: &str) -> &str {
    &key[directory(key.strip_suffix('/').unwrap_or(key)).len()..]
}

/// The filters `--include` and `--exclude`, in the order of the command line. The last filter that matches decides.
#[derive(Clone, Debug, Default)]
pub struct FilterRules {
    rules: Vec<(FilterAction, WildcardPattern)>,
    skips_links: bool,
    refuses_linked_directories: bool,
}

/// The effect of a filter on names that match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterAction {
    Include,
    Exclude,
}

impl FilterRules {
    /// Creates the rules from patterns in ascending order of precedence.
    pub(crate) fn new(rules: Vec<(FilterAction, WildcardPattern)>) -> Self {
        FilterRules { rules, ..FilterRules::default() }
    }

    /// Returns whether there are no filters, in which case every name is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether the first filter is an `--include` that has no effect. In s5cmd and rclone, such a filter
    /// excludes everything else. The pattern `*` has the same meaning in all programs.
    pub(crate) fn begin_with_include(&self) -> bool {
        let first = self.rules.first();
        first.is_some_and(|(action, pattern)| *action == FilterAction::Include && !pattern.is_of_all())
    }

    /// Returns whether there is an `--include`, and the filters also select names that match no filter. In s5cmd, an
    /// `--include` excludes these names.
    pub(crate) fn admit_more_than_included(&self) -> bool {
        let has_include = self.rules.iter().any(|(action, _)| *action == FilterAction::Include);
        has_include && !self.rules.iter().any(|(_, pattern)| pattern.is_of_all())
    }

    /// Returns a copy of these filters that also excludes symbolic links if `skips_links` is set.
    pub(crate) fn skipping_links(&self, skips_links: bool) -> Self {
        FilterRules { skips_links, ..self.clone() }
    }

    /// Returns whether symbolic links are excluded instead of followed.
    pub(crate) fn skips_links(&self) -> bool {
        self.skips_links
    }

    /// Returns a copy of these filters for a command that removes the files that it has listed. Such a command must not
    /// enter links to directories, because the files below such a link may belong to another directory tree.
    pub(crate) fn refusing_linked_directories(&self) -> Self {
        FilterRules { refuses_linked_directories: true, ..self.clone() }
    }

    /// Returns whether a link to a directory is an error instead of a part of the tree.
    pub(crate) fn refuses_linked_directories(&self) -> bool {
        self.refuses_linked_directories
    }

    /// Returns a copy of these filters for a copy from or to a local directory. As in `aws s3`, an absolute pattern may
    /// name paths below this directory. `roots` are the directories of all local sources and of a local destination.
    /// Errors: `InvalidArgument` for any other absolute pattern.
    pub(crate) fn relative_to(&self, roots: &[PathBuf]) -> Result<Self> {
        let mut roots: Vec<&PathBuf> = roots.iter().collect();
        roots.sort_by_key(|root| names_of(root));
        roots.dedup_by_key(|root| names_of(root));
        let relative = |(action, pattern): &(FilterAction, WildcardPattern)| {
            let root = match &roots[..] {
                _ if !pattern.text.starts_with('/') => return Ok((*action, pattern.clone())),
                [root] => Some(root),
                _ => None,
            };
            let found = root.and_then(|root| pattern.relative_to(root));
            found.map(|pattern| (*action, pattern)).ok_or_else(|| outside(&pattern.text, root))
        };
        let rules = self.rules.iter().map(relative).collect::<Result<_>>()?;
        Ok(FilterRules { rules, ..self.clone() })
    }

    /// Returns whether the filters select `relative` (the path below the source).
    pub(crate) fn admit(&self, relative: &str) -> bool {
        let deciding = self.rules.iter().rev().find(|(_, pattern)| pattern.matches(relative));
        deciding.is_none_or(|(verdict, _)| *verdict == FilterAction::Include)
    }

    /// Returns whether a pattern that ends in `*` excludes every name below `directory` (which ends in `/`), and no
    /// later filter overrides that pattern.
    pub(crate) fn exclude_all_below(&self, directory: &str) -> bool {
        let excludes = self.rules.iter().rev().take_while(|(verdict, _)| *verdict == FilterAction::Exclude);
        excludes.into_iter().any(|(_, pattern)| {
            pattern.tokens.last() == Some(&PatternToken::AnyMany) && pattern.matches(directory)
        })
    }
}

/// Returns the absolute paths of a local directory. The first one, as in `aws`, has no resolved links. A path with `..`
/// has only the second one, with resolved links, because `..` after a link does not lead back. Returns no path for such
/// a path of a directory that does not exist.
fn names_of(root: &Path) -> Vec<PathBuf> {
    let leads_back = root.components().any(|component| component == Component::ParentDir);
    let named = (!leads_back).then(|| absolute(root));
    named.into_iter().chain(root.canonicalize().ok()).collect()
}

/// Returns the absolute path without `.` and `..`. Like `aws`, does not resolve links.
fn absolute(path: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    for component in std::path::absolute(path).unwrap_or(path.to_owned()).components() {
        match component {
            Component::ParentDir => drop(found.pop()),
            Component::Normal(name) => found.push(name),
            _ => {}
        }
    }
    found
}

/// Returns the error for an absolute pattern that is not below `root`.
fn outside(pattern: &str, root: Option<&&PathBuf>) -> Error {
    let root = root.and_then(|root| names_of(root).first().map(|root| root.display().to_string()));
    let beginning = root.map_or_else(String::new, |root| {
        format!("; an absolute pattern must begin with {}/", root.trim_end_matches('/'))
    });
    let why = format!(
        "the pattern {pattern:?} is not below the local directory: patterns are relative to the source, such as \
         'private/*'{beginning}. A key that begins with a slash below its prefix matches '[/]*'"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_patterns_are_relative_to_the_only_directory() {
        let filters =
            |text| FilterRules::new(vec![(FilterAction::Exclude, WildcardPattern::of_filter(text))]);
        let relative = |text, roots: &[&str]| {
            filters(text).relative_to(&roots.iter().map(PathBuf::from).collect::<Vec<_>>())
        };
        for root in ["/data", "/data/", "/data/."] {
            let found = relative("/data/private/*", &[root]).unwrap();
            assert!(!found.admit("private/x") && found.admit("x"), "{root}");
        }
        assert!(!relative("/private/*", &["/"]).unwrap().admit("private/x"));
        assert!(!relative("/data/[1]/*", &["/data/[1]", "/data/[1]/"]).unwrap().admit("x"));
        assert!(!relative("private/*", &[]).unwrap().admit("private/x"));
        for outside in ["/private/*", "/data", "/data*", "/database/*", "/data//x", "/*"] {
            let error = relative(outside, &["/data"]).unwrap_err();
            assert!(error.detail().contains("must begin with /data/"), "{outside}: {error}");
        }
        for roots in [&[][..], &["/data", "/other"]] {
            let error = relative("/data/x", roots).unwrap_err();
            assert!(error.detail().contains("relative to the source"), "{error}");
        }
    }

    /// After a link, `..` leads to the parent of the link's target.
    #[test]
    fn absolute_patterns_follow_links_before_two_dots() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(at("data/releases/5")).unwrap();
        std::os::unix::fs::symlink("releases/5", at("data/current")).unwrap();
        let relative = |pattern: &str| {
            let pattern = WildcardPattern::of_filter(at(pattern).to_str().unwrap());
            FilterRules::new(vec![(FilterAction::Exclude, pattern)]).relative_to(&[at("data/current/..")])
        };
        assert!(!relative("data/releases/private/*").unwrap().admit("private/x"));
        assert!(relative("data/private/*").is_err());
    }

    #[test]
    fn patterns() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("*.gz", "logs/2024/a.gz", true),
            ("a?c", "aäc", true),
            ("a?", "a", false),
            ("**a**", "bab", true),
            ("x[1]*", "x[1]y", true),
            ("a*", "ba", false),
            ("a*b*c", "a1b2", false),
        ] {
            assert_eq!(WildcardPattern::of_address(pattern).matches(text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn filters_know_classes() {
        for (pattern, text, fits) in [
            ("[abc]1", "b1", true),
            ("[a-c]", "d", false),
            ("[!a-c]", "d", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[open", "[open", true),
        ] {
            assert_eq!(WildcardPattern::of_filter(pattern).matches(text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let pattern = WildcardPattern::of_address(&"a*".repeat(60));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(59))));
        assert!(pattern.matches(&"a".repeat(2_000)));
    }

    #[test]
    fn the_last_filter_decides() {
        let rule = |verdict, text| (verdict, WildcardPattern::of_filter(text));
        let filters =
            FilterRules::new(vec![rule(FilterAction::Exclude, "*"), rule(FilterAction::Include, "*.txt")]);
        assert!(filters.admit("a/b.txt") && !filters.admit("a/b.gz"));
        let filters =
            FilterRules::new(vec![rule(FilterAction::Include, "*.txt"), rule(FilterAction::Exclude, "*")]);
        assert!(!filters.admit("a/b.txt"));
        assert!(FilterRules::default().admit("anything"));
    }

    #[test]
    fn only_a_pattern_that_ends_in_a_star_excludes_a_directory() {
        let rules = |rules: &[(FilterAction, &str)]| {
            let rule = |(verdict, text): &(_, &str)| (*verdict, WildcardPattern::of_filter(text));
            FilterRules::new(rules.iter().map(rule).collect())
        };
        let (exclude, include) = (FilterAction::Exclude, FilterAction::Include);
        assert!(rules(&[(exclude, "d/*")]).exclude_all_below("d/"));
        assert!(rules(&[(exclude, "*")]).exclude_all_below("d/"));
        assert!(rules(&[(include, "*.txt"), (exclude, "d*")]).exclude_all_below("d/"));
        assert!(rules(&[(exclude, "d/*"), (exclude, "x")]).exclude_all_below("d/"));
        assert!(!rules(&[(exclude, "*"), (include, "*.txt")]).exclude_all_below("d/"));
        assert!(!rules(&[(exclude, "d")]).exclude_all_below("d/"));
        assert!(!rules(&[(exclude, "d/*.txt")]).exclude_all_below("d/"));
        assert!(!FilterRules::default().exclude_all_below("d/"));
    }

    #[test]
    fn parts_of_an_address() {
        assert_eq!(literal_prefix("logs/2024-*.gz"), "logs/2024-");
        assert_eq!(directory(literal_prefix("logs/2024-*.gz")), "logs/");
        assert_eq!(directory("top"), "");
        assert!(has_wildcard("a?") && !has_wildcard("[a]"));
    }
}
