//! Short texts without an allocation.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use arrayvec::ArrayString;

/// A text that never changes. Up to `N` bytes lie in it; a longer one has an allocation.
#[derive(Clone)]
pub(crate) enum Text<const N: usize> {
    Short(ArrayString<N>),
    Long(Box<str>),
}

impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        ArrayString::from(text).map_or_else(|_| Text::Long(text.into()), Text::Short)
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Short(text) => text,
            Text::Long(text) => text,
        }
    }
}

impl<const N: usize> PartialEq for Text<N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Text<N> {}

impl<const N: usize> PartialOrd for Text<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for Text<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<const N: usize> Hash for Text<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_does_not_show() {
        let texts: Vec<Text<4>> = ["", "abcd", "abcde", "b"].map(Text::from).into();
        assert!(matches!(texts[1], Text::Short(_)) && matches!(texts[2], Text::Long(_)));
        assert_eq!(texts.iter().map(|text| &**text).collect::<Vec<_>>(), ["", "abcd", "abcde", "b"]);
        assert!(texts.is_sorted(), "{texts:?}");
        let set: std::collections::HashSet<_> = texts.iter().cloned().collect();
        assert!(texts.iter().all(|text| set.contains(text)) && set.len() == texts.len());
    }
}
