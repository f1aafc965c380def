//! Addresses, signs, sends and retries calls.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::sigv4::{MAX_EXPIRES_S, PresignedRequest, UNSIGNED_PAYLOAD, payload_hash};
use fordway_wire::{date, sigv2, uri};

use crate::s3::config::SignatureVersion;
use crate::s3::failure::{self, FailedAttempt};
use crate::s3::process::RUN_MAX;
use crate::s3::request::S3Call;
use crate::s3::request::{RequestSigner, UnsignedRequest};
use crate::s3::{BucketAddressing, CurrentCredentials, S3Config, S3Credentials};
use fordway_http::retry::{RetryBudget, pause};
use fordway_http::{
    BodySink, HttpClient, HttpExchangeRequest, HttpResponse, Origin, ReplayPolicy, StreamedBody,
    TIME_LIMIT_MAX, Timeouts, USER_AGENT, vector,
};

/// The time to wait for the response to a copy or a completion, if no timeout is set. Some services respond only when
/// they have copied the whole object.
const SLOW_CALL_MAX: Duration = Duration::from_secs(15 * 60);
/// The time after which a call no longer counts as just begun.
const JUST_BEGUN: Duration = Duration::from_millis(10);

/// A service, and the connections to it. Threads may share a session.
pub(super) struct S3Session {
    pub(super) config: S3Config,
    http: Arc<HttpClient>,
    /// The timeouts of `http`.
    timeouts: Timeouts,
    /// The session for vectored reads, which uses the connections of `http`.
    pub(super) vector: Arc<vector::HttpSession>,
    origin: Origin,
    base_path: String,
    signer: Arc<RequestSigner>,
}

/// The address of a call: the parts of the request that do not depend on the time.
pub(super) struct CallAddress {
    pub(super) origin: Origin,
    host: String,
    path: String,
    query: String,
}

impl S3Session {
    /// Creates a session. Errors: `InvalidArgument` for an invalid endpoint or setting.
    pub(super) fn new(mut config: S3Config) -> Result<Self> {
        config.check()?;
        let (origin, base_path) = Origin::parse(&config.endpoint)?;
        config.timeout = config.timeout.map(|timeout| timeout.min(TIME_LIMIT_MAX));
        let timeouts = config.timeout.map_or(config.timeouts, |timeout| config.timeouts.of_calls(timeout));
        let http =
            HttpClient::new(config.http, timeouts, config.tls_roots.clone()).through(config.proxies.clone());
        let http = Arc::new(http);
        let vector = Arc::new(vector_session(&config, timeouts, &http));
        let signer = Arc::new(RequestSigner::new(config.credentials.clone(), &config.region));
        Ok(S3Session { config, http, timeouts, vector, origin, base_path, signer })
    }

    /// Returns a session that shares this session's connections, but has another [`S3Config::timeout`].
    pub(super) fn with_timeout(&self, timeout: Duration) -> Self {
        let config = S3Config { timeout: Some(timeout.min(TIME_LIMIT_MAX)), ..self.config.clone() };
        let timeouts = config.timeouts.of_calls(timeout);
        let http = Arc::new(self.http.with_timeouts(timeouts));
        let vector = Arc::new(vector_session(&config, timeouts, &http));
        let (origin, base_path) = (self.origin.clone(), self.base_path.clone());
        S3Session { config, http, timeouts, vector, origin, base_path, signer: self.signer.clone() }
    }

    /// Sends a call and passes its response (2xx) to `receive`, which must read the body. Sends the call again if the
    /// failure may be temporary and the call may be repeated. Errors: errors from the service, which contain the number
    /// of attempts; errors from `receive`.
    pub(super) fn run<T>(&self, call: &S3Call, receive: impl FnMut(HttpResponse) -> Result<T>) -> Result<T> {
        self.run_until(call, self.until(), receive)
    }

    /// Returns the time at which a call that begins now ends, if there is a timeout.
    pub(super) fn until(&self) -> Option<Instant> {
        self.config.timeout.map(|timeout| Instant::now() + timeout)
    }

