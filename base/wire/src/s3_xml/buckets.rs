//! The list of buckets, and what is said of one.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{Result, Versioning};

use super::{bad, for_each_element, time};

/// A bucket as the server names it; it may have a name that is none by our rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBucket {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: SystemTime,
}

/// Reads a `ListAllMyBucketsResult`: the buckets, and the token of the next page if there is one.
/// Errors: `BadResponse`.
pub fn list_all_my_buckets(document: &[u8]) -> Result<(Vec<ListedBucket>, Option<String>)> {
    let (mut buckets, mut next) = (Vec::new(), None);
    let mut bucket = ListedBucket { name: String::new(), created: UNIX_EPOCH };
    for_each_element(document, "ListAllMyBuckets", |path, text| {
        match path {
            "Buckets/Bucket/Name" => text.clone_into(&mut bucket.name),
            "Buckets/Bucket/CreationDate" => bucket.created = time(text),
            "Buckets/Bucket" => buckets.push(bucket.clone()),
            "ContinuationToken" if !text.is_empty() => next = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    Ok((buckets, next))
}

/// Reads a `VersioningConfiguration`. Errors: `BadResponse`.
pub fn bucket_versioning(document: &[u8]) -> Result<Versioning> {
    let mut found = Versioning::Unversioned;
    for_each_element(document, "VersioningConfiguration", |path, text| {
        if path == "Status" {
            found = match text.trim() {
                "Enabled" => Versioning::Enabled,
                "Suspended" => Versioning::Suspended,
                other => return Err(bad(format!("the versioning status is {other:?}"))),
            };
        }
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::versioning_configuration;
    use super::*;

    #[test]
    fn versioning_both_ways() {
        for state in [Versioning::Unversioned, Versioning::Enabled, Versioning::Suspended] {
            assert_eq!(bucket_versioning(versioning_configuration(state).as_bytes()).unwrap(), state);
        }
        let odd = b"<VersioningConfiguration><Status>Maybe</Status></VersioningConfiguration>";
        assert!(bucket_versioning(odd).is_err());
    }

    #[test]
    fn reads_names_and_times() {
        let document = b"<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Owner><ID>x</ID></Owner><Buckets>\
            <Bucket><Name>a</Name><CreationDate>2013-05-24T00:00:00.000Z</CreationDate></Bucket>\
            <Bucket><Name>b</Name></Bucket></Buckets></ListAllMyBucketsResult>";
        let (buckets, next) = list_all_my_buckets(document).unwrap();
        assert_eq!(buckets.iter().map(|bucket| bucket.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(buckets[0].created, time("2013-05-24T00:00:00Z"));
        assert_eq!(next, None);
    }
}
