//! Reads that need no S3 layer: GET and HEAD of an object, or of a range of it, signed in a header or in a presigned URL,
//! as nearly all clients send them.
//!
//! Nothing is ever refused here. A request is answered if its signature is right and everything about it is plain; whatever else it
//! may be, a bad signature, a missing object and one that would have to be waited for included, goes the common way, which
//! answers as if this one were not there.

mod signature;

pub(crate) use signature::Verifier;
use signature::{Presigned, decoded};

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fordway_store::{Bucket, ByteRange, Conditions, ETag, GetOptions, Key, ObjectInfo, Store};
use fordway_sys::without_waiting;
use fordway_wire::range::parse_range;
use fordway_wire::sigv4::AuthorizationHeader;
use http::StatusCode;
use percent_encoding::percent_decode_str;

use crate::Users;
use crate::answer::Reply;
use crate::domains::Domains;
use crate::http1::head::{Framing, Head};
use crate::http1::outgoing::{Outgoing, put, put_number, start};
use crate::monitor::{Operation, Signed, Trace};
use crate::s3::{DEFAULT_TYPE, describe, is_plain};
use crate::unsigned::Caller;
use crate::users::User;

pub(crate) struct FastLane {
    users: Arc<Users>,
    domains: Domains,
}

impl FastLane {
    pub(crate) fn new(users: Arc<Users>, domains: Domains) -> Self {
        FastLane { users, domains }
    }

    /// The answer to a plain read; `None` for all else.
    pub(super) fn answer(&self, head: &Head<'_>, caller: &Caller, trace: &Trace) -> Option<Outgoing> {
        let plain = Plain::read(head)?;
        trace.parsed(0);
        let user = match caller {
            Caller::Remote(_) => self.signer(head, plain.signature.as_ref()?)?,
            Caller::Peer(user) => user.clone(),
        };
        let (bucket, key) = plain.names(&self.domains)?;
        let operation = if plain.is_head { Operation::HEAD_OBJECT } else { Operation::GET_OBJECT };
        trace.signed(Signed { user: user.clone(), operation, names: None, at: Instant::now() });
        let store = &*user.store;
        match plain.is_head {
            true => head_of(store, &bucket, &key, &plain),
            false => get(store, &bucket, &key, &plain),
        }
    }
}

impl FastLane {
    /// The signer of a request; `None` unless all is well.
    fn signer(&self, head: &Head<'_>, signature: &Signature<'_>) -> Option<Arc<User>> {
        let find = |access_key: &str| self.users.find(access_key).filter(|_| self.users.is_available());
        match signature {
            Signature::Header(stated) => {
                let authorization = AuthorizationHeader::parse(stated.authorization)?;
                let user = find(authorization.access_key)?;
                let verifier = &user.keys.as_ref()?.verifier;
                verifier.has_signed(head, *stated, &authorization).then_some(user)
            }
            Signature::Query(stated) => {
                let user = find(stated.authorization()?.access_key)?;
                let verifier = &user.keys.as_ref()?.verifier;
                verifier.has_presigned(head, stated).then_some(user)
            }
        }
    }
}

fn head_of(store: &dyn Store, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
    let options = GetOptions { conditions: plain.conditions(), ..Default::default() };
    let info = without_waiting(|| store.head(bucket, key, &options))?.ok()?;
    let range = 0..info.size;
    let head = written_head(StatusCode::OK, &info, &range, plain.wants_checksum)?;
    Some(Outgoing::written(StatusCode::OK, head, Reply::Nothing))
}

fn get(store: &dyn Store, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
    let options = GetOptions { range: plain.range, conditions: plain.conditions(), ..Default::default() };
    let object = without_waiting(|| store.get(bucket, key, &options))?.ok()?;
    let is_partial = options.range.is_some();
    let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let wants_checksum = plain.wants_checksum && !is_partial;
    let head = written_head(status, &object.info, &object.range, wants_checksum)?;
    Some(Outgoing::written(status, head, Reply::Content(object.content)))
}