    /// Sends a call like [`S3Session::run`], as one of several calls that end at `until`.
    fn run_until<T>(
        &self,
        call: &S3Call,
        until: Option<Instant>,
        mut receive: impl FnMut(HttpResponse) -> Result<T>,
    ) -> Result<T> {
        call.check_headers()?;
        let address = self.address(call);
        let mut retries = RetryBudget::new(self.retries_max(), until);
        loop {
            retries.check_time().map_err(|error| call.named(retries.last(error)))?;
            let failed = match self.attempt(call, &address, until) {
                Ok(response) => match receive(response) {
                    Ok(done) => return Ok(done),
                    Err(error) => FailedAttempt::while_receiving(error, call),
                },
                Err(failed) => failed,
            };
            let error = self.with_endpoint(failed.error);
            let wait = retries.after(error, failed.may_pass, failed.retry_after);
            wait.and_then(pause).map_err(|error| call.named(error))?;
        }
    }

    /// Sends a call while `produce` produces its body of [`S3Call::streamed_bytes`], and passes its response (2xx) to
    /// `receive`. The signature does not cover the body. Sends the call again if the failure may be temporary and no
    /// part of the body was requested. Errors: as for [`S3Session::run`]; errors from `produce`; `IncompleteBody` if
    /// `produce` produces another number of bytes.
    pub(super) fn run_streamed<T>(
        &self,
        call: &S3Call,
        produce: &mut dyn FnMut(&mut BodySink<'_>) -> Result<()>,
        receive: impl FnOnce(HttpResponse) -> Result<T>,
    ) -> Result<T> {
        call.check_headers()?;
        let named = |error| call.named(self.with_endpoint(error));
        let (address, size_bytes, until) = (self.address(call), call.streamed_bytes, self.until());
        let mut body = StreamedBody { size_bytes, asks_first: false, produce, until: None, is_begun: false };
        let mut retries = RetryBudget::new(self.retries_max(), until);
        loop {
            retries.check_time().map_err(|error| call.named(retries.last(error)))?;
            match self.attempt_streamed(call, &address, until, &mut body) {
                Ok(response) => return receive(response).map_err(named),
                Err(failed) => {
                    let error = self.with_endpoint(failed.error);
                    let wait = retries.after(error, failed.may_pass, failed.retry_after);
                    wait.and_then(pause).map_err(|error| call.named(error))?;
                }
            }
        }
    }

    fn attempt_streamed(
        &self,
        call: &S3Call,
        address: &CallAddress,
        until: Option<Instant>,
        body: &mut StreamedBody<'_>,
    ) -> Result<HttpResponse, FailedAttempt> {
        let final_failure = |error| FailedAttempt { error, may_pass: false, retry_after: None };
        let (credentials, now) = (self.credentials().map_err(final_failure)?, SystemTime::now());
        let exchange = HttpExchangeRequest {
            origin: &address.origin,
            method: call.method,
            write_head: &|head| self.write_head(head, call, address, (&credentials, now)),
            body: &[],
            replay: ReplayPolicy::IfUnsent,
        };
        let client = self.timeouts_for(call, until).map(|timeouts| self.http.with_timeouts(timeouts));
        let sent = client.as_ref().unwrap_or(&self.http).send_streamed(&exchange, body);
        let response = sent.map_err(|failure| FailedAttempt {
            // The body cannot be produced a second time.
            may_pass: failure::is_passing(failure.error.kind()) && !failure.may_have_acted && !body.is_begun,
            retry_after: None,
            error: failure.error,
        })?;
        match response.status() {
            200..=299 => Ok(response),
            _ => Err(final_failure(failure::of_answer(response, call, &self.config, now).error)),
        }
    }

    /// Returns the maximum number of retries. If neither an endpoint nor keys are configured, AWS was probably not
    /// intended, so there are no retries.
    fn retries_max(&self) -> u32 {
        let is_meant = !self.config.is_endpoint_unset || self.config.credentials != S3Credentials::Anonymous;
        if is_meant { self.config.max_retries } else { 0 }
    }

    /// If no endpoint was configured, adds a hint to `error`. The hint states that the request was sent to AWS, and how
    /// to specify another service.
    fn with_endpoint(&self, error: Error) -> Error {
        if !self.config.is_endpoint_unset {
            return error;
        }
        let detail = format!(
            "{}; no endpoint is set, so the request went to AWS: specify a service, or file:///DIRECTORY, with --endpoint or \
             AWS_ENDPOINT_URL",
            error.detail()
        );
        error.with_detail(detail.trim_start_matches("; "))
    }

    /// Sends a call whose response has no body, or an XML document that is not needed. Errors: as for
    /// [`S3Session::run`]; `BadResponse` for any other body.
    pub(super) fn run_for_status(&self, call: &S3Call) -> Result<()> {
        self.run(call, |mut response| failure::check_done(&mut response))
    }

    /// Sends a call whose response is a document.
    pub(super) fn run_for_document(&self, call: &S3Call) -> Result<Vec<u8>> {
        self.run_for_page(call, self.until())
    }

    /// Sends a call whose response is one of several documents, all of which must begin to arrive before `until`.
    pub(super) fn run_for_page(&self, call: &S3Call, until: Option<Instant>) -> Result<Vec<u8>> {
        self.run_until(call, until, |mut response| response.read_document())
    }

    /// Returns the credentials for a request that is sent now, and renews them if necessary. Errors: the keys have
    /// expired and cannot be renewed.
    pub(super) fn credentials(&self) -> Result<CurrentCredentials<'_>> {
        self.config.credentials.current(self.config.timeout.unwrap_or(RUN_MAX).min(RUN_MAX))
    }

