//! Plain requests that bypass the S3 layer: GET, HEAD, PUT and DELETE of an object, or GET of a range, signed in a
//! header or in a presigned URL. Nearly all clients send plain requests.
//!
//! The fast path never refuses a request because of its head. The fast path serves a request only if the request is
//! plain and its signature is valid. All other requests go to the S3 layer. The S3 layer also gets plain requests that
//! name a missing object, exceed a limit on the user or would have to wait. The S3 layer answers these requests as if
//! there were no fast path. The content of a PUT is an exception: after some of the content has been read, the S3 layer
//! can no longer take over. The fast path therefore reports errors in the content itself, and uses the messages of the
//! S3 layer.

mod plain;
mod signature;

#[cfg(feature = "fuzzing")]
pub(crate) use plain::is_plain_request;
pub(crate) use signature::SignatureVerifier;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{
    Bucket, Checksum, DeleteOptions, DeleteResult, GetOptions, Key, ObjectInfo, PutResult, Store, VersionId,
};
use fordway_sys::{with_lock_patience, without_scanning, without_waiting};
use fordway_wire::sigv4::AuthorizationHeader;
use http::StatusCode;

use crate::Users;
use crate::access::is_open;
use crate::answer::PreparedBody;
use crate::domains::BucketDomains;
use crate::http1::fast_path::plain::{ObjectMethod, PlainObjectRequest, UncheckedSignature};
use crate::http1::head::{RequestFraming, RequestHead};
use crate::http1::outgoing::{OutgoingResponse, put, put_number, start};
use crate::monitor::{IdentifiedOperation, RequestTrace};
use crate::s3::{DEFAULT_TYPE, ObjectUpload, OperationResult, PublishLatency, describe, is_plain, quoted};
use crate::unsigned::ConnectionPeer;
use crate::users::User;

pub(crate) struct FastPath {
    users: Arc<Users>,
    domains: BucketDomains,
    publishing: Arc<PublishLatency>,
}

/// The result of an attempt to serve a request.
pub(super) enum FastPathOutcome {
    Answered(OutgoingResponse),
    /// A PUT whose content has not been received yet.
    Upload(Box<ObjectUpload>),
}

impl FastPath {
    pub(crate) fn new(users: Arc<Users>, domains: BucketDomains, publishing: Arc<PublishLatency>) -> Self {
        FastPath { users, domains, publishing }
    }

    /// Returns the measured duration of publishing an object. Uploads outside the fast path use the same measurement.
    pub(crate) fn publishing(&self) -> &PublishLatency {
        &self.publishing
    }

    /// Serves a plain request; returns `None` for any other request.
    pub(super) fn take(
        &self,
        head: &RequestHead<'_>,
        caller: &ConnectionPeer,
        trace: &RequestTrace,
    ) -> Option<FastPathOutcome> {
        let plain = PlainObjectRequest::read(head)?;
        trace.parsed(if let RequestFraming::Length(bytes) = head.framing { bytes } else { 0 });
        let user = match caller {
            ConnectionPeer::Remote { .. } => self.signer(head, &plain)?,
            ConnectionPeer::Unix(user) => user.clone(),
        };
        let (bucket, key) = plain.names(&self.domains)?;
        if user.waits_for_server(&bucket) {
            return None;
        }
        let (operation, at) = (plain.method.operation(), Instant::now());
        if !is_open(&user, &bucket, at)? {
            return None;
        }
        // The path names the bucket, unless the host may name it.
        let is_logged = trace.asked.is_some() && !self.domains.is_empty();
        let logged = is_logged.then(|| (bucket.as_str().to_owned(), key.as_str().to_owned()));
        trace.admit(IdentifiedOperation { user: user.clone(), operation, names: logged, at }).ok()?;
        let (store, names) = (&*user.store, (&bucket, &key));
        let outgoing = match &plain.method {
            ObjectMethod::Head => head_of(store, names, &plain),
            ObjectMethod::Get => get(store, names, &plain),
            ObjectMethod::Delete => delete(store, names, &plain),
            ObjectMethod::Put(upload) => {
                let sha256 = upload.sha256.filter(|_| matches!(caller, ConnectionPeer::Remote { .. }));
                let upload = ObjectUpload::plain(store, names, &upload.headers, upload.bytes, sha256)?;
                return Some(FastPathOutcome::Upload(Box::new(upload)));
            }
        };
        outgoing.map(FastPathOutcome::Answered)
    }

