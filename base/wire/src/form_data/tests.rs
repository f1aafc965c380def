//! Tests with forms that are split at any offset, forms of real clients, and invalid forms.

use proptest::prelude::*;

use super::*;

/// Reads a form that arrives in pieces whose sizes repeat in a cycle. Returns the start of the form and the content of
/// the file.
fn read(boundary: &str, body: &[u8], sizes: &[usize]) -> Result<(UploadFormFields, Vec<u8>)> {
    let (mut reader, mut file) = (FormReader::new(boundary), FormFileScanner::new(boundary));
    let (mut start, mut content) = (None, Vec::new());
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (mut piece, after) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
        rest = after;
        if start.is_none() {
            let Some((found, taken)) = reader.read(piece)? else { continue };
            start = Some(found);
            piece = &piece[taken..];
        }
        let found = file.read(piece)?;
        content.extend_from_slice(&file.held()[..found.held]);
        content.extend_from_slice(&piece[found.content]);
    }
    match start.filter(|_| file.is_over()) {
        Some(start) => Ok((start, content)),
        None => Err(FormError::Malformed("cut short")),
    }
}

fn form(boundary: &str, fields: &[(&str, &str)], file: &[u8], end: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    let head =
        "Content-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\nContent-Type: text/plain";
    body.extend_from_slice(format!("--{boundary}\r\n{head}\r\n\r\n").as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{boundary}{end}").as_bytes());
    body
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_time: 5_000, ..Default::default() })]

    /// Content that resembles the boundary is read completely, regardless of where the form is
    /// split.
    #[test]
    fn forms_are_read_however_they_are_cut(
        boundary in "[-a-c]{1,6}",
        values in prop::collection::vec("[a\r\n-]{0,8}", 0..4),
        file in prop::collection::vec(prop::sample::select(b"\r\n-abc".to_vec()), 0..80),
        sizes in prop::collection::vec(1_usize..40, 1..6),
        end in prop::sample::select(vec!["--", "--\r\n", "--and more", "\r\n", "  \r\nContent-Disposition: x"]),
    ) {
        let delimiter = delimiter(&boundary);
        let holds = |text: &[u8]| memmem::find(&[b"\r\n", text, b"\r\n"].concat(), &delimiter).is_some();
        prop_assume!(!holds(&file) && values.iter().all(|value| !holds(value.as_bytes())));
        let fields: Vec<_> = values.iter().map(|value| ("Key", value.as_str())).collect();
        let body = form(&boundary, &fields, &file, end);
        let (start, content) = read(&boundary, &body, &sizes).unwrap();
        prop_assert_eq!(content, file);
        prop_assert_eq!(start.file_name, "f.txt");
        let expected: Vec<_> =
            values.iter().map(|value| FormField { name: "key".to_owned(), value: value.clone() }).collect();
        prop_assert_eq!(start.fields, expected);
    }

    /// Arbitrary bytes result in either a form or an error, regardless of where they are split.
    #[test]
    fn any_bytes_are_read_or_refused(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "--b", "\r\n", "--", "Content-Disposition: form-data", "; name=\"file\"", "; name=k", ";", "\"", "\\",
            "\r", "\n", "\0", ": ", "x", "filename=\"a", "é",
        ]), 0..24),
        sizes in prop::collection::vec(1_usize..9, 1..4),
    ) {
        let body = pieces.concat().into_bytes();
        let whole = read("b", &body, &[usize::MAX]);
        let cut = read("b", &body, &sizes);
        prop_assert_eq!(whole.is_ok(), cut.is_ok());
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            prop_assert_eq!(whole, cut);
        }
    }

    #[test]
    fn headers_never_panic(text in "\\PC{0,40}", start in prop::sample::select(vec!["", "multipart/form-data; "])) {
        let _ = boundary(&format!("{start}{text}"));
        let _ = read_head(text.as_bytes());
    }

    /// A form that is truncated before the end of its last boundary is incomplete.
    #[test]
    fn a_cut_form_is_an_error(cut in 0_usize..150, sizes in prop::collection::vec(1_usize..40, 1..4)) {
        let body = form("bound", &[("key", "value")], b"content\r\n--boun", "--");
        let short = &body[..body.len().saturating_sub(cut + 1)];
        prop_assert!(read("bound", short, &sizes).is_err());
    }
}