    /// Returns the timeouts of an attempt that needs timeouts other than the usual ones. An attempt that follows other
    /// attempts or pages waits only for the rest of the time until `until`. A slow call without a timeout waits longer.
    fn timeouts_for(&self, call: &S3Call, until: Option<Instant>) -> Option<Timeouts> {
        let usual = self.timeouts;
        let Some((until, timeout)) = until.zip(self.config.timeout) else {
            let is_default = usual.first_byte == Timeouts::default().first_byte;
            return (call.is_slow && is_default).then(|| usual.of_calls(SLOW_CALL_MAX));
        };
        let left = until.saturating_duration_since(Instant::now());
        // A call that has just begun has the usual timeouts.
        let is_first = left + JUST_BEGUN >= timeout;
        let Timeouts { connect, first_byte, .. } = usual.within(left);
        (!is_first).then_some(Timeouts { connect, first_byte, ..usual })
    }

    fn attempt(
        &self,
        call: &S3Call,
        address: &CallAddress,
        until: Option<Instant>,
    ) -> Result<HttpResponse, FailedAttempt> {
        let credentials = self.credentials();
        let credentials =
            credentials.map_err(|error| FailedAttempt { error, may_pass: false, retry_after: None })?;
        let now = SystemTime::now();
        let exchange = HttpExchangeRequest {
            origin: &address.origin,
            method: call.method,
            write_head: &|head| self.write_head(head, call, address, (&credentials, now)),
            body: call.body,
            replay: call.replay,
        };
        let client = self.timeouts_for(call, until).map(|timeouts| self.http.with_timeouts(timeouts));
        let response =
            client.as_ref().unwrap_or(&self.http).send(&exchange).map_err(|failure| FailedAttempt {
                may_pass: failure::is_passing(failure.error.kind())
                    && (call.replay == ReplayPolicy::Idempotent || !failure.may_have_acted),
                retry_after: None,
                error: failure.error,
            })?;
        match response.status() {
            200..=299 => Ok(response),
            _ => Err(failure::of_answer(response, call, &self.config, now)),
        }
    }

    pub(super) fn write_head(
        &self,
        head: &mut Vec<u8>,
        call: &S3Call,
        address: &CallAddress,
        signing: (&S3Credentials, SystemTime),
    ) {
        let length = call.streamed_bytes.unwrap_or(call.body.len() as u64).to_string();
        let sends_length = !call.body.is_empty() || matches!(call.method, "PUT" | "POST");
        push_all(head, &[call.method, " ", &address.path]);
        if !address.query.is_empty() {
            push_all(head, &["?", &address.query]);
        }
        push_all(head, &[" HTTP/1.1\r\nhost: ", &address.host, "\r\nuser-agent: ", USER_AGENT, "\r\n"]);
        for (name, value) in &call.headers {
            push_all(head, &[name, ": ", value, "\r\n"]);
        }
        if sends_length {
            push_all(head, &["content-length: ", &length, "\r\n"]);
        }
        self.write_signature(head, call, address, signing);
        head.extend_from_slice(b"\r\n");
    }

