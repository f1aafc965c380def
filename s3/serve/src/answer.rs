//! From a request to its answer, whatever protocol carries them: the S3 layer, and what it leaves to us. [`S3Layer`] does
//! that without a connection, to learn what an answer costs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{Error, ObjectContent, Store};
use fordway_wire::s3_xml::escaped;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body as _, SizeHint};
use s3s::service::S3Service;

use crate::content::{Parts, Payload};
use crate::domains::Domains;
use crate::http1::FastLane;
use crate::monitor::{Monitor, RequestId, Trace};
use crate::multiplexed::HeldBytes;
use crate::s3::documents::cors;
use crate::signature::ending_whole;
use crate::tls::Tls;
use crate::unsigned::{Caller, unsigned};
use crate::{GatewayConfig, Users, gate, message, multiplexed, s3, signature};

/// Limits of a connection.
pub(crate) struct Limits {
    /// For a request's head.
    pub(crate) header_timeout: Duration,
    /// Between two pieces of a body, in either direction.
    pub(crate) stall_timeout: Duration,
    /// Of a request's head.
    pub(crate) head_bytes_max: usize,
    /// Of a request's body.
    pub(crate) body_bytes_max: u64,
}

impl From<&GatewayConfig> for Limits {
    fn from(config: &GatewayConfig) -> Self {
        Limits {
            header_timeout: config.header_timeout,
            stall_timeout: config.stall_timeout,
            head_bytes_max: config.head_bytes_max,
            body_bytes_max: config.body_bytes_max,
        }
    }
}

/// What all connections of a gateway share.
pub(crate) struct Shared {
    pub(crate) service: S3Service,
    pub(crate) region: String,
    /// Whether signatures of version 2 are taken.
    pub(crate) allows_version_2: bool,
    pub(crate) limits: Limits,
    pub(crate) fast_lane: FastLane,
    pub(crate) domains: Domains,
    pub(crate) users: Arc<Users>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) tls: Option<Tls>,
    /// Where HTTP/3 is spoken too, in the words of `Alt-Svc` (RFC 7838).
    pub(crate) http3: Option<HeaderValue>,
}

/// The body of an answer.
pub(crate) enum Reply {
    Nothing,
    /// An object's.
    Content(ObjectContent),
    /// Pieces of an object's.
    Parts(Parts),
    /// Of the S3 layer.
    Document(s3s::Body),
}

impl Reply {
    /// Its bytes; `None` while they are not known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Reply::Nothing => Some(0),
            Reply::Content(content) => Some(content.len()),
            Reply::Parts(parts) => Some(parts.len()),
            Reply::Document(document) => document.size_hint().exact(),
        }
    }
}

/// Answers a request, of which `trace` takes note; what goes wrong is part of the answer.
pub(crate) async fn answer(
    shared: &Shared,
    caller: &Caller,
    request: Request<s3s::Body>,
    trace: Arc<Trace>,
) -> Response<Reply> {
    let id = trace.id;
    with_ids(shared, id, answered(shared, caller, request, trace).await)
}

/// The answer to an upload that failed on the fast lane.
pub(crate) fn of_failed_upload(shared: &Shared, id: RequestId, failure: s3::Failure) -> Response<Reply> {
    let response = unless_root_is_gone(shared, s3::failed(failure).map(Reply::Document));
    with_ids(shared, id, response)
}

/// An answer that names its request where it is an error.
fn with_ids(shared: &Shared, id: RequestId, response: Response<Reply>) -> Response<Reply> {
    match response.status().is_client_error() || response.status().is_server_error() {
        true => response.map(|reply| reply_with_ids(reply, id, shared.monitor.ids.host_text())),
        false => response,
    }
}

