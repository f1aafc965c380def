//! Turns a request into its response, for every HTTP version. Calls the S3 layer, and does the gateway's own work
//! before and after this call. [`S3Responder`] answers requests without a connection, to measure the cost of a
//! response.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fordway_store::{Error, ObjectContent, Store};
use fordway_wire::s3_xml::escaped;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body as _, SizeHint};
use s3s::service::S3Service;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::access::RequestNetworkOrigin;
use crate::aws_chunked::{ending_whole, take_upload};
use crate::blocking::run_blocking;
use crate::content::{BodyExtension, MultipartContent};
use crate::domains::BucketDomains;
use crate::error_facts::RequestFacts;
use crate::file_server::{FileServerRegion, NetworkFileServer};
use crate::http1::FastPath;
use crate::limits::{BodyTransferLimits, ConnectionLimitState, LimitCounters, UnauthenticatedConnections};
use crate::monitor::{RequestId, RequestMonitor, RequestTrace};
use crate::multiplexed::{ClientWait, SharedConnectionState};
use crate::s3::documents::cors;
use crate::signature_v2::spell_path_as_signed;
use crate::sts::TokenService;
use crate::tls::TlsCertificate;
use crate::unsigned::{ConnectionPeer, unsigned};
use crate::workers::READERS_MAX;
use crate::{GatewayConfig, Users, gate, message, multiplexed, s3, signature, sts};

/// Limits on a connection.
pub(crate) struct ConnectionRequestLimits {
    /// The maximum time for receiving a request's head.
    pub(crate) header_timeout: Duration,
    /// The limits on the transfer of bodies, in either direction.
    pub(crate) body: BodyTransferLimits,
    /// The maximum number of bytes of a request's head.
    pub(crate) head_bytes_max: usize,
    /// The maximum number of bytes of a request's body.
    pub(crate) body_bytes_max: u64,
}

impl From<&GatewayConfig> for ConnectionRequestLimits {
    fn from(config: &GatewayConfig) -> Self {
        ConnectionRequestLimits {
            header_timeout: config.header_timeout,
            body: BodyTransferLimits {
                stall_timeout: config.stall_timeout,
                bytes_per_s_min: config.body_bytes_per_s_min,
                counters: Arc::<LimitCounters>::default(),
            },
            head_bytes_max: config.head_bytes_max,
            body_bytes_max: config.body_bytes_max,
        }
    }
}

/// The state that all connections of a gateway share.
pub(crate) struct GatewayState {
    pub(crate) service: S3Service,
    pub(crate) region: String,
    /// Whether version 2 signatures are accepted.
    pub(crate) allows_version_2: bool,
    /// The token service; `None` if callers have no access keys.
    pub(crate) tokens: Option<TokenService>,
    pub(crate) limits: ConnectionRequestLimits,
    pub(crate) fast_path: FastPath,
    pub(crate) domains: BucketDomains,
    pub(crate) users: Arc<Users>,
    pub(crate) monitor: Arc<RequestMonitor>,
    /// The connections that have not carried a request with a valid signature, by client address.
    pub(crate) addresses: Arc<UnauthenticatedConnections>,
    pub(crate) tls: Option<TlsCertificate>,
    /// The value of `Alt-Svc` (RFC 7838) that announces HTTP/3 to clients; `None` if the gateway does not offer HTTP/3.
    pub(crate) http3: Option<HeaderValue>,
}

/// The scheme of URLs that lead to this gateway. The scheme is stored as an extension of each request whose response
/// contains such a URL.
#[derive(Clone, Copy)]
pub(crate) struct UrlScheme(pub(crate) &'static str);

/// The body of a response.
pub(crate) enum PreparedBody {
    Nothing,
    /// The content of an object, or a range of it.
    Content(ObjectContent),
    /// Several ranges of an object.
    Parts(MultipartContent),
    /// A document from the S3 layer.
    Document(s3s::Body),
    /// Content from a file server.
    Remote(FileServerRegion),
}

impl PreparedBody {
    /// Returns the length in bytes, or `None` if it is not known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            PreparedBody::Nothing => Some(0),
            PreparedBody::Content(content) => Some(content.len()),
            PreparedBody::Parts(parts) => Some(parts.len()),
            PreparedBody::Document(document) => document.size_hint().exact(),
            PreparedBody::Remote(region) => Some(region.len),
        }
    }
}

