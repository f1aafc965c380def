//! Reads that need no S3 layer: signed GET and HEAD of an object, or of a range of it, as nearly all
//! clients send them.
//!
//! Nothing is ever refused here. A request is answered if its signature is right and everything about it is plain; whatever else it
//! may be, a bad signature, a missing object and one that would have to be waited for included, goes the common way, which
//! answers as if this one were not there.

mod plain;
mod signature;
mod written;

use std::sync::Arc;
use std::time::Instant;

use fordway_store::{Bucket, GetOptions, Key, Store};
use fordway_sys::without_waiting;
use fordway_wire::sigv4::Authorization;
use http::StatusCode;

use super::head::Head;
use super::outgoing::Outgoing;
use crate::Users;
use crate::answer::Reply;
use crate::caller::Caller;
use crate::domains::Domains;
use crate::monitor::{Operation, Signed, Trace};
use crate::users::User;
use plain::{Plain, Signature};
pub(crate) use signature::Verifier;

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
            Caller::Remote(_) => self.signer(head, plain.signature?)?,
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
    fn signer(&self, head: &Head<'_>, signature: Signature<'_>) -> Option<Arc<User>> {
        let authorization = Authorization::parse(signature.authorization)?;
        let user = self.users.find(authorization.access_key).filter(|_| self.users.is_available())?;
        let verifier = &user.keys.as_ref()?.verifier;
        verifier.has_signed(head, signature, &authorization).then_some(user)
    }
}

fn head_of(store: &dyn Store, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
    let options = GetOptions { conditions: plain.conditions(), ..Default::default() };
    let info = without_waiting(|| store.head(bucket, key, &options))?.ok()?;
    let range = 0..info.size;
    let head = written::head(StatusCode::OK, &info, &range, plain.wants_checksum)?;
    Some(Outgoing::written(StatusCode::OK, head, Reply::Nothing))
}

fn get(store: &dyn Store, bucket: &Bucket, key: &Key, plain: &Plain<'_>) -> Option<Outgoing> {
    let options = GetOptions { range: plain.range, conditions: plain.conditions(), ..Default::default() };
    let object = without_waiting(|| store.get(bucket, key, &options))?.ok()?;
    let is_partial = options.range.is_some();
    let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let wants_checksum = plain.wants_checksum && !is_partial;
    let head = written::head(status, &object.info, &object.range, wants_checksum)?;
    Some(Outgoing::written(status, head, Reply::Content(object.content)))
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::SocketAddr;
    use std::time::SystemTime;

    use fordway_store::{MemoryStore, Objects, PutOptions};
    use fordway_wire::sigv4::{SignedRequest, SigningKey, UNSIGNED_PAYLOAD};

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
            let date = fordway_wire::date::Utc::from(time).amz_date();
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
}
