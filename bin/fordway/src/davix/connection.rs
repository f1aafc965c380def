//! Converts davix's options for connections and credentials to options of Fordway's sessions and lanes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fordway_client::s3::S3Credentials;
use fordway_http::vector::{CredentialScope, SessionOptions};
use fordway_http::webdav::without_query;
use fordway_http::{Origin, ProxySettings, SessionCredentials, Timeouts, TlsRoots};
use fordway_lanes::LaneConfigOverrides;
use fordway_store::{Error, ErrorKind, Result};

use super::address::DavixS3Address;
use super::args::{DavixOptions, SecurityOptions};
use crate::web::http_url;

/// The directory in which grid sites install the certificates of trusted certificate authorities.
const GRID_AUTHORITIES: &str = "/etc/grid-security/certificates";

/// Headers that only this program can set. They determine the connection, the end of a message, or the part of a file
/// that a message contains.
const OWN_HEADERS: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "range",
    "if-range",
    "accept-encoding",
];

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Refuses davix's options that have no counterpart in Fordway. Errors: `InvalidArgument`, which names the option and
/// the alternative.
pub(super) fn check(options: &DavixOptions) -> Result<()> {
    if let Some((name, instead)) = options.refused.given() {
        return Err(refused(format!("{name}: {instead}")));
    }
    if let Some(name) = options.module.iter().find(|name| *name != "grid") {
        return Err(refused(format!("--module {name}: there are no plugins, and grid is the only profile")));
    }
    Ok(())
}

/// Returns the options for connections to web servers. Errors: `InvalidArgument`.
pub(super) fn web_options(options: &DavixOptions, may_set_range: bool) -> Result<SessionOptions> {
    let found = SessionOptions::discover(None)?;
    let (headers, authorization) = headers(&options.headers, may_set_range)?;
    let deadline = options.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let connect = options.conn_timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let timeouts = Timeouts { connect: connect.unwrap_or(found.timeouts.connect), ..found.timeouts };
    Ok(SessionOptions {
        tls_roots: tls_roots(options).unwrap_or(found.tls_roots),
        credentials: credentials(&options.security, authorization, found.credentials)?,
        headers: headers.into(),
        proxies: proxies(options)?.unwrap_or(found.proxies),
        timeouts,
        deadline,
        max_retries: options.retry.unwrap_or(found.max_retries),
        ..found
    })
}

/// Names and values of headers.
type HeaderPairs = Vec<(String, String)>;

/// Splits each `NAME: VALUE` into a pair, and returns the value of `Authorization` separately.
fn headers(given: &[String], may_set_range: bool) -> Result<(HeaderPairs, Option<String>)> {
    let (mut headers, mut authorization) = (Vec::new(), None);
    for text in given {
        let (name, value) = text.split_once(':').ok_or_else(|| refused("--header needs NAME: VALUE"))?;
        let (name, value) = (name.trim(), value.trim());
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) || value.contains(char::is_control) {
            return Err(refused("--header needs a name and a value that HTTP allows, on one line"));
        }
        let lower = name.to_ascii_lowercase();
        let is_own = OWN_HEADERS.contains(&lower.as_str()) && !(may_set_range && lower == "range");
        match lower.as_str() {
            "authorization" => authorization = Some(value.to_owned()),
            _ if is_own => {
                let why = format!(
                    "--header {name}: this program sets it; for parts of files, use `fordway cat --range`"
                );
                return Err(refused(why));
            }
            _ => headers.push((name.to_owned(), value.to_owned())),
        }
    }
    Ok((headers, authorization))
}

/// Returns whether the command line contains a password, a token or other headers. Such secrets may be sent to replicas
/// on other hosts only if the user requests replicas explicitly.
pub(super) fn has_secrets(options: &DavixOptions) -> bool {
    !options.headers.is_empty() || options.security.userlogin.is_some()
}

/// Returns the credentials from the command line, or, by default, the credentials from the environment.
fn credentials(
    security: &SecurityOptions,
    authorization: Option<String>,
    found: SessionCredentials,
) -> Result<SessionCredentials> {
    let chosen = || SessionCredentials::none().over_plain_http();
    let credentials = match (authorization, &security.userlogin, &security.userpass) {
        (Some(value), _, _) => chosen().with_authorization(value),
        (None, Some(user), Some(password)) => chosen().with_login(user, password),
        (None, Some(_), None) | (None, None, Some(_)) => {
            return Err(refused("--userlogin and --userpass go together; there is no password prompt"));
        }
        (None, None, None) => found,
    };
    let Some(cert) = &security.cert else {
        return match security.key {
            Some(_) => Err(refused("--key needs --cert, the certificate for this key")),
            None => Ok(credentials),
        };
    };
    let key = security.key.as_ref().unwrap_or(cert);
    Ok(credentials.with_certificate(home_path(cert), home_path(key)))
}