    /// Receives the content of an object and returns the response. Errors: the errors that the S3 layer would return.
    pub(super) async fn receive(
        &self,
        upload: ObjectUpload,
        content: s3s::Body,
    ) -> OperationResult<OutgoingResponse> {
        let made = upload.receive(content, &self.publishing, None).await?;
        Ok(stored(&made))
    }

    /// Returns the user who signed a request; `None` if the signature is invalid, or if the served directory was
    /// missing at the last check.
    fn signer(&self, head: &RequestHead<'_>, plain: &PlainObjectRequest<'_>) -> Option<Arc<User>> {
        let find = |access_key: &str| self.users.find(access_key).filter(|_| self.users.is_available());
        match plain.signature.as_ref()? {
            UncheckedSignature::Header(stated) => {
                let authorization = AuthorizationHeader::parse(stated.authorization)?;
                let user = find(authorization.access_key)?;
                let verifier = &user.keys.as_ref()?.verifier;
                verifier.has_signed(head, *stated, &authorization).then_some(user)
            }
            UncheckedSignature::Query(stated) => {
                let user = find(stated.authorization()?.access_key)?;
                let verifier = &user.keys.as_ref()?.verifier;
                verifier.has_presigned(head, stated).then_some(user)
            }
        }
    }
}

fn head_of(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    plain: &PlainObjectRequest<'_>,
) -> Option<OutgoingResponse> {
    let options = GetOptions { conditions: plain.conditions(), ..Default::default() };
    let info = without_waiting(|| store.head(bucket, key, &options))?.ok()?;
    let range = 0..info.size;
    let head = written_head(StatusCode::OK, &info, &range, plain.wants_checksum)?;
    Some(OutgoingResponse::written(StatusCode::OK, head, PreparedBody::Nothing))
}

fn get(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    plain: &PlainObjectRequest<'_>,
) -> Option<OutgoingResponse> {
    let options = GetOptions { range: plain.range, conditions: plain.conditions(), ..Default::default() };
    let object = without_waiting(|| store.get(bucket, key, &options))?.ok()?;
    let is_partial = options.range.is_some();
    let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let wants_checksum = plain.wants_checksum && !is_partial;
    let head = written_head(status, &object.info, &object.range, wants_checksum)?;
    Some(OutgoingResponse::written(status, head, PreparedBody::Content(object.content)))
}

/// Deletes an object. Leaves the request to the S3 layer if another caller holds a lock that the delete needs, or if
/// the delete has to read a large directory. The S3 layer retries until the lock is free, and reads large directories
/// on another thread.
fn delete(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    plain: &PlainObjectRequest<'_>,
) -> Option<OutgoingResponse> {
    let options = DeleteOptions { conditions: plain.conditions(), ..Default::default() };
    let DeleteResult { is_marker, version, .. } =
        without_scanning(|| with_lock_patience(Duration::ZERO, || store.delete(bucket, key, &options)))?
            .ok()?;
    let mut head = start(StatusCode::NO_CONTENT);
    if is_marker {
        put(&mut head, "x-amz-delete-marker", b"true");
    }
    put_version(&mut head, version.as_ref());
    Some(OutgoingResponse::written(StatusCode::NO_CONTENT, head, PreparedBody::Nothing))
}

/// Returns the response to a PUT.
fn stored(made: &PutResult) -> OutgoingResponse {
    let mut head = start(StatusCode::OK);
    put(&mut head, "etag", quoted(&made.etag).as_bytes());
    if let Some(checksum) = &made.checksum {
        put_checksum(&mut head, checksum);
    }
    // AWS's responses to writes have no version ID if versioning is suspended.
    put_version(&mut head, made.version.as_ref().filter(|version| !version.is_null()));
    put_number(&mut head, "content-length", 0);
    OutgoingResponse::written(StatusCode::OK, head, PreparedBody::Nothing)
}

fn put_version(head: &mut Vec<u8>, version: Option<&VersionId>) {
    if let Some(version) = version {
        put(head, "x-amz-version-id", version.as_str().as_bytes());
    }
}

fn put_checksum(head: &mut Vec<u8>, checksum: &Checksum) {
    put(head, checksum.algorithm.header(), checksum.to_base64().as_bytes());
    put(head, "x-amz-checksum-type", checksum.checksum_type().name().as_bytes());
}

