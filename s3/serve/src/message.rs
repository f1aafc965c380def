//! The messages in error documents. The `Message` element contains AWS's message for a failure, because some programs
//! recognize failures by AWS's messages. The `Detail` element contains the gateway's own message for people, which
//! explains the failure and the remedy.
//!
//! The S3 layer carries one string for each error, and this module splits the string into lines. The first line
//! contains AWS's message, and the second line contains the gateway's own message. Each further line contains the name
//! and the value of an additional element. A string of only one line is the gateway's own message, and
//! `fordway_wire::s3_error` provides AWS's message for the code.

use fordway_store::ChecksumAlgorithm;
use fordway_wire::s3_error::aws_message;
use fordway_wire::s3_xml::escaped;

/// Composes the string for an error from AWS's message, the gateway's own message (which may be empty), and `facts`,
/// which are element names with their values.
pub(crate) fn composed(words: &str, detail: &str, facts: &[(&str, &str)]) -> String {
    let mut text = format!("{}\n{}", one_line(words), one_line(detail));
    for (name, value) in facts {
        text.push_str(&format!("\n{name} {}", one_line(value)));
    }
    text
}

/// Escapes control characters except tabs, because a line break would start a new line of the error's string.
pub(crate) fn one_line(text: &str) -> String {
    let is_escaped = |character: char| character.is_control() && character != '\t';
    match text.contains(is_escaped) {
        true => text
            .chars()
            .flat_map(|c| if is_escaped(c) { c.escape_default().collect() } else { vec![c] })
            .collect(),
        false => text.to_owned(),
    }
}

/// Splits the message in an error document into elements. The input and the output are XML.
pub(crate) fn taken_apart(document: &str) -> String {
    let Some((head, rest)) = document.split_once("</Code>") else { return document.to_owned() };
    let code = head.rsplit_once("<Code>").map_or("", |(_, code)| code);
    let said = rest.strip_prefix("<Message>").and_then(|rest| rest.split_once("</Message>"));
    let (text, rest) = said.unwrap_or(("", rest));
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default();
    let (words, detail) = match lines.next() {
        Some(detail) => (first.to_owned(), detail),
        None => of_code(code, first),
    };
    let mut made = format!("{head}</Code><Message>{words}</Message>");
    if !detail.is_empty() {
        made.push_str(&format!("<Detail>{detail}</Detail>"));
    }
    for (name, value) in lines.filter_map(|line| line.split_once(' ')) {
        made.push_str(&format!("<{name}>{value}</{name}>"));
    }
    made + rest
}

/// Returns AWS's message for a code (or the gateway's own message if AWS has none), and the detail.
fn of_code<'t>(code: &str, ours: &'t str) -> (String, &'t str) {
    if code == "BadDigest" {
        return (of_digest(ours), ours);
    }
    match aws_message(code) {
        Some(words) => (escaped(words), ours),
        None => (ours.to_owned(), ""),
    }
}

/// Returns AWS's message for `BadDigest`, which names the checksum that does not match.
fn of_digest(ours: &str) -> String {
    let stated = ours.rsplit_once("does not match its ").map_or("", |(_, rest)| rest);
    let name = stated.split(|c: char| !c.is_ascii_alphanumeric()).next();
    let mut known = ChecksumAlgorithm::ALL.iter();
    match known.find(|known| Some(known.name()) == name) {
        Some(known) => format!("The {} you specified did not match the calculated checksum.", known.name()),
        None => "The Content-MD5 you specified did not match what we received.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(code: &str, text: &str) -> String {
        taken_apart(&format!("<Error><Code>{code}</Code><Message>{text}</Message><X/></Error>"))
    }

    #[test]
    fn codes_have_words_and_ours_are_a_detail() {
        assert_eq!(
            document("NoSuchKey", "s3://b/k: gone"),
            "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message>\
             <Detail>s3://b/k: gone</Detail><X/></Error>"
        );
        assert_eq!(
            document("InvalidArgument", "ours"),
            "<Error><Code>InvalidArgument</Code><Message>ours</Message><X/></Error>"
        );
        assert_eq!(
            taken_apart("<Error><Code>MethodNotAllowed</Code></Error>"),
            "<Error><Code>MethodNotAllowed</Code><Message>The specified method is not allowed against this \
             resource.</Message></Error>"
        );
        let digest = document("BadDigest", "the content does not match its CRC32C");
        assert!(digest.contains("<Message>The CRC32C you specified did not match"), "{digest}");
    }

    #[test]
    fn facts_are_elements_and_nobody_adds_one() {
        let text = composed("Words.", "ours", &[("ArgumentName", "a"), ("ArgumentValue", "x\nHostId y")]);
        assert_eq!(
            document("InvalidArgument", &text),
            "<Error><Code>InvalidArgument</Code><Message>Words.</Message><Detail>ours</Detail>\
             <ArgumentName>a</ArgumentName><ArgumentValue>x\\nHostId y</ArgumentValue><X/></Error>"
        );
    }
}
