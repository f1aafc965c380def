//! The fields of a form, and their conversion to the headers of a PutObject request.

use fordway_store::Tags;
use fordway_wire::form_data::{FIELDS_BYTES_MAX, FormError, FormField, UploadFormFields};
use fordway_wire::tagging::{collect, encode};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use s3s::dto::Tagging;

use crate::gate;
use crate::message::composed;
use crate::s3::convert::TAGGING;
use crate::s3::documents;
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::tagging;

/// The placeholder for the file's name in the value of a field.
const FILE_NAME: &str = "${filename}";

/// The fields of a form. Each name occurs at most once, because metadata fields with the same name are joined into one
/// list. The file's name has replaced its placeholder in all values, so the policy is checked against the values that
/// are used, as on AWS.
pub(super) struct FormFields(Vec<FormField>);

impl FormFields {
    /// Collects the fields of a form. Errors: `InvalidArgument` for a field other than metadata that occurs twice,
    /// because two programs could interpret such a form differently; `MaxPostPreDataLengthExceeded` if the values are
    /// too large after the file's name has replaced its placeholder.
    pub(super) fn new(start: UploadFormFields) -> OperationResult<Self> {
        // Old browsers send the file's full path, so only its last component is used.
        let file_name = start.file_name.rsplit(['/', '\\']).next().unwrap_or_default();
        // The sender is not authenticated yet, so the size is checked before memory is allocated for the values.
        let sizes = start.fields.iter().map(|field| bytes_with_name(&field.value, file_name));
        if sizes.sum::<usize>() > FIELDS_BYTES_MAX {
            return Err(super::refused(FormError::FieldsTooLarge));
        }
        let mut fields: Vec<FormField> = Vec::with_capacity(start.fields.len());
        for FormField { name, value } in start.fields {
            let value = value.replace(FILE_NAME, file_name);
            match fields.iter_mut().find(|known| known.name == name) {
                None => fields.push(FormField { name, value }),
                Some(known) if name.starts_with("x-amz-meta-") => known.value += &format!(",{value}"),
                Some(_) => {
                    let words = format!("the form has the field {name} twice; send it once");
                    return Err(S3Failure::argument(&words, &name, &value));
                }
            }
        }
        Ok(FormFields(fields))
    }

    /// Returns the value of a field. `name` is in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|field| field.name == name).map(|field| field.value.as_str())
    }

    /// Returns the names of all fields except the file, in lower case.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|field| field.name.as_str())
    }

    /// Returns the value of a required field. Errors: `InvalidArgument`.
    pub(super) fn required(&self, name: &str) -> OperationResult<&str> {
        self.get(name).ok_or_else(|| {
            let words = format!(
                "Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the \
                 fields."
            );
            S3Failure::argument(&words, name, "")
        })
    }

    /// Returns the key of the object. Errors: `InvalidArgument` for a form without a key.
    pub(super) fn key(&self) -> OperationResult<String> {
        self.required("key").map(str::to_owned)
    }

    /// Returns the URL of the page to show after the upload. The field has two names; `redirect` is the older name.
    pub(super) fn redirect(&self) -> Option<&str> {
        self.get("success_action_redirect").or_else(|| self.get("redirect"))
    }

    /// Returns the headers of the PutObject request that corresponds to the form. Errors: the errors of the gate for
    /// unsupported fields; `MalformedXML` or `InvalidTag` for tags; `InvalidArgument`.
    pub(super) fn headers(&self) -> OperationResult<HeaderMap> {
        let mut headers = HeaderMap::new();
        for FormField { name, value } in &self.0 {
            let header = match name.as_str() {
                "acl" => Ok(HeaderName::from_static("x-amz-acl")),
                "tagging" => continue,
                // The browser's user may leave a field empty, so an empty field adds no header.
                name if value.is_empty() && describes_object(name) => continue,
                name if stands_for_header(name) => HeaderName::from_bytes(name.as_bytes()),
                _ => continue,
            };
            let value = HeaderValue::from_str(value).or_else(|_| HeaderValue::from_bytes(value.as_bytes()));
            let (Ok(header), Ok(value)) = (header, value) else {
                let words = format!("the field {name} has a name or a value that a header cannot have");
                return Err(S3Failure::argument(&words, name, ""));
            };
            headers.insert(header, value);
        }
        gate::check_form_fields(&headers)
            .map_err(|refusal| S3Failure::new(refusal.code, refusal.status, refusal.message))?;
        if let Some(document) = self.get("tagging") {
            add_tags(&mut headers, &read_tags(document)?);
        }
        Ok(headers)
    }
}

/// Returns the size of a value in which the file's name has replaced its placeholder.
fn bytes_with_name(value: &str, file_name: &str) -> usize {
    let count = value.matches(FILE_NAME).count();
    value.len() - count * FILE_NAME.len() + count * file_name.len()
}

/// Headers that describe an object or contain a digest of its content. Other fields become headers only if they have
/// the prefix `x-amz-` or `if-`.
const HEADERS: [HeaderName; 7] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::EXPIRES,
    HeaderName::from_static("content-md5"),
];

/// Returns whether a field becomes a header. Conditions (`if-`) also become headers, so that the gate refuses them.
fn stands_for_header(name: &str) -> bool {
    name.starts_with("x-amz-") || name.starts_with("if-") || describes_object(name)
}

fn describes_object(name: &str) -> bool {
    HEADERS.iter().any(|header| header.as_str() == name)
}

fn add_tags(headers: &mut HeaderMap, tags: &Tags) {
    if let Ok(value) = HeaderValue::from_str(&encode(tags)) {
        headers.insert(TAGGING, value);
    }
}

