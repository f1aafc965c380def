//! Options that set the metadata of new objects.

use clap::{Args, ValueEnum};
use fordway_store::Metadata;
use fordway_wire::date::{format_http, parse_http, parse_iso8601};

/// The metadata of new objects. The only accepted storage class and access control list are the defaults of S3.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Metadata of the objects written")]
pub struct MetadataArgs {
    /// User metadata to store with the object; replaces all user metadata of a source object
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = key_value)]
    pub metadata: Vec<(String, String)>,
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
            user: self.metadata.iter().cloned().collect(),
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_ascii_lowercase(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
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
        _ => {
            Err("only `private` is supported; grant access with a bucket policy (fordway policy)".to_owned())
        }
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
    fn values() {
        assert_eq!(key_value("Owner=a=b"), Ok(("owner".into(), "a=b".into())));
        assert!(key_value("=x").is_err() && key_value("x").is_err());
        let date = "Thu, 31 Jan 2030 12:00:00 GMT";
        for text in [date, "2030-01-31T12:00:00Z"] {
            assert_eq!(http_date(text).as_deref(), Ok(date));
        }
        assert!(http_date("tomorrow").is_err());
        assert!(standard_class("STANDARD").is_ok() && standard_class("GLACIER").is_err());
        assert!(private_acl("private").is_ok() && private_acl("public-read").is_err());
    }
}