/// Has an error document say what AWS says, and which request it answers.
fn reply_with_ids(reply: Reply, id: RequestId, host: &str) -> Reply {
    const END: &str = "</Error>";
    let Reply::Document(document) = reply else { return reply };
    let text = document.bytes().and_then(|bytes| String::from_utf8(bytes.into()).ok());
    let Some(text) = text.filter(|text| text.ends_with(END)) else { return Reply::Document(document) };
    let mut said = message::taken_apart(&text);
    said.truncate(said.len() - END.len());
    said.push_str(&format!("<RequestId>{}</RequestId><HostId>{host}</HostId>{END}", id.as_str()));
    Reply::Document(said.into())
}

async fn answered(
    shared: &Shared,
    caller: &Caller,
    mut request: Request<s3s::Body>,
    trace: Arc<Trace>,
) -> Response<Reply> {
    if !shared.users.is_available() {
        return unavailable();
    }
    match caller {
        Caller::Peer(user) => {
            request = unsigned(request);
            request.extensions_mut().insert(user.clone());
        }
        Caller::Remote(_) => request = ending_whole(request),
    }
    request.extensions_mut().insert(trace);
    let page = Page::of(shared, caller, &request);
    if request.method() == Method::OPTIONS
        && let Some(page) = page
    {
        return page.preflight().await;
    }
    let is_of_all_buckets = request.uri().path() == "/";
    let mut response = match gate::admit(&mut request, &shared.domains) {
        Ok(operation) => {
            request.extensions_mut().insert(operation);
            of_operation(shared, operation, request).await
        }
        Err(refusal) => refused(&refusal),
    };
    if let Some(page) = page {
        response.headers_mut().extend(page.headers().await);
    }
    match is_of_all_buckets && !shared.users.look_at_root() {
        true => unavailable(),
        false => unless_root_is_gone(shared, response),
    }
}

/// A directory that is gone looks empty from within.
fn unless_root_is_gone(shared: &Shared, response: Response<Reply>) -> Response<Reply> {
    match response.status() == StatusCode::NOT_FOUND && !shared.users.look_at_root() {
        true => unavailable(),
        false => response,
    }
}

/// A web page behind a request: what it may do, the bucket's CORS rules say.
struct Page {
    store: Option<Arc<dyn Store>>,
    users: Arc<Users>,
    bucket: String,
    method: Method,
    headers: HeaderMap,
}

impl Page {
    /// `None` for a request that no browser has sent for a page.
    fn of(shared: &Shared, caller: &Caller, request: &Request<s3s::Body>) -> Option<Self> {
        if !cors::is_of_page(request.headers()) && request.method() != Method::OPTIONS {
            return None;
        }
        let store = match caller {
            Caller::Peer(user) => Some(user.store.clone()),
            Caller::Remote(_) => None,
        };
        let (bucket, _) = shared.domains.names(request.headers(), request.uri());
        let (method, headers) = (request.method().clone(), request.headers().clone());
        Some(Page { store, users: shared.users.clone(), bucket, method, headers })
    }

    fn store(&self) -> Result<Arc<dyn Store>, Error> {
        self.store.clone().map_or_else(|| self.users.own_store(), Ok)
    }

    /// What the answer to the page's request says beside all else.
    async fn headers(self) -> HeaderMap {
        let rules = move || {
            let store = self.store().ok()?;
            cors::headers_for(&*store, &self.bucket, &self.method, &self.headers)
        };
        tokio::task::spawn_blocking(rules).await.ok().flatten().unwrap_or_default()
    }

    /// The answer to the question that a browser asks ahead of a request.
    async fn preflight(self) -> Response<Reply> {
        let asked =
            tokio::task::spawn_blocking(move || cors::preflight(self.store(), &self.bucket, &self.headers));
        match asked.await {
            Ok(Ok(headers)) => {
                let mut response = Response::new(Reply::Nothing);
                *response.headers_mut() = headers;
                response
            }
            Ok(Err((status, code, message))) => error_document(status, code, &message),
            Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the rules of the bucket were not read"),
        }
    }
}