/// Headers that change nothing about the answer.
const WITHOUT_EFFECT: &[&str] = &[
    "accept",
    "accept-encoding",
    "accept-language",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "connection",
    "content-length",
    "user-agent",
    "x-amz-user-agent",
    "x-fordway-timing",
];

/// A read of an object with nothing unusual about it; the signature is still to be checked.
struct Plain<'h> {
    is_head: bool,
    host: &'h str,
    path: &'h str,
    /// `None` for the whole object.
    range: Option<ByteRange>,
    if_match: Option<&'h str>,
    wants_checksum: bool,
    /// `None` where a part of it is missing.
    signature: Option<Signature<'h>>,
}

/// What says by whom a request is signed, and over what; still to be checked.
enum Signature<'h> {
    Header(Stated<'h>),
    /// A presigned URL.
    Query(Presigned<'h>),
}

/// What the headers of a signed request say.
#[derive(Clone, Copy)]
struct Stated<'h> {
    authorization: &'h str,
    amz_date: &'h str,
    payload_hash: &'h str,
}

impl<'h> Plain<'h> {
    /// `None` for what is not plain.
    fn read(head: &Head<'h>) -> Option<Self> {
        let is_head = match head.method {
            "GET" => false,
            "HEAD" => true,
            _ => return None,
        };
        let (path, query) = match head.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (head.target, None),
        };
        if head.framing != Framing::Length(0) || !is_canonical(path) {
            return None;
        }
        let [mut host, mut authorization, mut amz_date, mut payload_hash] = [None; 4];
        let [mut range, mut checksum, mut if_match] = [None; 3];
        for header in head.headers {
            let field = match header.name {
                name if is(name, "host") => &mut host,
                name if is(name, "authorization") => &mut authorization,
                name if is(name, "x-amz-date") => &mut amz_date,
                name if is(name, "x-amz-content-sha256") => &mut payload_hash,
                name if is(name, "range") => &mut range,
                name if is(name, "if-match") => &mut if_match,
                name if is(name, "x-amz-checksum-mode") => &mut checksum,
                name if WITHOUT_EFFECT.iter().any(|known| is(name, known)) => continue,
                _ => return None,
            };
            let value = std::str::from_utf8(header.value).ok()?;
            if field.replace(value).is_some() {
                return None;
            }
        }
        let signature = match query {
            None => authorization.zip(amz_date).zip(payload_hash).map(
                |((authorization, amz_date), payload_hash)| {
                    Signature::Header(Stated { authorization, amz_date, payload_hash })
                },
            ),
            // A request that is signed twice is left to the common way.
            Some(_) if authorization.or(amz_date).or(payload_hash).is_some() => return None,
            Some(query) => Some(Signature::Query(Presigned::read(path, query)?)),
        };
        let plain = Plain {
            is_head,
            host: host?,
            path,
            range: range.map_or(Some(None), |range| parse_range(range).map(Some))?,
            if_match: if_match.map_or(Some(None), |tag| unquoted(tag).map(Some))?,
            wants_checksum: checksum == Some("ENABLED"),
            signature,
        };
        let is_usual = checksum.is_none() || plain.wants_checksum;
        (is_usual && !(is_head && range.is_some())).then_some(plain)
    }

    /// What must hold of the object.
    fn conditions(&self) -> Conditions {
        self.if_match.map_or_else(Conditions::default, |tag| Conditions::only_if(ETag::new(tag)))
    }

    /// The object; `None` where the names are not an object's.
    fn names(&self, domains: &Domains) -> Option<(Bucket, Key)> {
        let path = self.path.strip_prefix('/')?;
        let (bucket, key) = match domains.bucket_of(self.host) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/')?,
        };
        let key = percent_decode_str(key).decode_utf8().ok()?;
        Some((Bucket::new(bucket).ok()?, Key::new(key).ok().filter(|key| !key.as_str().is_empty())?))
    }
}

