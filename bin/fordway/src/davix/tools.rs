//! The implementation of each davix tool. Where possible, a tool runs one of Fordway's own commands.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use fordway_command::{CommandContext, CommandExit, PRIVATE_AREA, file_error};
use fordway_http::replicas::is_metalink_name;
use fordway_http::retry::StagingRetries;
use fordway_http::vector::SessionOptions;
use fordway_http::webdav::{CustomHttpRequest, without_query};
use fordway_store::{Error, ErrorKind, Result};

use super::address::DavixAddress;
use super::args::{
    DavixCopyMode, DavixCpArgs, DavixGetArgs, DavixHttpCommandArgs, DavixLsArgs, DavixMkdirArgs, DavixMvArgs,
    DavixOptions, DavixPutArgs, DavixRmArgs,
};
use super::{DavixToolCommand, connection, listing};
use crate::args::CommandLine;
use crate::web::http_url;
use crate::{commands, dav};

/// Runs one of Fordway's own commands, which reports its errors.
fn own_command(words: &[&OsStr], context: &CommandContext) -> Result<CommandExit> {
    let words = std::iter::once(OsStr::new("fordway")).chain(words.iter().copied());
    let line = CommandLine::try_parse_from(words)
        .map_err(|error| Error::new(ErrorKind::Internal, "translating the options").caused_by(error))?;
    Ok(commands::run(line, context))
}

/// Returns an array of command-line arguments.
macro_rules! words {
    ($($word:expr),* $(,)?) => { [$(OsStr::new($word)),*] };
}

/// Returns the `--jobs` option for a number of threads.
fn jobs(threads: u16) -> String {
    format!("--jobs={}", threads.clamp(1, 1024))
}

/// Returns a local path that cannot be mistaken for standard input or a URL.
fn local_word(path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) }
}

/// Returns the option that disables the search for replicas in Fordway's commands. The search is disabled if davix's
/// tools would not search, or if a secret from the command line could be sent to other hosts.
fn metalink_word(url: &str, options: &DavixOptions) -> Option<&'static str> {
    let is_wanted = match options.metalink.as_deref() {
        Some(mode) => matches!(mode, "auto" | "failover"),
        None => !connection::has_secrets(options),
    };
    // For the URL of a Metalink, Fordway's commands read the file that the Metalink describes, but davix's tools read
    // the Metalink itself. Therefore, also disable the search.
    (!is_wanted || is_metalink_name(url)).then_some("--metalink=none")
}

impl DavixGetArgs {
    fn metalink_word(&self, address: &DavixAddress) -> Option<&'static OsStr> {
        match address {
            DavixAddress::Web(url) => metalink_word(url, &self.options).map(OsStr::new),
            DavixAddress::S3(_) => None,
        }
    }
}

/// The defaults of `--accepted-retry` and `--accepted-retry-delay`, as in davix.
const ACCEPTED_RETRIES: u32 = 180;
const ACCEPTED_DELAY: Duration = Duration::from_secs(10);

impl DavixToolCommand for DavixGetArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn adjust(&self, _: &[DavixAddress], web: &mut SessionOptions) -> Result<()> {
        let max_retries = self.accepted_retry.unwrap_or(ACCEPTED_RETRIES);
        let delay =
            self.accepted_retry_delay.map_or(ACCEPTED_DELAY, |seconds| Duration::from_secs(seconds.into()));
        web.staging = Some(StagingRetries { max_retries, delay });
        Ok(())
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (address, word) = (&addresses[0], addresses[0].word());
        let file = self.file.as_ref().or(self.output.as_ref());
        if let Some(threads) = self.recursive
            && is_collection(address, context)?
        {
            let jobs = jobs(threads);
            let directory = file.cloned().unwrap_or_else(|| usual_directory(&word));
            let directory = local_word(&match address {
                DavixAddress::S3(service) => directory.join(key_path(&service.key)?),
                DavixAddress::Web(_) => directory,
            });
            let mut words = words!["cp", "--recursive", "--raw", &jobs].to_vec();
            words.extend(self.metalink_word(address));
            words.extend(words!["--", &word, &directory]);
            return own_command(&words, context);
        }
        let first = match file {
            Some(file) if !is_device(file) => words!["cp", "--raw"],
            Some(file) => {
                print_into(file, context)?;
                words!["cat", "--raw"]
            }
            None => words!["cat", "--raw"],
        };
        let mut words = first.to_vec();
        words.extend(self.metalink_word(address));
        words.extend(words!["--", &word]);
        let file = file.filter(|file| !is_device(file)).map(|file| local_word(file));
        words.extend(file.as_ref().map(|file| file.as_os_str()));
        own_command(&words, context)
    }
}

