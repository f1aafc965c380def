//! Tags in the `x-amz-tagging` header: a query string.

use fordway_store::{Error, ErrorKind, Result, Tags};

use crate::uri::{canonical_query, decode_listed};

/// Returns the value of the header, percent-encoded, with the tags in order of name.
pub fn encode(tags: &Tags) -> String {
    canonical_query(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Reads the header. Errors: `InvalidTag` for text that is not a query string of UTF-8, and for a tag
/// that is listed twice.
pub fn decode(text: &str) -> Result<Tags> {
    let tag = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = decode_listed(name).zip(decode_listed(value));
        decoded.ok_or_else(|| refused(format!("{pair:?} is not UTF-8 when decoded")))
    };
    let listed: Vec<_> = text.split('&').filter(|pair| !pair.is_empty()).map(tag).collect::<Result<_>>()?;
    collect(listed)
}

/// Collects the tags that a request lists. Errors: `InvalidTag` for a tag that is listed twice.
pub fn collect(listed: Vec<(String, String)>) -> Result<Tags> {
    let mut tags = Tags::new();
    for (name, value) in listed {
        if tags.contains_key(&name) {
            return Err(refused(format!("the tag {name:?} appears twice")));
        }
        tags.insert(name, value);
    }
    Ok(tags)
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidTag, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ways_of_writing_a_blank_are_read() {
        let tags = decode("a=1&b+c=2%20%2B&empty").unwrap();
        assert_eq!(encode(&tags), "a=1&b%20c=2%20%2B&empty=");
        assert!(decode("").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_set_of_tags_is_refused() {
        for bad in ["a=1&a=2", "a=%FF"] {
            assert_eq!(decode(bad).unwrap_err().kind(), ErrorKind::InvalidTag, "{bad}");
        }
        let twice = vec![("a".to_owned(), String::new()), ("a".to_owned(), "x".to_owned())];
        assert_eq!(collect(twice).unwrap_err().kind(), ErrorKind::InvalidTag);
    }

    proptest! {
        #[test]
        fn any_tags_survive(tags in prop::collection::btree_map(any::<String>(), any::<String>(), 0..5)) {
            let tags: Tags = tags.into_iter().filter(|(name, _)| !name.is_empty()).collect();
            prop_assert_eq!(decode(&encode(&tags)).unwrap(), tags);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[a-c%&=+0-9]{0,40}") {
            let _result = decode(&text);
        }
    }
}