/// The one tag that a condition names, without its quotes.
fn unquoted(tag: &str) -> Option<&str> {
    let tag = tag.strip_prefix('"')?.strip_suffix('"')?;
    tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-').then_some(tag)
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// Whether a target is a path, encoded exactly as signatures want it: then there is one spelling only,
/// and nothing to argue about.
fn is_canonical(target: &str) -> bool {
    target.starts_with('/')
        && target.split('/').all(|part| decoded(part).is_some_and(|text| !text.contains('/')))
}

/// All but the headers of the connection; `None` where a value cannot stand in a header.
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
        put(&mut head, checksum.algorithm.header(), checksum.to_base64().as_bytes());
        put(&mut head, "x-amz-checksum-type", checksum.checksum_type().name().as_bytes());
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::SocketAddr;
    use std::time::{Duration, SystemTime};

    use fordway_store::{MemoryStore, Objects, PutOptions};
    use fordway_wire::sigv4::{PresignedRequest, SignedRequest, SigningKey, UNSIGNED_PAYLOAD};

    use super::*;
    use crate::Identity;
    use crate::http1::head::{HEADERS_MAX, parse};
    use crate::monitor::Monitor;

    const HEAD_BYTES_MAX: usize = 64 * 1024;

    struct Lane {
        lane: FastLane,
        identity: Identity,
    }

    impl Lane {
        fn new() -> Self {
            let store = MemoryStore::default();
            let bucket = Bucket::new("bucket").unwrap();
            store.create_bucket(&bucket).unwrap();
            store.put(&bucket, &Key::new("a b").unwrap(), b"hello", &PutOptions::default()).unwrap();
            let identity = Identity::generate().unwrap();
            let domains = Domains::new(&["s3.example".to_owned()]).unwrap();
            let users = Arc::new(Users::one(identity.clone(), Arc::new(store)));
            Lane { lane: FastLane::new(users, domains), identity }
        }

        /// A request with these headers signed, and further text in its head that is not.
        fn head(&self, start: &str, headers: &[(&str, &str)], further: &str) -> String {
            let time = SystemTime::now();
            let date = fordway_wire::date::UtcTime::from(time).amz_date();
            let own = [("host", "h"), ("x-amz-content-sha256", UNSIGNED_PAYLOAD), ("x-amz-date", &date)];
            let mut all = [headers, &own].concat();
            all.sort_unstable();
            let (method, path) = start.split_once(' ').unwrap();
            let request =
                SignedRequest { method, path, query: "", headers: &all, payload_hash: UNSIGNED_PAYLOAD };
            let key = SigningKey::new(&self.identity.secret_key, time, "us-east-1", "s3");
            let authorization = key.authorization(&self.identity.access_key, time, &request);
            let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("{start} HTTP/1.1\r\n{lines}{further}authorization: {authorization}\r\n\r\n")
        }

        fn status(&self, head: &str) -> Option<u16> {
            let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let (head, _) = parse(head.as_bytes(), &mut room, HEAD_BYTES_MAX).unwrap().unwrap();
            let monitor = Monitor::new(None);
            let caller = Caller::Remote(SocketAddr::from(([127, 0, 0, 1], 1)));
            let trace = monitor.start(head.method, head.target, &caller, Instant::now());
            self.lane.answer(&head, &caller, &trace).map(|outgoing| outgoing.status.as_u16())
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

    /// The head of a presigned request, made `age` ago for a minute.
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

    #[test]
    fn all_else_is_left_to_the_common_way() {
        let lane = Lane::new();
        let sent = |start: &str, headers: &[(&str, &str)], further: &str| {
            lane.status(&lane.head(start, headers, further))
        };
        for start in ["GET /bucket/none", "GET /none/a%20b", "PUT /bucket/a%20b", "GET /bucket/", "GET /"] {
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

    #[test]
    fn one_spelling_of_a_path_is_canonical() {
        for good in ["/b/k", "/b/a%20b", "/b/%C3%A4~._-", "/b/a//b", "/b/%25"] {
            assert!(is_canonical(good), "{good}");
        }
        for bad in [
            "",
            "b/k",
            "/b/k?x",
            "/b/k?",
            "/b/a+b",
            "/b/%2F",
            "/b/%41",
            "/b/%2f",
            "/b/%c3",
            "/b/%2",
            "/b/a b",
            "http://h/b/k",
            "*",
            "/b/(1)",
            "/b/%7E",
        ] {
            assert!(!is_canonical(bad), "{bad}");
        }
    }
}