/// Returns the response to a request, and records the request in `trace`. A failure becomes an error response.
pub(crate) async fn answer(
    shared: &GatewayState,
    caller: &ConnectionPeer,
    request: Request<s3s::Body>,
    trace: Arc<RequestTrace>,
) -> Response<PreparedBody> {
    let id = trace.id;
    with_ids(shared, id, answered(shared, caller, request, trace).await)
}

/// Returns the response to an upload that failed on the fast path. `condition` is the name of the upload's condition.
pub(crate) fn of_failed_upload(
    shared: &GatewayState,
    id: RequestId,
    condition: Option<&'static str>,
    failure: s3::S3Failure,
) -> Response<PreparedBody> {
    let mut response = unless_root_is_gone(shared, s3::failed(failure).map(PreparedBody::Document));
    response.extensions_mut().insert(RequestFacts::of_condition(condition));
    with_ids(shared, id, response)
}

/// Adds the parts of the request that AWS repeats, and the IDs of the request and the host, to an error response.
fn with_ids(
    shared: &GatewayState,
    id: RequestId,
    response: Response<PreparedBody>,
) -> Response<PreparedBody> {
    if !has_failed(&response) {
        return response;
    }
    let (mut parts, reply) = response.into_parts();
    let facts = parts.extensions.remove::<RequestFacts>();
    let add_facts = |document: &mut String| {
        if let Some(facts) = &facts {
            facts.add_to(document, &parts.headers, &shared.domains);
        }
    };
    let reply = reply_with_ids(reply, id, shared.monitor.ids.host_text(), add_facts);
    Response::from_parts(parts, reply)
}

/// Sets the message of an error document to AWS's message, and adds the elements from `add_facts` and the IDs of the
/// request and the host.
fn reply_with_ids(
    reply: PreparedBody,
    id: RequestId,
    host: &str,
    add_facts: impl FnOnce(&mut String),
) -> PreparedBody {
    const END: &str = "</Error>";
    let PreparedBody::Document(document) = reply else { return reply };
    let text = document.bytes().and_then(|bytes| String::from_utf8(bytes.into()).ok());
    let Some(text) = text.filter(|text| text.ends_with(END)) else { return PreparedBody::Document(document) };
    let mut said = message::taken_apart(&text);
    add_facts(&mut said);
    said.truncate(said.len() - END.len());
    said.push_str(&format!("<RequestId>{}</RequestId><HostId>{host}</HostId>{END}", id.as_str()));
    PreparedBody::Document(said.into())
}

async fn answered(
    shared: &GatewayState,
    caller: &ConnectionPeer,
    mut request: Request<s3s::Body>,
    trace: Arc<RequestTrace>,
) -> Response<PreparedBody> {
    if !shared.users.is_available() {
        return unavailable();
    }
    if let Err(refusal) = gate::take_host(&mut request) {
        return refused(&refusal);
    }
    match caller {
        ConnectionPeer::Unix(user) => {
            // The headers in a presigned URL apply, although the signature has no meaning.
            if let Err(refusal) = gate::take_presigned_headers(&mut request) {
                return refused(&refusal);
            }
            request = unsigned(request);
            request.extensions_mut().insert(user.clone());
        }
        ConnectionPeer::Remote { address, tls } => {
            request = ending_whole(request);
            let origin = RequestNetworkOrigin { address: Some(address.ip()), tls: *tls };
            request.extensions_mut().insert(origin);
        }
    }
    if let Some(tokens) = shared.tokens.as_ref().filter(|_| sts::is_call(&request, &shared.domains)) {
        return tokens.answer(&shared.users, request, &trace).await.map(PreparedBody::Document);
    }
    request.extensions_mut().insert(trace);
    let page = CorsRequest::of(shared, caller, &request);
    if request.method() == Method::OPTIONS
        && let Some(page) = page
    {
        // This branch checks the size of the headers itself, because `gate::admit` is not called for a preflight
        // request.
        if let Err(refusal) = gate::check_size(request.headers()) {
            return refused(&refusal);
        }
        return page.preflight().await;
    }
    let is_of_all_buckets = request.uri().path() == "/";
    let mut response = of_request(shared, caller, request).await;
    if let Some(page) = page {
        response.headers_mut().extend(page.headers().await);
    }
    // If the root directory is missing, a request for the list of buckets gets an empty list instead of an error. For
    // such a request, the root directory is therefore always checked.
    match is_of_all_buckets && !shared.users.has_root() {
        true => unavailable(),
        false => unless_root_is_gone(shared, response),
    }
}

