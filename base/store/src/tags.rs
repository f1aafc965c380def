//! Tags: names and values that a writer may change without writing the object again.

use std::collections::BTreeMap;

use crate::{Error, ErrorKind, Result};

/// Tags by name.
pub type Tags = BTreeMap<String, String>;

/// The most tags of one object (S3's limit).
pub const MAX_TAGS: usize = 10;
/// The longest name, in characters.
const MAX_NAME_CHARS: usize = 128;
/// The longest value, in characters.
const MAX_VALUE_CHARS: usize = 256;

/// Holds tags against S3's limits: 10 of them, names of 1 to 128 and values of up to 256 characters.
/// Errors: `InvalidTag`.
pub fn check_tags(tags: &Tags) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidTag, why));
    if tags.len() > MAX_TAGS {
        return refuse(format!("{} tags are more than {MAX_TAGS}", tags.len()));
    }
    tags.iter().try_for_each(|(name, value)| check_tag(name, value))
}

/// Holds one tag against S3's limits. Errors: `InvalidTag`.
pub fn check_tag(name: &str, value: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidTag, why));
    if !(1..=MAX_NAME_CHARS).contains(&name.chars().count()) {
        return refuse(format!("the tag name {name:?} does not have 1 to {MAX_NAME_CHARS} characters"));
    }
    if value.chars().count() > MAX_VALUE_CHARS {
        return refuse(format!("the value of the tag {name:?} has over {MAX_VALUE_CHARS} characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let tags = |count: usize, name: usize, value: usize| -> Tags {
            (0..count).map(|at| (format!("{at:x>name$}"), "ä".repeat(value))).collect()
        };
        assert!(check_tags(&tags(10, 128, 256)).is_ok());
        for bad in
            [tags(11, 2, 0), tags(1, 129, 0), tags(1, 1, 257), Tags::from([(String::new(), "v".into())])]
        {
            assert_eq!(check_tags(&bad).unwrap_err().kind(), ErrorKind::InvalidTag);
        }
    }
}
