//! Options shared by the commands of both programs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_http::HttpVersion;
use fordway_lanes::LaneConfigOverrides;
use fordway_posix::Durability;
use fordway_store::{ByteRange, ETagPolicy};

use crate::units::parse_duration;

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Endpoint for access to the objects: file:///DIRECTORY, /DIRECTORY, unix:///SOCKET, tcp://HOST:PORT, or
    /// http(s)://HOST[:PORT]
    #[arg(long, global = true, value_name = "URL", alias = "endpoint-url")]
    pub endpoint: Option<String>,
    /// Profile in the AWS configuration and credentials files [default: AWS_DEFAULT_PROFILE, else AWS_PROFILE, else
    /// default]
    #[arg(long, global = true, value_name = "NAME")]
    pub profile: Option<String>,
    /// Region used in signatures [default: from the AWS configuration]. For `fordway serve`: the region of the buckets
    /// [default: clients may create buckets in any region]
    #[arg(long, global = true, value_name = "NAME")]
    pub region: Option<String>,
    /// Print the results as JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Do not print progress, completed operations or warnings; errors are still printed
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Do not print progress or completed operations; warnings and errors are still printed, as in `aws s3`
    #[arg(long, global = true)]
    pub only_show_errors: bool,
    /// Do not show a progress bar
    #[arg(long, global = true)]
    pub no_progress: bool,
}

impl GlobalArgs {
    /// Returns the options that select a lane.
    pub fn lane_options(&self) -> LaneConfigOverrides {
        LaneConfigOverrides {
            endpoint: self.endpoint.clone(),
            profile: self.profile.clone(),
            region: self.region.clone(),
            ..LaneConfigOverrides::default()
        }
    }
}

/// Options of vectored reads: ranges per call, number of connections, HTTP version, time limit and trusted
/// certificates.
#[derive(Debug, Args)]
pub struct VectorReadArgs {
    /// Number of ranges that one call reads, at least 1
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    pub per_call: u32,
    /// Maximum number of connections to the server, from 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// HTTP version for http(s) files: 1.1, 2 or 3. HTTP/2 (negotiated by TLS, or with prior knowledge) multiplexes
    /// requests over one TCP connection, and HTTP/3 over one QUIC connection
    #[arg(long, value_name = "VERSION", env = "FORDWAY_HTTP_VERSION", default_value = "1.1", value_parser = http_version)]
    pub http: HttpVersion,
    /// Time limit for each operation (opening the file, or one call), including retries and waits, such as 30s or 5m
    /// [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// Trust only the certificates in this PEM file [default: AWS_CA_BUNDLE, else the directory X509_CERT_DIR, else
    /// the system's certificates]
    #[arg(long, value_name = "FILE", env = "AWS_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,
}

/// Replicas of an http(s) file, and how to read from several of them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Replicas of http(s) files")]
pub struct ReplicaArgs {
    /// File or URL of a Metalink or of a list of URLs that names the replicas; with `none`, the server is never queried
    /// for replicas [default: query the server when a read from it fails]
    #[arg(long, value_name = "SOURCE")]
    pub metalink: Option<String>,
    /// Read over this many connections in parallel (1 to 64), from one or several replicas [default: read from one
    /// replica, and from the next replica after a failure]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,
    /// Country codes, such as ch,de; among replicas of equal priority, replicas in these countries are preferred
    #[arg(long, value_name = "COUNTRY", value_delimiter = ',')]
    pub location: Vec<String>,
}

/// How the ETags of new objects are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ETagArg {
    /// MD5 of the content, which S3 clients verify
    Md5,
    /// A unique 128-bit value, computed without reading the content
    Fast,
}

/// When a write is reported as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// When the content is in the page cache, as with a POSIX write
    None,
    /// When the content is on stable storage
    Data,
    /// When the content and the name are on stable storage
    Full,
}

impl From<ETagArg> for ETagPolicy {
    fn from(arg: ETagArg) -> Self {
        match arg {
            ETagArg::Md5 => ETagPolicy::Md5,
            ETagArg::Fast => ETagPolicy::Fast,
        }
    }
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::None => Durability::None,
            DurabilityArg::Data => Durability::Data,
            DurabilityArg::Full => Durability::Full,
        }
    }
}

fn http_version(number: &str) -> Result<HttpVersion, String> {
    HttpVersion::named(number).map_err(|error| error.detail().to_owned())
}

/// Parses `FIRST-LAST`, `FIRST-` or `-COUNT`. Errors are messages that clap prints.
pub fn byte_range(text: &str) -> Result<ByteRange, String> {
    let help = || "write FIRST-LAST, FIRST- or -COUNT".to_owned();
    let number = |digits: &str| digits.parse::<u64>().map_err(|_| help());
    match text.split_once('-').ok_or_else(help)? {
        ("", count) => Ok(ByteRange::Last(number(count)?)),
        (first, "") => Ok(ByteRange::From(number(first)?)),
        (first, last) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok(ByteRange::Inclusive(first, last)),
            _ => Err("the range ends before it starts".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(byte_range("0-9"), Ok(ByteRange::Inclusive(0, 9)));
        assert_eq!(byte_range("7-"), Ok(ByteRange::From(7)));
        assert_eq!(byte_range("-5"), Ok(ByteRange::Last(5)));
        for bad in ["", "-", "7", "9-1", "a-b", "1-2-3", "--1"] {
            assert!(byte_range(bad).is_err(), "{bad}");
        }
    }
}
