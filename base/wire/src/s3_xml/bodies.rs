//! Request bodies, which clients write and servers read, and responses that a server writes element by element.

use std::borrow::Cow;
use std::fmt::Write as _;

use fordway_store::{
    Checksum, ChecksumAlgorithm, CompletedPart, Error, ErrorKind, Result, Tags, VersionId, VersioningState,
};

use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};
use quick_xml::{Reader, Writer};

use super::{etag, for_each_element, number, required};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Returns the body of a CompleteMultipartUpload request, with the parts in the given order.
pub fn complete_multipart_upload(parts: &[CompletedPart]) -> String {
    let mut body = opened("CompleteMultipartUpload", 96 * parts.len());
    for part in parts {
        let _infallible = write!(body, "<Part><PartNumber>{}</PartNumber><ETag>\"", part.number);
        push_escaped(&mut body, part.etag.as_str());
        body.push_str("\"</ETag>");
        push_checksum(&mut body, part.checksum.as_ref());
        body.push_str("</Part>");
    }
    body.push_str("</CompleteMultipartUpload>");
    body
}

fn push_checksum(body: &mut String, checksum: Option<&Checksum>) {
    if let Some(checksum) = checksum {
        let (name, text) = (checksum.algorithm.name(), checksum.to_base64());
        let _infallible = write!(body, "<Checksum{name}>{text}</Checksum{name}>");
    }
}