#[test]
fn boundaries_are_read_from_content_types() {
    for (text, expected) in [
        ("multipart/form-data; boundary=abc", "abc"),
        ("Multipart/Form-Data;charset=utf-8;BOUNDARY=\"a b:c\"", "a b:c"),
        ("multipart/form-data ; boundary=----WebKitFormBoundary7MA4", "----WebKitFormBoundary7MA4"),
        ("multipart/form-data; boundary=--x;", "--x"),
    ] {
        assert_eq!(boundary(text).as_deref(), Ok(expected), "{text}");
    }
    for text in ["", "multipart/mixed; boundary=a", "application/json", "multipart/form-data2; boundary=a"] {
        assert_eq!(boundary(text), Err(FormError::NotAForm), "{text}");
    }
    let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
    for text in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=\"a\" b",
        "multipart/form-data; boundary=\"a \"",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data; boundary=\"a\\\"b\"",
        &long,
    ] {
        assert!(matches!(boundary(text), Err(FormError::Malformed(_))), "{text}");
    }
}

#[test]
fn names_are_those_of_clients() {
    let head = |rest: &str| read_head(format!("Content-Disposition: form-data; {rest}").as_bytes());
    let is = |rest: &str, name: &str, file_name: &str| {
        assert_eq!(head(rest), Ok((name.to_owned(), file_name.to_owned())), "{rest}");
    };
    is("name=\"Key\"", "key", "");
    is("name=key; filename=a.txt", "key", "a.txt");
    is("filename=\"a;b=\\\"c\\\".txt\"; name=\"file\"", "file", "a;b=\"c\".txt");
    is("name=\"file\"; filename=\"C:\\dir\\a.txt\"", "file", "C:\\dir\\a.txt");
    is("name=\"file\"; filename=\"übung.txt\"", "file", "übung.txt");
    is("name=\"k\"\r\nContent-Type: text/plain\r\nContent-Transfer-Encoding: binary", "k", "");
    for bad in [
        "name=\"\"",
        "filename=\"a\"",
        "name=\"a\"; name=\"b\"",
        "name=\"a\0b\"",
        "name=\"a\rb\"",
        "name=\"a\nb\"",
        "name=\"a",
        "name=\"a\"\r\n folded: x",
        "name=\"a\"\r\nContent-Disposition: form-data; name=\"b\"",
        "name=\"a\"\r\nContent-Transfer-Encoding: base64",
        "name=\"a\"\r\nno header",
    ] {
        assert!(matches!(head(bad), Err(FormError::Malformed(_))), "{bad:?}");
    }
    for bad in ["Content-Disposition: attachment; name=\"a\"", "Content-Type: text/plain"] {
        assert!(read_head(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn what_stands_before_the_file_is_limited() {
    let fits = "v".repeat(FIELDS_BYTES_MAX - 400);
    assert!(read("b", &form("b", &[("key", &fits)], b"x", "--"), &[1000]).is_ok());
    let large = "v".repeat(FIELDS_BYTES_MAX);
    for sizes in [&[100_000][..], &[7]] {
        let body = form("b", &[("key", &large)], b"x", "--");
        assert_eq!(read("b", &body, sizes), Err(FormError::FieldsTooLarge));
        let head = format!("--b\r\n{}: x\r\n", "h".repeat(FIELDS_BYTES_MAX));
        assert_eq!(read("b", head.as_bytes(), sizes), Err(FormError::FieldsTooLarge));
    }
}

#[test]
fn a_form_without_a_file_or_boundary_is_refused() {
    let no_file = b"--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--b--\r\n";
    assert_eq!(read("b", no_file, &[5]), Err(FormError::NoFile));
    for bad in [
        &b"preamble\r\n--b\r\n"[..],
        b"--bb\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--",
        b"--b\r\n\r\nno head\r\n--b--",
        b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--bb\r\ny\r\n--b--",
        b"--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\n\xff\r\n--b\r\n",
    ] {
        let found = read("b", bad, &[4]);
        assert!(matches!(found, Err(FormError::Malformed(_))), "{found:?}");
    }
    let begun = b"\r\n--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--";
    assert_eq!(read("b", begun, &[3]).unwrap().1, b"x", "some clients send an empty line first");
}