/// The answer while the directory served is not there; clients try again by themselves.
fn unavailable() -> Response<Reply> {
    let message = "the directory behind this gateway is not there; try again later";
    error_document(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
}

/// Answers a request that passed the gate.
async fn of_operation(
    shared: &Shared,
    operation: &'static gate::Operation,
    request: Request<s3s::Body>,
) -> Response<Reply> {
    let (request, complaint) = match gate::take_document(operation, request) {
        Ok(taken) => taken,
        Err(refusal) => return refused(&refusal),
    };
    let response = of_s3_layer(shared, request).await;
    // The S3 layer takes what is wrong with a document for a failure of ours.
    complaint.as_ref().and_then(|complaint| complaint.get()).map_or(response, refused)
}

fn refused(refusal: &gate::Refusal) -> Response<Reply> {
    error_document(refusal.status, refusal.code, &refusal.message)
}

async fn of_s3_layer(shared: &Shared, mut request: Request<s3s::Body>) -> Response<Reply> {
    let uri = request.uri().clone();
    if let Err(refusal) =
        signature::check_form(request.headers_mut(), &uri, &shared.region, shared.allows_version_2)
    {
        return refused(&refusal);
    }
    match shared.service.call(request).await {
        Ok(response) => with_payload(response),
        Err(error) => {
            tracing::error!(?error, "an answer could not be written as S3 has it");
            let mut response = Response::new(Reply::Nothing);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}

/// Puts an object's content in place of the empty body that goes with it through the S3 layer.
fn with_payload(response: Response<s3s::Body>) -> Response<Reply> {
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
        // The S3 layer sees to that for GET, but not for HEAD.
        parts.status = StatusCode::PARTIAL_CONTENT;
    }
    let reply = match parts.extensions.remove::<Payload>() {
        Some(payload) => payload.take().unwrap_or(Reply::Nothing),
        None => Reply::Document(body),
    };
    Response::from_parts(parts, reply)
}

/// Why a request is refused whose body is over the limit.
pub(crate) const TOO_LARGE: &str = "the request's body is larger than this gateway takes";

/// The answer to such a request.
pub(crate) fn too_large() -> Response<Reply> {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE)
}

/// The answer to what could not even be read as a request.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Response<Reply> {
    let code = status.canonical_reason().unwrap_or_default().replace(' ', "");
    error_document(status, &code, why)
}

/// An error as S3 writes it.
fn error_document(status: StatusCode, code: &str, message: &str) -> Response<Reply> {
    // Its lines are told apart later.
    let message: Vec<_> = message.split('\n').map(escaped).collect();
    let message = message.join("\n");
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code>\
         <Message>{message}</Message></Error>"
    );
    let mut response = Response::new(Reply::Document(document.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Answers requests without content as a gateway does that was asked over HTTP/2 or HTTP/3, from the head on.
pub struct S3Layer {
    shared: Shared,
    caller: Caller,
    held: HeldBytes,
}

impl S3Layer {
    /// For requests of `users`, with the limits of [`GatewayConfig::new`].
    pub fn new(users: Users) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = GatewayConfig::new(nowhere);
        let users = Arc::new(users);
        let publishing = Arc::new(s3::Pace::default());
        let shared = Shared {
            service: s3::service(users.clone(), &config, Domains::none(), publishing.clone()),
            fast_lane: FastLane::new(users.clone(), Domains::none(), publishing),
            domains: Domains::none(),
            users,
            monitor: Arc::new(Monitor::new(None)),
            http3: None,
            tls: None,
            limits: Limits::from(&config),
            region: config.region,
            allows_version_2: false,
        };
        S3Layer { shared, caller: Caller::Remote(nowhere), held: HeldBytes::default() }
    }

    /// The answer, with its content as the store gave it, unread; what goes wrong is part of the answer.
    pub async fn answer(&self, request: Request<()>) -> Response<()> {
        let request = request.map(|()| s3s::Body::empty());
        multiplexed::exchange((&self.shared, &self.held), &self.caller, request, SizeHint::with_exact(0))
            .await
            .map(drop)
    }
}
