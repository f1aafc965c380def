//! The answers of copies and of deleting many objects.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{ETag, Result};

use super::{ErrorDocument, error_document, etag, for_each_element, required, time};

/// How a copy of an object or part ended; like a completion it may fail under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The copy is there, with this tag and time.
    Done(ETag, SystemTime),
    /// It is not.
    Failed(ErrorDocument),
}

/// Reads a `CopyObjectResult` or `CopyPartResult`. Errors: `BadResponse`.
pub fn copied(document: &[u8]) -> Result<Copied> {
    if let Some(error) = error_document(document)? {
        return Ok(Copied::Failed(error));
    }
    let (mut tag, mut modified) = (None, UNIX_EPOCH);
    for_each_element(document, "Copy", |path, text| {
        match path {
            "ETag" => tag = Some(etag(text)),
            "LastModified" => modified = time(text),
            _ => {}
        }
        Ok(())
    })?;
    Ok(Copied::Done(required(tag, "ETag")?, modified))
}

/// A key that could not be deleted, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteFailure {
    /// The key.
    pub key: String,
    /// S3's code.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

/// Reads a `DeleteResult`: the keys that failed. Errors: `BadResponse`.
pub fn delete_result(document: &[u8]) -> Result<Vec<DeleteFailure>> {
    let (mut failures, mut failure) = (Vec::new(), DeleteFailure::default());
    for_each_element(document, "Delete", |path, text| {
        match path {
            "Error/Key" => text.clone_into(&mut failure.key),
            "Error/Code" => text.clone_into(&mut failure.code),
            "Error/Message" => text.clone_into(&mut failure.message),
            "Error" => failures.push(std::mem::take(&mut failure)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies() {
        let document = b"<CopyPartResult><LastModified>2011-04-11T20:34:56.000Z</LastModified>\
            <ETag>\"9b2c\"</ETag></CopyPartResult>";
        assert_eq!(copied(document).unwrap(), Copied::Done(ETag::new("9b2c"), time("2011-04-11T20:34:56Z")));
        assert!(matches!(copied(b"<Error><Code>SlowDown</Code></Error>").unwrap(), Copied::Failed(_)));
    }

    #[test]
    fn deletions_that_failed() {
        let document = b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b&#x1;</Key>\
            <Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>";
        let failures = delete_result(document).unwrap();
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].key.as_str(), failures[0].code.as_str()), ("b\u{1}", "AccessDenied"));
        assert!(delete_result(b"<Other/>").is_err());
    }
}
