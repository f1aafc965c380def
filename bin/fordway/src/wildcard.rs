//! Wildcards in addresses, and the include and exclude filters.

/// A pattern in which `*` matches any characters (including slashes, as in `aws` and `s5cmd`), and `?` matches one
/// character. Filters also support `[abc]`, `[a-z]` and `[!a-z]`.
#[derive(Clone, Debug)]
pub(crate) struct WildcardPattern(Vec<PatternToken>);

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
        WildcardPattern(text.chars().map(PatternToken::simple).collect())
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
        WildcardPattern(tokens)
    }

    /// Returns whether the pattern matches every name.
    fn is_of_all(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|token| *token == PatternToken::AnyMany)
    }

    /// Returns whether all of `text` matches. The worst-case time is proportional to the product of the lengths of the
    /// pattern and the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let (tokens, mut at, mut rest) = (&self.0, 0, text.chars());
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
            pattern.0.last() == Some(&PatternToken::AnyMany) && pattern.matches(directory)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
