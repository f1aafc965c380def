//! The document of a failed request.

use fordway_store::Result;

use super::{for_each_element, root};

/// What a server says about a failure; empty where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorDocument {
    /// S3's code: `NoSuchKey`, ...
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// The region the bucket is in, where the request went to another.
    pub region: String,
    /// The endpoint to use instead.
    pub endpoint: String,
    /// The client's time, where the clocks differ too much.
    pub request_time: String,
    /// The server's time, likewise.
    pub server_time: String,
    /// What the server's log knows the request by.
    pub request_id: String,
}

/// Reads an error document; `None` where the root is another element.
/// Errors: `BadResponse` for what is not XML.
pub fn error_document(document: &[u8]) -> Result<Option<ErrorDocument>> {
    if root(document)? != "Error" {
        return Ok(None);
    }
    let mut found = ErrorDocument::default();
    for_each_element(document, "Error", |path, text| {
        let field = match path {
            "Code" => &mut found.code,
            // Ours says more there than AWS's words do.
            "Message" if !found.message.is_empty() => return Ok(()),
            "Message" | "Detail" => &mut found.message,
            "Region" | "BucketRegion" => &mut found.region,
            "Endpoint" => &mut found.endpoint,
            "RequestTime" => &mut found.request_time,
            "ServerTime" => &mut found.server_time,
            "RequestId" => &mut found.request_id,
            _ => return Ok(()),
        };
        text.clone_into(field);
        Ok(())
    })?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_error_and_nothing_else() {
        let document = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>\
            <Message>a &lt;b&gt; &#99;</Message><Resource>/b/k</Resource></Error>";
        let error = error_document(document).unwrap().unwrap();
        assert_eq!((error.code.as_str(), error.message.as_str()), ("NoSuchKey", "a <b> c"));
        let detailed =
            b"<Error><Code>NoSuchKey</Code><Message>gone</Message><Detail>b/k is gone</Detail></Error>";
        assert_eq!(error_document(detailed).unwrap().unwrap().message, "b/k is gone");
        assert_eq!(error_document(b"<CopyObjectResult><Error/></CopyObjectResult>").unwrap(), None);
        assert!(error_document(b"502 Bad Gateway").is_err());
    }
}