/// Reads the body of a CompleteMultipartUpload request from any client. Errors: `BadResponse` for a malformed document;
/// `InvalidArgument` for an invalid checksum or several checksums of one part; `InvalidPart` for a part number below 1.
pub fn completed_parts(document: &[u8]) -> Result<Vec<CompletedPart>> {
    let mut parts = Vec::new();
    let (mut part_number, mut tag, mut sum) = (None, None, None);
    for_each_element(document, "CompleteMultipartUpload", |path, text| {
        match path {
            "Part/PartNumber" => part_number = Some(positive_number(path, text)?),
            "Part/ETag" => tag = Some(etag(text)),
            "Part" => parts.push(CompletedPart {
                number: required(part_number.take(), "Part/PartNumber")?,
                etag: required(tag.take(), "Part/ETag")?,
                checksum: sum.take(),
            }),
            other => {
                let name = other.strip_prefix("Part/Checksum").and_then(ChecksumAlgorithm::from_name);
                if let Some(algorithm) = name {
                    let stated = Checksum::from_base64(algorithm, text.trim())?;
                    if sum.replace(stated).is_some() {
                        let detail = "a part has several checksums; state one";
                        return Err(Error::new(ErrorKind::InvalidArgument, detail));
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(parts)
}

fn positive_number(path: &str, text: &str) -> Result<u16> {
    match number::<i64>(path, text)? {
        ..1 => Err(Error::new(ErrorKind::InvalidPart, format!("{path} is {}", text.trim()))),
        _ => number(path, text),
    }
}

/// The document of a request that creates a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CreateBucketDocument {
    /// The region, if the request names one.
    pub region: Option<String>,
    /// The tags, in their order.
    pub tags: Vec<(String, String)>,
}

/// Reads the body of a request that creates a bucket. Errors: `BadResponse`.
pub fn new_bucket(document: &[u8]) -> Result<CreateBucketDocument> {
    let mut asked = CreateBucketDocument::default();
    let (mut key, mut value) = (None, None);
    for_each_element(document, "CreateBucketConfiguration", |path, text| {
        match path {
            "LocationConstraint" => asked.region = Some(text.to_owned()),
            "Tags/Tag/Key" => key = Some(text.to_owned()),
            "Tags/Tag/Value" => value = Some(text.to_owned()),
            "Tags/Tag" => {
                let key = required(key.take(), "Tags/Tag/Key")?;
                asked.tags.push((key, required(value.take(), "Tags/Tag/Value")?));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(asked)
}

/// Returns the document in the form that simple parsers read correctly: without prefixes of namespaces, CDATA sections
/// and comments, and with the characters themselves in place of references to characters above U+FFFF. Returns `None`
/// if the document does not have this form and is not XML.
pub fn simplified(document: &[u8]) -> Option<Cow<'_, [u8]>> {
    match is_simple(document) {
        true => Some(Cow::Borrowed(document)),
        false => with_simple_events(std::str::from_utf8(document).ok()?).map(Cow::Owned),
    }
}

/// Returns whether [`simplified`] has nothing to change.
fn is_simple(document: &[u8]) -> bool {
    let is_plain_tag = |at: usize| {
        let name = document[at + 1..].iter().take_while(|byte| !b" \t\r\n>".contains(byte));
        document.get(at + 1) != Some(&b'!') && name.into_iter().all(|byte| *byte != b':')
    };
    memchr::memchr_iter(b'<', document).all(is_plain_tag) && memchr::memmem::find(document, b"&#").is_none()
}

fn with_simple_events(document: &str) -> Option<Vec<u8>> {
    let (mut reader, mut writer) = (Reader::from_str(document), Writer::new(Vec::new()));
    loop {
        let event = match reader.read_event().ok()? {
            Event::Eof => return Some(writer.into_inner()),
            Event::Comment(_) => continue,
            Event::CData(section) => Event::Text(section.minimal_escape().ok()?),
            Event::Start(start) => Event::Start(without_prefix(start)),
            Event::Empty(start) => Event::Empty(without_prefix(start)),
            Event::End(end) => Event::End(BytesEnd::new(end.local_name().into_inner().to_owned())),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().ok()? {
                Some(character @ '\u{10000}'..) => {
                    Event::Text(BytesText::new(character.encode_utf8(&mut [0; 4])).into_owned())
                }
                _ => Event::GeneralRef(reference),
            },
            event => event,
        };
        writer.write_event(event).ok()?;
    }
}

fn without_prefix(mut start: BytesStart<'_>) -> BytesStart<'_> {
    let name = start.local_name().into_inner().to_owned();
    start.set_name(name.as_ref());
    start
}

/// Returns the path, below the root, of the first unknown element; `None` if all elements are known. Also returns
/// `None` if the document is not XML, because the document's parser returns a better error.
pub fn unknown_element(document: &[u8], is_known: impl Fn(&str) -> bool) -> Option<String> {
    let mut unknown = None;
    let looked = for_each_element(document, "", |path, _| {
        if !path.is_empty() && !is_known(path) {
            unknown.get_or_insert_with(|| path.chars().take(200).collect());
        }
        Ok(())
    });
    looked.ok().and(unknown)
}

/// Returns the body of a request that deletes objects, or versions of objects, with a result for each of them in the
/// response.
pub fn delete<'k>(objects: impl IntoIterator<Item = (&'k str, Option<&'k VersionId>)>) -> String {
    let mut body = opened("Delete", 4096);
    body.push_str("<Quiet>false</Quiet>");
    for (key, version) in objects {
        body.push_str("<Object><Key>");
        push_escaped(&mut body, key);
        body.push_str("</Key>");
        if let Some(version) = version {
            body.push_str("<VersionId>");
            push_escaped(&mut body, version.as_str());
            body.push_str("</VersionId>");
        }
        body.push_str("</Object>");
    }
    body.push_str("</Delete>");
    body
}

/// Returns the body of a request that creates a bucket in `region`.
pub fn create_bucket_configuration(region: &str) -> String {
    let mut body = opened("CreateBucketConfiguration", 128);
    body.push_str("<LocationConstraint>");
    push_escaped(&mut body, region);
    body.push_str("</LocationConstraint></CreateBucketConfiguration>");
    body
}

/// Returns the body of a request that enables or suspends a bucket's versioning.
pub fn versioning_configuration(versioning: VersioningState) -> String {
    let mut body = opened("VersioningConfiguration", 128);
    match versioning {
        VersioningState::Unversioned => {}
        VersioningState::Enabled => body.push_str("<Status>Enabled</Status>"),
        VersioningState::Suspended => body.push_str("<Status>Suspended</Status>"),
    }
    body.push_str("</VersioningConfiguration>");
    body
}

/// Returns the body of a request that replaces an object's tags.
pub fn tagging(tags: &Tags) -> String {
    let mut body = opened("Tagging", 128 * tags.len());
    body.push_str("<TagSet>");
    for (name, value) in tags {
        body.push_str("<Tag>");
        push_element(&mut body, "Key", name);
        push_element(&mut body, "Value", value);
        body.push_str("</Tag>");
    }
    body.push_str("</TagSet></Tagging>");
    body
}

/// Appends an element that contains `text`, escaped.
pub(super) fn push_element(to: &mut String, name: &str, text: &str) {
    let _infallible = write!(to, "<{name}>");
    push_escaped(to, text);
    let _infallible = write!(to, "</{name}>");
}

pub(super) fn opened(root: &str, capacity: usize) -> String {
    let mut body = String::with_capacity(capacity + 128);
    let _infallible = write!(body, "<{root} xmlns=\"{NAMESPACE}\">");
    body
}

/// Escapes text for use in a document.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    push_escaped(&mut escaped, text);
    escaped
}

/// Appends text, escaped. Control characters become character references. A parser would replace an unescaped carriage
/// return with a line feed, and some parsers refuse other unescaped control characters.
fn push_escaped(to: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '&' => to.push_str("&amp;"),
            control if control.is_control() || matches!(control, '\u{fffe}' | '\u{ffff}') => {
                let _infallible = write!(to, "&#x{:x};", u32::from(control));
            }
            plain => to.push(plain),
        }
    }
}

/// A document that is being written.
pub struct ResponseDocumentBuilder {
    text: String,
    /// Elements that are not closed yet, the root first.
    open: Vec<&'static str>,
}

impl ResponseDocumentBuilder {
    /// Begins a document with this root element.
    pub fn new(root: &'static str) -> Self {
        let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{}", opened(root, 512));
        ResponseDocumentBuilder { text, open: vec![root] }
    }

    /// Adds an element that contains `text`, escaped.
    pub fn element(&mut self, name: &str, text: &str) -> &mut Self {
        push_element(&mut self.text, name, text);
        self
    }

    /// Adds an element that contains `text`, if `text` is not `None`.
    pub fn maybe(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        if let Some(text) = text {
            self.element(name, text);
        }
        self
    }

    /// Opens an element. The element contains everything that is added until [`ResponseDocumentBuilder::close`] closes
    /// it.
    pub fn open(&mut self, name: &'static str) -> &mut Self {
        let _infallible = write!(self.text, "<{name}>");
        self.open.push(name);
        self
    }

    /// Closes the element that was opened last.
    pub fn close(&mut self) -> &mut Self {
        if let Some(name) = self.open.pop() {
            let _infallible = write!(self.text, "</{name}>");
        }
        self
    }

    /// Adds the element of a checksum, if there is a checksum.
    pub fn checksum(&mut self, checksum: Option<&Checksum>) -> &mut Self {
        if let Some(checksum) = checksum {
            self.element(&format!("Checksum{}", checksum.algorithm.name()), &checksum.to_base64());
        }
        self
    }

    /// Adds the elements of a checksum and its type, if there is a checksum.
    pub fn checksum_with_type(&mut self, checksum: Option<&Checksum>) -> &mut Self {
        let kind = checksum.map(|checksum| checksum.checksum_type().name());
        self.checksum(checksum).maybe("ChecksumType", kind)
    }

    /// Closes all open elements, and returns the document.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use fordway_store::{ChecksumAlgorithm, ETag};
    use proptest::prelude::*;

    use super::super::{copied, list_parts};
    use super::*;
    use crate::s3_xml::objects::CopyResult;

    fn texts(document: &str, wanted: &str) -> Vec<String> {
        let mut found = Vec::new();
        let collect = |path: &str, text: &str| {
            found.extend((path == wanted).then(|| text.to_owned()));
            Ok(())
        };
        for_each_element(document.as_bytes(), "", collect).unwrap();
        found
    }

    #[test]
    fn a_document_becomes_simple() {
        for (document, expected) in [
            (
                "<?xml version=\"1.0\"?><a b='1'>x<![CDATA[<&]]>y<c />&amp;</a>",
                "<?xml version=\"1.0\"?><a b='1'>x&lt;&amp;y<c />&amp;</a>",
            ),
            ("<!-- <![CDATA[ --><a>x<!-- <b> -->y</a>", "<a>xy</a>"),
            (
                "<n:a xmlns:n=\"x:y\"><n:b/><c:d n:e='1'>f</c:d></n:a>",
                "<a xmlns:n=\"x:y\"><b/><d n:e='1'>f</d></a>",
            ),
            ("<a>&#x1F600;&#128512;&#13;&#60;</a>", "<a>\u{1f600}\u{1f600}&#13;&#60;</a>"),
        ] {
            let simple = simplified(document.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&simple), expected);
        }
        for same in ["<a>&lt;:</a>", "<a b='c:d' />", "\u{fffe}"] {
            assert_eq!(simplified(same.as_bytes()).unwrap(), same.as_bytes(), "{same}");
        }
        for broken in ["<a><![CDATA[", "<![CDATA[</b>", "<n:a></m:a>", "<a>&#+65;</a>"] {
            assert_eq!(simplified(broken.as_bytes()), None, "{broken}");
        }
        assert!(is_simple(b"<?xml version=\"1.0\"?>\n<a b='c:d'>e:f</a>"));
    }

    #[test]
    fn shapes() {
        let part = |number| CompletedPart::new(number, ETag::new("\"t\""));
        let body = complete_multipart_upload(&[part(1), part(3)]);
        assert_eq!(completed_parts(body.as_bytes()).unwrap(), [part(1), part(3)]);
        assert!(completed_parts(b"<CompleteMultipartUpload><Part/></CompleteMultipartUpload>").is_err());
        assert_eq!(texts(&body, "Part/PartNumber"), ["1", "3"]);
        assert_eq!(texts(&body, "Part/ETag"), ["\"t\"", "\"t\""]);
        let body = create_bucket_configuration("eu-west-1");
        assert_eq!(texts(&body, "LocationConstraint"), ["eu-west-1"]);
        let sum = Checksum::of(ChecksumAlgorithm::Crc32, b"123456789");
        let body = complete_multipart_upload(&[CompletedPart { checksum: Some(sum), ..part(1) }]);
        assert_eq!(texts(&body, "Part/ChecksumCRC32"), ["y/Q5Jg=="]);
        assert_eq!(texts(&versioning_configuration(VersioningState::Suspended), "Status"), ["Suspended"]);
    }

    proptest! {
        #[test]
        fn any_key_survives(keys in prop::collection::vec("[^\0]{1,40}", 0..5)) {
            let body = delete(keys.iter().map(|key| (key.as_str(), None)));
            prop_assert_eq!(texts(&body, "Object/Key"), keys);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let sum = Checksum::of(ChecksumAlgorithm::XxHash128, b"123456789");
        let mut document = ResponseDocumentBuilder::new("CopyObjectResult");
        document.element("ETag", "\"a<b\"").checksum_with_type(Some(&sum));
        let text = document.finish();
        assert!(text.contains("<ChecksumType>FULL_OBJECT</ChecksumType>"), "{text}");
        match copied(text.as_bytes()).unwrap() {
            CopyResult::Done(tag, _, found) => assert_eq!((tag.as_str(), found), ("a<b", Some(sum))),
            CopyResult::Failed(error) => panic!("{error:?}"),
        }
    }

    #[test]
    fn what_is_open_is_closed() {
        let mut document = ResponseDocumentBuilder::new("ListPartsResult");
        document.open("Part").element("PartNumber", "3").element("Size", "1").element("ETag", "t");
        assert_eq!(list_parts(document.finish().as_bytes()).unwrap().parts[0].number, 3);
    }
}