/// Parses the tags of a form, which are an XML document. Errors: `MalformedXML`, `InvalidTag`.
fn read_tags(document: &str) -> OperationResult<Tags> {
    let tagging: Tagging = documents::read(document.as_bytes()).map_err(|_| {
        let text = composed(MALFORMED_XML, "the field tagging must be a Tagging document; correct it", &[]);
        S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, text)
    })?;
    let listed = tagging::listed(&tagging)?;
    Ok(collect(listed)?)
}

const MALFORMED_XML: &str =
    "The XML you provided was not well-formed or did not validate against our published schema.";

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)], file_name: &str) -> OperationResult<FormFields> {
        let field = |(name, value): &(&str, &str)| FormField { name: (*name).into(), value: (*value).into() };
        FormFields::new(UploadFormFields {
            fields: fields.iter().map(field).collect(),
            file_name: file_name.into(),
        })
    }

    fn code<T>(result: OperationResult<T>) -> String {
        result.err().expect("an error").0.code().as_str().to_owned()
    }

    #[test]
    fn the_name_of_the_file_is_only_its_last_part() {
        let key = |file_name: &str| fields(&[("key", "up/${filename}")], file_name).unwrap().key().unwrap();
        assert_eq!(key("a.txt"), "up/a.txt");
        assert_eq!(key("C:\\dir\\a.txt"), "up/a.txt");
        assert_eq!(key("../../etc/passwd"), "up/passwd");
        assert_eq!(key(""), "up/");
        assert_eq!(code(fields(&[], "").unwrap().key()), "InvalidArgument");
    }

    #[test]
    fn the_name_of_the_file_is_in_every_field() {
        let values = [
            ("key", "k"),
            ("x-amz-meta-name", "${filename}"),
            ("x-amz-meta-name", "<${filename}>${filename}"),
            ("content-disposition", "attachment; filename=\"${filename}\""),
            ("success_action_redirect", "https://page/?${filename}&${file}"),
        ];
        let form = fields(&values, "C:\\dir\\${filename}").unwrap();
        assert_eq!(form.get("x-amz-meta-name"), Some("${filename},<${filename}>${filename}"));
        let form = fields(&values, "dir/a.txt").unwrap();
        assert_eq!(form.redirect(), Some("https://page/?a.txt&${file}"));
        let headers = form.headers().unwrap();
        assert_eq!(headers["x-amz-meta-name"], "a.txt,<a.txt>a.txt");
        assert_eq!(headers["content-disposition"], "attachment; filename=\"a.txt\"");
    }

    #[test]
    fn the_values_with_the_name_of_the_file_have_a_maximum_size() {
        let file_name = "n".repeat(1024);
        let values = ["${filename}".repeat(19), "v".repeat(1024)];
        let [names, rest] = [&*values[0], &*values[1]];
        let form = fields(&[("key", names), ("policy", rest)], &file_name).unwrap();
        assert_eq!(form.key().unwrap().len(), 19 * 1024);
        for more in ["policy", "x-amz-meta-name"] {
            let form = fields(&[("key", names), (more, rest), ("x-amz-meta-name", "v")], &file_name);
            assert_eq!(code(form), "MaxPostPreDataLengthExceeded", "{more}");
        }
        // The refused field can be any of the fields, including a field that occurs twice.
        let form = fields(&[("key", "k"), ("x-ignore", names), ("x-ignore", names)], &file_name);
        assert_eq!(code(form), "MaxPostPreDataLengthExceeded");
        let form = fields(&[("key", &"${filename}".repeat(1800))], &"n".repeat(10_000));
        assert_eq!(code(form), "MaxPostPreDataLengthExceeded");
    }

    #[test]
    fn fields_stand_for_headers_or_are_refused() {
        let form = fields(
            &[
                ("key", "k"),
                ("acl", "private"),
                ("content-type", "text/plain"),
                ("x-amz-meta-a", "1"),
                ("x-amz-meta-a", "2"),
                ("tagging", "<Tagging><TagSet><Tag><Key>a b</Key><Value>c</Value></Tag></TagSet></Tagging>"),
                ("submit", "Upload"),
                ("x-ignore-it", "x"),
                ("cache-control", ""),
            ],
            "",
        );
        let headers = form.unwrap().headers().unwrap();
        assert_eq!(headers["content-type"], "text/plain");
        assert_eq!(headers["x-amz-meta-a"], "1,2");
        assert_eq!(headers["x-amz-tagging"], "a%20b=c");
        assert_eq!(headers["x-amz-acl"], "private");
        assert_eq!(headers.len(), 4);
        for (name, value, expected) in [
            ("x-amz-copy-source", "/b/k", "NotImplemented"),
            ("x-amz-nonesuch", "", "NotImplemented"),
            ("x-amz-tagging", "a=b", "NotImplemented"),
            ("if-none-match", "*", "NotImplemented"),
            ("x-amz-storage-class", "GLACIER", "NotImplemented"),
            ("acl", "public-read", "AccessControlListNotSupported"),
            ("x-amz-meta-a", "x\r\ny", "InvalidArgument"),
            ("x-amz-meta-a", "x\0y", "InvalidArgument"),
            ("x-amz-meta-a b", "x", "InvalidArgument"),
            ("content-md5", "é", "InvalidDigest"),
            ("x-amz-object-lock-mode", "é", "InvalidArgument"),
            ("tagging", "invalid", "MalformedXML"),
        ] {
            assert_eq!(code(fields(&[(name, value)], "").unwrap().headers()), expected, "{name}: {value}");
        }
        assert_eq!(code(fields(&[("key", "a"), ("key", "b")], "")), "InvalidArgument");
    }
}