/// Checks a request against the table of S3's operations, and answers it. The response to a request that fails has the
/// [`RequestFacts`] as an extension.
async fn of_request(
    shared: &GatewayState,
    caller: &ConnectionPeer,
    mut request: Request<s3s::Body>,
) -> Response<PreparedBody> {
    let admitted = gate::admit(&mut request, &shared.domains);
    let facts = RequestFacts::of(&request);
    let mut response = match admitted {
        Ok(operation) => {
            request.extensions_mut().insert(operation);
            if operation.is_completion() || operation.is_form() {
                request.extensions_mut().insert(UrlScheme(if shared.tls.is_some() {
                    "https"
                } else {
                    "http"
                }));
            }
            match operation.is_form() {
                true => of_form(shared, caller, request).await,
                false => of_operation(shared, operation, request).await,
            }
        }
        Err(refusal) => refused(&refusal),
    };
    if has_failed(&response) {
        response.extensions_mut().insert(facts);
    }
    response
}

fn has_failed(response: &Response<PreparedBody>) -> bool {
    response.status().is_client_error() || response.status().is_server_error()
}

/// Replaces a 404 response with a 503 response if the root directory no longer exists. A removed directory looks empty
/// to a process that has the directory open.
fn unless_root_is_gone(shared: &GatewayState, response: Response<PreparedBody>) -> Response<PreparedBody> {
    match response.status() == StatusCode::NOT_FOUND && !shared.users.has_root() {
        true => unavailable(),
        false => response,
    }
}

/// A CORS request from a web page. The bucket's CORS rules determine which requests the page can make.
struct CorsRequest {
    store: Option<Arc<dyn Store>>,
    users: Arc<Users>,
    bucket: String,
    method: Method,
    headers: HeaderMap,
}

/// The maximum number of [`run_apart`] calls in progress for which no file server is known. Clients can cause such
/// calls without a signature, so most threads must remain free for other work.
const APART_MAX: usize = READERS_MAX / 4;
/// The time after which a call without a known file server is abandoned. Such a call reads at most one small document.
const APART_WAIT_MAX: Duration = Duration::from_secs(5);
/// The permits for calls without a known file server. A call keeps its permit until it ends, even after it was
/// abandoned.
static APART: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(APART_MAX)));

/// Runs `work` on a thread that may block. If `server` is `Some`, `work` runs on one of the threads that wait for this
/// file server. Otherwise, `work` may still turn out to need a file server, for a bucket that no store has opened yet.
/// Returns `None` if `work` did not complete in time.
async fn run_apart<T: Send + 'static>(
    server: Option<NetworkFileServer>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match server {
        Some(server) => server.run(work).await.ok(),
        None => timeout(APART_WAIT_MAX, run_within(&APART, work)).await.ok().flatten(),
    }
}

/// Runs `work` on a thread that may block, once there is a permit.
async fn run_within<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    let work = move || {
        let _held = permit;
        work()
    };
    run_blocking(work).await.ok()
}

impl CorsRequest {
    /// Returns `None` unless the request comes from a web page or has the `OPTIONS` method.
    fn of(shared: &GatewayState, caller: &ConnectionPeer, request: &Request<s3s::Body>) -> Option<Self> {
        if !cors::is_of_page(request.headers()) && request.method() != Method::OPTIONS {
            return None;
        }
        let store = match caller {
            ConnectionPeer::Unix(user) => Some(user.store.clone()),
            ConnectionPeer::Remote { .. } => None,
        };
        let (bucket, _) = shared.domains.names(request.headers(), request.uri());
        let (method, headers) = (request.method().clone(), request.headers().clone());
        Some(CorsRequest { store, users: shared.users.clone(), bucket, method, headers })
    }

