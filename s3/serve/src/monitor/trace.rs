//! Data about one request, collected while the request is served.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use fordway_wire::date::format_iso8601;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::limits::{ConnectionLimitState, LimitReason, LimitRefusal, UserRequestSlot, UserResourceUsage};
use crate::monitor::{OperationCode, RequestId, ResponseOutcome};
use crate::unsigned::ConnectionPeer;
use crate::users::{User, UserKind};

/// A request in progress.
pub(crate) struct RequestTrace {
    pub(crate) id: RequestId,
    pub(super) start: Instant,
    pub(crate) asked: Option<LoggedRequest>,
    /// The connection on which the request arrived.
    connection: Arc<ConnectionLimitState>,
    /// The time from `start` until the head was parsed, in nanoseconds; 0 if the head has not been parsed yet.
    parsed_ns: AtomicU64,
    admitted: OnceLock<AdmittedOperation>,
    bytes_in: AtomicU64,
    /// The [`LimitReason`] for which the request was refused or ended, or 0.
    limited: AtomicU8,
}

/// Data about a request that only the access log needs. This data is kept only if there is an access log.
pub(crate) struct LoggedRequest {
    method: String,
    /// The path from the URL without its query, which may contain a signature.
    path: String,
    remote: ConnectionPeer,
}

impl LoggedRequest {
    pub(super) fn new(method: &str, target: &str, caller: &ConnectionPeer) -> Self {
        let path = target.split('?').next().unwrap_or_default();
        LoggedRequest { method: method.to_owned(), path: path.to_owned(), remote: caller.clone() }
    }
}

/// Data that is known after the request's user has been identified: by a verified signature, by the kernel, or as
/// anonymous.
pub(crate) struct IdentifiedOperation {
    pub(crate) user: Arc<User>,
    pub(crate) operation: OperationCode,
    /// The bucket and the key, if they differ from the names in the path.
    pub(crate) names: Option<(String, String)>,
    pub(crate) at: Instant,
}

/// An operation that was checked against the limits on its user. The request of an admitted operation counts as in
/// flight until this value is dropped.
struct AdmittedOperation {
    operation: IdentifiedOperation,
    slot: Result<UserRequestSlot, LimitRefusal>,
}

