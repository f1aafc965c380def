//! Options that set the metadata of new objects.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use fordway_store::Metadata;
use fordway_wire::date::{format_http, parse_http, parse_iso8601};

/// The metadata of new objects. The only accepted storage class and access control list are the defaults of S3.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Metadata of the objects written")]
pub struct MetadataArgs {
    /// User metadata to store with the object: KEY=VALUE,... with optional quotes around a VALUE, or a JSON object;
    /// replaces all user metadata of a source object
    #[arg(long, value_name = "KEY=VALUE", value_parser = UserMetadataArg::parse)]
    pub metadata: Vec<UserMetadataArg>,
    /// How a copy from object to object treats metadata and headers [default: replace the fields that an option sets,
    /// and copy all other fields]
    #[arg(long, value_enum, value_name = "WHAT", ignore_case = true)]
    pub metadata_directive: Option<MetadataDirectiveArg>,
    /// Content-Type to store with the object [default: guessed from the file name]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Do not guess the Content-Type
    #[arg(long)]
    pub no_guess_mime_type: bool,
    /// Cache-Control to store with the object
    #[arg(long, value_name = "TEXT")]
    pub cache_control: Option<String>,
    /// Content-Disposition to store with the object
    #[arg(long, value_name = "TEXT")]
    pub content_disposition: Option<String>,
    /// Content-Encoding to store with the object, such as gzip; the content is stored unchanged
    #[arg(long, value_name = "CODING")]
    pub content_encoding: Option<String>,
    /// Content-Language to store with the object
    #[arg(long, value_name = "LANGUAGE")]
    pub content_language: Option<String>,
    /// Storage class of the object; only STANDARD is supported
    #[arg(long, value_name = "CLASS", value_parser = standard_class)]
    pub storage_class: Option<String>,
    /// Access control list of the object; only private is supported. Use bucket policies to grant access to others
    #[arg(long, value_name = "ACL", value_parser = private_acl)]
    pub acl: Option<String>,
    /// Expires header to store with the object: an HTTP date, or a time such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = http_date)]
    pub expires: Option<String>,
}

/// How a copy treats the metadata of its source object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetadataDirectiveArg {
    /// Copy all metadata; options that set metadata are an error
    #[value(name = "COPY")]
    Copy,
    /// Store only the metadata that the options set, and a guessed Content-Type
    #[value(name = "REPLACE")]
    Replace,
}

impl MetadataArgs {
    /// Returns the metadata that the options set.
    pub(crate) fn given(&self) -> Metadata {
        Metadata {
            content_type: self.content_type.clone(),
            content_encoding: self.content_encoding.clone(),
            content_language: self.content_language.clone(),
            content_disposition: self.content_disposition.clone(),
            cache_control: self.cache_control.clone(),
            expires: self.expires.clone(),
            user: self.metadata.iter().flat_map(|given| given.0.iter().cloned()).collect(),
        }
    }
}

/// The names and values of user metadata in one option. The names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserMetadataArg(Vec<(String, String)>);

impl UserMetadataArg {
    /// Parses the forms that `aws` accepts: its shorthand `KEY=VALUE,...`, and a JSON object.
    fn parse(text: &str) -> Result<Self, String> {
        let fields = match text.trim_start().starts_with('{') {
            true => serde_json::from_str::<BTreeMap<String, String>>(text)
                .map_err(|error| format!("not a JSON object of strings: {error}"))?
                .into_iter()
                .collect(),
            false => shorthand(text)?,
        };
        let lower = |(key, value): (String, String)| (key.to_ascii_lowercase(), value);
        Ok(UserMetadataArg(fields.into_iter().map(lower).collect()))
    }
}

/// Parses the shorthand of `aws`.
fn shorthand(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut fields = Vec::new();
    let mut rest = Some(text);
    while let Some(field) = rest {
        let (key, value) = field.split_once('=').ok_or("write KEY=VALUE")?;
        let key = key.trim();
        if key.is_empty() || key.contains(',') {
            return Err("write KEY=VALUE".to_owned());
        }
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => quoted_value(&value[1..], quote),
            _ => Ok(plain_value(value)),
        };
        let (value, next) = value?;
        fields.push((key.to_owned(), value));
        rest = next;
    }
    Ok(fields)
}

