//! Opens stores: the endpoint and the options of `fordway.open`.

use std::sync::Arc;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::interpreter::without_interpreter;
use crate::signal;
use crate::store::PyStore;

/// Opens the store at `endpoint`.
///
/// `file:///DIRECTORY` or `/DIRECTORY` selects the `embedded` lane: each subdirectory is a bucket.
/// `http(s)://HOST[:PORT]` selects the `http` lane: any S3 service. `unix:///SOCKET` and
/// `tcp://HOST:PORT` select the `node` lane: a gateway started by `fordway node`. A `pathlib.Path`, which
/// may be relative, is a directory. Without an endpoint, the store uses `AWS_ENDPOINT_URL_S3`, else
/// `AWS_ENDPOINT_URL`, else the AWS configuration file, else AWS.
///
/// On the `http` lane, `timeout` is the time in seconds that a call may wait for the server, including
/// retries. By default, the call as a whole has no time limit. `retries` is the maximum number of times that
/// a request is retried after a transient failure (default 4). The other lanes support neither option.
///
/// Raises `InvalidArgumentError` if the endpoint has a different form, the directory does not exist, or the
/// lane does not support an option.
#[pyfunction]
#[pyo3(signature = (endpoint=None, *, timeout=None, retries=None))]
pub(crate) fn open(
    py: Python<'_>,
    endpoint: Option<&Bound<'_, PyAny>>,
    timeout: Option<f64>,
    retries: Option<u32>,
) -> PyResult<PyStore> {
    let opening =
        OpenArguments { endpoint: endpoint.map(endpoint_text).transpose()?, timeout, max_retries: retries };
    signal::listen();
    let opened = without_interpreter(py, || opening.open())?;
    Ok(PyStore::new(opened, opening))
}

/// Returns the endpoint that a string or a path names.
fn endpoint_text(given: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = given.extract() {
        return Ok(text);
    }
    let os = given.py().import("os")?;
    let absolute = os.getattr("path")?.call_method1("abspath", (os.call_method1("fspath", (given,))?,))?;
    absolute.extract()
}

/// The arguments of [`open`], used to reopen the store after unpickling.
pub(crate) struct OpenArguments {
    /// The endpoint. `None` means the endpoint that the environment specifies.
    pub(crate) endpoint: Option<String>,
    /// The timeout, in seconds.
    pub(crate) timeout: Option<f64>,
    pub(crate) max_retries: Option<u32>,
}

impl OpenArguments {
    /// Errors: the errors of [`fordway_lanes::open`]; `InvalidArgument` for an invalid timeout or an option that
    /// the lane does not support.
    fn open(&self) -> Result<Arc<dyn fordway_store::Store>> {
        let options = fordway_lanes::LaneConfigOverrides {
            endpoint: self.endpoint.clone(),
            timeout: self.timeout.map(seconds).transpose()?,
            max_retries: self.max_retries,
            ..Default::default()
        };
        let store = fordway_lanes::open(&options)?.store;
        let is_limited = self.timeout.is_some() || self.max_retries.is_some();
        if is_limited && store.lane() != "http" {
            let why = format!(
                "the lane {} has no timeout and no retries; omit `timeout` and `retries`, or use an http(s):// endpoint",
                store.lane()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(store)
    }
}

fn seconds(timeout: f64) -> Result<Duration> {
    let duration = Duration::try_from_secs_f64(timeout).ok().filter(|duration| !duration.is_zero());
    let why = || format!("a timeout of {timeout}; use a positive number of seconds");
    duration.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, why()))
}