impl RequestTrace {
    pub(super) fn new(
        id: RequestId,
        start: Instant,
        asked: Option<LoggedRequest>,
        connection: Arc<ConnectionLimitState>,
    ) -> Self {
        let (parsed_ns, bytes_in, limited) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU8::new(0));
        let admitted = OnceLock::new();
        RequestTrace { id, start, asked, connection, parsed_ns, admitted, bytes_in, limited }
    }

    /// Records that the head was parsed, and that the body has `bytes_in` bytes. If the length of the body is not
    /// known, `bytes_in` is 0.
    pub(crate) fn parsed(&self, bytes_in: u64) {
        self.bytes_in.store(bytes_in, Ordering::Relaxed);
        if self.parsed_ns.load(Ordering::Relaxed) == 0 {
            let took = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.parsed_ns.store(took.max(1), Ordering::Relaxed);
        }
    }

    /// Records that the user was identified, and counts the request for its user until this trace is dropped. Later
    /// calls return the result of the first call. Errors: the user has reached a limit.
    pub(crate) fn admit(&self, identified: IdentifiedOperation) -> Result<(), LimitRefusal> {
        let admitted = self.admitted.get_or_init(|| {
            let slot = self.begin(&identified.user);
            if let Err(refusal) = &slot {
                self.limited(refusal.reason);
            }
            AdmittedOperation { operation: identified, slot }
        });
        admitted.slot.as_ref().map(drop).map_err(|refusal| *refusal)
    }

    /// Counts the connection and the request for `user`. A connection counts for its user only after a valid signature.
    /// Anonymous connections count for their address, and the node gateway itself counts the connections of peers.
    fn begin(&self, user: &User) -> Result<UserRequestSlot, LimitRefusal> {
        if user.kind == UserKind::Keys {
            self.connection.connect(&user.account)?;
        }
        user.account.begin()
    }

    /// Records that a limit refused or ended the request.
    pub(crate) fn limited(&self, reason: LimitReason) {
        self.limited.store(reason as u8, Ordering::Relaxed);
    }

    /// Returns the [`UserResourceUsage`] of the user who sent the request, if the user is known.
    pub(crate) fn account(&self) -> Option<&Arc<UserResourceUsage>> {
        self.identified().map(|identified| &identified.user.account)
    }

    /// Returns whether a signature was verified, or the kernel identified the user. The user of an anonymous request is
    /// known, but not authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.identified().is_some_and(|identified| identified.user.kind != UserKind::Anonymous)
    }

    /// Returns whether the rate of the request's user is limited.
    pub(crate) fn is_paced(&self) -> bool {
        self.account().is_some_and(|account| account.is_paced())
    }

    fn identified(&self) -> Option<&IdentifiedOperation> {
        self.admitted.get().map(|admitted| &admitted.operation)
    }

    pub(super) fn operation(&self) -> OperationCode {
        self.identified().map_or(OperationCode::UNKNOWN, |identified| identified.operation)
    }

    pub(super) fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }

    /// Returns the value of `Server-Timing` (W3C), with durations in milliseconds: the time for reading the head, the
    /// time for checking the signature, and the time from the end of this check until `ready`. For an upload, the last
    /// duration includes the wait for the body. The time for sending the response is not known yet; the access log
    /// contains this time.
    pub(crate) fn server_timing(&self, ready: Instant) -> String {
        let parsed = match self.parsed_ns.load(Ordering::Relaxed) {
            0 => ready,
            ns => self.start + Duration::from_nanos(ns),
        };
        let identified = self.identified().map_or(ready, |identified| identified.at);
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        format!(
            "parse;dur={:.3}, auth;dur={:.3}, store;dur={:.3}",
            ms(self.start, parsed),
            ms(parsed, identified),
            ms(identified, ready)
        )
    }
}

/// A line of the access log.
#[derive(Serialize)]
pub(super) struct AccessLogLine<'t> {
    time: String,
    request_id: &'t str,
    remote: &'t ConnectionPeer,
    user: Option<Cow<'t, str>>,
    operation: &'static str,
    method: &'t str,
    bucket: &'t str,
    key: String,
    status: u16,
    bytes_in: u64,
    bytes_out: Option<u64>,
    /// The time from the start of the request's processing to the end of the response, in microseconds.
    us: u128,
    /// The part of `us` during which the response was sent.
    send_us: u128,
    /// Whether the client received the whole response.
    complete: bool,
    /// The limit that refused or ended the request.
    limit: Option<&'static str>,
}

pub(super) fn line<'t>(
    trace: &'t RequestTrace,
    asked: &'t LoggedRequest,
    ending: &ResponseOutcome,
    end: Instant,
) -> AccessLogLine<'t> {
    let identified = trace.identified();
    let (bucket, key) = match identified.and_then(|identified| identified.names.as_ref()) {
        Some((bucket, key)) => (bucket.as_str(), key.clone()),
        None => {
            let path = asked.path.strip_prefix('/').unwrap_or(&asked.path);
            let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
            (bucket, percent_decode_str(key).decode_utf8_lossy().into_owned())
        }
    };
    AccessLogLine {
        time: format_iso8601(SystemTime::now()),
        request_id: trace.id.as_str(),
        remote: &asked.remote,
        user: identified.map(|identified| identified.user.label()),
        operation: trace.operation().name(),
        method: &asked.method,
        bucket,
        key,
        status: ending.status.as_u16(),
        bytes_in: trace.bytes_in(),
        bytes_out: ending.body_bytes,
        us: end.duration_since(trace.start).as_micros(),
        send_us: end.saturating_duration_since(ending.ready).as_micros(),
        complete: ending.is_complete,
        limit: LimitReason::from_number(trace.limited.load(Ordering::Relaxed)).map(LimitReason::name),
    }
}