/// Returns the value up to the next comma that is not escaped, and the text after this comma.
fn plain_value(text: &str) -> (String, Option<&str>) {
    let mut commas = text.match_indices(',').map(|(at, _)| at);
    let (value, next) = match commas.find(|at| !text[..*at].ends_with('\\')) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    (value.trim_end().replace("\\,", ","), next)
}

/// Returns the value up to the closing quote, and the text after the comma that follows. A backslash escapes a quote or
/// a backslash.
fn quoted_value(text: &str, quote: char) -> Result<(String, Option<&str>), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if text[at + 1..].starts_with([quote, '\\']) => {
                value.extend(chars.next().map(|(_, escaped)| escaped));
            }
            _ if c == quote => {
                let after = text[at + 1..].trim_start();
                return match after.strip_prefix(',') {
                    Some(next) => Ok((value, Some(next))),
                    None if after.is_empty() => Ok((value, None)),
                    None => Err(format!("write a comma between the closing {quote} and {after}")),
                };
            }
            _ => value.push(c),
        }
    }
    Err(format!("there is no closing {quote} after {quote}{text}"))
}

fn standard_class(name: &str) -> Result<String, String> {
    match name {
        "STANDARD" => Ok(name.to_owned()),
        _ => Err("only the storage class STANDARD is supported".to_owned()),
    }
}

fn private_acl(name: &str) -> Result<String, String> {
    match name {
        "private" => Ok(name.to_owned()),
        _ => Err("only `private` is supported; grant access with a bucket policy (fordway admin set policy)"
            .to_owned()),
    }
}

/// Converts an HTTP date or an ISO 8601 time to an HTTP date.
fn http_date(text: &str) -> Result<String, String> {
    let time = parse_http(text).or_else(|| parse_iso8601(text));
    time.map(format_http).ok_or_else(|| "write a time such as 2030-01-31T12:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_metadata_as_aws_accepts_it() {
        for (text, fields) in [
            ("Owner=a=b", &[("owner", "a=b")][..]),
            ("a=1,b=,C=x y ", &[("a", "1"), ("b", ""), ("c", "x y")]),
            ("a=1, b=2", &[("a", "1"), ("b", "2")]),
            (r#"title="Hello World",x=y"#, &[("title", "Hello World"), ("x", "y")]),
            (r#"note="a,b=c""#, &[("note", "a,b=c")]),
            (r#"note='a"b' , x='\''"#, &[("note", "a\"b"), ("x", "'")]),
            (r#"a="\"\\\n""#, &[("a", r#""\\n"#)]),
            (r"a=b\,c,d=e\f", &[("a", "b,c"), ("d", r"e\f")]),
            (r#"a=5" pipe"#, &[("a", "5\" pipe")]),
            (r#" {"K":"v","a":"b=c,d"}"#, &[("k", "v"), ("a", "b=c,d")]),
            ("{}", &[]),
        ] {
            let expected = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            assert_eq!(UserMetadataArg::parse(text), Ok(UserMetadataArg(expected.collect())), "{text}");
        }
        for (text, why) in [
            ("=x", "write KEY=VALUE"),
            ("x", "write KEY=VALUE"),
            ("a=1,", "write KEY=VALUE"),
            ("a=1,b,c=d", "write KEY=VALUE"),
            (r#"a="x"#, "no closing \""),
            (r#"a="x"y,b=c"#, "between the closing \" and y"),
            (r#"{"k":1}"#, "not a JSON object of strings"),
            (r#"{"k":"#, "not a JSON object of strings"),
        ] {
            let refused = UserMetadataArg::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn values() {
        let date = "Thu, 31 Jan 2030 12:00:00 GMT";
        for text in [date, "2030-01-31T12:00:00Z"] {
            assert_eq!(http_date(text).as_deref(), Ok(date));
        }
        assert!(http_date("tomorrow").is_err());
        assert!(standard_class("STANDARD").is_ok() && standard_class("GLACIER").is_err());
        assert!(private_acl("private").is_ok() && private_acl("public-read").is_err());
    }
}