/// Returns the response's head without the headers of the connection; `None` if a value cannot be sent in a header.
fn written_head(
    status: StatusCode,
    info: &ObjectInfo,
    range: &Range<u64>,
    with_checksum: bool,
) -> Option<Vec<u8>> {
    let mut head = start(status);
    describe(info, &mut |name, value| is_plain(name, value).then(|| put(&mut head, name, value)))?;
    let content_type = info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
    is_plain("content-type", content_type.as_bytes()).then_some(())?;
    put(&mut head, "content-type", content_type.as_bytes());
    put_number(&mut head, "content-length", range.end - range.start);
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {}-{}/{}", range.start, range.end.checked_sub(1)?, info.size);
        put(&mut head, "content-range", text.as_bytes());
    }
    if let Some(checksum) = info.checksum.as_ref().filter(|_| with_checksum) {
        put_checksum(&mut head, checksum);
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::SocketAddr;
    use std::time::{Duration, SystemTime};

    use fordway_store::{MemoryStore, Objects, PutOptions};
    use fordway_wire::sigv4::{CanonicalRequest, PresignedRequest, SigningKey, UNSIGNED_PAYLOAD};

    use super::*;
    use crate::AccessKeyPair;
    use crate::http1::head::{HEADERS_MAX, parse};
    use crate::limits::ConnectionLimitState;
    use crate::monitor::RequestMonitor;

    const HEAD_BYTES_MAX: usize = 64 * 1024;

    struct Lane {
        lane: FastPath,
        store: Arc<MemoryStore>,
        identity: AccessKeyPair,
    }

    impl Lane {
        fn new() -> Self {
            let store = MemoryStore::default();
            let bucket = Bucket::new("bucket").unwrap();
            store.create_bucket(&bucket).unwrap();
            store.put(&bucket, &Key::new("a b").unwrap(), b"hello", &PutOptions::default()).unwrap();
            let identity = AccessKeyPair::generate().unwrap();
            let domains = BucketDomains::new(&["s3.example".to_owned()]).unwrap();
            let store = Arc::new(store);
            let users = Arc::new(Users::one(identity.clone(), store.clone()));
            Lane { store, lane: FastPath::new(users, domains, Arc::default()), identity }
        }

        /// Returns the head of a request that signs `headers` and adds the unsigned lines `further`.
        fn head(&self, start: &str, headers: &[(&str, &str)], further: &str) -> String {
            self.head_over(UNSIGNED_PAYLOAD, start, headers, further)
        }

        /// Returns the head of a request whose header `x-amz-content-sha256` has the value `payload_hash`. The other
        /// arguments are as for [`Lane::head`].
        fn head_over(
            &self,
            payload_hash: &str,
            start: &str,
            headers: &[(&str, &str)],
            further: &str,
        ) -> String {
            let time = SystemTime::now();
            let date = fordway_wire::date::UtcTime::from(time).amz_date();
            let own = [("host", "h"), ("x-amz-content-sha256", payload_hash), ("x-amz-date", &date)];
            let mut all = [headers, &own].concat();
            all.sort_unstable();
            let (method, path) = start.split_once(' ').unwrap();
            let request = CanonicalRequest { method, path, query: "", headers: &all, payload_hash };
            let key = SigningKey::new(&self.identity.secret_key, time, "us-east-1", "s3");
            let authorization = key.authorization(&self.identity.access_key, time, &request);
            let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("{start} HTTP/1.1\r\n{lines}{further}authorization: {authorization}\r\n\r\n")
        }

        /// Returns the response's status or error code for a request with the body `content`; `None` if the fast path
        /// does not serve the request.
        fn taken(&self, head: &str, content: &'static [u8]) -> Option<Result<u16, String>> {
            let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let (head, _) = parse(head.as_bytes(), &mut room, HEAD_BYTES_MAX).unwrap().unwrap();
            let monitor = RequestMonitor::new(None);
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let caller = ConnectionPeer::Remote { address, tls: None };
            let connection = Arc::new(ConnectionLimitState::new(None, Arc::default()));
            let trace = monitor.start((head.method, head.target), (&caller, &connection), Instant::now());
            let upload = match self.lane.take(&head, &caller, &trace)? {
                FastPathOutcome::Answered(outgoing) => return Some(Ok(outgoing.status.as_u16())),
                FastPathOutcome::Upload(upload) => *upload,
            };
            let runtime = crate::workers::new_runtime().unwrap();
            let body = s3s::Body::from(bytes::Bytes::from_static(content));
            let received = runtime.block_on(self.lane.receive(upload, body));
            let code = |failure| {
                crate::s3::failed(failure).headers()["x-fordway-error-code"].to_str().unwrap().to_owned()
            };
            Some(received.map(|outgoing| outgoing.status.as_u16()).map_err(code))
        }

        fn status(&self, head: &str) -> Option<u16> {
            self.taken(head, b"").map(|taken| taken.expect("its content is valid"))
        }

        fn content(&self, key: &str) -> Option<Vec<u8>> {
            let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new(key).unwrap());
            let mut content = Vec::new();
            self.store.read(&bucket, &key, &GetOptions::default(), &mut content).ok().map(|_| content)
        }
    }

    #[test]
    fn what_clients_send_every_day_is_plain() {
        let lane = Lane::new();
        let sent = |start: &str, headers: &[(&str, &str)], further: &str| {
            lane.status(&lane.head(start, headers, further))
        };
        assert_eq!(sent("GET /bucket/a%20b", &[], ""), Some(200));
        assert_eq!(sent("HEAD /bucket/a%20b", &[], "user-agent: x\r\naccept: */*\r\n"), Some(200));
        assert_eq!(sent("GET /bucket/a%20b", &[("x-amz-checksum-mode", "ENABLED")], ""), Some(200));
        for range in [&[("range", "bytes=1-2")][..], &[]] {
            let further = if range.is_empty() { "range: bytes=1-2\r\n" } else { "" };
            assert_eq!(sent("GET /bucket/a%20b", range, further), Some(206));
        }
    }

    /// Returns the head of a request whose URL was presigned `age` ago and is valid for a minute.
    fn presigned(lane: &Lane, method: &str, age: Duration) -> String {
        let (path, time) = ("/bucket/a%20b", SystemTime::now() - age);
        let request = PresignedRequest { method, host: "h", path, parameters: &[] };
        let key = SigningKey::new(&lane.identity.secret_key, time, "us-east-1", "s3");
        let query = key.presigned_query(&lane.identity.access_key, None, time, 60, &request);
        format!("{method} {path}?{query} HTTP/1.1\r\nhost: h\r\n\r\n")
    }

    #[test]
    fn a_presigned_url_is_plain() {
        let (lane, now) = (Lane::new(), Duration::ZERO);
        assert_eq!(lane.status(&presigned(&lane, "GET", now)), Some(200));
        assert_eq!(lane.status(&presigned(&lane, "HEAD", now)), Some(200));
        let ranged = presigned(&lane, "GET", now).replacen("\r\n\r\n", "\r\nrange: bytes=1-2\r\n\r\n", 1);
        assert_eq!(lane.status(&ranged), Some(206));
    }

    #[test]
    fn a_presigned_url_is_left_to_the_common_way_where_anything_is_wrong() {
        let (lane, now) = (Lane::new(), Duration::ZERO);
        assert_eq!(lane.status(&presigned(&lane, "GET", Duration::from_secs(61))), None, "it has expired");
        assert_eq!(lane.status(&presigned(&lane, "PUT", now)), None);
        let good = presigned(&lane, "GET", now);
        for (from, to) in [
            ("GET", "HEAD"),
            ("a%20b", "a%20c"),
            ("host: h", "host: g"),
            ("Expires=60", "Expires=61"),
            ("Expires=60", "Expires=604801"),
            ("us-east-1", "us-east-2"),
            ("%2F", "%2f"),
            ("%2F", "/"),
            ("SHA256&", "SHA512&"),
            ("Signature=", "Signature=0"),
            ("&X-Amz-Date", "&X-Amz-Expires=60&X-Amz-Date"),
            ("&X-Amz-Date", "&versionId=1&X-Amz-Date"),
            ("&X-Amz-Date", "&response-expires=x&X-Amz-Date"),
            ("host: h", "host: h\r\nx-amz-checksum-mode: ENABLED"),
            ("host: h", "host: h\r\nx-amz-date: 20260101T000000Z"),
        ] {
            assert!(good.contains(from), "{from}");
            assert_eq!(lane.status(&good.replacen(from, to, 1)), None, "{from} -> {to}");
        }
    }

    /// The SHA-256 of "hello".
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    #[test]
    fn a_put_is_plain_with_what_clients_say_of_objects() {
        let lane = Lane::new();
        let put = |hash: &str, headers: &[(&str, &str)]| {
            let head = lane.head_over(
                hash,
                "PUT /bucket/new",
                headers,
                "content-length: 5\r\nexpect: 100-continue\r\n",
            );
            lane.taken(&head, b"hello")
        };
        assert_eq!(put(UNSIGNED_PAYLOAD, &[]), Some(Ok(200)));
        assert_eq!(put(HELLO, &[("content-type", "text/plain"), ("x-amz-meta-a", "1")]), Some(Ok(200)));
        assert_eq!(lane.content("new").as_deref(), Some(&b"hello"[..]));
        assert_eq!(put(HELLO, &[("x-amz-checksum-crc32", "NhCmhg==")]), Some(Ok(200)));
        assert_eq!(put(HELLO, &[("content-md5", "XUFAKrxLKna5cZ2REBfFkg==")]), Some(Ok(200)));
        assert_eq!(lane.taken(&presigned(&lane, "PUT", Duration::ZERO), b""), None, "without a length");
        assert_eq!(put(HELLO, &[("if-none-match", "*")]), Some(Err("PreconditionFailed".into())));
        // If the fast path detects an error before it has read the content, it leaves the request to the S3 layer.
        for headers in [
            &[("x-amz-checksum-crc32", "x")][..],
            &[("content-md5", "x")],
            &[("x-amz-tagging", "a=b")],
            &[("x-amz-copy-source", "bucket/a")],
            &[("range", "bytes=0-1")],
            &[("x-amz-meta-a", "1"), ("x-amz-meta-a", "2")],
        ] {
            assert_eq!(put(HELLO, headers), None, "{headers:?}");
        }
        for hash in ["STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x", &HELLO.to_uppercase()] {
            assert_eq!(put(hash, &[]), None, "{hash}");
        }
    }

    #[test]
    fn content_that_is_not_what_was_said_is_not_put() {
        let lane = Lane::new();
        let put = |headers: &[(&str, &str)], content| {
            lane.taken(&lane.head_over(HELLO, "PUT /bucket/new", headers, "content-length: 5\r\n"), content)
        };
        assert_eq!(put(&[], b"hallo"), Some(Err("XAmzContentSHA256Mismatch".into())));
        assert_eq!(put(&[], b"hell"), Some(Err("XAmzContentSHA256Mismatch".into())));
        assert_eq!(put(&[("x-amz-checksum-crc32", "AAAAAA==")], b"hello"), Some(Err("BadDigest".into())));
        assert_eq!(
            put(&[("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")], b"hello"),
            Some(Err("BadDigest".into()))
        );
        let unsigned = lane.head("PUT /bucket/new", &[], "content-length: 5\r\n");
        assert_eq!(lane.taken(&unsigned, b"hell"), Some(Err("IncompleteBody".into())));
        assert_eq!(lane.content("new"), None);
    }

    #[test]
    fn a_delete_is_plain() {
        let lane = Lane::new();
        assert_eq!(lane.status(&lane.head("DELETE /bucket/a%20b", &[("if-match", "\"x\"")], "")), None);
        assert!(lane.content("a b").is_some());
        assert_eq!(lane.status(&lane.head("DELETE /bucket/a%20b", &[], "")), Some(204));
        assert!(lane.content("a b").is_none());
        assert_eq!(lane.status(&presigned(&lane, "DELETE", Duration::ZERO)), Some(204));
        assert_eq!(lane.status(&lane.head("DELETE /bucket/a%20b", &[("range", "bytes=0-1")], "")), None);
        assert_eq!(lane.status(&lane.head("DELETE /bucket/a%20b", &[], "x-amz-mfa: 1\r\n")), None);
    }

    #[test]
    fn all_else_is_left_to_the_common_way() {
        let lane = Lane::new();
        let sent = |start: &str, headers: &[(&str, &str)], further: &str| {
            lane.status(&lane.head(start, headers, further))
        };
        for start in [
            "GET /bucket/none",
            "GET /none/a%20b",
            "PUT /bucket/a%20b",
            "POST /bucket/a%20b",
            "DELETE /none/a%20b",
            "DELETE /bucket",
            "GET /bucket/",
            "GET /",
        ] {
            assert_eq!(sent(start, &[], ""), None, "{start}");
        }
        for further in [
            "x-amz-checksum-mode: ENABLED\r\n",
            "x-other: 1\r\n",
            "if-match: *\r\n",
            "if-match: \"x\"\r\n",
            "content-length: 1\r\n",
        ] {
            assert_eq!(sent("GET /bucket/a%20b", &[], further), None, "{further}");
        }
        for range in ["bytes=9-", "lines=1-2"] {
            assert_eq!(sent("GET /bucket/a%20b", &[("range", range)], ""), None, "{range}");
        }
        let good = lane.head("GET /bucket/a%20b", &[], "");
        assert_eq!(lane.status(&good), Some(200));
        for (from, to) in [
            ("GET", "HEAD"),
            ("host: h", "host: g"),
            ("us-east-1", "eu-west-1"),
            ("Signature=", "Signature=0"),
        ] {
            assert_eq!(lane.status(&good.replacen(from, to, 1)), None, "{from}");
        }
    }
}