/// Returns whether an address can be read recursively. A web server without WebDAV provides no listings.
fn is_collection(address: &DavixAddress, context: &CommandContext) -> Result<bool> {
    match address {
        DavixAddress::Web(url) if address.can_be_listed() => {
            Ok(dav::client(context)?.stat(&http_url(url))?.is_collection)
        }
        DavixAddress::Web(_) => Ok(false),
        DavixAddress::S3(_) => Ok(true),
    }
}

/// Returns the default directory for a copy of a collection: the collection's name, or `temp` if it has no usable name.
fn usual_directory(url: &str) -> PathBuf {
    let path = without_query(url).trim_end_matches('/');
    let name = path.splitn(4, '/').nth(3).and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    match fordway_wire::uri::decode_segment(name).filter(|name| !name.contains('/')) {
        Some(name) if !matches!(name.as_str(), "" | "." | ".." | PRIVATE_AREA) => PathBuf::from(name),
        _ => PathBuf::from("temp"),
    }
}

/// Returns the path below the destination of `davix-get -r` at which the objects of a prefix are written. Like davix,
/// the tool writes each object to the path of its whole key. Errors: `InvalidArgument` if the path is not below the
/// destination.
fn key_path(key: &str) -> Result<PathBuf> {
    let segments: Vec<_> = key.split('/').filter(|segment| !segment.is_empty()).collect();
    if segments.iter().any(|segment| matches!(*segment, "." | ".." | PRIVATE_AREA)) {
        let why = format!(
            "the key {key} contains ., .. or {PRIVATE_AREA}, so its objects cannot be written below a directory"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(segments.iter().collect())
}

/// Returns whether a path is a device or pipe, such as /dev/null. Content is written to such a path as it arrives.
fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// Redirects output data from standard output to a file.
fn print_into(path: &Path, context: &CommandContext) -> Result<()> {
    let opened = File::options().write(true).create(true).truncate(true).open(path);
    let redirected = opened.and_then(|file| context.output.redirect(file));
    redirected.map_err(|error| file_error("writing to", path.display(), error))
}

impl DavixToolCommand for DavixPutArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn adjust(&self, _: &[DavixAddress], web: &mut SessionOptions) -> Result<()> {
        web.asks_first = !self.no_100_continue;
        Ok(())
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (file, word) = (local_word(Path::new(&self.file)), addresses[0].word());
        match self.recursive.filter(|_| file.is_dir()) {
            Some(threads) => {
                let jobs = jobs(threads);
                own_command(&words!["cp", "--recursive", "--raw", &jobs, "--", &file, &word], context)
            }
            None => own_command(&words!["cp", "--raw", "--", &file, &word], context),
        }
    }
}

impl DavixToolCommand for DavixLsArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        match &addresses[0] {
            DavixAddress::Web(_) => listing::web(self, context),
            DavixAddress::S3(service) => listing::bucket(service, self, context),
        }
    }
}

impl DavixToolCommand for DavixRmArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let word = addresses[0].word();
        match (&addresses[0], self.recursive) {
            (_, Some(threads)) => {
                let jobs = jobs(threads);
                own_command(&words!["rm", "--recursive", "--raw", &jobs, "--", &word], context)
            }
            // On most servers, this DELETE request also removes a whole collection.
            (DavixAddress::Web(url), None) => {
                dav::client(context)?.remove(&http_url(url)).map(|()| CommandExit::Ok)
            }
            (DavixAddress::S3(_), None) => own_command(&words!["rm", "--raw", "--", &word], context),
        }
    }
}