    /// Appends the signature, and the headers that only the signature needs. The signature also covers all other
    /// headers.
    fn write_signature(
        &self,
        head: &mut Vec<u8>,
        call: &S3Call,
        address: &CallAddress,
        (credentials, now): (&S3Credentials, SystemTime),
    ) {
        if *credentials == S3Credentials::Anonymous {
            return;
        }
        if self.config.signature == SignatureVersion::V2 {
            return self.write_signature_v2(head, call, address, (credentials, now));
        }
        let hash =
            if self.config.sign_payload { payload_hash(call.body) } else { UNSIGNED_PAYLOAD.to_owned() };
        let headers: Vec<_> = call.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = UnsignedRequest {
            method: call.method,
            path: &address.path,
            query: &address.query,
            host: &address.host,
            headers: &headers,
            payload_hash: &hash,
        };
        let add = |name: &'static str, value: &str| push_all(head, &[name, ": ", value, "\r\n"]);
        self.signer.sign_with(credentials, &request, now, add);
    }

    fn write_signature_v2(
        &self,
        head: &mut Vec<u8>,
        call: &S3Call,
        address: &CallAddress,
        (credentials, now): (&S3Credentials, SystemTime),
    ) {
        let S3Credentials::Keys { access_key, secret_key, session_token, .. } = credentials else {
            return;
        };
        let date = date::format_http(now);
        let mut added = vec![("x-amz-date", date.as_str())];
        added.extend(session_token.as_deref().map(|token| ("x-amz-security-token", token)));
        let mut headers: Vec<_> = call.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        headers.extend_from_slice(&added);
        headers.sort_unstable_by_key(|(name, _)| *name);
        let query: Vec<_> = call.query.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = sigv2::LegacySignedRequest {
            method: call.method,
            host_bucket: Some(call.bucket).filter(|bucket| self.is_virtual(bucket)),
            path: &address.path,
            query: &query,
            headers: &headers,
        };
        for (name, value) in added {
            push_all(head, &[name, ": ", value, "\r\n"]);
        }
        push_all(head, &["authorization: ", &request.authorization(access_key, secret_key), "\r\n"]);
    }

    pub(super) fn address(&self, call: &S3Call) -> CallAddress {
        let mut path = self.base_path.clone();
        let is_virtual = self.is_virtual(call.bucket);
        if !is_virtual && !call.bucket.is_empty() {
            path.push('/');
            uri::push_path(&mut path, call.bucket);
        }
        if is_virtual || call.bucket.is_empty() || !call.key.is_empty() {
            path.push('/');
            uri::push_path(&mut path, call.key);
        }
        let origin = if is_virtual { self.origin.subdomain(call.bucket) } else { self.origin.clone() };
        let query = match call.query.is_empty() {
            true => String::new(),
            false => uri::canonical_query(call.query.iter().map(|(name, value)| (&**name, &**value))),
        };
        CallAddress { host: origin.authority(), origin, path, query }
    }

    /// Returns whether the host name contains the bucket's name. By default, a name with a dot is not put into the host
    /// name, because no certificate would match such a host name.
    fn is_virtual(&self, bucket: &str) -> bool {
        if bucket.is_empty() {
            return false;
        }
        match self.config.addressing {
            BucketAddressing::Path => false,
            BucketAddressing::VirtualHost => !self.origin.is_numeric_or_local(),
            BucketAddressing::Auto => {
                let is_aws =
                    [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|d| self.origin.host.ends_with(d));
                let is_label =
                    bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
                is_aws && is_label
            }
        }
    }

    /// Returns a presigned URL. Errors: `InvalidArgument`.
    pub(super) fn presign(&self, call: &S3Call, expires_s: u64, now: SystemTime) -> Result<String> {
        let refused = |detail: String| call.named(Error::new(ErrorKind::InvalidArgument, detail));
        if !(1..=MAX_EXPIRES_S).contains(&expires_s) {
            return Err(refused(format!(
                "a URL can be valid for 1 to {MAX_EXPIRES_S} seconds, not for {expires_s}"
            )));
        }
        let credentials = self.credentials().map_err(|error| call.named(error))?;
        let S3Credentials::Keys { access_key, secret_key, session_token, .. } = &*credentials else {
            return Err(refused(format!("a URL cannot be signed with {}", credentials.described())));
        };
        let CallAddress { origin, host, path, .. } = self.address(call);
        let request = PresignedRequest { method: call.method, host: &host, path: &path, parameters: &[] };
        let key = self.signer.key(secret_key, now);
        let query = key.presigned_query(access_key, session_token.as_deref(), now, expires_s, &request);
        Ok(format!("{origin}{path}?{query}"))
    }
}

