//! Metalink 4, as RFC 5854 has it.

use std::fmt::Write as _;

use quick_xml::escape::escape;

use super::{Metalink, MetalinkFile, PRIORITY_LAST};

impl Metalink {
    /// The document (RFC 5854), which [`Metalink::parse`] reads back.
    pub fn to_xml(&self) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        xml.push_str("<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">\n");
        let generator = concat!("  <generator>fordway/", env!("CARGO_PKG_VERSION"), "</generator>\n");
        xml.push_str(generator);
        // Writing to a string cannot fail.
        let _infallible = self.files.iter().try_for_each(|file| write_file(&mut xml, file));
        xml.push_str("</metalink>\n");
        xml
    }
}

fn write_file(xml: &mut String, file: &MetalinkFile) -> std::fmt::Result {
    writeln!(xml, "  <file name=\"{}\">", escape(&file.name))?;
    if let Some(size) = file.size_bytes {
        writeln!(xml, "    <size>{size}</size>")?;
    }
    for hash in &file.hashes {
        writeln!(xml, "    <hash type=\"{}\">{}</hash>", hash.kind.name(), hash.hex)?;
    }
    if let Some(pieces) = &file.pieces {
        let (length, kind) = (pieces.length_bytes, pieces.kind.name());
        writeln!(xml, "    <pieces length=\"{length}\" type=\"{kind}\">")?;
        for hex in &pieces.hex {
            writeln!(xml, "      <hash>{hex}</hash>")?;
        }
        writeln!(xml, "    </pieces>")?;
    }
    for replica in &file.replicas {
        xml.push_str("    <url");
        if let Some(location) = &replica.location {
            write!(xml, " location=\"{}\"", escape(location))?;
        }
        if replica.priority != PRIORITY_LAST {
            write!(xml, " priority=\"{}\"", replica.priority)?;
        }
        writeln!(xml, ">{}</url>", escape(&replica.url))?;
    }
    writeln!(xml, "  </file>")
}
