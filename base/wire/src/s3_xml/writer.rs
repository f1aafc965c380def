//! Answers that a server writes itself, element by element.

use std::fmt::Write as _;

use fordway_store::Checksum;

use super::bodies::{opened, push_element};

/// A document that is being written.
pub struct AnswerDocument {
    text: String,
    /// Elements that are not closed yet, the root first.
    open: Vec<&'static str>,
}

impl AnswerDocument {
    /// Begins a document with this root.
    pub fn new(root: &'static str) -> Self {
        let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{}", opened(root, 512));
        AnswerDocument { text, open: vec![root] }
    }

    /// Adds an element that holds text.
    pub fn element(&mut self, name: &str, text: &str) -> &mut Self {
        push_element(&mut self.text, name, text);
        self
    }

    /// Adds an element if there is text for it.
    pub fn maybe(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        if let Some(text) = text {
            self.element(name, text);
        }
        self
    }

    /// Opens an element, which holds what follows until it is closed.
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

    /// Adds the element of a checksum, if there is one.
    pub fn checksum(&mut self, checksum: Option<&Checksum>) -> &mut Self {
        if let Some(checksum) = checksum {
            self.element(&format!("Checksum{}", checksum.algorithm.name()), &checksum.to_base64());
        }
        self
    }

    /// Adds the elements of a checksum and its type, if there is one.
    pub fn checksum_with_type(&mut self, checksum: Option<&Checksum>) -> &mut Self {
        let kind = checksum.map(|checksum| checksum.checksum_type().name());
        self.checksum(checksum).maybe("ChecksumType", kind)
    }

    /// The whole document.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use fordway_store::ChecksumAlgorithm;

    use super::super::{copied, list_parts, objects::Copied};
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let sum = Checksum::of(ChecksumAlgorithm::XxHash128, b"123456789");
        let mut document = AnswerDocument::new("CopyObjectResult");
        document.element("ETag", "\"a<b\"").checksum_with_type(Some(&sum));
        let text = document.finish();
        assert!(text.contains("<ChecksumType>FULL_OBJECT</ChecksumType>"), "{text}");
        match copied(text.as_bytes()).unwrap() {
            Copied::Done(tag, _, found) => assert_eq!((tag.as_str(), found), ("a<b", Some(sum))),
            Copied::Failed(error) => panic!("{error:?}"),
        }
    }

    #[test]
    fn what_is_open_is_closed() {
        let mut document = AnswerDocument::new("ListPartsResult");
        document.open("Part").element("PartNumber", "3").element("Size", "1").element("ETag", "t");
        assert_eq!(list_parts(document.finish().as_bytes()).unwrap().parts[0].number, 3);
    }
}
