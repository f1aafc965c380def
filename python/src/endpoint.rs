//! From an endpoint to the store behind it.

use std::env;
use std::path::Path;
use std::sync::Arc;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Error, ErrorKind, Result, Store};

/// The environment variables that name the endpoint where the caller does not, first one first.
const VARIABLES: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];

/// Opens the store at `endpoint`: `file:///abs` or an absolute path.
/// Errors: `InvalidArgument` if there is none or it is of another form, and those of opening it.
pub(crate) fn open_store(endpoint: Option<String>) -> Result<Arc<dyn Store>> {
    let from_environment = || VARIABLES.iter().find_map(|name| env::var(name).ok().filter(|v| !v.is_empty()));
    let Some(endpoint) = endpoint.or_else(from_environment) else {
        let how = "pass one such as file:///data/objects, or set AWS_ENDPOINT_URL_S3";
        return Err(Error::new(ErrorKind::InvalidArgument, format!("no endpoint; {how}")));
    };
    let path = endpoint.strip_prefix("file://").unwrap_or(&endpoint);
    if !path.starts_with('/') {
        let forms = "this module opens file:///absolute/path or an absolute path";
        return Err(Error::new(ErrorKind::InvalidArgument, format!("the endpoint {endpoint:?}; {forms}")));
    }
    Ok(Arc::new(PosixStore::open(Path::new(path), PosixConfig::default())?))
}
