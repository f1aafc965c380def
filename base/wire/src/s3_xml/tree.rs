//! A whole document as a tree, for programs that convert documents of any kind.

use fordway_store::Result;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::{as_text, bad, escaped, named_entity, not_xml};

/// The maximum depth of a document. S3's documents have at most six levels.
const MAX_DEPTH: usize = 32;

/// An element of a document, without its attributes and namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XmlElement {
    /// The local name.
    pub name: String,
    /// The element's own text. The white space between child elements is not removed.
    pub text: String,
    /// The child elements, in their order in the document.
    pub children: Vec<XmlElement>,
}

impl XmlElement {
    /// Creates an empty element.
    pub fn new(name: impl Into<String>) -> Self {
        XmlElement { name: name.into(), ..Self::default() }
    }

    /// Reads a document; returns its root. Errors: `BadResponse` unless the document is complete XML with one root and
    /// at most 32 levels.
    pub fn read(document: &[u8]) -> Result<Self> {
        let mut reader = Reader::from_str(as_text(document)?);
        // The first entry represents the document, and collects the root.
        let mut open = vec![XmlElement::default()];
        loop {
            let event = reader.read_event().map_err(not_xml)?;
            let Some(current) = open.last_mut() else { return Err(bad("the document is not XML")) };
            match event {
                Event::Start(start) => open.push(XmlElement::new(start.local_name().into_inner())),
                Event::Empty(start) => {
                    current.children.push(XmlElement::new(start.local_name().into_inner()));
                }
                Event::End(_) => close(&mut open),
                Event::Text(more) => current.text.push_str(&more),
                Event::CData(more) => current.text.push_str(&more),
                Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(not_xml)? {
                    Some(character) => current.text.push(character),
                    None => current.text.push_str(named_entity(&reference)?),
                },
                Event::Eof => return only_root(open),
                Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::Comment(_) => {}
            }
            if open.len() > MAX_DEPTH {
                return Err(bad(format!("the XML document has more than {MAX_DEPTH} levels")));
            }
        }
    }

    /// Returns the first child element with this name.
    pub fn child(&self, name: &str) -> Option<&XmlElement> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the element as a document. The names must be valid in XML.
    pub fn write(&self) -> String {
        let mut document = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>".to_owned();
        let namespace = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
        self.push(&mut document, namespace);
        document
    }

    fn push(&self, document: &mut String, attributes: &str) {
        let name = &self.name;
        document.push_str(&format!("<{name}{attributes}>{}", escaped(&self.text)));
        self.children.iter().for_each(|child| child.push(document, ""));
        document.push_str(&format!("</{name}>"));
    }
}

fn close(open: &mut Vec<XmlElement>) {
    // The reader has checked that each end tag has a start tag.
    if let Some(done) = open.pop()
        && let Some(parent) = open.last_mut()
    {
        parent.children.push(done);
    }
}

fn only_root(open: Vec<XmlElement>) -> Result<XmlElement> {
    let [document] = &open[..] else { return Err(bad("the XML document is truncated")) };
    match &document.children[..] {
        [root] if document.text.trim().is_empty() => Ok(root.clone()),
        _ => Err(bad("the document is not XML")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_and_written() {
        let document = "<?xml version=\"1.0\"?><!-- c --><a xmlns=\"urn:x\"><b> x &amp; &lt;&#65;</b><c/>\
            <n:b><![CDATA[<y>]]></n:b></a>\n";
        let root = XmlElement::read(document.as_bytes()).unwrap();
        let names: Vec<_> = root.children.iter().map(|child| (&*child.name, &*child.text)).collect();
        assert_eq!((&*root.name, names), ("a", vec![("b", " x & <A"), ("c", ""), ("b", "<y>")]));
        assert_eq!(root.child("c"), Some(&XmlElement::new("c")));
        assert_eq!(XmlElement::read(root.write().as_bytes()).unwrap(), root);
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = "<a>".repeat(40) + &"</a>".repeat(40);
        for bad in ["", "x", "<a>", "<a></b>", "<a/><b/>", "<a/>x", "</a>", "{}", "<a>&unknown;</a>", &deep] {
            assert!(XmlElement::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
