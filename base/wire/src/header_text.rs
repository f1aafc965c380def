//! Encodes any string as the value of a header: RFC 2047's `=?UTF-8?B?...?=`, which S3 itself returns for metadata that
//! is not plain ASCII.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

const OPEN: &str = "=?UTF-8?B?";
const CLOSE: &str = "?=";

/// Returns the string in a form that is valid in a header. Printable ASCII is unchanged, unless it starts or ends with
/// a space, contains two spaces in a row (which a header would lose), or starts with `=?`. Any other string is encoded.
pub fn encode(text: &str) -> Cow<'_, str> {
    let printable = text.bytes().all(|b| (b' '..=b'~').contains(&b));
    let runs_of_blanks = text.contains("  ") || text.starts_with(' ') || text.ends_with(' ');
    if printable && !runs_of_blanks && !text.starts_with("=?") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{OPEN}{}{CLOSE}", BASE64.encode(text)))
}

/// Encodes a string like [`encode`], but for a response, whose headers are not signed. Printable ASCII is unchanged
/// unless it starts or ends with a space, or [`decode`] would change it.
pub fn encode_for_response(text: &str) -> Cow<'_, str> {
    let printable = text.bytes().all(|b| (b' '..=b'~').contains(&b));
    let is_kept = printable && text.trim() == text && decode(text) == text;
    if is_kept { Cow::Borrowed(text) } else { Cow::Owned(format!("{OPEN}{}{CLOSE}", BASE64.encode(text))) }
}

/// Undoes [`encode`]. Text that is not validly encoded is returned unchanged.
pub fn decode(value: &str) -> Cow<'_, str> {
    let has_prefix = value.get(..OPEN.len()).is_some_and(|start| start.eq_ignore_ascii_case(OPEN));
    if !has_prefix {
        return Cow::Borrowed(value);
    }
    let inner = value[OPEN.len()..].strip_suffix(CLOSE);
    let bytes = inner.and_then(|inner| BASE64.decode(inner).ok());
    match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_text_stays_readable() {
        assert_eq!(encode("a b=c"), "a b=c");
        assert_eq!(encode("ä"), "=?UTF-8?B?w6Q=?=");
        assert_eq!(decode("=?utf-8?b?w6Q=?="), "ä");
        assert_eq!(decode("=?UTF-8?B?%%?="), "=?UTF-8?B?%%?=");
        for plain in ["x  y", "=?UTF-8?Q?=C3=A4?=", "=?", ""] {
            assert_eq!(encode_for_response(plain), plain);
        }
        assert_eq!(
            encode_for_response("=?UTF-8?B?w6Q=?="),
            format!("=?UTF-8?B?{}?=", BASE64.encode("=?UTF-8?B?w6Q=?="))
        );
    }

    proptest! {
        #[test]
        fn any_text_survives_and_breaks_no_header(text in any::<String>()) {
            let value = encode(&text);
            prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)));
            let decoded = decode(&value);
            prop_assert_eq!(decoded.as_ref(), text.as_str());
            let value = encode_for_response(&text);
            prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)));
            let decoded = decode(&value);
            prop_assert_eq!(decoded.as_ref(), text.as_str());
        }
    }
}