/// Creates a session for vectored reads that uses the connections of `http`.
fn vector_session(config: &S3Config, timeouts: Timeouts, http: &Arc<HttpClient>) -> vector::HttpSession {
    let (max_retries, tls_roots) = (config.max_retries, config.tls_roots.clone());
    let proxies = config.proxies.clone();
    let options = vector::SessionOptions {
        http: config.http,
        timeouts,
        deadline: config.timeout,
        connections_per_origin: config.connections,
        max_retries,
        tls_roots,
        proxies,
        ..Default::default()
    };
    vector::HttpSession::over(http.clone(), options)
}

fn push_all(head: &mut Vec<u8>, pieces: &[&str]) {
    for piece in pieces {
        head.extend_from_slice(piece.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use fordway_store::{Bucket, Key};

    use super::*;

    fn address(endpoint: &str, addressing: BucketAddressing, bucket: &str) -> String {
        let config = S3Config { addressing, ..S3Config::new(endpoint, "r", S3Credentials::Anonymous) };
        let (bucket, key) = (Bucket::new(bucket).unwrap(), Key::new("a b/c").unwrap());
        let call = S3Call::on_object("GET", "get", &bucket, &key);
        let address = S3Session::new(config).unwrap().address(&call);
        format!("{}{}", address.origin, address.path)
    }

    /// Some services respond to a copy only when they have copied the whole object.
    #[test]
    fn slow_calls_are_waited_for_longer() {
        let session = |timeout: Option<Duration>, first_byte: Duration| {
            let usual = S3Config::new("http://h", "r", S3Credentials::Anonymous);
            let timeouts = Timeouts { first_byte, ..usual.timeouts };
            S3Session::new(S3Config { timeout, timeouts, ..usual }).unwrap()
        };
        let (bucket, key) = (Bucket::new("b").unwrap(), Key::new("k").unwrap());
        let call = || S3Call::on_object("PUT", "copy", &bucket, &key);
        let (default, other) = (Timeouts::default().first_byte, Duration::from_secs(7));
        let usual = session(None, default);
        assert_eq!(usual.timeouts_for(&call().slow(), None).unwrap().first_byte, SLOW_CALL_MAX);
        assert!(usual.timeouts_for(&call(), None).is_none());
        assert!(session(None, other).timeouts_for(&call().slow(), None).is_none());
        // A timeout applies to all calls.
        let limited = session(Some(other), default);
        assert_eq!(limited.timeouts.first_byte, other);
        assert!(limited.timeouts_for(&call().slow(), limited.until()).is_none());
        let late = limited.timeouts_for(&call().slow(), Some(Instant::now() + other / 2)).unwrap();
        assert!(late.first_byte <= other / 2 && late.progress == other);
    }

    #[test]
    fn the_bucket_goes_where_the_service_looks_for_it() {
        let aws = "https://s3.eu-west-1.amazonaws.com";
        let auto = BucketAddressing::Auto;
        assert_eq!(address(aws, auto, "b"), "https://b.s3.eu-west-1.amazonaws.com/a%20b/c");
        assert_eq!(address(aws, auto, "b.c"), "https://s3.eu-west-1.amazonaws.com/b.c/a%20b/c");
        assert_eq!(address(aws, BucketAddressing::Path, "b"), "https://s3.eu-west-1.amazonaws.com/b/a%20b/c");
        assert_eq!(address("http://h:9/base/", auto, "b"), "http://h:9/base/b/a%20b/c");
        assert_eq!(address("http://h:9", BucketAddressing::VirtualHost, "b"), "http://b.h:9/a%20b/c");
        assert_eq!(
            address("http://127.0.0.1:9", BucketAddressing::VirtualHost, "b"),
            "http://127.0.0.1:9/b/a%20b/c"
        );
    }
}