/// Returns the scope of the headers and credentials on the command line: only the server at `active`. The other server
/// of a copy gets the value of `TransferHeaderAuthorization`, which is meant for this server, and the certificate.
/// Errors: `InvalidArgument`.
pub(super) fn scope(active: &str, options: &DavixOptions) -> Result<CredentialScope> {
    let (origin, _) = Origin::parse(without_query(&http_url(active)))?;
    let (headers, authorization) = headers(&options.headers, false)?;
    let passed =
        headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("TransferHeaderAuthorization"));
    let is_chosen = authorization.is_some() || options.security.userlogin.is_some();
    let found = if is_chosen { SessionCredentials::none() } else { SessionCredentials::discover() };
    let security = SecurityOptions { userlogin: None, userpass: None, ..options.security.clone() };
    let elsewhere = credentials(&security, passed.map(|(_, value)| value), found)?;
    Ok(CredentialScope { origin, elsewhere })
}

fn tls_roots(options: &DavixOptions) -> Option<TlsRoots> {
    if options.security.insecure {
        return Some(TlsRoots::Unverified);
    }
    let mut directories: Vec<PathBuf> = options.security.capath.iter().map(|path| home_path(path)).collect();
    if directories.is_empty() && options.module.iter().any(|name| name == "grid") {
        let named = std::env::var_os("X509_CERT_DIR").map(PathBuf::from);
        let usual = || Some(PathBuf::from(GRID_AUTHORITIES)).filter(|path| path.is_dir());
        directories.extend(named.or_else(usual));
    }
    (!directories.is_empty()).then_some(TlsRoots::SystemAnd(directories))
}

fn proxies(options: &DavixOptions) -> Result<Option<ProxySettings>> {
    let Some(proxy) = &options.proxy else { return Ok(None) };
    if !proxy.contains("://") {
        return Err(refused("--proxy needs a URL, such as socks5://HOST:PORT"));
    }
    Ok(Some(ProxySettings::resolve(&|name| (name == "all_proxy").then(|| proxy.clone()))))
}

/// Replaces a leading `~/` with the home directory, because shells do not expand the `~` in `--cert=~/FILE`.
fn home_path(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// Returns the options of the lane to an S3 service. Errors: `InvalidArgument` for options that do not apply to S3.
pub(super) fn lane_options(service: &DavixS3Address, options: &DavixOptions) -> Result<LaneConfigOverrides> {
    let security = &options.security;
    if !options.headers.is_empty() || options.proxy.is_some() || security.userlogin.is_some() {
        let why = "--header, --proxy and --userlogin cannot be used with S3; the variables HTTPS_PROXY and HTTP_PROXY \
                   name a proxy";
        return Err(refused(why));
    }
    if security.cert.is_some() {
        return Err(refused("--cert cannot be used with S3; use --s3accesskey and --s3secretkey"));
    }
    Ok(LaneConfigOverrides {
        endpoint: Some(service.endpoint.clone()),
        region: security.s3region.clone(),
        credentials: service_credentials(security)?,
        addressing: Some(service.addressing),
        timeout: options.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        max_retries: options.retry,
        tls_roots: tls_roots(options),
        ..LaneConfigOverrides::default()
    })
}

fn service_credentials(security: &SecurityOptions) -> Result<Option<S3Credentials>> {
    match (&security.s3accesskey, &security.s3secretkey) {
        (Some(access_key), Some(secret_key)) => Ok(Some(S3Credentials::Keys {
            access_key: access_key.clone(),
            secret_key: secret_key.clone(),
            session_token: security.s3token.clone(),
            source: "--s3accesskey".to_owned(),
        })),
        (None, None) => Ok(None),
        _ => Err(refused("--s3accesskey and --s3secretkey go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(headers: &[&str]) -> Vec<String> {
        headers.iter().map(|header| (*header).to_owned()).collect()
    }

    #[test]
    fn headers_are_split_and_checked() {
        let (pairs, authorization) =
            super::headers(&given(&["X-A: b: c", "authorization:Bearer t", "Y:"]), false).unwrap();
        assert_eq!(pairs, [("X-A".to_owned(), "b: c".to_owned()), ("Y".to_owned(), String::new())]);
        assert_eq!(authorization.as_deref(), Some("Bearer t"));
        for bad in ["none", ": v", "a b: c", "A: b\r\nC: d", "Content-Length: 1", "Range: bytes=0-1"] {
            assert!(super::headers(&given(&[bad]), false).is_err(), "{bad}");
        }
        assert!(super::headers(&given(&["Range: bytes=0-1"]), true).is_ok());
    }

    #[test]
    fn halves_of_credentials_are_refused() {
        let half = |security: SecurityOptions| {
            let options = DavixOptions { security, ..DavixOptions::default() };
            web_options(&options, false).unwrap_err().detail().to_owned()
        };
        let text = |text: &str| Some(text.to_owned());
        let login = half(SecurityOptions { userlogin: text("me"), ..SecurityOptions::default() });
        assert!(login.contains("go together"), "{login}");
        let key = half(SecurityOptions { key: text("k"), ..SecurityOptions::default() });
        assert!(key.contains("--key needs --cert"), "{key}");
        let one = SecurityOptions { s3accesskey: text("k"), ..SecurityOptions::default() };
        assert!(service_credentials(&one).is_err());
    }
}