    fn store(&self) -> Result<Arc<dyn Store>, Error> {
        self.store.clone().map_or_else(|| self.users.own_store(), Ok)
    }

    /// Returns the CORS headers to add to the response.
    async fn headers(self) -> HeaderMap {
        let server = self.users.server_of(&self.bucket);
        let rules = move || {
            let store = self.store().ok()?;
            cors::headers_for(&*store, &self.bucket, &self.method, &self.headers)
        };
        run_apart(server, rules).await.flatten().unwrap_or_default()
    }

    /// Answers the preflight request that a browser sends before the actual request.
    async fn preflight(self) -> Response<PreparedBody> {
        let server = self.users.server_of(&self.bucket);
        let ask = move || cors::preflight(self.store(), &self.bucket, &self.headers);
        match run_apart(server, ask).await {
            Some(Ok(headers)) => {
                let mut response = Response::new(PreparedBody::Nothing);
                *response.headers_mut() = headers;
                response
            }
            Some(Err((status, code, message))) => error_document(status, code, &message),
            None => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the rules of the bucket could not be read"),
        }
    }
}

/// Returns the 503 response that is sent while the root directory is missing. S3 clients retry after a 503.
fn unavailable() -> Response<PreparedBody> {
    let message = "the directory behind this gateway is not available; try again later";
    error_document(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
}

/// Answers a request that `gate::admit` accepted.
async fn of_operation(
    shared: &GatewayState,
    operation: &'static gate::OperationRule,
    request: Request<s3s::Body>,
) -> Response<PreparedBody> {
    let (request, complaint) = match gate::take_document(operation, request) {
        Ok(taken) => taken,
        Err(refusal) => return refused(&refusal),
    };
    let response = of_s3_layer(shared, request).await;
    // If the document in the request's body is invalid, the gate's error replaces the response, because the S3 layer
    // reports a server error.
    complaint.as_ref().and_then(|complaint| complaint.get()).map_or(response, refused)
}

/// Answers a form upload. The form bypasses the S3 layer, which would read the whole form into memory.
async fn of_form(
    shared: &GatewayState,
    caller: &ConnectionPeer,
    request: Request<s3s::Body>,
) -> Response<PreparedBody> {
    let forms = s3::PostFormContext {
        users: &shared.users,
        caller,
        tokens: shared.tokens.as_ref(),
        domains: &shared.domains,
        publishing: shared.fast_path.publishing(),
        region: &shared.region,
        allows_version_2: shared.allows_version_2,
    };
    forms.answer(request).await.map(PreparedBody::Document)
}

fn refused(refusal: &gate::GateRefusal) -> Response<PreparedBody> {
    error_document(refusal.status, refusal.code, &refusal.message)
}

async fn of_s3_layer(shared: &GatewayState, mut request: Request<s3s::Body>) -> Response<PreparedBody> {
    let uri = request.uri().clone();
    if let Err(refusal) =
        signature::check_form(request.headers_mut(), &uri, &shared.region, shared.allows_version_2)
    {
        return refused(&refusal);
    }
    signature::announce_trailers(request.headers_mut());
    if let Err(refusal) = take_upload(&mut request) {
        return refused(&refusal);
    }
    if shared.allows_version_2 {
        spell_path_as_signed(&mut request, &shared.users);
    }
    let session = match sts::session_of(shared.tokens.as_ref(), &shared.users, request.headers(), &uri).await
    {
        Ok(session) => session,
        Err(refusal) => return refused(&refusal),
    };
    let answered = match session {
        None => shared.service.call(request).await,
        Some(session) => {
            request.extensions_mut().insert(session.clone());
            sts::with_session(session, shared.service.call(request)).await
        }
    };
    match answered {
        Ok(response) => with_payload(response),
        Err(error) => {
            tracing::error!(?error, "a response could not be written in S3's format");
            let mut response = Response::new(PreparedBody::Nothing);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}

/// Replaces the empty body from the S3 layer with the object's content.
fn with_payload(response: Response<s3s::Body>) -> Response<PreparedBody> {
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
        // The S3 layer sets status 206 for GET, but not for HEAD.
        parts.status = StatusCode::PARTIAL_CONTENT;
    }
    let reply = match parts.extensions.remove::<BodyExtension>() {
        Some(payload) => payload.take().unwrap_or(PreparedBody::Nothing),
        None => PreparedBody::Document(body),
    };
    Response::from_parts(parts, reply)
}

/// The error message for a request whose body exceeds the limit.
pub(crate) const TOO_LARGE: &str = "the request's body exceeds this gateway's limit";

/// Returns the response to a request whose body exceeds the limit.
pub(crate) fn too_large() -> Response<PreparedBody> {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE)
}

/// Returns the response to a client whose address has too many connections without a valid signature.
pub(crate) fn too_many_connections() -> Response<PreparedBody> {
    let message = "your address has the maximum number of connections without a signed request; close some";
    let mut response = error_document(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns an error response for a failure outside S3, such as bytes that are not a valid request. The error code is
/// the reason phrase of `status` without spaces.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Response<PreparedBody> {
    let code = status.canonical_reason().unwrap_or_default().replace(' ', "");
    error_document(status, &code, why)
}

/// Returns an error response with a document in S3's format.
fn error_document(status: StatusCode, code: &str, message: &str) -> Response<PreparedBody> {
    // The `message` module later splits this text into lines, so the line breaks are kept.
    let message: Vec<_> = message.split('\n').map(escaped).collect();
    let message = message.join("\n");
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code>\
         <Message>{message}</Message></Error>"
    );
    let mut response = Response::new(PreparedBody::Document(document.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Answers requests that have no body. The responder does the work that a gateway does for an HTTP/2 or HTTP/3 request
/// after the head has been parsed.
pub struct S3Responder {
    shared: GatewayState,
    caller: ConnectionPeer,
    connection: SharedConnectionState,
}

impl S3Responder {
    /// Creates a responder for requests from `users`, with the limits of [`GatewayConfig::new`].
    pub fn new(users: Users) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = GatewayConfig::new(nowhere);
        let users = Arc::new(users);
        let publishing = Arc::new(s3::PublishLatency::default());
        let limits = ConnectionRequestLimits::from(&config);
        let counters = limits.body.counters.clone();
        let shared = GatewayState {
            service: s3::service(users.clone(), &config, BucketDomains::none(), publishing.clone()),
            fast_path: FastPath::new(users.clone(), BucketDomains::none(), publishing),
            domains: BucketDomains::none(),
            users,
            monitor: Arc::new(RequestMonitor::new(None)),
            http3: None,
            tls: None,
            addresses: UnauthenticatedConnections::new(config.address_connections_max, counters.clone()),
            limits,
            region: config.reported_region().to_owned(),
            allows_version_2: false,
            tokens: None,
        };
        let connection = SharedConnectionState::new(Arc::new(ConnectionLimitState::new(None, counters)));
        S3Responder { shared, caller: ConnectionPeer::Remote { address: nowhere, tls: None }, connection }
    }

    /// Returns the response without its body, which is dropped unread. A failure becomes an error response.
    pub async fn answer(&self, request: Request<()>) -> Response<()> {
        let request = request.map(|()| None::<hyper::body::Incoming>);
        let length = SizeHint::with_exact(0);
        let with = (&self.shared, &self.connection, ClientWait::default());
        multiplexed::exchange(with, &self.caller, request, length).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A call that hangs, because a bucket's file server does not respond, holds one of a few permits until it ends.
    #[test]
    fn calls_that_hang_leave_threads_to_others() {
        let runtime = crate::workers::new_runtime().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let (release, released) = channel::<()>();
        let moment = Duration::from_millis(50);
        runtime.block_on(async {
            assert_eq!(run_within(&permits, || 1).await, Some(1));
            let hung = run_within(&permits, move || released.recv());
            assert!(timeout(moment, hung).await.is_err());
            assert!(timeout(moment, run_within(&permits, || 1)).await.is_err(), "no permit is left");
            assert_eq!(tokio::task::spawn_blocking(|| 1).await.ok(), Some(1), "other calls have threads");
            drop(release);
            assert_eq!(run_within(&permits, || 1).await, Some(1));
        });
    }
}