impl DavixToolCommand for DavixMkdirArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        match &addresses[0] {
            DavixAddress::S3(service) if service.key.is_empty() => {
                let bucket = format!("s3://{}", service.bucket);
                own_command(&words!["mb", "--", &bucket], context)
            }
            other => own_command(&words!["mkdir", "--", &other.word()], context),
        }
    }
}

impl DavixToolCommand for DavixMvArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.source, &self.destination]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (from, to) = (addresses[0].word(), addresses[1].word());
        let mut words = words!["mv", "--raw"].to_vec();
        // `fordway mv` moves a collection only with `--recursive`.
        if let DavixAddress::Web(url) = &addresses[0]
            && dav::client(context)?.stat(&http_url(url))?.is_collection
        {
            words.push(OsStr::new("--recursive"));
        }
        words.extend(words!["--", &from, &to]);
        own_command(&words, context)
    }
}

impl DavixToolCommand for DavixCpArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.source, &self.destination]
    }

    /// The headers and the login are for the server that makes the copy, as in davix: another server must not get them.
    fn adjust(&self, addresses: &[DavixAddress], web: &mut SessionOptions) -> Result<()> {
        let active = match self.copy_mode {
            DavixCopyMode::Push => &addresses[0],
            DavixCopyMode::Pull => &addresses[1],
        };
        if let DavixAddress::Web(url) = active
            && connection::has_secrets(&self.options)
        {
            web.scope = Some(connection::scope(url, &self.options)?);
        }
        Ok(())
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (from, to) = (addresses[0].word(), addresses[1].word());
        let server = match self.copy_mode {
            DavixCopyMode::Push => "--third-party=push",
            DavixCopyMode::Pull => "--third-party=pull",
        };
        own_command(&words!["cp", "--raw", server, "--", &from, &to], context)
    }
}

/// The methods that `davix-http` can send. The HTTP client accepts only constant strings as methods.
const METHODS: [&str; 18] = [
    "GET",
    "HEAD",
    "PUT",
    "POST",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "SEARCH",
    "REPORT",
    "ACL",
];

impl DavixToolCommand for DavixHttpCommandArgs {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let DavixAddress::Web(url) = &addresses[0] else {
            let why = "davix-http does not sign requests to S3; send them to a URL from `fordway presign`";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        };
        let wanted = self.request.request.as_deref().unwrap_or("GET").trim();
        let method = METHODS.into_iter().find(|method| *method == wanted).ok_or_else(|| {
            let why = format!("the method {wanted:?} is not one of {}; use curl", METHODS.join(", "));
            Error::new(ErrorKind::InvalidArgument, why)
        })?;
        let body = self.request.data.as_deref().map(str::as_bytes);
        let follows = self.options.redirection.as_deref() != Some("no");
        if let Some(file) = &self.request.output {
            print_into(file, context)?;
        }
        let request = CustomHttpRequest { method, body, follows };
        let status = dav::client(context)?.request(&http_url(url), &request, &mut |status, bytes| {
            context.interrupt.check()?;
            if is_denied(status) { Ok(()) } else { context.output.data(bytes) }
        })?;
        context.output.flush()?;
        if status < 400 {
            return Ok(CommandExit::Ok);
        }
        let shown = without_query(url);
        let why = format!("{shown}: the server answered with HTTP status {status}");
        let kind = if is_denied(status) { ErrorKind::AccessDenied } else { ErrorKind::BadResponse };
        context.output.error(&Error::new(kind, why));
        Ok(if is_denied(status) { CommandExit::Denied } else { CommandExit::Ok })
    }
}

/// Returns whether davix-http treats a status as a failure and does not print the content of the response.
fn is_denied(status: u16) -> bool {
    matches!(status, 401 | 403)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_named_after_collections() {
        for (url, name) in [
            ("davs://h/a/b%20c/", "b c"),
            ("s3://bkt/p/q", "q"),
            ("davs://h/", "temp"),
            ("davs://h/a/..", "temp"),
            ("davs://h/a/%2Efordway/", "temp"),
            ("davs://h/a%2Fb", "temp"),
        ] {
            assert_eq!(usual_directory(url), Path::new(name), "{url}");
        }
    }
}
